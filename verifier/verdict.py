"""What is said of a rule: proved for a scope, refuted by a counterexample, or not known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from superopt.rules.functions import Result
from superopt.rules.stated import Proof


@dataclass(frozen=True, slots=True)
class Scope:
    """For what a proof holds. instances: ways in which operands fit; the rest is words."""

    ranks: str
    instances: int
    assumes: tuple[str, ...]

    @property
    def where(self) -> str:
        return f"{self.ranks}; {self.instances} {'way' if self.instances == 1 else 'ways'} to fit"

    def __str__(self) -> str:
        return "; ".join((self.where, *self.assumes))


@dataclass(frozen=True, slots=True)
class Proved:
    """Both sides are equal for all sizes in the scope.

    derived: what the right side needs beyond the left, which a match is refused without. steps:
    what was used beyond moving elements. obligations: reads that were shown to be in bounds,
    elements that were shown to be equal, sums that were matched one to one. queries: questions to
    Z3. seconds: of own time. whole: at all ranks that are wanted; most: the highest rank at which
    it is proved. bound: sizes up to this only (verifier/bounded.py); 0 where the operands have one
    shape.
    """

    scope: Scope
    derived: tuple[str, ...]
    steps: tuple[str, ...]
    obligations: int
    queries: int
    seconds: float
    most: int
    method: str = "index"
    whole: bool = True
    bound: int | None = None

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"proved: {self.proof.said}"

    @property
    def proof(self) -> Proof:
        """What is kept of it beside the rule."""
        ms = round(self.seconds * 1e3, 1)
        return Proof(
            self.scope.where,
            self.scope.assumes,
            self.derived,
            self.obligations,
            self.queries,
            ms,
            bound=self.bound,
        )


@dataclass(frozen=True, slots=True)
class Refuted:
    """The sides differ: on which shapes, in which output at which index, and by what. names: what
    the names of the rule stand for there; a tensor as an input of its type."""

    shapes: str
    output: int
    index: tuple[int, ...]
    left: str
    right: str
    names: Mapping[str, Result]
    seconds: float

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        at = ", ".join(map(str, self.index))
        return (
            f"refuted: output {self.output} at [{at}] is {self.left} on the left, {self.right} on"
            f" the right, for {self.shapes}"
        )


@dataclass(frozen=True, slots=True)
class Unknown:
    """Neither: why. late: more time, or work, might have changed it."""

    reason: str
    seconds: float
    late: bool = False

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"unknown: {self.reason}"


Verdict = Proved | Refuted | Unknown
