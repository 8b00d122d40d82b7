"""Random convolutional ONNX models, whose images have a symbolic batch, height, width or length."""

from __future__ import annotations

from math import prod
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.support.compilation.dynamic_builder import Builder, Dim, Tensor

OPSET = 18
CHANNELS = (16, 24, 32)  # vectors, of which Winograd's algorithm may compute some
SIDES = (1, 5, 8, 12)  # fixed sides of images


def _convolution(b: Builder, x: Tensor) -> Tensor:
    rank = len(x.shape) - 2
    filters = b.random.choice(CHANNELS)
    kernel = [b.random.choice((1, 3, 3, 3, 5)) for _ in range(rank)]
    stride, dilation = b.random.choice(((1, 1), (1, 1), (2, 1), (1, 2)))
    pads = [b.random.choice((dilation * (k // 2), dilation * (k - 1))) for k in kernel]
    channels = x.shape[1]
    assert isinstance(channels, int)
    grouped = channels == filters and b.random.random() < 0.2
    group = channels // 8 if grouped else 1
    w = b.floats(filters, channels // group, *kernel)
    attrs = {"strides": [stride] * rank, "dilations": [dilation] * rank, "pads": pads * 2}
    shape = (x.shape[0], filters, *[None] * rank)
    made = b.add("Conv", shape, x.name, w, b.floats(filters), group=group, **attrs)  # type: ignore[arg-type]
    return _divide_by_root(b, made, channels // group * prod(kernel))


def _divide_by_root(b: Builder, x: Tensor, terms: int) -> Tensor:
    """Return values as large as those before a sum of so many products."""
    return b.add("Mul", x.shape, x.name, b.constant(np.float32(terms**-0.5)))


def _residual(b: Builder, x: Tensor) -> Tensor:
    rank = len(x.shape) - 2
    w = b.floats(x.shape[1], x.shape[1], *[3] * rank)  # type: ignore[arg-type]
    y = b.add("Conv", x.shape, x.name, w, pads=[1] * 2 * rank)
    y = _divide_by_root(b, y, 9 * x.shape[1])  # type: ignore[operator]
    return b.add("Relu", x.shape, b.add("Add", x.shape, x.name, y.name).name)


def _pool(b: Builder, x: Tensor) -> Tensor:
    rank = len(x.shape) - 2
    attrs = {"kernel_shape": [3] * rank, "strides": [2] * rank, "pads": [1] * 2 * rank}
    return b.add(b.random.choice(("MaxPool", "AveragePool")), x.shape, x.name, **attrs)


def convolutional_model(seed: int) -> tuple[onnx.ModelProto, dict[str, tuple[Dim, ...]]]:
    """Return a random model, and the shape of its input: n is a batch or a side, m a side."""
    b = Builder(random := Random(seed))
    rank = random.choice((1, 2, 2, 2, 2, 3))
    shape: list[Dim] = [random.choice((1, 2, "n"))]
    shape += [random.choice(CHANNELS), *[random.choice(SIDES) for _ in range(rank)]]
    symbols = ["m"] if "n" in shape else ["n", "m"][: random.choice((1, 2))]
    if shape[0] != "n" or random.random() < 0.6:
        for place, s in zip(random.sample(range(2, 2 + rank), min(rank, 2)), symbols, strict=False):
            shape[place] = s
    x = Tensor("x", tuple(shape))
    for _ in range(random.randint(1, 4)):
        x = random.choice((_convolution, _convolution, _residual, _residual, _pool))(b, x)
    nodes = [*b.nodes, helper.make_node("Relu", [x.name], ["y"])]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    result = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", given, result, b.constants)
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9), {"x": tuple(shape)}
