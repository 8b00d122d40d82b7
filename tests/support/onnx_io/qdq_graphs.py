"""Random graphs of float operators between DequantizeLinear and QuantizeLinear, and what they give
by the definition in float64.

A graph has one or two stages, each from one quantized value to the next, which is a result. The
second stage is defined on the first result as it was computed, so that at most one step of
difference is due to each stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.support.onnx_io.integer_definitions import (
    Array,
    average_windows,
    dequantize,
    max_windows,
    quantize,
    windows,
)
from tests.support.onnx_io.integer_graph_builder import (
    IntegerGraph,
    Value,
    draw_extreme,
    draw_size,
)
from tests.support.onnx_io.integer_graphs import draw_start, is_image
from tests.support.onnx_io.quantized_case import Rng, draw_type, is_drawn

MAX_MULTIPLICATIONS = 1 << 18
Define = Callable[[Array], Array]  # of the stage's quantized value


@dataclass(slots=True)
class Quantized:
    """A quantized value with its scale and zero point."""

    value: Value
    scale: Value
    zero: Value


@dataclass(slots=True)
class Stage:
    """result: the name of the quantized result; define: gives it from the quantized value that the
    stage starts with, whose name is `start`."""

    start: str
    result: str
    define: Define


@dataclass(slots=True)
class QdqGraph:
    graph: IntegerGraph
    stages: list[Stage]

    def wanted_results(
        self, feeds: dict[str, Array], results: dict[str, Array]
    ) -> dict[str, Array]:
        """Return the results by the definition, each stage from the computed start."""
        some = {**feeds, **results}
        return {s.result: s.define(some[s.start]) for s in self.stages}


@dataclass(slots=True)
class _Float:
    """A float value, and what it is in float64 as a function of the stage's start."""

    value: Value
    define: Define


def float_convolution(
    x: Array, w: Array, strides: tuple[int, ...], pads: tuple[int, ...],
    dilations: tuple[int, ...], group: int,
) -> Array:  # fmt: skip
    parts, found = np.split(w, group), {}
    for at, window in windows(x, w.shape[2:], strides, pads, dilations, 0):
        rows = zip(np.split(window, group, axis=1), parts, strict=True)
        found[at] = np.concatenate(
            [v.reshape(len(x), -1) @ own.reshape(len(own), -1).T for v, own in rows], axis=1
        )
    out = [max(at[d] for at in found) + 1 for d in range(w.ndim - 2)]
    return np.stack([*found.values()], axis=-1).reshape(len(x), len(w), *out)


def dequantize_value(g: IntegerGraph, q: Quantized) -> _Float:
    y = dequantize(q.value.array, q.scale.array, q.zero.array)
    made = g.apply("DequantizeLinear", [q.value, q.scale, q.zero], y)
    scale, zero = q.scale.array, q.zero.array
    return _Float(made, lambda x: dequantize(x, scale, zero))


def dequantized_weights(
    g: IntegerGraph, shape: tuple[int, ...], axis: int, zeros: bool
) -> tuple[Value, Array]:
    rng, dtype = g.rng, draw_type(g.rng)
    own = (shape[axis],) if is_drawn(rng) else ()
    along = [-1 if d == axis else 1 for d in range(len(shape))] if own else []
    w, scale = draw_extreme(rng, shape, dtype), np.exp(rng.uniform(-6, -3, own)).astype(np.float32)
    zero = draw_extreme(rng, own, dtype) if zeros else np.full(own, 0, dtype)
    y = dequantize(w, scale.reshape(along), zero.reshape(along))
    operands = [g.constant(w), g.constant(scale), g.constant(zero)]
    return g.apply("DequantizeLinear", operands, y, axis=axis), y  # type: ignore[arg-type]


