"""A builder of random graphs that knows what each value is by ONNX's definition."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.support.onnx_io.integer_definitions import Array
from tests.support.onnx_io.quantized_case import DOMAIN, Rng, draw_bytes

OPSET = 21
SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 23, 31, 32, 33, 47, 48, 49, 63, 64, 65, 80, 97, 130)
MAX_MULTIPLICATIONS = 1 << 19  # of a product
F32, I32 = np.dtype(np.float32), np.dtype(np.int32)


@dataclass(slots=True)
class Value:
    """A value by name, and what it is by the definition. is_product: its last operation was a
    multiplication in float32, which an addition behind it may be fused with."""

    name: str
    array: Array
    is_product: bool = False


@dataclass(slots=True)
class IntegerGraph:
    """A model that grows. outputs: by name, what the definition gives. tolerances: of outputs that
    may differ by so many steps."""

    rng: Rng
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    feeds: dict[str, Array] = field(default_factory=dict)
    outputs: dict[str, Array] = field(default_factory=dict)
    tolerances: dict[str, int] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        def ports(arrays: dict[str, Array], is_known: bool) -> list[onnx.ValueInfoProto]:
            return [
                helper.make_tensor_value_info(
                    n,
                    helper.np_dtype_to_tensor_dtype(a.dtype),
                    list(a.shape) if is_known else [None] * a.ndim,
                )
                for n, a in arrays.items()
            ]

        constants = [numpy_helper.from_array(a, n) for n, a in self.constants.items()]
        graph = helper.make_graph(
            self.nodes, "g", ports(self.feeds, True), ports(self.outputs, False), constants
        )
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def constant(self, array: object, dtype: object = None) -> Value:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array, dtype)  # type: ignore[arg-type]
        return Value(name, self.constants[name])

    def input(self, array: Array) -> Value:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = array
        return Value(name, array)

    def apply(
        self, op: str, operands: list[Value | None], array: Array, domain: str = "",
        is_product: bool = False, **attrs: object,
    ) -> Value:  # fmt: skip
        names = ["" if v is None else v.name for v in operands]
        while names and not names[-1]:
            names.pop()
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [name], domain=domain, **attrs))
        return Value(name, array, is_product)

    def output(self, v: Value) -> None:
        self.outputs[v.name] = v.array


def draw_size(rng: Rng, most: int = 1 << 20) -> int:
    return int(rng.choice([n for n in SIZES if n <= most]))


def draw_extreme(rng: Rng, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """Return integers of the whole range; sometimes only ends of it."""
    ends = np.iinfo(dtype)
    kind = rng.integers(8)
    if kind < 2:
        return np.full(shape, ends.max if kind else ends.min, dtype)
    if kind == 2:
        return rng.choice(np.array([ends.min, ends.max], dtype), shape)
    return draw_bytes(rng, shape, dtype)
