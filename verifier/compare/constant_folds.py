"""Expressions that constant folding may have computed: scales, shifts and weights of each value.

    y = (x W + b) s + t      gives s, t, W s, b s, b s + t

In graph order, each value gets the constants that scaled it, those added to it, and the weights
before it, each multiplied through later operators. The caller compares numbers and proves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ops import OPS
from superopt.te.expr.dtype import F32, F64, to_numpy
from superopt.verifier.compare.linear_forms import (
    Forms,
    Pool,
    Weight,
    align,
    element_count,
    first_forms,
    first_weights,
    fixed_shape,
    reshape,
)
from superopt.verifier.compare.product_forms import conv_forms, gemm_forms, matmul_forms

MOVEMENT_OPS = frozenset(
    ["Reshape", "Transpose", "Squeeze", "Unsqueeze", "Identity", "Flatten", "Expand"]
)
TRANSPARENT_OPS = MOVEMENT_OPS | {
    "Concat",
    "Split",
    "Slice",
    "Relu",
    "Neg",
    "Gather",
    "Pad",
    "ReduceMean",
    "ReduceSum",
    "GlobalAveragePool",
    "AveragePool",
    "MaxPool",
}


def foldable_constants(graph: ir_graph.Graph, max_elements: int) -> list[ir_graph.Value]:
    """Return expressions of a graph's constants with at most `max_elements` elements each."""
    pool = Pool(max_elements)
    forms = pool.known
    for n in ir_graph.nodes(graph):
        if n.types[0].dtype not in (F32, F64) or n.types[0].shape is None or not n.inputs:
            continue
        found = _node_forms(n, forms, pool)
        rows = _lookup_table(n, forms, pool)
        for v in ir_graph.results(n):
            forms[v] = found if rows is None else replace(found, table=rows)
    return list(pool.found)


def _node_forms(n: ir_graph.Node, forms: dict[ir_graph.Value, Forms], pool: Pool) -> Forms:
    """Return the forms of a node's result from those of its operands."""
    given = [v for v in n.inputs if v is not None]
    constants = [v for v in given if isinstance(v, ir_graph.Constant)]
    others = [v for v in given if not isinstance(v, ir_graph.Constant)]
    own = [forms.get(v, Forms()) for v in others]
    if not own:
        return Forms()
    match n.op.name:
        case "Mul" | "Div" if len(constants) == 1 and n.inputs[1] is constants[0]:
            return _scale_forms(own[0], constants[0], n.op.name, pool)
        case "Mul" if len(constants) == 1:
            return _scale_forms(own[0], constants[0], "Mul", pool)
        case "Sub" if len(constants) == 1 and n.inputs[0] is constants[0]:
            return _subtract_forms(own[0], constants[0], pool)
        case "Add" | "Sub" if len(constants) == 1:
            return _shift_forms(own[0], constants[0], n.op.name, pool)
        case "Add" | "Sub" if len(own) == 2:
            return _add_forms(own[0], own[1], n.op.name, pool)
        case "Mul" | "Div" | "Sum" | "Max" | "Min" | "Where":
            return _scalar_forms(own, pool)
        case "BatchNormalization" if len(constants) == 4:
            return _batch_norm_forms(own[0], n, constants, pool)
        case "LayerNormalization" | "GroupNormalization" | "InstanceNormalization" if constants:
            return Forms(tuple(constants[:1]), tuple(constants[1:2]))
        case "MatMul" if len(constants) == 1:
            return matmul_forms(own[0], n, others[0], constants[0], pool)
        case "MatMul" if len(own) == 2:
            return _scalar_forms(own, pool)
        case "Gemm" if constants and isinstance(n.inputs[1], ir_graph.Constant):
            return gemm_forms(own[0], n, others[0], pool)
        case "Conv" if constants and isinstance(n.inputs[1], ir_graph.Constant):
            return conv_forms(own[0], n, others[0], pool)
        case name if name in TRANSPARENT_OPS and own:
            return _movement_forms(own, n, pool)
        case _:
            return Forms()


def _lookup_table(
    n: ir_graph.Node, forms: dict[ir_graph.Value, Forms], pool: Pool
) -> tuple[ir_graph.Value, ir_graph.Value] | None:
    """Return the index and the table whose rows a value is: functions of rows become tables,
    too."""
    if n.op.name == "Gather" and n.attr("axis") == 0 and isinstance(n.inputs[0], ir_graph.Constant):
        index = n.inputs[1]
        return None if index is None else (index, n.inputs[0])
    tables = {
        forms.get(v, Forms()).table for v in n.inputs if not isinstance(v, ir_graph.Constant) if v
    }
    one = next(iter(tables)) if len(tables) == 1 else None
    if one is None or len(n.types) > 1:
        return None
    small = [len(v.type.shape or ()) < 2 for v in n.inputs if isinstance(v, ir_graph.Constant)]
    product = n.op.name == "MatMul" and isinstance(n.inputs[1], ir_graph.Constant)
    if not product and not ("elementwise" in n.op.laws and all(small)):
        return None
    given = [v if v is None or isinstance(v, ir_graph.Constant) else one[1] for v in n.inputs]
    table = pool.make(n.op.name, *given, **dict(n.attrs)) if None not in given else None
    return None if table is None else (one[0], table)