def convolution(g: IntegerGraph, x: _Float) -> _Float | None:
    rng, count = g.rng, x.value.array.ndim - 2
    channels, sizes = x.value.array.shape[1], x.value.array.shape[2:]
    group = channels if is_drawn(rng, 0.15) else 1
    kernel = tuple(int(rng.integers(1, 4)) for _ in range(count))
    strides = tuple(int(rng.integers(1, 3)) for _ in range(count))
    dilations = tuple(int(rng.choice([1, 1, 2])) for _ in range(count))
    pads = tuple(int(rng.integers(0, 2)) for _ in range(2 * count))
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    if any(n + pads[d] + pads[d + count] < spans[d] for d, n in enumerate(sizes)):
        return None
    per_channel = x.value.array.size * int(np.prod(kernel)) // group
    outer = draw_size(rng, max(1, MAX_MULTIPLICATIONS // max(1, per_channel)))
    outer = -(-outer // group) * group
    shape = (outer, channels // group, *kernel)
    w, weights = dequantized_weights(g, shape, 0, is_drawn(rng, 0.3))
    bias = g.constant(rng.standard_normal(outer), np.float32) if is_drawn(rng) else None
    added = 0 if bias is None else bias.array.astype(np.float64).reshape(-1, *[1] * count)

    def define(q: Array) -> Array:
        given = x.define(q)
        return float_convolution(given, weights, strides, pads, dilations, group) + added

    attrs = {"strides": strides, "pads": pads, "dilations": dilations, "group": group}
    y = float_convolution(x.value.array, weights, strides, pads, dilations, group) + added
    return _Float(g.apply("Conv", [x.value, w, bias], y, **attrs), define)  # type: ignore[arg-type]


def matrix_product(g: IntegerGraph, x: _Float) -> _Float:
    rng, a = g.rng, x.value.array
    k, rows = a.shape[-1], a.size // a.shape[-1]
    n = draw_size(rng, max(1, MAX_MULTIPLICATIONS // max(1, k * rows)))
    bias = g.constant(rng.standard_normal(n), np.float32) if is_drawn(rng) else None
    added = 0 if bias is None else bias.array.astype(np.float64)
    if a.ndim == 2 and is_drawn(rng):
        transposed = int(rng.integers(2))
        shape = (n, k) if transposed else (k, n)
        w, weights = dequantized_weights(g, shape, 1 - transposed, is_drawn(rng, 0.3))
        factor = weights.T if transposed else weights
        made = g.apply("Gemm", [x.value, w, bias], a @ factor + added, transB=transposed)
        return _Float(made, lambda q: x.define(q) @ factor + added)
    w, factor = dequantized_weights(g, (k, n), 1, is_drawn(rng, 0.3))
    made = g.apply("MatMul", [x.value, w], a @ factor)
    if bias is not None:
        made = g.apply("Add", [made, bias], a @ factor + added)
    return _Float(made, lambda q: x.define(q) @ factor + added)


def activation(g: IntegerGraph, x: _Float) -> _Float:
    functions: dict[str, Define] = {
        "Relu": lambda v: np.maximum(v, 0),
        "Sigmoid": lambda v: 1 / (1 + np.exp(-np.clip(v, -700, 700))),
        "LeakyRelu": lambda v: np.where(v < 0, np.float64(np.float32(0.01)) * v, v),
        "HardSwish": lambda v: v * np.clip(v / 6 + 0.5, 0, 1),
    }
    name = str(g.rng.choice([*functions]))
    f = functions[name]
    return _Float(g.apply(name, [x.value], f(x.value.array)), lambda q: f(x.define(q)))


def pool(g: IntegerGraph, x: _Float) -> _Float:
    rng, a = g.rng, x.value.array
    kernel = tuple(int(rng.integers(1, min(3, n) + 1)) for n in a.shape[2:])
    strides, pads = (1,) * len(kernel), (0,) * 2 * len(kernel)
    match rng.integers(3):
        case 0:
            axes = tuple(range(2, a.ndim))
            made = g.apply("GlobalAveragePool", [x.value], a.mean(axes, keepdims=True))
            return _Float(made, lambda q: x.define(q).mean(axes, keepdims=True))
        case 1:
            y = average_windows(a, kernel, strides, pads, False)
            made = g.apply("AveragePool", [x.value], y, kernel_shape=kernel)
            return _Float(
                made, lambda q: average_windows(x.define(q), kernel, strides, pads, False)
            )
        case _:
            y = max_windows(a, kernel, strides, pads)
            made = g.apply("MaxPool", [x.value], y, kernel_shape=kernel)
            return _Float(made, lambda q: max_windows(x.define(q), kernel, strides, pads))


def combine(g: IntegerGraph, x: _Float, other: _Float) -> _Float:
    """Add, multiply or concatenate two values."""
    a, b = x.value, other.value
    if a.array.shape == b.array.shape and is_drawn(g.rng, 0.7):
        if is_drawn(g.rng, 0.7):
            made = g.apply("Add", [a, b], a.array + b.array)
            return _Float(made, lambda q: x.define(q) + other.define(q))
        made = g.apply("Mul", [a, b], a.array * b.array)
        return _Float(made, lambda q: x.define(q) * other.define(q))
    made = g.apply("Concat", [a, a], np.concatenate([a.array, a.array], -1), axis=-1)
    return _Float(made, lambda q: np.concatenate([x.define(q), x.define(q)], -1))


def draw_stage(g: IntegerGraph, start: Quantized) -> tuple[Quantized, Stage]:
    rng = g.rng
    first = x = dequantize_value(g, start)
    for _ in range(int(rng.integers(1, 5))):
        image, kind = is_image(x.value), rng.integers(10)
        if kind < 5:
            made = convolution(g, x) if image and is_drawn(rng, 0.85) else matrix_product(g, x)
        elif kind < 7:
            made = activation(g, x)
        elif kind == 7 and image:
            made = pool(g, x)
        else:
            made = combine(g, x, first)
        if made is not None and made.value.array.size <= 1 << 14:
            x = made
    array, dtype = x.value.array, draw_type(rng)
    scale = g.constant(
        (float(np.abs(array).max(initial=1e-3)) + 1e-3) / rng.uniform(60, 400), np.float32
    )
    zero = g.constant(draw_extreme(rng, (), dtype))
    s, z, define = scale.array, zero.array, x.define
    y = g.apply("QuantizeLinear", [x.value, scale, zero], quantize(array, s, z, dtype))
    g.output(y)
    stage = Stage(start.value.name, y.name, lambda q: quantize(define(q), s, z, dtype))
    return Quantized(y, scale, zero), stage


def draw_qdq_graph(seed: int) -> QdqGraph:
    g = IntegerGraph(np.random.default_rng([2, seed]))
    rng: Rng = g.rng
    x = draw_start(g, floats=0)
    while x.array.ndim < 2:
        g.feeds.clear()
        x = draw_start(g, floats=0)
    dtype = x.array.dtype
    q = Quantized(
        x,
        g.constant(np.exp(rng.uniform(-6, -1)), np.float32),
        g.constant(draw_extreme(rng, (), dtype)),
    )
    stages = []
    for _ in range(1 + is_drawn(rng, 0.4)):
        if q.value.array.ndim < 2:
            break
        q, stage = draw_stage(g, q)
        stages.append(stage)
    used = {name for n in g.nodes for name in n.input}
    g.constants = {n: a for n, a in g.constants.items() if n in used}
    return QdqGraph(g, stages)
