"""Results of the operators of one attempt, cached between attempts.

Where an operator accepts symbolic sizes only in some states, the attempt forks into these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from superopt.ir.op import Attr, InferError, Op, _canonical_attrs
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import Tensor
from superopt.verifier.instances.acceptance import accepted_sizes
from superopt.verifier.instances.attributes import Unsupported
from superopt.verifier.instances.bindings import Bindings
from superopt.verifier.instances.size_cases import comparison_states, positive_extent_states
from superopt.verifier.instances.size_orders import extreme_states, not_one_hypothesis, order_states
from superopt.verifier.instances.size_questions import Answer, Question
from superopt.verifier.instances.sizes import Fork, RejectedChoice

POOLS = frozenset(("AveragePool", "MaxPool", "LpPool"))

_OperatorResult = tuple[dict[str, Attr], tuple[Tensor, ...]]


# How an operator refuses its operands.
REFUSALS = (
    InferError, ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, AssertionError,
)  # fmt: skip


@dataclass(slots=True)
class _Trace:
    """What an operator does with its operands, which are identified by their identities and held.

    question: what it asks next, if known; by_answer: how it goes on after each answer. outcome: its
    result, or why it refuses the operands, if it asks nothing more. is_rejected: it refuses them at
    all sizes, without a question.
    """

    operands: tuple[Tensor | None, ...] = ()
    question: Question | None = None
    by_answer: dict[Answer, _Trace] = field(default_factory=dict)
    outcome: _OperatorResult | Exception | None = None
    is_rejected: bool = False

    def record(
        self, answered: Sequence[tuple[Question, Answer]], outcome: _OperatorResult | Exception
    ) -> None:
        """Add the outcome after these questions and answers."""
        at = self
        for at.question, answer in answered:
            at = at.by_answer.setdefault(answer, _Trace())
        at.outcome = outcome


@dataclass(slots=True)
class OperatorResults(Bindings):
    """The results of operators for the operands of one attempt."""

    def checked_result(
        self,
        op: Op,
        operands: Sequence[Tensor | None],
        attrs: Mapping[str, Attr],
        picked: frozenset[int],
    ) -> tuple[dict[str, Attr], tuple[Tensor, ...]]:
        full, found = self.cached_result(op, operands, attrs)
        if self.state.unit_sizes:
            found = tuple(map(self.with_unit_sizes, found))
        if op.name in POOLS and not self.is_right_side:
            image = operands[0]
            assert image is not None
            self.require_windows_see_image(full, image.shape[2:])
        for k, t in enumerate(found):
            filled = not self.is_right_side and (k in picked or not picked)
            for d in t.shape:
                cases = extreme_states(self.state, d)
                if cases is None and filled:
                    cases = positive_extent_states(self.state, d)
                if cases is not None:
                    raise Fork(cases)
                if isinstance(d, int) and d < 1 and filled:
                    raise RejectedChoice
        return full, found

    def with_unit_sizes(self, t: Tensor) -> Tensor:
        """Replace the sizes assumed to be 1 in this attempt."""
        shape = tuple(1 if d in self.state.unit_sizes else d for d in t.shape)
        if shape == t.shape:
            return t
        key = ("units", id(t), shape)
        found = self.results.setdefault(key, (t, replace(t, shape=shape)))  # t keeps its identity
        assert isinstance(found, tuple)
        assert isinstance(found[1], Tensor)
        return found[1]

    def cached_result(
        self, op: Op, operands: Sequence[Tensor | None], attrs: Mapping[str, Attr]
    ) -> _OperatorResult:
        """Return the canonical attributes and the results, cached by the answers of the state."""
        given = tuple(sorted(attrs.items()))
        key = (op.name, tuple(map(id, operands)), given, *(type(v) for _, v in given))
        trace = self.results.get(key)
        if trace is None:
            trace = self.results[key] = _Trace(tuple(operands))
        assert isinstance(trace, _Trace)
        if trace.is_rejected:
            raise RejectedChoice
        found = self.replay(trace)
        if found is None:
            self.undecided_orders, self.answered = [], []
            found = self.compute_result(op, operands, given)
            trace.record(self.answered, found)
        if isinstance(found, Exception):
            try:
                self.refuse(op, operands, given, found)
            except RejectedChoice:
                trace.is_rejected = trace.outcome is not None
                raise
        return found

    def replay(self, trace: _Trace) -> _OperatorResult | Exception | None:
        """Return the outcome of an operator that asked the same questions before and got the
        answers of this state, None if there was none. Raises Fork as the operator would."""
        self.undecided_orders = []
        while trace.question is not None:
            after = trace.by_answer.get(self.ask(trace.question))
            if after is None:
                return None
            trace = after
        return trace.outcome

    def compute_result(
        self, op: Op, operands: Sequence[Tensor | None], given: tuple[tuple[str, Attr], ...]
    ) -> _OperatorResult | Exception:
        """Return the canonical attributes and the results, or why the operator refuses."""
        types = tuple(None if o is None else o.type for o in operands)
        try:
            # not cached: a cached call would ask nothing
            full = dict(_canonical_attrs.__wrapped__(op, types, given))
            assert op.compute is not None
            out = op.compute(*operands, **full)
        except REFUSALS as e:
            return e.with_traceback(None)
        return full, out if isinstance(out, tuple) else (out,)

    def refuse(
        self,
        op: Op,
        operands: Sequence[Tensor | None],
        given: tuple[tuple[str, Attr], ...],
        why: Exception,
    ) -> NoReturn:
        """Raise Fork, Unsupported or RejectedChoice for operands that an operator refuses."""
        if isinstance(why, InferError):
            if "symbolic" in str(why):
                raise Unsupported(str(why)) from why
            for a, b in self.undecided_orders:
                raise Fork(
                    order_states(self.state, a, b, "right" if self.is_right_side else "")
                ) from why
        self.raise_if_sometimes_accepted(op, operands, given, why)
        raise RejectedChoice from why

    def raise_if_sometimes_accepted(
        self,
        op: Op,
        operands: Sequence[Tensor | None],
        given: tuple[tuple[str, Attr], ...],
        why: Exception,
    ) -> None:
        """Raise Unsupported if the operator accepts the same operands at some sizes, which would be
        left out. That applies to the right side, too: a match at such sizes is not refused. If an
        operand has size 1 there, fork on that size instead."""
        known = (*self.state.hypotheses, *map(not_one_hypothesis, sorted(self.state.not_one)))
        sizes = accepted_sizes(op, operands, given, known)
        if sizes is None:
            return
        for d in (d for o in operands if o is not None for d in o.shape):
            if isinstance(d, Size) and sizes.get(d.name) == 1 and d.name not in self.state.not_one:
                raise Fork(comparison_states(self.state, "eq", d, 1))
        raise Unsupported(f"{op.name} at sizes like {sizes}: {why}")
