"""Analysis of expressions that are never positive: a value minus the maximum of a set it belongs
to."""

from __future__ import annotations

from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import index_axes, loads
from superopt.te.expr.node import Apply, Axis, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor


def is_non_positive(e: Expr) -> bool:
    """True if `e` is at most 0 or NaN: x[j] - max(x[k] for k), as in a softmax, or -|x|."""
    match e:
        case Apply("neg", (Apply("abs"),)):
            return True
        case Apply("sub", (x, Load(Tensor(body=Reduce("max", (k,), body)) as t, at))):
            env: dict[Axis, Expr] = dict(zip(t.axes, at, strict=True))
            axes = index_axes(x) | {a for y in loads(x) for i in y.index for a in index_axes(i)}
            return any(
                a.extent == k.extent and substitute_axes(body, {**env, k: a}) == x
                for a in axes - {a for i in at for a in index_axes(i)}
            )
    return False
