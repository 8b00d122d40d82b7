"""Decision trees: a walk of as many steps as the deepest one has."""

from __future__ import annotations

from superopt.ir.op import InferError, op
from superopt.te.dtype import BOOL, F32, F64, U32
from superopt.te.expr import Tensor, apply, compare, compute, const, gather, select
from superopt.te.node import Expr


@op(
    "TreeWeights",
    example=(
        "f32[3,2] u32[5] f32[5] u32[5,2] u32[2] f32[5] depth=2",
        "f64[3,2] u32[5] f64[5] u32[5,2] u32[2] f64[5,3] f64[5] depth=2 missing=1",
    ),
    domain=None,
)
def tree_weights(
    x: Tensor,
    feature: Tensor,
    threshold: Tensor,
    children: Tensor,
    roots: Tensor,
    weights: Tensor,
    lower: Tensor | None = None,
    *,
    depth: int,
    missing: int = 0,
) -> Tensor:
    """The weights of the node to which each row leads in each tree in `depth` steps.

    x: rows of features, [n, f]; roots: the first node of each tree, [t]; weights: of each node, one
    or several, [k] or [k, c]; the result is [n, t] or [n, t, c].
    From node k a row goes to children[k, 0] where x[feature[k]] <= threshold[k] (and >= lower[k],
    where that is given), else to children[k, 1]; a leaf's children are the leaf. With `missing` the
    features are doubled, and those to which 1 was added send NaN to children[k, 0], too.
    """
    if x.dtype not in (F32, F64) or x.dtype is not threshold.dtype or x.rank != 2:
        raise InferError(f"TreeWeights of {x.type} with thresholds {threshold.type}")
    if any(t.dtype is not U32 for t in (feature, children, roots)):
        raise InferError("TreeWeights: features, children and roots are u32")
    shape = (x.shape[0], roots.shape[0])
    nodes, columns = feature.shape[0], x.shape[1]

    def step(now: Tensor) -> Tensor:
        def element(i: Expr, t: Expr) -> Expr:
            k = gather(now[i, t], nodes)
            code = feature[k]
            place = apply("shr", code, 1) if missing else code
            value = x[i, gather(place, columns)]
            low = compare("le", value, threshold[k])
            if lower is not None:
                low = apply("and", low, compare("le", lower[k], value), dtype=BOOL)
            if missing:
                odd = compare("ne", apply("bitand", code, 1), 0)
                nan = apply("and", apply("isnan", value, dtype=BOOL), odd, dtype=BOOL)
                low = apply("or", low, nan, dtype=BOOL)
            side = gather(select(low, const(0, U32), const(1, U32)), 2)
            return children[k, side]

        return compute(shape, element, name="node")

    now = compute(shape, lambda i, t: roots[t], name="node")
    for _ in range(depth):
        now = step(now)
    last = now

    def weight(i: Expr, t: Expr, *c: Expr) -> Expr:
        return weights[(gather(last[i, t], nodes), *c)]

    return compute((*shape, *weights.shape[1:]), weight)
