"""Results of the operators of one attempt, cached between attempts.

Where an operator accepts symbolic sizes only in some states, the attempt forks into these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from superopt.ir.op import Attr, InferError, Op, _canonical_attrs
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import Tensor
from superopt.verifier.instances.acceptance import accepted_sizes
from superopt.verifier.instances.attributes import Unsupported
from superopt.verifier.instances.bindings import Bindings
from superopt.verifier.instances.size_cases import comparison_states, positive_extent_states
from superopt.verifier.instances.size_orders import extreme_states, not_one_hypothesis, order_states
from superopt.verifier.instances.sizes import Fork, RejectedChoice

POOLS = frozenset(("AveragePool", "MaxPool", "LpPool"))

_OperatorResult = tuple[dict[str, Attr], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class _CachedResult:
    """The cached result of an operator for operands with these identities; None: they do not
    fit."""

    result: _OperatorResult | None
    operands: tuple[Tensor | None, ...]


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
        found = self.memo.setdefault(key, (t, replace(t, shape=shape)))  # t keeps its identity
        assert isinstance(found, tuple)
        assert isinstance(found[1], Tensor)
        return found[1]

    def cached_result(
        self, op: Op, operands: Sequence[Tensor | None], attrs: Mapping[str, Attr]
    ) -> _OperatorResult:
        """Return the canonical attributes and the results; cached if the operator asked nothing."""
        given = tuple(sorted(attrs.items()))
        key = (op.name, tuple(map(id, operands)), given, *(type(v) for _, v in given))
        known = self.memo.get(key)
        if known is not None:
            assert isinstance(known, _CachedResult)
            if known.result is None:
                raise RejectedChoice
            return known.result
        before = self.question_count
        try:
            found = self.compute_result(op, operands, given)
        except RejectedChoice:
            if self.question_count == before:
                self.memo[key] = _CachedResult(None, tuple(operands))
            raise
        if self.question_count == before:
            self.memo[key] = _CachedResult(found, tuple(operands))
        return found

    def compute_result(
        self, op: Op, operands: Sequence[Tensor | None], given: tuple[tuple[str, Attr], ...]
    ) -> _OperatorResult:
        types = tuple(None if o is None else o.type for o in operands)
        self.undecided_orders = []
        try:
            # not cached: a cached call would ask nothing
            full = dict(_canonical_attrs.__wrapped__(op, types, given))
            assert op.compute is not None
            out = op.compute(*operands, **full)
        except InferError as e:
            if "symbolic" in str(e):
                raise Unsupported(str(e)) from e
            for a, b in self.undecided_orders:
                raise Fork(
                    order_states(self.state, a, b, "right" if self.is_right_side else "")
                ) from e
            self.raise_if_sometimes_accepted(op, operands, given, e)
            raise RejectedChoice from e
        except (
            ValueError,
            TypeError,
            IndexError,
            KeyError,
            ZeroDivisionError,
            AssertionError,
        ) as e:
            self.raise_if_sometimes_accepted(op, operands, given, e)
            raise RejectedChoice from e
        return full, out if isinstance(out, tuple) else (out,)

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
