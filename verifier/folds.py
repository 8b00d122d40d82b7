"""Expressions that constant folding may have computed: scales, shifts and weights of each value.

    y = (x W + b) s + t      gives s, t, W s, b s, b s + t

In graph order, each value gets the constants that scaled it, those added to it, and the weights
before it, each multiplied through later operators. The caller compares numbers and proves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from superopt.ir import graph as g
from superopt.ops import OPS
from superopt.te.dtype import F32, F64, to_numpy
from superopt.verifier.forms import (
    Forms,
    Pool,
    Weight,
    aligned,
    constant_bias,
    count,
    few,
    reshaped,
    sizes_of,
    weights_of,
)

MOVES = frozenset(["Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Flatten", "Expand"])
PASSES = MOVES | {"Concat", "Split", "Slice", "Relu", "Neg", "Gather", "Pad", "ReduceMean",
                  "ReduceSum", "GlobalAveragePool", "AveragePool", "MaxPool"}  # fmt: skip


def offered(graph: g.Graph, most: int) -> list[g.Value]:
    """Return expressions of a graph's constants with at most `max_elements` elements each."""
    pool = Pool(most)
    forms = pool.known
    for n in g.nodes(graph):
        if n.types[0].dtype not in (F32, F64) or n.types[0].shape is None or not n.inputs:
            continue
        found = _through(n, forms, pool)
        rows = _rows(n, forms, pool)
        for v in g.results(n):
            forms[v] = found if rows is None else replace(found, table=rows)
    return list(pool.found)


def _through(n: g.Node, forms: dict[g.Value, Forms], pool: Pool) -> Forms:
    """Return the forms of a node's result from those of its operands."""
    given = [v for v in n.inputs if v is not None]
    constants = [v for v in given if isinstance(v, g.Constant)]
    others = [v for v in given if not isinstance(v, g.Constant)]
    own = [forms.get(v, Forms()) for v in others]
    if not own:
        return Forms()
    match n.op.name:
        case "Mul" | "Div" if len(constants) == 1 and n.inputs[1] is constants[0]:
            return _scaled(own[0], constants[0], n.op.name, pool)
        case "Mul" if len(constants) == 1:
            return _scaled(own[0], constants[0], "Mul", pool)
        case "Sub" if len(constants) == 1 and n.inputs[0] is constants[0]:
            return _subtracted(own[0], constants[0], pool)
        case "Add" | "Sub" if len(constants) == 1:
            return _shifted(own[0], constants[0], n.op.name, pool)
        case "Add" | "Sub" if len(own) == 2:
            return _added(own[0], own[1], n.op.name, pool)
        case "Mul" | "Div" | "Sum" | "Max" | "Min" | "Where":
            return _scalars(own, pool)
        case "BatchNormalization" if len(constants) == 4:
            return _normalized(own[0], n, constants, pool)
        case "LayerNormalization" | "GroupNormalization" | "InstanceNormalization" if constants:
            return Forms(tuple(constants[:1]), tuple(constants[1:2]))
        case "MatMul" if len(constants) == 1:
            return _product(own[0], n, others[0], constants[0], pool)
        case "MatMul" if len(own) == 2:
            return _scalars(own, pool)
        case "Gemm" if constants and isinstance(n.inputs[1], g.Constant):
            return _gemm(own[0], n, others[0], pool)
        case "Conv" if constants and isinstance(n.inputs[1], g.Constant):
            return _conv(own[0], n, others[0], pool)
        case name if name in PASSES and own:
            return _moved(own, n, pool)
        case _:
            return Forms()


def _rows(n: g.Node, forms: dict[g.Value, Forms], pool: Pool) -> tuple[g.Value, g.Value] | None:
    """Return the index and the table whose rows a value is: functions of rows become tables,
    too."""
    if n.op.name == "Gather" and n.attr("axis") == 0 and isinstance(n.inputs[0], g.Constant):
        index = n.inputs[1]
        return None if index is None else (index, n.inputs[0])
    tables = {forms.get(v, Forms()).table for v in n.inputs if not isinstance(v, g.Constant) if v}
    one = next(iter(tables)) if len(tables) == 1 else None
    if one is None or len(n.types) > 1:
        return None
    small = [len(v.type.shape or ()) < 2 for v in n.inputs if isinstance(v, g.Constant)]
    product = n.op.name == "MatMul" and isinstance(n.inputs[1], g.Constant)
    if not product and not ("elementwise" in n.op.laws and all(small)):
        return None
    given = [v if v is None or isinstance(v, g.Constant) else one[1] for v in n.inputs]
    made = pool.made(n.op.name, *given, **dict(n.attrs)) if None not in given else None
    return None if made is None else (one[0], made)


