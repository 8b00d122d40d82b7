"""Random graphs of quantized operators, and what they give by ONNX's definition.

Two kinds. "exact": chains of integer products, requantizations and single operations in float32,
which have one result, bit for bit; a QuantizeLinear of computed floats, which may be one step off,
is the last one. "qdq": float products and other operators between
DequantizeLinear and QuantizeLinear, whose definition is in float64; of a chain of two, the first
result is given, too, and the second is that of the first as it was computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto, helper

from tests.support.onnx_io.integer_definitions import (
    Array,
    integer_convolution,
    integer_product,
    max_windows,
)
from tests.support.onnx_io.integer_graph_builder import (
    F32,
    I32,
    MAX_MULTIPLICATIONS,
    IntegerGraph,
    Value,
    draw_extreme,
    draw_size,
)
from tests.support.onnx_io.quantized_case import DOMAIN, draw_bytes, draw_type, is_drawn


def draw_start(g: IntegerGraph, floats: float = 0.15) -> Value:
    """Return an input of 8-bit integers, or one that is quantized to them. floats: how often."""
    rng = g.rng
    if is_drawn(rng):
        rank = int(rng.choice([1, 2, 2, 2, 3, 4]))
        lead = [draw_size(rng, 5) for _ in range(rank - 2)]
        shape = (*lead, *(draw_size(rng) for _ in range(min(rank, 2))))
    else:
        rank = int(rng.choice([1, 2, 2, 2, 3]))
        most = {1: 40, 2: 14, 3: 6}[rank]
        shape = (
            int(rng.integers(1, 3)),
            draw_size(rng),
            *(draw_size(rng, most) for _ in range(rank)),
        )
    if is_drawn(rng, floats):
        x = g.input((rng.standard_normal(shape) * 10).astype(np.float32))
        return quantize_step(g, x)
    return g.input(draw_extreme(rng, shape, draw_type(rng)))


def is_image(x: Value) -> bool:
    return x.array.ndim >= 3


# ---- products


@dataclass(slots=True)
class _Product:
    """The operands of an integer product, and its sum. axis: of the columns in the result."""

    w: Value
    x_zero: Value | None
    w_zero: Value | None
    total: Array
    axis: int
    attrs: dict[str, object] = field(default_factory=dict)

    @property
    def columns(self) -> int:
        return self.total.shape[self.axis]

    def along_columns(self, a: Array) -> Array:
        return a if a.ndim == 0 else a.reshape(-1, *[1] * (self.total.ndim - 1 - self.axis))


def draw_zeros(g: IntegerGraph, dtype: np.dtype, columns: int | None, needed: bool) -> Value | None:
    rng = g.rng
    if not needed and is_drawn(rng, 0.3):
        return None
    shape = (columns,) if columns is not None and is_drawn(rng) else ()
    return g.constant(draw_extreme(rng, shape, dtype))


def draw_matrix_product(g: IntegerGraph, x: Value, needed: bool = False) -> _Product | None:
    rng = g.rng
    k, rows = x.array.shape[-1], x.array.size // x.array.shape[-1]
    n = draw_size(rng, max(1, MAX_MULTIPLICATIONS // max(1, k * rows)))
    w = draw_extreme(rng, (k, n), draw_type(rng))
    x_zero = draw_zeros(g, x.array.dtype, None, needed)
    w_zero = draw_zeros(g, w.dtype, n, needed) if x_zero is not None or needed else None
    total = integer_product(x.array, w, *(None if z is None else z.array for z in (x_zero, w_zero)))
    weights = g.input(w) if is_drawn(rng, 0.05) else g.constant(w)
    return _Product(weights, x_zero, w_zero, total, total.ndim - 1)


def draw_convolution(
    g: IntegerGraph, x: Value, needed: bool = False, one_zero: bool = False
) -> _Product | None:
    rng, count = g.rng, x.array.ndim - 2
    channels, sizes = x.array.shape[1], x.array.shape[2:]
    groups = [n for n in (2, 3, 4, 8, channels) if channels % n == 0 and n <= channels]
    group = int(rng.choice(groups)) if groups and is_drawn(rng, 0.15) else 1
    kernel = tuple(int(rng.integers(1, 4)) for _ in range(count))
    strides = tuple(int(rng.integers(1, 4)) for _ in range(count))
    dilations = tuple(int(rng.choice([1, 1, 2, 3])) for _ in range(count))
    pads = tuple(int(rng.integers(0, 3)) for _ in range(2 * count))
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    if any(n + pads[d] + pads[d + count] < spans[d] for d, n in enumerate(sizes)):
        return None
    per_channel = x.array.size * int(np.prod(kernel)) // group
    outer = draw_size(rng, max(1, MAX_MULTIPLICATIONS // max(1, per_channel)))
    outer = -(-outer // group) * group
    w = draw_extreme(rng, (outer, channels // group, *kernel), draw_type(rng))
    x_zero = draw_zeros(g, x.array.dtype, None, needed)
    w_zero = None
    if x_zero is not None:
        w_zero = draw_zeros(g, w.dtype, None if one_zero else outer, needed)
    zeros = [None if z is None else z.array for z in (x_zero, w_zero)]
    total = integer_convolution(x.array, w, *zeros, strides, pads, dilations, group)
    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "group": group}
    return _Product(g.constant(w), x_zero, w_zero, total, 1, attrs)


def draw_product(g: IntegerGraph, x: Value, needed: bool = False) -> tuple[str, _Product] | None:
    """Return MatMul or Conv and its operands. needed: zero points."""
    if is_image(x) and is_drawn(g.rng, 0.8):
        p = draw_convolution(g, x, needed)
        return None if p is None else ("Conv", p)
    p = draw_matrix_product(g, x, needed)
    return None if p is None else ("MatMul", p)


def integer_step(g: IntegerGraph, x: Value) -> Value | None:
    """MatMulInteger or ConvInteger."""
    found = draw_product(g, x)
    if found is None:
        return None
    kind, p = found
    return g.apply(f"{kind}Integer", [x, p.w, p.x_zero, p.w_zero], p.total, **p.attrs)


def draw_scales(g: IntegerGraph, shape: tuple[int, ...] = ()) -> Value:
    values = np.exp(g.rng.uniform(-7, 1, shape))
    return g.constant(values, np.float32)


def requantize(total: Array, scale: Array, zero: Array) -> Array:
    """Return round(total * scale) + zero in the range of the zero point's type, in float32."""
    ends = np.iinfo(zero.dtype)
    value = np.rint(total.astype(F32) * scale) + zero.astype(F32)
    return np.clip(value, ends.min, ends.max).astype(zero.dtype)


