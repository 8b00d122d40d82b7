"""The verdict on a rule: proved for a scope, refuted by a counterexample, or unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from superopt.rules.lang.functions import Result
from superopt.rules.library.records import Proof, Scope


@dataclass(frozen=True, slots=True)
class Proved:
    """Both sides are equal for all sizes in the scope.

    derived: what the right side needs beyond the left; a match is refused without it. steps: proof
    steps besides moving elements. obligations: reads shown to be in bounds, elements shown to be
    equal, sums matched by a bijection. queries: calls of Z3. seconds: CPU time. is_complete: True
    if all wanted ranks are proved. max_rank: the highest proved rank. bound: the largest size
    (verifier/prove_bounded.py); 0 if the operands have one shape; None for all sizes.
    """

    scope: Scope
    derived: tuple[str, ...]
    steps: tuple[str, ...]
    obligations: int
    queries: int
    seconds: float
    max_rank: int
    method: str = "index"
    is_complete: bool = True
    bound: int | None = None

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"proved: {self.proof.summary}"

    @property
    def proof(self) -> Proof:
        """The record of the proof that is stored with the rule."""
        ms = round(self.seconds * 1e3, 1)
        return Proof(self.scope, self.derived, self.obligations, self.queries, ms, self.bound)


@dataclass(frozen=True, slots=True)
class Refuted:
    """The sides differ: on which shapes, in which output at which index, and the values. names:
    values of the rule's names there; a tensor as an input of its type."""

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
    """Neither proved nor refuted. is_out_of_budget: more time or work might change the verdict."""

    reason: str
    seconds: float
    is_out_of_budget: bool = False

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"unknown: {self.reason}"


Verdict = Proved | Refuted | Unknown
