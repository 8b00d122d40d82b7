"""Attention by sizes and masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.gpu.models import heads, node

F, H = TensorProto.FLOAT, TensorProto.FLOAT16


def attention(
    sizes: tuple[int, int, int, int, int], kind: int = F, mask: tuple[onnx.NodeProto, ...] = (),
    known: Mapping[str, np.ndarray] | None = None,
) -> onnx.ModelProto:  # fmt: skip
    """Of queries, keys and values that are inputs: (heads, those of keys, queries, keys, numbers);
    mask: from s1 to s."""
    h, few, n, t, d = sizes
    own: dict[str, np.ndarray] = {
        "scale": np.asarray(d**-0.5, np.float16 if kind == H else np.float32),
        "one": np.array([2]), "more": np.array([1, 1, h // few, 1, 1]),
        "all": np.array([1, h, t, d]), **(known or {}),
    }  # fmt: skip
    nodes = []
    for x in "kv":
        nodes += [node("Unsqueeze", x, "one", f"{x}1"), node("Expand", f"{x}1", "more", f"{x}2"),
                  node("Reshape", f"{x}2", "all", f"{x}3")]  # fmt: skip
    nodes += [
        node("Transpose", "k3", "k4", perm=[0, 1, 3, 2]), node("MatMul", "q", "k4", "s0"),
        node("Mul", "s0", "scale", "s1"), *(mask or [node("Identity", "s1", "s")]),
        node("Softmax", "s", "p", axis=-1), node("MatMul", "p", "v3", "y"),
    ]  # fmt: skip
    shapes = {"q": [1, h, n, d], "k": [1, few, t, d], "v": [1, few, t, d]}
    ins = [helper.make_tensor_value_info(x, kind, shape) for x, shape in shapes.items()]
    outs = [helper.make_tensor_value_info("y", kind, [1, h, n, d])]
    init = [numpy_helper.from_array(x, name) for name, x in own.items()]
    graph = helper.make_graph(nodes, "attention", ins, outs, init)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def triangle(n: int, t: int, offset: int) -> np.ndarray:
    """What is left out: keys behind a query's place."""
    return np.triu(np.ones((n, t), bool), 1 + offset)


LONG: Mapping[str, Callable[[], onnx.ModelProto]] = {  # to be compiled
    "a step of decoding": lambda: attention((32, 8, 1, 4096, 128), H),
    "a causal text": lambda: heads(256, 4, 64, mask=np.where(triangle(256, 256, 0), -1e9, 0.0)
                                   .astype(np.float32)),
}  # fmt: skip
