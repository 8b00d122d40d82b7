"""Hoist scale factors from the operands of a product to its result; operands are read unscaled.

a2[i, k] = a[i, k] * r,  b2[j, k] = b[j, k] * r
y[i, j] = sum(a2[i, k] * b2[j, k] for k)    =>    y[i, j] = sum(a[i, k] * b[j, k] for k) * r^2

ONNX's Attention scales queries and keys so; a decoding step would write all of them anew. Only
factors near 1 are hoisted, so that a sum overflows only where it did before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from superopt.kernels.loops.loop_transforms import reduction
from superopt.plan.lowering.polyphase import replace_reduction
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import index_axes, loads, reductions
from superopt.te.eval.interpret import evaluate
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Apply, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor, const

SCALE_RANGE = 2.0**-10, 2.0**10
ScaledLoads = Mapping[Tensor, tuple[Load, float]]


def hoist_scales(
    current: Mapping[Tensor, Tensor], materialized: Collection[Tensor]
) -> dict[Tensor, Tensor]:
    """Return the definitions with scales hoisted. materialized: what must be in memory as it is."""
    scaled = {
        t: x for t, now in current.items() if t not in materialized and (x := _match_scaled(now))
    }
    out = {t: _hoist_from_product(now, scaled) for t, now in current.items()}
    read = {x.tensor for now in out.values() if now.body is not None for x in loads(now.body)}
    return {t: now for t, now in out.items() if t not in scaled or t in read}


def _match_scaled(t: Tensor) -> tuple[Load, float] | None:
    """Return the load that is scaled and the factor; None if there is none."""
    match t.body:
        case Apply("mul", (Load(_, _, dtype) as x, c)) | Apply("mul", (c, Load(_, _, dtype) as x)):
            if dtype == F32 and not index_axes(c) and not reductions(c) and not [*loads(c)]:
                by = float(evaluate(Tensor("scale", F32, (), (), c), {}))
                return (x, by) if SCALE_RANGE[0] <= abs(by) <= SCALE_RANGE[1] else None
    return None


def _hoist_from_product(t: Tensor, scaled: ScaledLoads) -> Tensor:
    found = reduction(t)
    match found:
        case Reduce("sum", axes, Apply("mul", (Load(a) as x, Load(b) as y)), dtype) if (
            dtype == F32 and (a in scaled or b in scaled)
        ):
            pass
        case _:
            return t
    (left, r), (right, s) = (_unscaled_load(e, scaled) for e in (x, y))
    total = Reduce("sum", axes, Apply("mul", (left, right), F32), F32)
    assert t.body is not None
    body = replace_reduction(t.body, found, Apply("mul", (total, const(r * s, F32)), F32))
    return Tensor(t.name, t.dtype, t.shape, t.axes, body)


def _unscaled_load(e: Load, scaled: ScaledLoads) -> tuple[Expr, float]:
    if e.tensor not in scaled:
        return e, 1.0
    x, by = scaled[e.tensor]
    return substitute_axes(x, dict(zip(e.tensor.axes, e.index, strict=True))), by
