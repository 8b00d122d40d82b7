"""Networks of transposed and of 3-D convolutions at their published sizes, with drawn weights:
DCGAN (Radford, Metz and Chintala, arXiv:1511.06434) for images of 64 x 64, as in PyTorch's example,
and torchvision's 3-D ResNet-18 (Tran et al., arXiv:1711.11248, "R3D") for clips of 16 frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

LATENT, FEATURES = 100, 64  # of DCGAN: its input, and the channels next to the image
CLIP = (3, 16, 112, 112)
STAGES = (64, 128, 256, 512)
CLASSES = 400  # of Kinetics


class NetBuilder:
    """Collects nodes and drawn weights of a model."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.rng = np.random.default_rng(0)

    def add(self, op: str, *names: str, **attributes: object) -> str:
        """Add a node and return the name of its result."""
        return self.add_parts(1, op, *names, **attributes)[0]

    def add_parts(self, count: int, op: str, *names: str, **attributes: object) -> list[str]:
        """Add a node and return the names of its results."""
        made = [f"v{len(self.nodes)}"]
        made += [f"{made[0]}_{n}" for n in range(1, count)]
        self.nodes.append(helper.make_node(op, names, made, **attributes))
        return made

    def integers(self, *values: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.array(values, np.int64)
        return name

    def weight(self, values: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = values.astype(np.float32)
        return name

    def filters(self, shape: tuple[int, ...], terms: int) -> str:
        """Return a weight that keeps the scale of what it multiplies before a ReLU."""
        return self.weight(self.rng.standard_normal(shape) * np.sqrt(2 / terms))

    def batch_norm(self, x: str, channels: int) -> str:
        spread = self.rng.uniform(0.5, 1.5, (2, channels))
        shift = 0.1 * self.rng.standard_normal((2, channels))
        names = (self.weight(v) for v in (spread[0], shift[0], shift[1], spread[1]))
        return self.add("BatchNormalization", x, *names)

    def conv(self, x: str, outer: int, inner: int, window: tuple[int, ...], stride: int) -> str:
        """Return a convolution without bias and its normalization. The depth is not strided in
        windows of unequal sides: those of the first layer."""
        rank, terms = len(window), inner * int(np.prod(window))
        strides = [stride] * rank if len(set(window)) == 1 else [1] + [stride] * (rank - 1)
        w = self.filters((outer, inner, *window), terms)
        pads = [k // 2 for k in window] * 2
        return self.batch_norm(self.add("Conv", x, w, strides=strides, pads=pads), outer)

    def model(
        self, name: str, shape: tuple[int, ...], result: str, made: tuple[int, ...]
    ) -> onnx.ModelProto:
        """Return the model from "x" of a shape to `result` of another."""
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        out = helper.make_tensor_value_info(result, TensorProto.FLOAT, made)
        weights = [numpy_helper.from_array(v, k) for k, v in self.weights.items()]
        graph = helper.make_graph(self.nodes, name, [given], [out], weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def dcgan_generator(batch: int = 1) -> onnx.ModelProto:
    """Return the generator: transposed convolutions from 1 x 1 to 64 x 64 pixels."""
    b, x = NetBuilder(), "x"
    channels = (LATENT, *(FEATURES * n for n in (8, 4, 2, 1)), 3)
    for n, (inner, outer) in enumerate(pairwise(channels)):
        # each output pixel of stride 2 sums 2 x 2 of the 4 x 4 elements of a filter
        w = b.filters((inner, outer, 4, 4), inner * (4 if n else 1))
        how = {"strides": [2, 2], "pads": [1] * 4} if n else {}
        x = b.add("ConvTranspose", x, w, **how)
        x = b.add("Tanh", x) if outer == 3 else b.add("Relu", b.batch_norm(x, outer))
    return b.model("dcgan_generator", (batch, LATENT, 1, 1), x, (batch, 3, 64, 64))


def dcgan_discriminator(batch: int = 1) -> onnx.ModelProto:
    """Return the discriminator: convolutions of stride 2 from 64 x 64 pixels to one score."""
    b, x = NetBuilder(), "x"
    channels = (3, *(FEATURES * n for n in (1, 2, 4, 8)), 1)
    for n, (inner, outer) in enumerate(pairwise(channels)):
        w = b.filters((outer, inner, 4, 4), 16 * inner)
        how = {"strides": [2, 2], "pads": [1] * 4} if outer > 1 else {}
        x = b.add("Conv", x, w, **how)
        if outer > 1:
            x = b.add("LeakyRelu", b.batch_norm(x, outer) if n else x, alpha=0.2)
    score = b.add("Sigmoid", x)
    return b.model("dcgan_discriminator", (batch, 3, 64, 64), score, (batch, 1, 1, 1))


def r3d_18(batch: int = 1) -> onnx.ModelProto:
    """Return the 3-D ResNet-18, whose blocks are two convolutions of 3 x 3 x 3."""
    b = NetBuilder()
    x = b.add("Relu", b.conv("x", STAGES[0], CLIP[0], (3, 7, 7), 2))
    inner = STAGES[0]
    for outer in STAGES:
        for _ in range(2):
            stride = 1 if inner == outer else 2
            y = b.add("Relu", b.conv(x, outer, inner, (3, 3, 3), stride))
            y = b.conv(y, outer, outer, (3, 3, 3), 1)
            skip = x if stride == 1 else b.conv(x, outer, inner, (1, 1, 1), stride)
            x, inner = b.add("Relu", b.add("Add", y, skip)), outer
    x = b.add("Flatten", b.add("GlobalAveragePool", x))
    w, bias = b.filters((CLASSES, inner), inner), b.weight(np.zeros(CLASSES))
    scores = b.add("Gemm", x, w, bias, transB=1)
    return b.model("r3d_18", (batch, *CLIP), scores, (batch, CLASSES))


NETS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    "dcgan_generator": dcgan_generator,
    "dcgan_discriminator": dcgan_discriminator,
    "r3d_18": r3d_18,
}
