"""Rows along an axis that is not the last one."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from tests.support.compilation.models import F, model
from tests.support.gpu.models import drawn, node


def alone(op: str, *shape: int, **how: object) -> onnx.ModelProto:
    return model([node(op, "x", "y", **how)], {"x": (F, [*shape])}, ["y"], {})


def norm_of_channels(*shape: int) -> onnx.ModelProto:
    """As exporters write it: with the channels last, and back."""
    c = shape[1]
    nodes = [
        node("Transpose", "x", "a", perm=[0, 2, 3, 1]),
        node("LayerNormalization", "a", "s", "t", "b", axis=-1),
        node("Transpose", "b", "y", perm=[0, 3, 1, 2]),
    ]
    return model(nodes, {"x": (F, [*shape])}, ["y"], {"s": drawn(c), "t": drawn(1, c)[0]})


def of_two() -> onnx.ModelProto:
    """Two whole tensors are read: a thread has registers for half as many of their elements."""
    nodes = [node("Add", "x", "z", "s"), node("Softmax", "s", "y", axis=1)]
    return model(nodes, {n: (F, [16, 21, 512, 512]) for n in "xz"}, ["y"], {})


# Of which kernels are compiled for a GPU (test_cuda_compiled.py).
LARGE: dict[str, Callable[[], onnx.ModelProto]] = {
    "classes of pixels": lambda: alone("Softmax", 16, 21, 512, 512, axis=1),
    "norms of many channels": lambda: norm_of_channels(4, 384, 28, 28),
    "of two": of_two,
}
