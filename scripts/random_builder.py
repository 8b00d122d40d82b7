"""A builder of ONNX models that knows the shapes of its values, and draws their weights."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Shape = tuple[int, ...]
F32, I64 = TensorProto.FLOAT, TensorProto.INT64
BATCH = 3  # what a symbolic batch is counted as


class Builder:
    """A model that grows. Names stand for values; `shape` knows theirs (a batch as BATCH)."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.values = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.shape: dict[str, Shape] = {}
        self.dynamic = self.rng.random() < 0.3

    def input(self, shape: Shape, kind: int = F32) -> str:
        name = f"x{len(self.inputs)}"
        dims = ["batch" if self.dynamic and not k else d for k, d in enumerate(shape)]
        self.inputs.append(helper.make_tensor_value_info(name, kind, dims))
        self.shape[name] = (BATCH, *shape[1:]) if self.dynamic else shape
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        self.shape[name] = np.shape(array)
        return name

    def weight(self, *shape: int) -> str:
        scale = max(int(np.prod(shape[1:])), 1) ** -0.5
        return self.constant((self.values.standard_normal(shape) * scale).astype(np.float32))

    def number(self, v: float) -> str:
        return self.constant(np.array(v, np.float32))

    def integers(self, *v: int) -> str:
        return self.constant(np.array(v, np.int64))

    def op(self, kind: str, *inputs: str, shape: Shape | None = None, **attrs: object) -> str:
        """One result, of the shape of the first operand, or of another one."""
        return self.ops(kind, inputs, [self.shape[inputs[0]] if shape is None else shape], **attrs)[
            0
        ]

    def ops(
        self, kind: str, inputs: Sequence[str], shapes: Sequence[Shape], **attrs: object
    ) -> list[str]:
        names = [f"n{len(self.nodes)}_{k}" for k in range(len(shapes))]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attrs))
        self.shape.update(zip(names, shapes, strict=True))
        return names

    def both(self, kind: str, x: str, y: str, **attrs: object) -> str:
        """An elementwise operator, broadcast."""
        shape = np.broadcast_shapes(self.shape[x], self.shape[y])
        return self.op(kind, x, y, shape=shape, **attrs)

    def matmul(self, x: str, y: str) -> str:
        a, b = self.shape[x], self.shape[y]
        lead = np.broadcast_shapes(a[:-2], b[:-2])
        return self.op("MatMul", x, y, shape=(*lead, a[-2], b[-1]))

    def transpose(self, x: str, perm: Sequence[int]) -> str:
        return self.op("Transpose", x, shape=tuple(self.shape[x][p] for p in perm), perm=list(perm))

    def reshape(self, x: str, *shape: int) -> str:
        """To a shape whose first number is the batch, where that is symbolic."""
        said = (-1, *shape[1:]) if self.dynamic else shape
        real = (BATCH, *shape[1:]) if self.dynamic else shape
        return self.op("Reshape", x, self.integers(*said), shape=real)

    def concat(self, xs: Sequence[str], axis: int) -> str:
        shape = list(self.shape[xs[0]])
        shape[axis] = sum(self.shape[x][axis] for x in xs)
        return self.op("Concat", *xs, shape=tuple(shape), axis=axis)

    def model(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """With those outputs, and all values that nothing reads."""
        read = {i for n in self.nodes for i in n.input}
        given = [o for n in self.nodes for o in n.output if o not in read]
        made = {o for n in self.nodes for o in n.output}
        ends = [o for o in dict.fromkeys([*outputs, *given]) if o in made]
        shown = [helper.make_tensor_value_info(o, F32, None) for o in ends]
        used = {i for n in self.nodes for i in n.input}
        graph = helper.make_graph(
            self.nodes,
            "random",
            [i for i in self.inputs if i.name in used],
            shown,
            [w for w in self.weights if w.name in used],
        )
        made_model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        )
        inferred = onnx.shape_inference.infer_shapes(made_model, strict_mode=True, data_prop=True)
        onnx.checker.check_model(inferred)
        del inferred.graph.value_info[:]
        return inferred