def _scale_forms(f: Forms, k: ir_graph.Constant, op: str, pool: Pool) -> Forms:
    inverse = pool.make("Reciprocal", k) if op == "Div" else None
    scales = [k if op == "Mul" else inverse, *(pool.make(op, s, k) for s in f.scales)]
    shifts = [pool.make(op, t, k) for t in f.shifts]
    weights = [_scale_weight(w, k, op, pool) for w in f.weights]
    return Forms(first_forms(scales), first_forms(shifts), first_weights([*weights, *f.weights]))


def _scale_weight(w: Weight, k: ir_graph.Value, op: str, pool: Pool) -> Weight | None:
    """Return a weight scaled by the scale of its product."""
    here = align(k, w.axis, w.result_axis)
    scaled = None if here is None else pool.make(op, w.value, here)
    if scaled is None or scaled.type != w.value.type:
        return None
    return replace(w, value=scaled)


def _shift_forms(f: Forms, k: ir_graph.Constant, op: str, pool: Pool) -> Forms:
    minus = pool.make("Neg", k) if op == "Sub" else None
    shifts = [k if op == "Add" else minus, *(pool.make(op, t, k) for t in f.shifts)]
    for s in f.scales:  # x s + t is (x + t / s) s
        divisor = (
            s.inputs[0] if isinstance(s, ir_graph.Node) and s.op.name == "Reciprocal" else None
        )
        pool.make("Div", k, s) if divisor is None else pool.make("Mul", k, divisor)
    return Forms(f.scales, first_forms(shifts), f.weights)


def _subtract_forms(f: Forms, k: ir_graph.Constant, pool: Pool) -> Forms:
    """Return the forms of k - x."""
    scales = [pool.make("Neg", s) for s in f.scales]
    shifts = [k, *(pool.make("Sub", k, t) for t in f.shifts)]
    negative = [
        None if (v := pool.make("Neg", w.value)) is None else replace(w, value=v) for w in f.weights
    ]
    return Forms(first_forms(scales), first_forms(shifts), first_weights(negative))


def _add_forms(a: Forms, b: Forms, op: str, pool: Pool) -> Forms:
    """Return sums of the shifts of both sides, and of weights with the same root."""
    shifts = [pool.make(op, s, t) for s in a.shifts for t in b.shifts]
    sums: list[Weight | None] = []
    for w in a.weights:
        for v in b.weights:
            if (v.root, v.kind, v.axis, v.result_axis) == (w.root, w.kind, w.axis, w.result_axis):
                sums.append(_add_weights(w, v, op, pool))
    weights = first_weights([*sums, *a.weights, *b.weights])
    return Forms(
        first_forms([*a.scales, *b.scales]), first_forms([*shifts, *a.shifts, *b.shifts]), weights
    )


def _add_weights(w: Weight, v: Weight, op: str, pool: Pool) -> Weight | None:
    """Return the sum of two weights; the smaller of two kernels is padded."""
    x, y = w.value, v.value
    if w.kind == "Conv":
        p, q = fixed_shape(x), fixed_shape(y)
        large = [max(d) for d in zip(p, q, strict=True)]
        x, y = _pad_kernel(x, large), _pad_kernel(y, large)
    total = pool.make(op, x, y)
    return None if total is None else replace(w, value=total)


