"""Layers of quantized models as graphs, whose second form the compiler's passes compute."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ir.op import Attr
from superopt.ops import OPS
from superopt.te.expr.dtype import I8, U8, DType
from superopt.te.expr.tensor import TensorType

Value = ir_graph.Value


def make(op: str, inputs: list[Value | None], **attrs: Attr) -> Value:
    return ir_graph.node(OPS[op], inputs, **attrs)


def number(value: object, dtype: type = np.float32) -> Value:
    return ir_graph.constant(np.asarray(value, dtype))


def given(name: str, dtype: DType, *shape: int) -> ir_graph.Input:
    return ir_graph.Input(name, TensorType(dtype, shape))


def dequantize(x: Value, scale: float, zero: int, dtype: type = np.uint8) -> Value:
    return make("DequantizeLinear", [x, number(scale), number(zero, dtype)])


def quantize(x: Value, scale: float, zero: int, dtype: type = np.uint8) -> Value:
    return make("QuantizeLinear", [x, number(scale), number(zero, dtype)])


RNG = np.random.default_rng(0)
IMAGE, OTHER = given("x", U8, 1, 16, 8, 8), given("r", U8, 1, 8, 8, 8)
ROWS = given("m", I8, 4, 32)
FILTER = make(
    "DequantizeLinear",
    [
        number(RNG.integers(-127, 128, (8, 16, 3, 3)), np.int8),
        number(RNG.uniform(0.001, 0.01, 8)),
        number(np.zeros(8), np.int8),
    ],
    axis=0,
)
BIAS = number(RNG.normal(size=8))
PRODUCT_WEIGHTS = RNG.integers(-127, 128, (32, 10))
WEIGHTS = dequantize(number(PRODUCT_WEIGHTS, np.int8), 0.01, 0, np.int8)
DEPTHWISE = dequantize(number(RNG.integers(-127, 128, (16, 1, 3, 3)), np.int8), 0.004, 0, np.int8)
STATISTICS = [number(RNG.uniform(0.5, 1.5, 8)) for _ in range(4)]


def convolution() -> Value:
    return make("Conv", [dequantize(IMAGE, 0.02, 128), FILTER, BIAS], pads=(1, 1, 1, 1))


def two_layers() -> Value:
    x = dequantize(quantize(make("Relu", [convolution()]), 0.05, 0), 0.05, 0)
    w = make("DequantizeLinear", [number(np.full((4, 8, 1, 1), 7), np.int8), number(0.004)])
    return quantize(make("Conv", [x, w]), 0.05, 0)


def transposed_gemm() -> Value:
    """A Gemm with a transposed operand and a bias."""
    w = number(PRODUCT_WEIGHTS.T, np.int8)
    x = dequantize(ROWS, 0.02, 3, np.int8)
    return make("Gemm", [x, dequantize(w, 0.01, 0, np.int8), number(np.arange(10))], transB=1)


LAYERS: dict[str, Callable[[], Value]] = {
    "convolution": lambda: quantize(convolution(), 0.05, 120),
    "relu": lambda: quantize(make("Relu", [convolution()]), 0.05, 0),
    "clip": lambda: quantize(make("Clip", [convolution(), number(0.0), number(6.0)]), 0.05, 3),
    "normalization": lambda: quantize(
        make("Relu", [make("BatchNormalization", [convolution(), *STATISTICS])]), 0.05, 0
    ),
    "sum": lambda: quantize(make("Add", [convolution(), dequantize(OTHER, 0.03, 7)]), 0.05, 90),
    "pool": lambda: quantize(
        make("MaxPool", [make("Relu", [convolution()])], kernel_shape=(2, 2)), 0.05, 0
    ),
    "depthwise": lambda: quantize(
        make(
            "Conv",
            [dequantize(IMAGE, 0.02, 128), DEPTHWISE],
            group=16,
        ),
        0.05,
        120,
    ),
    "product": lambda: quantize(
        make("MatMul", [dequantize(ROWS, 0.02, 3, np.int8), WEIGHTS]),
        0.1,
        -5,
        np.int8,
    ),
    "gemm": lambda: quantize(transposed_gemm(), 0.1, -5, np.int8),
    "average": lambda: quantize(
        make("GlobalAveragePool", [dequantize(IMAGE, 0.02, 128)]), 0.015, 100
    ),
    "requantization": lambda: quantize(dequantize(ROWS, 0.02, 3, np.int8), 0.03, -5, np.int8),
    "scaled": lambda: quantize(
        make("Mul", [dequantize(ROWS, 0.02, 3, np.int8), number(0.7)]), 0.03, -5, np.int8
    ),
}


def graph_of(v: Value) -> ir_graph.Graph:
    inputs = tuple(i for i in (IMAGE, OTHER, ROWS) if ir_graph.depends_on([v], [i]))
    return ir_graph.Graph(inputs, (v,))
