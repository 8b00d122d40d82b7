"""A fact about integers, and the count of what was asked of whom in one proof."""

from __future__ import annotations

import time
from dataclasses import dataclass

from superopt.verifier.poly import Poly, made_so_far


class Guard:
    """p >= 0 ("ge"), p == 0 ("eq") or p != 0 ("ne"); equal ones are identical."""

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
    """Empty the tables."""
    for known in _GUARDS.values():
        known.clear()


def ge(p: Poly) -> Guard:
    return Guard("ge", p)


def eq(p: Poly) -> Guard:
    """p == 0, in one form: the first coefficient is positive."""
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
    """How much was asked of whom, until when, and how much work may be done."""

    quick: int = 0
    ticks: int = 0
    queries: int = 0
    matched: int = 0  # sums, one to one
    solver_seconds: float = 0.0
    deadline: float = float("inf")
    until: float = float("inf")  # on the clock
    look: float = 0.0  # until when it need not be looked at
    begun: int = 0
    attempts: int = 0
    most: float = float("inf")

    def work(self) -> int:
        """Work so far: polynomials that were made, and attempts at instances."""
        return made_so_far() - self.begun + AN_ATTEMPT * self.attempts


TICKS = 512  # until the clock is looked at
AN_ATTEMPT = 5  # how much work it is, in polynomials
TALLY = Tally()


def in_time() -> None:
    """Raises OutOfTime after the deadline, or when too much work was done."""
    if TALLY.work() > TALLY.most:
        raise OutOfTime
    now = time.monotonic()
    if now < TALLY.look:
        return
    left = min(TALLY.deadline - time.thread_time(), TALLY.until - now)
    if left < 0:
        raise OutOfTime
    TALLY.look = now + left  # own time is slow to ask for, and never runs ahead of the clock


def on_time() -> None:
    """Raises OutOfTime after the deadline, whatever work was done."""
    if time.thread_time() > TALLY.deadline or time.monotonic() > TALLY.until:
        raise OutOfTime


def tick() -> None:
    """Looks at the clock now and then: for what is done often, and may go on for long."""
    TALLY.ticks += 1
    if not TALLY.ticks % TICKS:
        on_time()


class OutOfTime(Exception):
    """The proof's time is over."""


def start(seconds: float, work: float = float("inf"), until: float = float("inf")) -> Tally:
    """Begin to count anew; OutOfTime is raised after `seconds` of this thread's own time, or so
    much work, or when `time.monotonic()` is `until`."""
    global TALLY
    deadline = time.thread_time() + seconds
    TALLY = Tally(deadline=deadline, until=until, begun=made_so_far(), most=work)
    return TALLY
