"""Hoist scale factors from the operands of a product to its result; operands are read unscaled.

a2[i, k] = a[i, k] * r,  b2[j, k] = b[j, k] * r
y[i, j] = sum(a2[i, k] * b2[j, k] for k)    =>    y[i, j] = sum(a[i, k] * b[j, k] for k) * r^2

ONNX's Attention scales queries and keys so; a decoding step would write all of them anew. The rules
are `hoist-*` in rules/library/te/products.rules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from superopt.rules.te.match import Context, number_value
from superopt.rules.te.rewrite import load_te_rules, rewrite_definitions
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor

SCALE_RANGE = 2.0**-10, 2.0**10


def hoist_scales(
    current: Mapping[Tensor, Tensor], materialized: Collection[Tensor]
) -> dict[Tensor, Tensor]:
    """Return the definitions with scales hoisted. materialized: what must be in memory as it is."""
    inlined = {t: now for t, now in current.items() if t not in materialized}
    context = Context(inlined, {"near_one": _is_near_one})
    return rewrite_definitions(load_te_rules("products", "hoist-"), current, context)


def _is_near_one(factor: Expr) -> bool:
    return SCALE_RANGE[0] <= abs(number_value(factor)) <= SCALE_RANGE[1]