def result_scale(g: IntegerGraph, total: Array, scale: Array) -> Value:
    """Return a scale with which most of total * scale is in range."""
    largest = float(np.abs(total.astype(np.float64) * scale).max(initial=1e-3)) + 1e-3
    return g.constant(largest / g.rng.uniform(60, 400), np.float32)


def qlinear_step(g: IntegerGraph, x: Value) -> Value | None:
    """QLinearMatMul or QLinearConv."""
    found = draw_product(g, x, needed=True)
    if found is None:
        return None
    kind, p = found
    assert p.w_zero is not None
    x_scale = draw_scales(g)
    w_scale = draw_scales(g, p.w_zero.array.shape)
    total, bias = p.total, None
    if kind == "Conv" and is_drawn(g.rng):
        bias = g.constant(g.rng.integers(-(1 << 31), 1 << 31, p.columns), np.int32)
        if is_drawn(g.rng, 0.8):
            bias.array[:] >>= 14
        total = total + p.along_columns(bias.array)
    scale = x_scale.array * p.along_columns(w_scale.array)
    y_scale = result_scale(g, total, scale)
    y_zero = g.constant(draw_extreme(g.rng, (), draw_type(g.rng)))
    y = requantize(total, scale / y_scale.array, y_zero.array)
    operands = [x, x_scale, p.x_zero, p.w, w_scale, p.w_zero, y_scale, y_zero, bias]
    return g.apply(f"QLinear{kind}", operands, y, **p.attrs)


def gemm_step(g: IntegerGraph, x: Value) -> Value | None:
    """QGemm."""
    if x.array.ndim != 2:
        return None
    rng, p = g.rng, draw_matrix_product(g, x, needed=True)
    assert p is not None
    assert p.w_zero is not None
    transposed = int(rng.integers(2))
    w = g.constant(p.w.array.T.copy()) if transposed else p.w
    alpha, c = np.float32(rng.choice([1, 0.75, 1.3])), None
    x_scale, w_scale = draw_scales(g), draw_scales(g, p.w_zero.array.shape)
    total = p.total
    if is_drawn(rng):
        rows = total.shape[0]
        shape = [(p.columns,), (rows, 1), total.shape, ()][rng.integers(4)]
        c = g.constant(rng.integers(-(1 << 31), 1 << 31, shape), np.int32)
        total = total + c.array
    scale = (x_scale.array if alpha == 1 else x_scale.array * alpha) * w_scale.array
    operands = [x, x_scale, p.x_zero, w, w_scale, p.w_zero, c]
    attrs = {"alpha": float(alpha), "transB": transposed}
    if is_drawn(rng, 0.3):
        y = total.astype(F32) * scale
        return g.apply("QGemm", operands, y, DOMAIN, is_product=True, **attrs)
    y_scale = result_scale(g, total, scale)
    y_zero = g.constant(draw_extreme(rng, (), draw_type(rng)))
    y = requantize(total, scale / y_scale.array, y_zero.array)
    return g.apply("QGemm", [*operands, y_scale, y_zero], y, DOMAIN, **attrs)


