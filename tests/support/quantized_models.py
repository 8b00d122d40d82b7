"""Models with QuantizeLinear and DequantizeLinear around layers, as quantization tools write
them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, U8, S8, INT32 = TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT8, TensorProto.INT32
LAYER_WIDTH = 48


def onnx_model(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, list[int | str]]],
    output: tuple[str, int],
    constants: Mapping[str, np.ndarray],
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(*output, None)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )  # fmt: skip
    ids = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=ids, ir_version=8)


@dataclass
class QuantizedLayers:
    """A chain of matrix products of quantized values.

    split: compute each product as a sum of two, which rounds otherwise and is equal over the reals;
    dequantize: the output. Constants may be changed before `model` is called.
    """

    depth: int = 3
    rows: int = 64
    split: bool = False
    dequantize: bool = True
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(5)
        for k in range(self.depth + 1):
            scale = 0.02 if k == 0 else 0.1
            self.constants[f"s{k}"] = np.float32(scale * (1 + 0.01 * k))
            self.constants[f"z{k}"] = np.uint8(118 + k)
        for k in range(self.depth):
            w = rng.integers(-127, 128, (LAYER_WIDTH, LAYER_WIDTH))
            self.constants[f"w{k}"] = w.astype(np.int8)
            self.constants[f"t{k}"] = np.float32(0.0037 + 0.0001 * k)
            self.constants[f"b{k}"] = rng.standard_normal(LAYER_WIDTH).astype(np.float32)

    def model(self) -> onnx.ModelProto:
        nodes: list[onnx.NodeProto] = []

        def add(op: str, inputs: list[str], output: str, **attributes: object) -> str:
            nodes.append(helper.make_node(op, inputs, [output], **attributes))
            return output

        known = dict(self.constants)
        if self.split:
            half = np.int64([LAYER_WIDTH // 2, LAYER_WIDTH // 2])
            known["halves"] = half
        x = add("QuantizeLinear", ["x", "s0", "z0"], "q0")
        for k in range(self.depth):
            x = add("DequantizeLinear", [x, f"s{k}", f"z{k}"], f"x{k}")
            w = add("DequantizeLinear", [f"w{k}", f"t{k}"], f"f{k}")
            if self.split:
                xs, ws = [f"x{k}l", f"x{k}r"], [f"f{k}l", f"f{k}r"]
                nodes.append(helper.make_node("Split", [x, "halves"], xs, axis=1))
                nodes.append(helper.make_node("Split", [w, "halves"], ws, axis=0))
                parts = [add("MatMul", [a, b], f"{a}p") for a, b in zip(xs, ws, strict=True)]
                y = add("Add", parts, f"p{k}")
            else:
                y = add("MatMul", [x, w], f"p{k}")
            y = add("Add", [y, f"b{k}"], f"h{k}")
            x = add("QuantizeLinear", [y, f"s{k + 1}", f"z{k + 1}"], f"q{k + 1}")
        if self.dequantize:
            x = add("DequantizeLinear", [x, f"s{self.depth}", f"z{self.depth}"], "y")
        else:
            nodes[-1].output[0] = "y"
        kind = FLOAT if self.dequantize else U8
        return onnx_model(nodes, {"x": (FLOAT, [self.rows, LAYER_WIDTH])}, ("y", kind), known)
