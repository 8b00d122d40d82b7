"""Decision trees: a traversal with as many steps as the deepest tree has."""

from __future__ import annotations

from superopt.ir.op import InferError, op
from superopt.te.expr.dtype import BOOL, F32, F64, U32
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor, apply, compare, compute, const, gather, select


@op(
    "TreeWeights",
    example=(
        "f32[3,3] u32[2,4] f32[2,4] f32[2,4] depth=2",
        "f32[3,3] u32[5] f32[5] f32[5] u32[5,2] u32[2] depth=2",
        "f64[3,2] u32[5] f64[5] f64[5,3] u32[5,2] u32[2] f64[5] depth=2 missing=1",
    ),
    domain=None,
)
def tree_weights(
    x: Tensor,
    feature: Tensor,
    threshold: Tensor,
    weights: Tensor,
    children: Tensor | None = None,
    roots: Tensor | None = None,
    lower: Tensor | None = None,
    *,
    depth: int,
    missing: int = 0,
) -> Tensor:
    """The weights of the node to which each row leads in each tree in `depth` steps: [n, t], or
    [n, t, c] where a node has several.

    x: rows of features, [n, f]. At node k a row goes to the first child where x[feature[k]] <=
    threshold[k] (and >= lower[k], where that is given), else to the second one. Nodes of all trees
    are in one list, with their children, [k, 2], and the first node of each tree, [t]; a leaf's
    children are the leaf. Without these each tree is complete: [t, 2 ** depth], a heap whose root
    is at 1, and the weights are those of the leaves. With `missing` the features are doubled, and
    those to which 1 was added send NaN to the first child, too.
    """
    if x.dtype not in (F32, F64) or x.dtype is not threshold.dtype or x.rank != 2:
        raise InferError(f"TreeWeights of {x.type} with thresholds {threshold.type}")
    tables = [t for t in (feature, children, roots) if t is not None]
    if any(t.dtype is not U32 for t in tables) or (children is None) != (roots is None):
        raise InferError("TreeWeights: features, children and roots are u32")
    if children is None and feature.rank != 2:
        raise InferError(f"TreeWeights of complete trees {feature.type}")
    shape = (x.shape[0], feature.shape[0] if roots is None else roots.shape[0])
    nodes, columns = feature.shape[-1], x.shape[1]

    def goes(k: tuple[Expr, ...], i: Expr) -> Expr:
        code = feature[k]
        value = x[i, gather(apply("shr", code, 1) if missing else code, columns)]
        first = compare("le", value, threshold[k])
        if lower is not None:
            first = apply("and", first, compare("le", lower[k], value), dtype=BOOL)
        if missing:
            odd = compare("ne", apply("bitand", code, 1), 0)
            nan = apply("and", apply("isnan", value, dtype=BOOL), odd, dtype=BOOL)
            first = apply("or", first, nan, dtype=BOOL)
        return select(first, const(0, U32), const(1, U32))

    def linked(now: Tensor, table: Tensor) -> Tensor:
        def element(i: Expr, t: Expr) -> Expr:
            k = gather(now[i, t], nodes)
            return table[k, gather(goes((k,), i), 2)]

        return compute(shape, element, name="node")

    def complete(now: Tensor) -> Tensor:
        def element(i: Expr, t: Expr) -> Expr:
            return now[i, t] * 2 + goes((t, gather(now[i, t], nodes)), i)

        return compute(shape, element, name="node")

    start = roots
    now = compute(shape, lambda i, t: const(1, U32) if start is None else start[t], name="node")
    for _ in range(depth):
        now = complete(now) if children is None else linked(now, children)
    last = now

    def weight(i: Expr, t: Expr, *c: Expr) -> Expr:
        if children is None:
            return weights[(t, gather(last[i, t] - (1 << depth), 1 << depth), *c)]
        return weights[(gather(last[i, t], nodes), *c)]

    return compute((*shape, *weights.shape[(2 if children is None else 1) :]), weight)