def to_float_step(g: IntegerGraph, x: Value) -> Value | None:
    """MatMulIntegerToFloat without a bias."""
    p = draw_matrix_product(g, x)
    assert p is not None
    x_scale = draw_scales(g)
    w_scale = draw_scales(g, () if p.w_zero is None else p.w_zero.array.shape)
    y = p.total.astype(F32) * (x_scale.array * w_scale.array)
    operands = [x, p.w, x_scale, w_scale, p.x_zero, p.w_zero]
    return g.apply("MatMulIntegerToFloat", operands, y, DOMAIN, is_product=True)


Step = Callable[[IntegerGraph, Value], Value | None]
PRODUCTS: tuple[Step, ...] = (integer_step, integer_step, qlinear_step, gemm_step, to_float_step)


# ---- other operators


def quantize_parameters(
    g: IntegerGraph, x: Value, dtype: np.dtype
) -> tuple[Value, Value | None, int, list[int]]:
    """Return a scale, a zero point, the axis and the shape in which they broadcast."""
    rng, rank = g.rng, x.array.ndim
    axis = int(rng.integers(rank)) if rank and is_drawn(rng, 0.3) else None
    shape = () if axis is None else (x.array.shape[axis],)
    zero = None if dtype == np.uint8 and is_drawn(rng, 0.2) else draw_extreme(rng, shape, dtype)
    along = [-1 if d == axis else 1 for d in range(rank)] if shape else []
    return (
        draw_scales(g, shape), None if zero is None else g.constant(zero),
        1 if axis is None else axis, along,
    )  # fmt: skip


def dequantize_step(g: IntegerGraph, x: Value) -> Value | None:
    scale, zero, axis, along = quantize_parameters(g, x, x.array.dtype)
    z = 0 if zero is None else zero.array.astype(np.int32).reshape(along)
    y = (x.array.astype(np.int32) - z).astype(F32) * scale.array.reshape(along)
    return g.apply("DequantizeLinear", [x, scale, zero], y, is_product=True, axis=axis)


def quantize_step(g: IntegerGraph, x: Value) -> Value | None:
    dtype = np.dtype(g.rng.choice([np.uint8, np.int8, np.uint8, np.int8, np.int16, np.uint16]))
    scale, zero, axis, along = quantize_parameters(g, x, dtype)
    largest = np.float32(np.abs(x.array).max(initial=1e-3) + 1e-3)
    scale.array[...] = largest / g.rng.uniform(60, 400, scale.array.shape)
    ends = np.iinfo(np.uint8 if zero is None else zero.array.dtype)
    z = np.float32(0) if zero is None else zero.array.astype(F32).reshape(along)
    y = np.clip(np.rint(x.array / scale.array.reshape(along)) + z, ends.min, ends.max)
    made = g.apply("QuantizeLinear", [x, scale, zero], y.astype(ends.dtype), axis=axis)
    if x.name not in g.feeds:  # scales of integers may be merged with this one
        g.tolerances[made.name] = 1
    return made


