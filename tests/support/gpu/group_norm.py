"""Group normalizations."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from tests.support.compilation.models import F, model
from tests.support.gpu.models import drawn, node


def operator(groups: int, *shape: int) -> onnx.ModelProto:
    c = shape[1]
    known = {"s": drawn(c, of="s"), "t": drawn(c, of="t")}
    nodes = [node("GroupNormalization", "x", "s", "t", "y", num_groups=groups)]
    m = model(nodes, {"x": (F, [*shape])}, ["y"], known)
    m.opset_import[0].version, m.ir_version = 21, 10
    return m


# Of which kernels are compiled for a GPU (test_cuda_compiled.py).
LARGE: dict[str, Callable[[], onnx.ModelProto]] = {
    "a group norm": lambda: operator(32, 16, 256, 64, 64),
}
