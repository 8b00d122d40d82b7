"""Guards (facts about integers), and the work counters and deadlines of a proof."""

from __future__ import annotations

import time
from dataclasses import dataclass

from superopt.verifier.poly import Poly, made_so_far


class Guard:
    """p >= 0 ("ge"), p == 0 ("eq") or p != 0 ("ne"); equal guards are identical."""

    __slots__ = ("kind", "p")
    kind: str
    p: Poly

    def __new__(cls, kind: str, p: Poly) -> Guard:
        known = _GUARDS[kind]
        found = known.get(p)
        if found is None:
            found = known[p] = super().__new__(cls)
            found.kind, found.p = kind, p
        return found

    def __hash__(self) -> int:
        return self.p.number

    def __str__(self) -> str:
        sign = {"ge": ">=", "eq": "==", "ne": "!="}[self.kind]
        return f"{self.p} {sign} 0"

    __repr__ = __str__

    def __lt__(self, other: Guard) -> bool:
        return (self.kind, self.p.number) < (other.kind, other.p.number)


_GUARDS: dict[str, dict[Poly, Guard]] = {"ge": {}, "eq": {}, "ne": {}}


def forget() -> None:
    """Clear the tables."""
    for known in _GUARDS.values():
        known.clear()


def ge(p: Poly) -> Guard:
    return Guard("ge", p)


def eq(p: Poly) -> Guard:
    """Return p == 0 with a positive leading coefficient."""
    return Guard("eq", -p if p.terms and p.terms[-1][1] < 0 else p)


def negated(g: Guard) -> Guard:
    match g.kind:
        case "ge":
            return ge(-g.p - 1)
        case "eq":
            return Guard("ne", g.p)
        case _:
            return Guard("eq", g.p)


@dataclass(slots=True)
class Tally:
    """Counters, deadlines and work limit of one proof."""

    quick: int = 0
    ticks: int = 0
    queries: int = 0
    matched: int = 0  # sums matched by a bijection
    solver_seconds: float = 0.0
    deadline: float = float("inf")
    until: float = float("inf")  # of time.monotonic()
    look: float = 0.0  # no clock check before
    begun: int = 0
    attempts: int = 0
    most: float = float("inf")

    def work(self) -> int:
        """Return the work so far: polynomials created, and attempts at instances."""
        return made_so_far() - self.begun + AN_ATTEMPT * self.attempts


TICKS = 512  # ticks between two looks at the clock
AN_ATTEMPT = 5  # in polynomials
TALLY = Tally()


def in_time() -> None:
    """Raise OutOfTime after the deadline, or if the work exceeds its limit."""
    if TALLY.work() > TALLY.most:
        raise OutOfTime
    now = time.monotonic()
    if now < TALLY.look:
        return
    left = min(TALLY.deadline - time.thread_time(), TALLY.until - now)
    if left < 0:
        raise OutOfTime
    TALLY.look = now + left  # CPU time is slow to read and never runs ahead of the clock


def on_time() -> None:
    """Raise OutOfTime after the deadline, whatever the work."""
    if time.thread_time() > TALLY.deadline or time.monotonic() > TALLY.until:
        raise OutOfTime


def tick() -> None:
    """Check the clock now and then, in loops that may run long."""
    TALLY.ticks += 1
    if not TALLY.ticks % TICKS:
        on_time()


class OutOfTime(Exception):
    """The time or work of the proof is used up."""


def start(seconds: float, work: float = float("inf"), until: float = float("inf")) -> Tally:
    """Start new counters. OutOfTime is raised after `seconds` of this thread's CPU time, after
    `max_work`, or when `time.monotonic()` reaches `wall_deadline`."""
    global TALLY
    deadline = time.thread_time() + seconds
    TALLY = Tally(deadline=deadline, until=until, begun=made_so_far(), most=work)
    return TALLY