def _scaled(f: Forms, k: g.Constant, op: str, pool: Pool) -> Forms:
    inverse = pool.made("Reciprocal", k) if op == "Div" else None
    scales = [k if op == "Mul" else inverse, *(pool.made(op, s, k) for s in f.scales)]
    shifts = [pool.made(op, t, k) for t in f.shifts]
    weights = [_by(w, k, op, pool) for w in f.weights]
    return Forms(few(scales), few(shifts), weights_of([*weights, *f.weights]))


def _by(w: Weight, k: g.Value, op: str, pool: Pool) -> Weight | None:
    """Return a weight scaled by the scale of its product."""
    here = aligned(k, w.axis, w.of)
    made = None if here is None else pool.made(op, w.value, here)
    if made is None or made.type != w.value.type:
        return None
    return replace(w, value=made)


def _shifted(f: Forms, k: g.Constant, op: str, pool: Pool) -> Forms:
    minus = pool.made("Neg", k) if op == "Sub" else None
    shifts = [k if op == "Add" else minus, *(pool.made(op, t, k) for t in f.shifts)]
    for s in f.scales:  # x s + t is (x + t / s) s
        of = s.inputs[0] if isinstance(s, g.Node) and s.op.name == "Reciprocal" else None
        pool.made("Div", k, s) if of is None else pool.made("Mul", k, of)
    return Forms(f.scales, few(shifts), f.weights)


def _subtracted(f: Forms, k: g.Constant, pool: Pool) -> Forms:
    """Return the forms of k - x."""
    scales = [pool.made("Neg", s) for s in f.scales]
    shifts = [k, *(pool.made("Sub", k, t) for t in f.shifts)]
    negative = [
        None if (v := pool.made("Neg", w.value)) is None else replace(w, value=v) for w in f.weights
    ]
    return Forms(few(scales), few(shifts), weights_of(negative))


def _added(a: Forms, b: Forms, op: str, pool: Pool) -> Forms:
    """Return sums of the shifts of both sides, and of weights with the same root."""
    shifts = [pool.made(op, s, t) for s in a.shifts for t in b.shifts]
    sums: list[Weight | None] = []
    for w in a.weights:
        for v in b.weights:
            if (v.root, v.kind, v.axis, v.of) == (w.root, w.kind, w.axis, w.of):
                sums.append(_sum(w, v, op, pool))
    weights = weights_of([*sums, *a.weights, *b.weights])
    return Forms(few([*a.scales, *b.scales]), few([*shifts, *a.shifts, *b.shifts]), weights)


def _sum(w: Weight, v: Weight, op: str, pool: Pool) -> Weight | None:
    """Return the sum of two weights; the smaller of two kernels is padded."""
    x, y = w.value, v.value
    if w.kind == "Conv":
        p, q = sizes_of(x), sizes_of(y)
        large = [max(d) for d in zip(p, q, strict=True)]
        x, y = _padded(x, large), _padded(y, large)
    made = pool.made(op, x, y)
    return None if made is None else replace(w, value=made)


