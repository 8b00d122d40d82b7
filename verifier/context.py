"""The state of one proof: the objects that it has created, its counters, its limits."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import z3

    from superopt.verifier.elements.factors import Factor
    from superopt.verifier.elements.normal import NF, Term
    from superopt.verifier.poly.facts import Facts
    from superopt.verifier.poly.guards import Guard
    from superopt.verifier.poly.polynomial import Atom, Monomial, Poly

TICKS_PER_CLOCK_CHECK = 512  # ticks between two looks at the clock
WORK_PER_ATTEMPT = 5  # in polynomials


class OutOfTime(Exception):
    """The time or work of the proof is used up."""


@dataclass(slots=True)
class UnknownNumbers:
    """Marker numbers of open float attributes, which the reader turns back into unknowns. A marker
    is exact in float32 and unlikely to occur in a rule."""

    mark_by_name: dict[str, float] = field(default_factory=dict)
    name_by_mark: dict[Fraction, str] = field(default_factory=dict)

    def mark(self, name: str) -> float:
        """Return the marker number of the unknown with this name."""
        found = self.mark_by_name.get(name)
        if found is None:
            n = (len(self.mark_by_name) + 1) * 0x9E3779B1 % 2**24 | 1
            while Fraction(n, 2**24) in self.name_by_mark:
                n = (n + 2) % 2**24
            found = self.mark_by_name[name] = n / 2**24
            self.name_by_mark[Fraction(n, 2**24)] = name
        return found

    def name(self, v: object) -> str | None:
        """Return the name of the unknown that the number `v` marks, None for other numbers."""
        if not isinstance(v, (float, Fraction)) or not 0 < v < 1:
            return None
        return self.name_by_mark.get(Fraction(v))

    def root_name(self, v: Fraction) -> str | None:
        """Return the name of the unknown of which `v` is the computed square root."""
        square = float(v) ** 2
        return next(
            (n for n, m in self.mark_by_name.items() if abs(m - square) < 1e-14 and v > 0), None
        )


@dataclass(slots=True, eq=False)
class ProofContext:
    """Owns what one proof creates, so that a proof depends on no other. Polynomials and normal
    forms are hash-consed in its tables and refer to it; facts carry it.

    cpu_deadline: of the thread's CPU time; wall_deadline: of time.monotonic(); max_work: see
    `work_done`. use_solver: True while guards may use Z3, only after a first attempt without.
    has_exact_casts: True if casts of integers to floats do not round. coarsen_depth: nested
    coarsenings of guards. steps: names of the proof steps used, which the
    float class depends on. scope_notes: what the instances of a rule leave out.
    """

    cpu_deadline: float = float("inf")
    wall_deadline: float = float("inf")
    max_work: float = float("inf")

    polys: dict[frozenset[tuple[Monomial, int]], Poly] = field(default_factory=dict)
    constants: dict[int, Poly] = field(default_factory=dict)
    # results by the numbers of their operands, which are unique in a proof
    sums: dict[tuple[int, int], Poly] = field(default_factory=dict)
    differences: dict[tuple[int, int], Poly] = field(default_factory=dict)
    products: dict[tuple[int, int], Poly] = field(default_factory=dict)
    multiples: dict[tuple[int, int], Poly] = field(default_factory=dict)
    linear_splits: dict[tuple[int, int], tuple[Poly, Poly] | None] = field(default_factory=dict)
    atoms: dict[object, Atom] = field(default_factory=dict)
    guards: dict[str, dict[int, Guard]] = field(
        default_factory=lambda: {"ge": {}, "eq": {}, "ne": {}}
    )
    nonnegative: dict[int, int] = field(default_factory=dict)  # see `bounds.is_nonnegative`
    forms: dict[frozenset[Term], NF] = field(default_factory=dict)
    factors: dict[object, Factor] = field(default_factory=dict)
    unknowns: UnknownNumbers = field(default_factory=UnknownNumbers)
    no_hypotheses: Facts | None = None  # see `facts.without_hypotheses`
    solver: z3.Solver | None = None  # see `solver.solver`
    element_types: dict[str, str] = field(default_factory=dict)  # of inputs that hold integers
    # indices as elements of an integer type, by its name
    index_elements: dict[tuple[str, NF], None] = field(default_factory=dict)

    created_count: int = 0  # polynomials and atoms
    created_forms: int = 0  # normal forms and factors
    attempt_units: int = 0  # attempts at instances
    quick_checks: int = 0
    ticks: int = 0
    queries: int = 0
    matched_sums: int = 0  # sums matched by a bijection
    next_clock_check: float = 0.0  # no clock check before

    use_solver: bool = False
    has_exact_casts: bool = False
    coarsen_depth: int = 0
    steps: set[str] = field(default_factory=set)
    scope_notes: set[str] = field(default_factory=set)

    @classmethod
    def with_limits(
        cls, seconds: float, max_work: float = float("inf"), wall_deadline: float = float("inf")
    ) -> ProofContext:
        """Return a new context. OutOfTime is raised after `seconds` of this thread's CPU time,
        after `max_work`, or when `time.monotonic()` reaches `wall_deadline`."""
        return cls(time.thread_time() + seconds, wall_deadline, max_work)

    def close(self) -> None:
        """Release what the proof created: it refers to its context, which refers to it."""
        for table in (self.polys, self.constants, self.atoms, self.forms, self.factors):
            table.clear()
        for results in (self.sums, self.differences, self.products, self.multiples):
            results.clear()
        self.linear_splits.clear()
        for guards in self.guards.values():
            guards.clear()
        self.nonnegative.clear()
        self.index_elements.clear()
        self.no_hypotheses = self.solver = None

    def work_done(self) -> int:
        """Return the work so far, a measure without a clock: polynomials created, and attempts at
        instances."""
        return self.created_count + WORK_PER_ATTEMPT * self.attempt_units

    def check_budget(self) -> None:
        """Raise OutOfTime after the deadline, or if the work exceeds its limit."""
        if self.work_done() > self.max_work:
            raise OutOfTime
        self.check_deadline()

    def check_deadline(self) -> None:
        """Raise OutOfTime after the deadline, whatever the work."""
        now = time.monotonic()
        if now < self.next_clock_check:
            return
        left = min(self.cpu_deadline - time.thread_time(), self.wall_deadline - now)
        if left < 0:
            raise OutOfTime
        # CPU time is slow to read and never runs ahead of the clock
        self.next_clock_check = now + left

    def tick(self) -> None:
        """Check the clock now and then, in loops that may run long."""
        self.ticks += 1
        if not self.ticks % TICKS_PER_CLOCK_CHECK:
            self.check_deadline()