def dynamic_step(g: IntegerGraph, x: Value) -> Value | None:
    """DynamicQuantizeLinear and MatMulInteger with the zero point that it gives."""
    a = x.array
    low, high = min(a.min(), np.float32(0)), max(a.max(), np.float32(0))
    scale = (high - low) / np.float32(255) if high > low else np.float32(1)
    if not np.isfinite(scale) or scale == 0:
        return None
    zero = np.uint8(np.rint(np.clip(-low / scale, 0, 255)))
    q = np.clip(np.rint(a / scale) + np.float32(zero), 0, 255).astype(np.uint8)
    names = [f"{kind}{len(g.nodes)}" for kind in "qsz"]
    g.nodes.append(helper.make_node("DynamicQuantizeLinear", [x.name], names))
    n = draw_size(g.rng, max(1, MAX_MULTIPLICATIONS // a.size))
    w = g.constant(draw_extreme(g.rng, (a.shape[-1], n), draw_type(g.rng)))
    w_zero = draw_zeros(g, w.array.dtype, n, needed=False)
    total = integer_product(q, w.array, np.asarray(zero), None if w_zero is None else w_zero.array)
    operands = [Value(names[0], q), w, Value(names[2], np.asarray(zero)), w_zero]
    return g.apply("MatMulInteger", operands, total)


def elementwise_step(g: IntegerGraph, x: Value) -> Value | None:
    rng, a, kind = g.rng, x.array, x.array.dtype.kind
    match rng.integers(4):
        case 0 if a.dtype in (np.int8, I32, F32):
            return g.apply("Relu", [x], np.maximum(a, a.dtype.type(0)))
        case 1:
            ends = np.sort(rng.choice(a.reshape(-1), 2)) if a.size else a.reshape(-1)
            low, high = (g.constant(v) for v in ends)
            return g.apply("Clip", [x, low, high], np.clip(a, *ends))
        case 2 if kind == "f" and not x.is_product:
            b = g.constant(rng.standard_normal(a.shape[-1:]) * 100, np.float32)
            return g.apply("Add", [x, b], a + b.array)
        case 2 if a.dtype == I32:
            b = g.constant(rng.integers(-(1 << 31), 1 << 31, a.shape[-1:]), np.int32)
            return g.apply("Add", [x, b], a + b.array)
        case 3 if kind == "f":
            b = g.constant(np.exp(rng.uniform(-3, 3)), np.float32)
            return g.apply("Mul", [x, b], a * b.array, is_product=True)
    return None


def movement_step(g: IntegerGraph, x: Value) -> Value | None:
    rng, a = g.rng, x.array
    match rng.integers(4):
        case 0 if a.ndim:
            axis = int(rng.integers(a.ndim))
            shape = tuple(
                int(rng.integers(1, 5)) if d == axis else n for d, n in enumerate(a.shape)
            )
            if a.dtype.kind == "f":
                b = g.constant(rng.standard_normal(shape), np.float32)
            else:
                b = g.constant(draw_bytes(rng, shape, np.dtype(np.int8)).astype(a.dtype))
            return g.apply("Concat", [x, b], np.concatenate([a, b.array], axis), axis=axis)
        case 1:
            order = [int(d) for d in rng.permutation(a.ndim)]
            return g.apply("Transpose", [x], a.transpose(order), perm=order)
        case 2 if a.ndim > 2:
            return g.apply("Flatten", [x], a.reshape(len(a), -1))
        case 3 if is_image(x) and a.dtype in (np.int8, np.uint8, F32):
            count = a.ndim - 2
            kernel = tuple(int(rng.integers(1, min(3, n) + 1)) for n in a.shape[2:])
            strides = tuple(int(rng.integers(1, 3)) for _ in range(count))
            y = max_windows(a, kernel, strides, (0,) * 2 * count)
            return g.apply("MaxPool", [x], y, kernel_shape=kernel, strides=strides)
    return None


def cast_step(g: IntegerGraph, x: Value) -> Value | None:
    return g.apply("Cast", [x], x.array.astype(F32), to=TensorProto.FLOAT)


def next_steps(x: Value) -> tuple[Step, ...]:
    """Return the kinds of steps from a value of this type, the more likely ones several times."""
    if x.array.dtype in (np.int8, np.uint8):
        return (*PRODUCTS, *PRODUCTS, dequantize_step, elementwise_step, movement_step)
    if x.array.dtype.kind == "f":
        return (quantize_step, quantize_step, dynamic_step, elementwise_step, movement_step)
    if x.array.dtype == I32:
        return (cast_step, cast_step, elementwise_step, movement_step)
    return (dequantize_step, movement_step)


def draw_exact_graph(seed: int) -> IntegerGraph:
    """Return a chain of one to five steps with at least one product; some values on the way are
    results, too."""
    g = IntegerGraph(np.random.default_rng([1, seed]))
    x, steps, product = draw_start(g), int(g.rng.integers(1, 6)), False
    for _ in range(40):
        if (steps <= 0 and product) or x.name in g.tolerances:
            break
        choices = PRODUCTS if not product and steps <= 1 else next_steps(x)
        if x.array.dtype not in (np.int8, np.uint8):
            choices = next_steps(x)
        step = choices[g.rng.integers(len(choices))]
        before, given = len(g.nodes), x
        with np.errstate(over="ignore", invalid="ignore"):
            made = step(g, x)
        if made is None or made.array.size == 0 or made.array.size > 1 << 15:
            del g.nodes[before:]
            continue
        if given.name not in g.feeds and is_drawn(g.rng, 0.15):
            g.output(given)
        product |= step in PRODUCTS or step is dynamic_step
        x, steps = made, steps - 1
    g.output(x)
    used = {name for n in g.nodes for name in n.input}
    g.constants = {n: a for n, a in g.constants.items() if n in used}
    return g
