"""Weights and shifts of products: MatMul, Gemm and Conv with constant operands."""

from __future__ import annotations

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ops import OPS
from superopt.te.expr.dtype import to_numpy
from superopt.verifier.compare.linear_forms import (
    Forms,
    Pool,
    Weight,
    align,
    constant_bias,
    element_count,
    first_forms,
    first_weights,
    fixed_shape,
    reshape,
)


def matmul_forms(
    f: Forms, n: ir_graph.Node, x: ir_graph.Value, w: ir_graph.Value, pool: Pool
) -> Forms:
    """Return the weight of x W or W x, also scaled by the scales of x, and after the weights of
    x."""
    right = n.inputs[1] is w
    out = 1 if right else 2
    rank = len(w.type.shape or ())
    if rank < 2 or len(n.types[0].shape or ()) < 2:
        return Forms(weights=(Weight(x, "MatMul", w, 0, 0),))
    root = [Weight(x, "MatMul", w, out, out)]
    for s in f.scales:
        here = align(s, 3 - out, out)
        if here is not None and (product := pool.make("Mul", w, here)) is not None:
            root.append(Weight(x, "MatMul", product, out, out))
    for v in f.weights:
        pair = (v.value, w) if right else (w, v.value)
        product = pool.make("MatMul", *pair) if v.kind == "MatMul" else None
        if product is not None:
            root.append(Weight(v.root, "MatMul", product, out, out))
        if v.heads > 1 and right and v.kind == "MatMul":
            by_head = pool.make("MatMul", *_split_heads(v.value, w, v.heads))
            if by_head is not None:
                root.append(Weight(v.root, "MatMul", by_head, 0, 0))
    pairs = [(t, w) if right else (w, t) for t in f.shifts]
    shifts = [pool.make("MatMul", *p) for p in pairs]
    parts = _concat_matmul_forms(x, w, pool) if right else Forms()
    return Forms(
        first_forms(s for s in f.scales if element_count(s) == 1),
        first_forms([*shifts, *parts.shifts]),
        first_weights([*root, *parts.weights]),
    )


def _concat_matmul_forms(x: ir_graph.Value, w: ir_graph.Value, pool: Pool) -> Forms:
    """Split Concat(u, v) W into u and v times the matching rows of W."""
    joined = ir_graph.producer(x)
    if joined is None or joined.op.name != "Concat" or len(fixed_shape(w)) != 2:
        return Forms()
    if joined.attr("axis") != len(x.type.shape or ()) - 1:
        return Forms()
    start, weights, shifts = 0, list[Weight](), list[tuple[ir_graph.Value, ...]]()
    for u in joined.inputs:
        size = None if u is None or not u.type.shape else u.type.shape[-1]
        if u is None or not isinstance(size, int):
            return Forms()
        rows = ir_graph.node(OPS["Slice"], [w], starts=(start,), ends=(start + size,), axes=(0,))
        start += size
        found = matmul_forms(
            pool.known.get(u, Forms()), ir_graph.node(OPS["MatMul"], [u, rows]), u, rows, pool
        )
        weights += found.weights
        shifts.append(found.shifts)
    first, *others = [s for s in shifts if s] or [()]
    total = [pool.sum_of([t, *(s[0] for s in others)]) for t in first]
    return Forms(
        (), first_forms([*total, *(s for some in shifts for s in some)]), first_weights(weights)
    )


def _split_heads(
    v: ir_graph.Value, w: ir_graph.Value, heads: int
) -> tuple[ir_graph.Value | None, ir_graph.Value | None]:
    """Return x V with its columns split into heads, and W with its rows split, heads leading."""
    if len(fixed_shape(v)) != 2 or len(fixed_shape(w)) != 2:
        return None, None
    (k, d), (e, m) = fixed_shape(v), fixed_shape(w)
    if d != e or d % heads:
        return None, None
    first = reshape(v, (k, heads, d // heads))
    return ir_graph.node(OPS["Transpose"], [first], perm=(1, 0, 2)), reshape(
        w, (heads, d // heads, m)
    )


def gemm_forms(f: Forms, n: ir_graph.Node, x: ir_graph.Value, pool: Pool) -> Forms:
    """Return a Gemm as a product and its bias."""
    w, b = n.inputs[1], constant_bias(n)
    assert isinstance(w, ir_graph.Constant)
    turned: ir_graph.Value | None = w
    if n.attr("transB"):
        turned = ir_graph.node(OPS["Transpose"], [w], perm=(1, 0))
    for name in ("alpha", "beta"):
        k = n.attr(name)
        if k == 1.0:
            continue
        assert w.type.dtype is not None
        number = ir_graph.constant(np.array(k, to_numpy(w.type.dtype)))
        if name == "alpha":
            turned = pool.make("Mul", turned, number)
        else:
            b = pool.make("Mul", b, number)
    if turned is None or n.attr("transA"):
        return Forms()
    plain = ir_graph.node(OPS["MatMul"], [x, turned])
    found = matmul_forms(f, plain, x, turned, pool)
    if b is None:
        return found
    shifts = [b, *(pool.make("Add", t, b) for t in found.shifts)]
    return Forms(found.scales, first_forms(shifts), found.weights)


def conv_forms(f: Forms, n: ir_graph.Node, x: ir_graph.Value, pool: Pool) -> Forms:
    """Return the kernel, also scaled by the scales of the input channels, and the bias."""
    w, b = n.inputs[1], constant_bias(n)
    assert isinstance(w, ir_graph.Constant)
    rank = len(w.type.shape or ())
    root = [Weight(x, "Conv", w, rank, rank - 1)]
    for s in f.scales:
        here = align(s, rank - 1, rank - 1) if n.attr("group") == 1 else None
        if here is not None and (product := pool.make("Mul", w, here)) is not None:
            root.append(Weight(x, "Conv", product, rank, rank - 1))
    shifts: list[ir_graph.Value] = []
    if b is not None:
        shifts.append(reshape(b, (element_count(b), *(1 for _ in range(rank - 2)))))
    return Forms(
        first_forms(s for s in f.scales if element_count(s) == 1),
        first_forms(shifts),
        first_weights(root),
    )
