"""Give the axes of each reduction unique names, so that an axis identifies one reduction."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.te.analysis.affine import SubstitutionMemo, substitute_unsimplified
from superopt.te.analysis.walk import operands, with_operands
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Axis, Expr, Index, Reduce


def with_unique_axes(bodies: Sequence[Expr]) -> list[Expr]:
    """Return the same expressions with unique axes; shared reductions stay shared. Operators choose
    axis names freely: without this the channels that a product sums over were confused with those
    of a following Softmax."""
    done: SubstitutionMemo = {}
    count = 0

    def go(e: Expr) -> Expr:
        nonlocal count
        if e.dtype == INDEX and not isinstance(e, Index):
            return e
        if id(e) not in done:
            made = with_operands(e, [go(x) for x in operands(e)])
            if isinstance(made, Reduce):
                own = tuple(Axis(f"{a.name}.{count}", a.extent) for a in made.axes)
                count += 1
                body = substitute_unsimplified(
                    made.body, dict(zip(made.axes, own, strict=True)), {}
                )
                made = Reduce(made.fn, own, body, made.dtype)
            done[id(e)] = (e, made)
        return done[id(e)][1]

    return [go(b) for b in bodies]
