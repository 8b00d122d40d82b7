"""Guards (facts about integers), and the work counters and deadlines of a proof."""

from __future__ import annotations

import time
from dataclasses import dataclass

from superopt.verifier.poly.polynomial import Poly, created_count


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


def negate(g: Guard) -> Guard:
    match g.kind:
        case "ge":
            return ge(-g.p - 1)
        case "eq":
            return Guard("ne", g.p)
        case _:
            return Guard("eq", g.p)


@dataclass(slots=True)
class ProofBudget:
    """Counters, deadlines and work limit of one proof."""

    quick_checks: int = 0
    ticks: int = 0
    queries: int = 0
    matched_sums: int = 0  # sums matched by a bijection
    solver_seconds: float = 0.0
    cpu_deadline: float = float("inf")
    wall_deadline: float = float("inf")  # of time.monotonic()
    next_clock_check: float = 0.0  # no clock check before
    created_at_start: int = 0
    attempt_units: int = 0
    max_work: float = float("inf")

    def work_done(self) -> int:
        """Return the work so far: polynomials created, and attempts at instances."""
        return created_count() - self.created_at_start + WORK_PER_ATTEMPT * self.attempt_units


TICKS_PER_CLOCK_CHECK = 512  # ticks between two looks at the clock
WORK_PER_ATTEMPT = 5  # in polynomials
BUDGET = ProofBudget()


def check_budget() -> None:
    """Raise OutOfTime after the deadline, or if the work exceeds its limit."""
    if BUDGET.work_done() > BUDGET.max_work:
        raise OutOfTime
    now = time.monotonic()
    if now < BUDGET.next_clock_check:
        return
    left = min(BUDGET.cpu_deadline - time.thread_time(), BUDGET.wall_deadline - now)
    if left < 0:
        raise OutOfTime
    BUDGET.next_clock_check = (
        now + left
    )  # CPU time is slow to read and never runs ahead of the clock


def check_deadline() -> None:
    """Raise OutOfTime after the deadline, whatever the work."""
    if time.thread_time() > BUDGET.cpu_deadline or time.monotonic() > BUDGET.wall_deadline:
        raise OutOfTime


def tick() -> None:
    """Check the clock now and then, in loops that may run long."""
    BUDGET.ticks += 1
    if not BUDGET.ticks % TICKS_PER_CLOCK_CHECK:
        check_deadline()


class OutOfTime(Exception):
    """The time or work of the proof is used up."""


def start_budget(
    seconds: float, max_work: float = float("inf"), wall_deadline: float = float("inf")
) -> ProofBudget:
    """Start new counters. OutOfTime is raised after `seconds` of this thread's CPU time, after
    `max_work`, or when `time.monotonic()` reaches `wall_deadline`."""
    global BUDGET
    deadline = time.thread_time() + seconds
    BUDGET = ProofBudget(
        cpu_deadline=deadline,
        wall_deadline=wall_deadline,
        created_at_start=created_count(),
        max_work=max_work,
    )
    return BUDGET