def _pad_kernel(v: ir_graph.Value, shape: Sequence[int]) -> ir_graph.Value:
    less = [(n - m) // 2 for n, m in zip(shape, fixed_shape(v), strict=True)]
    return ir_graph.node(OPS["Pad"], [v], pads=(*less, *less)) if any(less) else v


def _scalar_forms(operand_forms: Sequence[Forms], pool: Pool) -> Forms:
    """Return the scalar scales of a product. Weights and shifts of either side may still be scaled
    by a number."""
    scalars = [[s for s in f.scales if element_count(s) == 1] for f in operand_forms]
    both = (
        [pool.make("Mul", s, t) for s in scalars[0] for t in scalars[1]]
        if len(scalars) == 2
        else []
    )
    weights = [replace(w, axis=0, result_axis=0) for f in operand_forms for w in f.weights]
    shifts = [t for f in operand_forms for t in f.shifts]
    for one, other in ((0, 1), (1, 0)) if len(operand_forms) == 2 else ():
        for s in scalars[other]:  # a scalar may move from one operand to the other
            for t in operand_forms[one].shifts:
                pool.make("Mul", t, s)
            for w in operand_forms[one].weights:
                _scale_weight(w, s, "Mul", pool)
    return Forms(
        first_forms([*both, *(s for one in scalars for s in one)]),
        first_forms(shifts),
        first_weights(weights),
    )


def _batch_norm_forms(
    f: Forms, n: ir_graph.Node, constants: Sequence[ir_graph.Constant], pool: Pool
) -> Forms:
    """Return (x - mean) / sqrt(variance + epsilon) * scale + b as x s + t."""
    scale, b, mean, variance = constants
    dtype = variance.type.dtype
    assert dtype is not None
    epsilon = ir_graph.constant(np.array(n.attr("epsilon"), to_numpy(dtype)))
    s = pool.make("Div", scale, pool.make("Sqrt", pool.make("Add", variance, epsilon)))
    t = pool.make("Sub", b, pool.make("Mul", mean, s))
    if s is None or t is None:
        return Forms()
    spread = (element_count(scale), *(1 for _ in range(len(n.types[0].shape or ()) - 2)))
    s, t = reshape(s, spread), reshape(t, spread)
    shifts = [pool.make("Add", pool.make("Mul", u, s), t) for u in f.shifts]
    weights = [_scale_weight(w, s, "Mul", pool) for w in f.weights]
    more = [pool.make("Mul", u, s) for u in f.scales]
    return Forms(
        first_forms([s, *more]), first_forms([t, *shifts]), first_weights([*weights, *f.weights])
    )


def _movement_forms(operand_forms: Sequence[Forms], n: ir_graph.Node, pool: Pool) -> Forms:
    """Pass on scalars, and vectors along the last axis if that axis is only split or stays last."""
    scales = [s for f in operand_forms for s in f.scales if element_count(s) == 1]
    if n.op.name == "Neg":
        scales += [s for s in (pool.make("Neg", t) for t in scales) if s is not None]
    turned: list[tuple[ir_graph.Value, ...]] = [
        tuple(u for v in some if (u := _after_movement(v, n)) is not None)
        for some in ([s for f in operand_forms for s in f.scales if element_count(s) > 1],
                     [t for f in operand_forms for t in f.shifts])
    ]  # fmt: skip
    weights = [w for f in operand_forms for w in f.weights]
    if n.op.name != "Identity":
        weights = [replace(w, axis=0, result_axis=0, heads=_head_count(n, w)) for w in weights]
    joined = _concat_forms(operand_forms, n, pool) if n.op.name == "Concat" else Forms()
    return Forms(
        first_forms([*scales, *turned[0]]),
        first_forms([*joined.shifts, *turned[1]]),
        first_weights([*joined.weights, *weights]),
    )


def _head_count(n: ir_graph.Node, w: Weight) -> int:
    """Return the heads of a weight after a node: a reshape may split the last axis in two."""
    shape = [d for d in n.types[0].shape or () if isinstance(d, int)]
    last = w.value.type.shape or (0,)
    if n.op.name == "Reshape" and len(shape) > 2 and shape[-2] * shape[-1] == last[-1]:
        return shape[-2]
    return w.heads


def _concat_forms(operand_forms: Sequence[Forms], n: ir_graph.Node, pool: Pool) -> Forms:
    """Return the joined weights of products with one root that are joined along the last axis."""
    rank = len(n.types[0].shape or ())
    if n.attr("axis") != rank - 1 or not all(f.weights for f in operand_forms):
        return Forms()
    first = operand_forms[0].weights[0]
    some = [
        next(
            (w for w in f.weights if (w.root, w.kind) == (first.root, "MatMul") and w.axis == 1),
            None,
        )
        for f in operand_forms
    ]
    weights: list[Weight | None] = []
    if None not in some:
        axis = len(first.value.type.shape or ()) - 1
        made = pool.make("Concat", *(w.value for w in some if w is not None), axis=axis)
        weights.append(None if made is None else replace(first, value=made))
    shifts = []
    if all(f.shifts for f in operand_forms):
        shifts.append(pool.make("Concat", *(_flatten(f.shifts[0]) for f in operand_forms), axis=0))
    return Forms((), first_forms(shifts), first_weights(weights))


def _flatten(v: ir_graph.Value) -> ir_graph.Value:
    return reshape(v, (element_count(v),))


def _after_movement(v: ir_graph.Value, n: ir_graph.Node) -> ir_graph.Value | None:
    """Return a constant that broadcasts with the result as `v` does with the operand."""
    if n.op.name in ("Identity", "Relu"):
        return v if n.op.name == "Identity" else None
    if element_count(v) == 1:
        return v if n.op.name in MOVEMENT_OPS else None
    (x,) = [i for i in n.inputs[:1] if i is not None]
    before, after = x.type.shape or (), n.types[0].shape or ()
    if n.op.name in ("Reshape", "Squeeze", "Unsqueeze", "Flatten"):
        size, k = element_count(v), len(after)
        if v.type.shape != (before[-1] if before else 0,):
            return None
        product = 1
        while k and product != size:
            k -= 1
            d = after[k]
            if not isinstance(d, int):
                return None
            product *= d
        return reshape(v, after[k:]) if product == size else None
    if n.op.name == "Transpose":
        perm = n.attr("perm")
        assert isinstance(perm, tuple)
        full = (*(1 for _ in range(len(before) - len(v.type.shape or ()))), *(v.type.shape or ()))
        return ir_graph.node(OPS["Transpose"], [reshape(v, full)], perm=perm)
    return None