def _padded(v: g.Value, shape: Sequence[int]) -> g.Value:
    less = [(n - m) // 2 for n, m in zip(shape, sizes_of(v), strict=True)]
    return g.node(OPS["Pad"], [v], pads=(*less, *less)) if any(less) else v


def _scalars(own: Sequence[Forms], pool: Pool) -> Forms:
    """Return the scalar scales of a product. Weights and shifts of either side may still be scaled
    by a number."""
    some = [[s for s in f.scales if count(s) == 1] for f in own]
    both = [pool.made("Mul", s, t) for s in some[0] for t in some[1]] if len(some) == 2 else []
    weights = [replace(w, axis=0, of=0) for f in own for w in f.weights]
    shifts = [t for f in own for t in f.shifts]
    for one, other in ((0, 1), (1, 0)) if len(own) == 2 else ():
        for s in some[other]:  # a scalar may move from one operand to the other
            for t in own[one].shifts:
                pool.made("Mul", t, s)
            for w in own[one].weights:
                _by(w, s, "Mul", pool)
    return Forms(few([*both, *(s for one in some for s in one)]), few(shifts), weights_of(weights))


def _normalized(f: Forms, n: g.Node, constants: Sequence[g.Constant], pool: Pool) -> Forms:
    """Return (x - mean) / sqrt(variance + epsilon) * scale + b as x s + t."""
    scale, b, mean, variance = constants
    dtype = variance.type.dtype
    assert dtype is not None
    epsilon = g.constant(np.array(n.attr("epsilon"), to_numpy(dtype)))
    s = pool.made("Div", scale, pool.made("Sqrt", pool.made("Add", variance, epsilon)))
    t = pool.made("Sub", b, pool.made("Mul", mean, s))
    if s is None or t is None:
        return Forms()
    spread = (count(scale), *(1 for _ in range(len(n.types[0].shape or ()) - 2)))
    s, t = reshaped(s, spread), reshaped(t, spread)
    shifts = [pool.made("Add", pool.made("Mul", u, s), t) for u in f.shifts]
    weights = [_by(w, s, "Mul", pool) for w in f.weights]
    more = [pool.made("Mul", u, s) for u in f.scales]
    return Forms(few([s, *more]), few([t, *shifts]), weights_of([*weights, *f.weights]))


def _product(f: Forms, n: g.Node, x: g.Value, w: g.Value, pool: Pool) -> Forms:
    """Return the weight of x W or W x, also scaled by the scales of x, and after the weights of
    x."""
    right = n.inputs[1] is w
    out = 1 if right else 2
    rank = len(w.type.shape or ())
    if rank < 2 or len(n.types[0].shape or ()) < 2:
        return Forms(weights=(Weight(x, "MatMul", w, 0, 0),))
    root = [Weight(x, "MatMul", w, out, out)]
    for s in f.scales:
        here = aligned(s, 3 - out, out)
        if here is not None and (made := pool.made("Mul", w, here)) is not None:
            root.append(Weight(x, "MatMul", made, out, out))
    for v in f.weights:
        pair = (v.value, w) if right else (w, v.value)
        made = pool.made("MatMul", *pair) if v.kind == "MatMul" else None
        if made is not None:
            root.append(Weight(v.root, "MatMul", made, out, out))
        if v.heads > 1 and right and v.kind == "MatMul":
            by_head = pool.made("MatMul", *_by_head(v.value, w, v.heads))
            if by_head is not None:
                root.append(Weight(v.root, "MatMul", by_head, 0, 0))
    pairs = [(t, w) if right else (w, t) for t in f.shifts]
    shifts = [pool.made("MatMul", *p) for p in pairs]
    parts = _by_parts(x, w, pool) if right else Forms()
    return Forms(
        few(s for s in f.scales if count(s) == 1),
        few([*shifts, *parts.shifts]),
        weights_of([*root, *parts.weights]),
    )


def _by_parts(x: g.Value, w: g.Value, pool: Pool) -> Forms:
    """Split Concat(u, v) W into u and v times the matching rows of W."""
    joined = g.producer(x)
    if joined is None or joined.op.name != "Concat" or len(sizes_of(w)) != 2:
        return Forms()
    if joined.attr("axis") != len(x.type.shape or ()) - 1:
        return Forms()
    start, weights, shifts = 0, list[Weight](), list[tuple[g.Value, ...]]()
    for u in joined.inputs:
        size = None if u is None or not u.type.shape else u.type.shape[-1]
        if u is None or not isinstance(size, int):
            return Forms()
        rows = g.node(OPS["Slice"], [w], starts=(start,), ends=(start + size,), axes=(0,))
        start += size
        found = _product(
            pool.known.get(u, Forms()), g.node(OPS["MatMul"], [u, rows]), u, rows, pool
        )
        weights += found.weights
        shifts.append(found.shifts)
    first, *others = [s for s in shifts if s] or [()]
    total = [pool.sum([t, *(s[0] for s in others)]) for t in first]
    return Forms((), few([*total, *(s for some in shifts for s in some)]), weights_of(weights))


def _by_head(v: g.Value, w: g.Value, heads: int) -> tuple[g.Value | None, g.Value | None]:
    """Return x V with its columns split into heads, and W with its rows split, heads leading."""
    if len(sizes_of(v)) != 2 or len(sizes_of(w)) != 2:
        return None, None
    (k, d), (e, m) = sizes_of(v), sizes_of(w)
    if d != e or d % heads:
        return None, None
    first = reshaped(v, (k, heads, d // heads))
    return g.node(OPS["Transpose"], [first], perm=(1, 0, 2)), reshaped(w, (heads, d // heads, m))


def _gemm(f: Forms, n: g.Node, x: g.Value, pool: Pool) -> Forms:
    """Return a Gemm as a product and its bias."""
    w, b = n.inputs[1], constant_bias(n)
    assert isinstance(w, g.Constant)
    turned: g.Value | None = w
    if n.attr("transB"):
        turned = g.node(OPS["Transpose"], [w], perm=(1, 0))
    for name in ("alpha", "beta"):
        k = n.attr(name)
        if k == 1.0:
            continue
        assert w.type.dtype is not None
        number = g.constant(np.array(k, to_numpy(w.type.dtype)))
        if name == "alpha":
            turned = pool.made("Mul", turned, number)
        else:
            b = pool.made("Mul", b, number)
    if turned is None or n.attr("transA"):
        return Forms()
    plain = g.node(OPS["MatMul"], [x, turned])
    found = _product(f, plain, x, turned, pool)
    if b is None:
        return found
    shifts = [b, *(pool.made("Add", t, b) for t in found.shifts)]
    return Forms(found.scales, few(shifts), found.weights)


def _conv(f: Forms, n: g.Node, x: g.Value, pool: Pool) -> Forms:
    """Return the kernel, also scaled by the scales of the input channels, and the bias."""
    w, b = n.inputs[1], constant_bias(n)
    assert isinstance(w, g.Constant)
    rank = len(w.type.shape or ())
    root = [Weight(x, "Conv", w, rank, rank - 1)]
    for s in f.scales:
        here = aligned(s, rank - 1, rank - 1) if n.attr("group") == 1 else None
        if here is not None and (made := pool.made("Mul", w, here)) is not None:
            root.append(Weight(x, "Conv", made, rank, rank - 1))
    shifts: list[g.Value] = []
    if b is not None:
        shifts.append(reshaped(b, (count(b), *(1 for _ in range(rank - 2)))))
    return Forms(few(s for s in f.scales if count(s) == 1), few(shifts), weights_of(root))


def _moved(own: Sequence[Forms], n: g.Node, pool: Pool) -> Forms:
    """Pass on scalars, and vectors along the last axis if that axis is only split or stays last."""
    scales = [s for f in own for s in f.scales if count(s) == 1]
    if n.op.name == "Neg":
        scales += [s for s in (pool.made("Neg", t) for t in scales) if s is not None]
    turned: list[tuple[g.Value, ...]] = [
        tuple(u for v in some if (u := _after(v, n)) is not None)
        for some in ([s for f in own for s in f.scales if count(s) > 1],
                     [t for f in own for t in f.shifts])
    ]  # fmt: skip
    weights = [w for f in own for w in f.weights]
    if n.op.name != "Identity":
        weights = [replace(w, axis=0, of=0, heads=_split(n, w)) for w in weights]
    joined = _side_by_side(own, n, pool) if n.op.name == "Concat" else Forms()
    return Forms(
        few([*scales, *turned[0]]),
        few([*joined.shifts, *turned[1]]),
        weights_of([*joined.weights, *weights]),
    )


def _split(n: g.Node, w: Weight) -> int:
    """Return the heads of a weight after a node: a reshape may split the last axis in two."""
    shape = [d for d in n.types[0].shape or () if isinstance(d, int)]
    last = w.value.type.shape or (0,)
    if n.op.name == "Reshape" and len(shape) > 2 and shape[-2] * shape[-1] == last[-1]:
        return shape[-2]
    return w.heads


def _side_by_side(own: Sequence[Forms], n: g.Node, pool: Pool) -> Forms:
    """Return the joined weights of products with one root that are joined along the last axis."""
    rank = len(n.types[0].shape or ())
    if n.attr("axis") != rank - 1 or not all(f.weights for f in own):
        return Forms()
    first = own[0].weights[0]
    some = [
        next(
            (w for w in f.weights if (w.root, w.kind) == (first.root, "MatMul") and w.axis == 1),
            None,
        )
        for f in own
    ]
    weights: list[Weight | None] = []
    if None not in some:
        axis = len(first.value.type.shape or ()) - 1
        made = pool.made("Concat", *(w.value for w in some if w is not None), axis=axis)
        weights.append(None if made is None else replace(first, value=made))
    shifts = []
    if all(f.shifts for f in own):
        shifts.append(pool.made("Concat", *(_flat(f.shifts[0]) for f in own), axis=0))
    return Forms((), few(shifts), weights_of(weights))


def _flat(v: g.Value) -> g.Value:
    return reshaped(v, (count(v),))


def _after(v: g.Value, n: g.Node) -> g.Value | None:
    """Return a constant that broadcasts with the result as `v` does with the operand."""
    if n.op.name in ("Identity", "Relu"):
        return v if n.op.name == "Identity" else None
    if count(v) == 1:
        return v if n.op.name in MOVES else None
    (x,) = [i for i in n.inputs[:1] if i is not None]
    before, after = x.type.shape or (), n.types[0].shape or ()
    if n.op.name in ("Reshape", "Squeeze", "Unsqueeze", "Flatten"):
        size, k = count(v), len(after)
        if v.type.shape != (before[-1] if before else 0,):
            return None
        product = 1
        while k and product != size:
            k -= 1
            d = after[k]
            if not isinstance(d, int):
                return None
            product *= d
        return reshaped(v, after[k:]) if product == size else None
    if n.op.name == "Transpose":
        perm = n.attr("perm")
        assert isinstance(perm, tuple)
        full = (*(1 for _ in range(len(before) - len(v.type.shape or ()))), *(v.type.shape or ()))
        return g.node(OPS["Transpose"], [reshaped(v, full)], perm=perm)
    return None
