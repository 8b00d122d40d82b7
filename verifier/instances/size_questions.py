"""Questions about sizes that operators ask in one attempt at an instance.

The state answers them, or the attempt forks into states that do.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from superopt.te.expr import index
from superopt.te.expr.tensor import Dim
from superopt.verifier.context import ProofContext
from superopt.verifier.instances.attributes import FEW_BROADCAST_NOTE
from superopt.verifier.instances.size_cases import comparison_states, known_comparison, unit_states
from superopt.verifier.instances.size_orders import assumed_order
from superopt.verifier.instances.sizes import Fork, State, equate, with_not_one

MAX_UNRESTRICTED_RANK = 2
MAX_STRETCHED_BY_RANK = {3: 2}  # by rank above MAX_UNRESTRICTED_RANK


Question = tuple[str, str, Dim, Dim]  # its kind, the function of "compare", and the sizes
Answer = bool | None


@dataclass(slots=True)
class SizeQuestions:
    """The answers of one state. undecided_orders: orders that stayed undecided. answered: the
    questions that an operator asks and their answers, in order, while it is computed."""

    context: ProofContext
    state: State
    is_right_side: bool = field(default=False, kw_only=True)
    answered: list[tuple[Question, Answer]] = field(default_factory=list, kw_only=True)
    undecided_orders: list[tuple[Dim, Dim]] = field(default_factory=list, kw_only=True)

    def ask(self, question: Question) -> Answer:
        """Return the answer; raises Fork if the state has none."""
        kind, fn, a, b = question
        match kind:
            case "compare":
                return self.compare(fn, a, b)
            case "are equal":
                return self.are_equal(a, b)
            case "are broadcast equal":
                return self.is_broadcast_equal(a, b)
            case _:
                return self.is_at_most(a, b)

    def are_equal(self, a: Dim, b: Dim) -> bool:
        found = self._are_equal(a, b)
        self.answered.append((("are equal", "", a, b), found))
        return found

    def _are_equal(self, a: Dim, b: Dim) -> bool:
        found = [s for s in equate(self.state, a, b, "right" if self.is_right_side else "") if s]
        if any(s is self.state for s in found):
            return True
        if not found:
            return False
        raise Fork(found)

    def is_at_most(self, a: Dim, b: Dim) -> bool:
        known = assumed_order(self.state, a, b)
        if known is None:
            self.undecided_orders.append((a, b))
        self.answered.append((("is at most", "", a, b), known is True))
        return known is True

    def is_broadcast_equal(self, a: Dim, b: Dim) -> bool:
        """Broadcast two sizes: they are equal, or the attempt forks."""
        self._require_broadcast(a, b)
        self.answered.append((("are broadcast equal", "", a, b), True))
        return True

    def _require_broadcast(self, a: Dim, b: Dim) -> None:
        found = [s for s in equate(self.state, a, b, "right" if self.is_right_side else "") if s]
        if any(s is self.state for s in found):
            return
        # if both are 1 they are equal
        single = [
            s for p, q in ((a, b), (b, a)) for s in unit_states(with_not_one(self.state, q), p)
        ]
        if self.is_right_side:
            needs = " or ".join(
                f"{self.state.in_rule_sizes(index.as_index(d))} == 1" for d in (a, b)
            )
            single = [s and replace(s, derived=(*s.derived, needs)) for s in single]
        if (
            self.state.level > MAX_UNRESTRICTED_RANK
        ):  # higher ranks have many combinations that add little
            if single and self.state.stretched_count >= MAX_STRETCHED_BY_RANK.get(
                self.state.level, 1
            ):
                self.context.scope_notes.add(FEW_BROADCAST_NOTE)
                single = []
            once_more = self.state.stretched_count + 1
            single = [replace(s, stretched_count=once_more) for s in single if s is not None]
        raise Fork([*found, *single])

    def compare(self, fn: str, a: Dim, b: Dim) -> bool | None:
        found = known_comparison(self.state, fn, a, b)
        if found is None:
            raise Fork(comparison_states(self.state, fn, a, b))
        self.answered.append((("compare", fn, a, b), found))
        return found
