"""Decision trees: a walk of as many steps as the deepest one has."""

from __future__ import annotations

from superopt.ir.op import InferError, op
from superopt.te.dtype import BOOL, F32, F64, I32
from superopt.te.expr import Tensor, apply, compare, compute, gather, select
from superopt.te.node import Expr


@op(
    "TreeLeaves",
    example=(
        "f32[3,2] i32[5] f32[5] i32[5,2] i32[2] depth=2",
        "f64[3,2] i32[5] f64[5] i32[5,2] i32[2] f64[5] depth=2 missing=1",
    ),
    domain=None,
)
def tree_leaves(
    x: Tensor,
    feature: Tensor,
    threshold: Tensor,
    children: Tensor,
    roots: Tensor,
    lower: Tensor | None = None,
    *,
    depth: int,
    missing: int = 0,
) -> Tensor:
    """The node to which each row leads in each tree in `depth` steps.

    x: rows of features, [n, f]; roots: the first node of each tree, [t]; the result is i32[n, t].
    From node k a row goes to children[k, 0] where x[feature[k]] <= threshold[k] (and >= lower[k],
    where that is given), else to children[k, 1]; a leaf's children are the leaf. Of `missing` nodes
    the feature may be negative: it is -1 - feature then, and NaN goes to children[k, 0], too.
    """
    if x.dtype not in (F32, F64) or x.dtype is not threshold.dtype or x.rank != 2:
        raise InferError(f"TreeLeaves of {x.type} with thresholds {threshold.type}")
    if any(t.dtype is not I32 for t in (feature, children, roots)):
        raise InferError("TreeLeaves: features, children and roots are i32")
    shape = (x.shape[0], roots.shape[0])
    nodes, columns = feature.shape[0], x.shape[1]

    def step(now: Tensor) -> Tensor:
        def element(i: Expr, t: Expr) -> Expr:
            k = gather(now[i, t], nodes)
            place = feature[k]
            absent = compare("lt", place, 0)
            value = x[i, gather(select(absent, -1 - place, place) if missing else place, columns)]
            low = compare("le", value, threshold[k])
            if lower is not None:
                low = apply("and", low, compare("le", lower[k], value), dtype=BOOL)
            if missing:
                nan = apply("isnan", value, dtype=BOOL)
                low = apply("or", low, apply("and", nan, absent, dtype=BOOL), dtype=BOOL)
            return select(low, children[k, 0], children[k, 1])

        return compute(shape, element, name="node")

    now = compute(shape, lambda i, t: roots[t], name="node")
    for _ in range(depth):
        now = step(now)
    return now
