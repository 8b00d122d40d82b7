"""Small random models in which operators without a tensor expression stand at every place.

Every value that a step reads or gives is f32[2, 3], so that any step may follow any other. A step
writes its nodes and returns the name of its result. `OPAQUE` are the steps with an operator that
superopt carries through, `PLAIN` are those that it understands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SHAPE = (2, 3)
OPSET = 19


@dataclass(slots=True)
class Graph:
    """A graph in the making."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    domains: set[str] = field(default_factory=set)
    names: int = 0

    def name(self, prefix: str = "v") -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attrs: Any) -> str:
        """Add a node; the name of its first result. The others have ".1", ".2" behind it."""
        first = self.name()
        results = [first, *(f"{first}.{k}" for k in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, inputs, results, domain=domain, **attrs))
        if domain:
            self.domains.add(domain)
        return first

    def constant(self, array: np.ndarray | onnx.TensorProto) -> str:
        """Add an initializer."""
        made = self.name("c")
        tensor = array if isinstance(array, onnx.TensorProto) else numpy_helper.from_array(array)
        tensor.name = made
        self.initializers.append(tensor)
        return made


Step = Callable[[Graph, Sequence[str]], str]  # of operands that are f32[2, 3]


def _integers(g: Graph, *values: int) -> str:
    return g.constant(np.array(values, np.int64))


def _weights(g: Graph, *shape: int) -> str:
    return g.constant(np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape))


# --- what superopt understands --------------------------------------------------------------------


def _concat(g: Graph, xs: Sequence[str]) -> str:
    joined = g.op("Concat", *xs, axis=0)
    return g.op("Slice", joined, _integers(g, 0), _integers(g, 2), _integers(g, 0))


def _gemm(g: Graph, xs: Sequence[str]) -> str:
    return g.op("Gemm", xs[0], _weights(g, 3, 3), xs[1], alpha=2.0, beta=0.5)


def _gather(g: Graph, xs: Sequence[str]) -> str:
    return g.op("Gather", xs[0], _integers(g, 1, 0), axis=0)


def _split(g: Graph, xs: Sequence[str]) -> str:
    first = g.op("Split", xs[0], _integers(g, 1, 2), outputs=2, axis=1)
    return g.op("Concat", f"{first}.1", first, axis=1)


def _reshape(g: Graph, xs: Sequence[str]) -> str:
    flat = g.op("Reshape", xs[0], _integers(g, 6))
    return g.op("Reshape", g.op("Relu", flat), g.op("Shape", xs[1]))


def _transpose(g: Graph, xs: Sequence[str]) -> str:
    return g.op("MatMul", xs[0], g.op("MatMul", g.op("Transpose", xs[1], perm=[1, 0]), xs[0]))


def _where(g: Graph, xs: Sequence[str]) -> str:
    return g.op("Where", g.op("Less", xs[0], xs[1]), xs[0], xs[1])


def _nested(kind: str) -> Step:
    return lambda g, xs: g.op(kind, g.op(kind, xs[0], xs[1]), xs[0])


PLAIN: dict[str, Step] = {
    "Add": lambda g, xs: g.op("Add", g.op("Add", xs[0], _weights(g, 3)), xs[1]),
    "Mul": lambda g, xs: g.op("Mul", g.op("Mul", xs[0], _weights(g, 3)), xs[1]),
    "Relu": lambda g, xs: g.op("Relu", g.op("Relu", xs[0])),
    "Softmax": lambda g, xs: g.op("Softmax", xs[0], axis=-1),
    "ReduceSum": lambda g, xs: g.op(
        "Sub", xs[0], g.op("ReduceSum", xs[1], _integers(g, 1), keepdims=1)
    ),
    "Max": _nested("Max"),
    "Min": _nested("Min"),
    "Sum": _nested("Sum"),
    "Concat": _concat,
    "Gemm": _gemm,
    "Gather": _gather,
    "Split": _split,
    "Reshape": _reshape,
    "MatMul": _transpose,
    "Where": _where,
}

# --- what it carries through ----------------------------------------------------------------------


def _value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def _captured_by_if(g: Graph, xs: Sequence[str]) -> str:
    def branch(kind: str, *inputs: str) -> onnx.GraphProto:
        out = g.name("branch")
        return helper.make_graph([helper.make_node(kind, inputs, [out])], out, [], [_value(out)])

    total = g.op("ReduceSum", xs[0], keepdims=0)
    chosen = g.op("Less", total, g.constant(np.float32(0.5)))
    return g.op(
        "If", chosen, then_branch=branch("Add", xs[0], xs[1]), else_branch=branch("Tanh", xs[1])
    )


def _captured_by_loop(g: Graph, xs: Sequence[str]) -> str:
    i, go, state, kept, out = (g.name("loop") for _ in range(5))
    body = helper.make_graph(
        [
            helper.make_node("Identity", [go], [kept]),
            helper.make_node("Sub", [state, xs[1]], [out]),
        ],
        "body",
        [
            helper.make_tensor_value_info(i, TensorProto.INT64, []),
            helper.make_tensor_value_info(go, TensorProto.BOOL, []),
            _value(state),
        ],
        [helper.make_tensor_value_info(kept, TensorProto.BOOL, []), _value(out)],
    )
    return g.op("Loop", g.constant(np.int64(2)), "", xs[0], body=body)


def _sequence(g: Graph, xs: Sequence[str]) -> str:
    made = g.op("SequenceConstruct", xs[0], xs[1])
    return g.op("SequenceAt", made, g.constant(np.int64(1)))


def _sequence_concat(g: Graph, xs: Sequence[str]) -> str:
    made = g.op("SequenceInsert", g.op("SequenceConstruct", xs[0]), xs[0])
    joined = g.op("ConcatFromSequence", made, axis=1)
    return g.op("Slice", joined, _integers(g, 3), _integers(g, 6), _integers(g, 1))


def _optional(g: Graph, xs: Sequence[str]) -> str:
    return g.op("OptionalGetElement", g.op("Optional", xs[0]))


def _strings(g: Graph, xs: Sequence[str]) -> str:
    text = g.op("Cast", xs[0], to=TensorProto.STRING)
    word = g.constant(helper.make_tensor("", TensorProto.STRING, [], [b"0"]))
    return g.op("Where", g.op("Equal", text, word), xs[0], xs[1])


def _string_labels(g: Graph, xs: Sequence[str]) -> str:
    table = g.constant(helper.make_tensor("", TensorProto.STRING, [2], [b"no", b"yes"]))
    chosen = g.op("Cast", g.op("Less", xs[0], xs[1]), to=TensorProto.INT64)
    words = g.op("Gather", table, chosen)
    yes = g.constant(helper.make_tensor("", TensorProto.STRING, [1], [b"yes"]))
    return g.op("Where", g.op("Equal", words, yes), xs[1], xs[0])


def _shape_from_opaque(g: Graph, xs: Sequence[str]) -> str:
    unknown = g.op("QuickGelu", xs[1], domain="com.microsoft")
    flat = g.op("Reshape", xs[0], _integers(g, 6))
    return g.op("Reshape", flat, g.op("Shape", unknown))


def _concat_of_unknown(g: Graph, xs: Sequence[str]) -> str:
    unknown = g.op("BiasGelu", xs[0], _weights(g, 3), domain="com.microsoft")
    joined = g.op("Concat", unknown, xs[1], axis=0)
    nested = g.op("Concat", joined, xs[1], axis=0)
    return g.op("Slice", nested, _integers(g, 1), _integers(g, 3), _integers(g, 0))


def _unknown_into(kind: str) -> Step:
    def step(g: Graph, xs: Sequence[str]) -> str:
        unknown = g.op("Gelu", xs[0], domain="com.microsoft")
        return g.op(kind, g.op(kind, unknown, xs[1]), unknown)

    return step


def _expand_to_opaque(g: Graph, xs: Sequence[str]) -> str:
    places = g.op("NonZero", g.op("Less", xs[0], xs[1]))  # of a size that only running tells
    summed = g.op("ReduceSum", g.op("Cast", places, to=TensorProto.FLOAT), keepdims=0)
    return g.op("Add", xs[0], summed)


def _lstm(g: Graph, xs: Sequence[str]) -> str:
    batch = g.op("Unsqueeze", xs[0], _integers(g, 1))
    state = g.op("LSTM", batch, _weights(g, 1, 12, 3), _weights(g, 1, 12, 3), hidden_size=3)
    return g.op("Reshape", state, _integers(g, 2, 3))


def _function(g: Graph, xs: Sequence[str]) -> str:
    if not g.functions:
        body = [helper.make_node("Mul", ["a", "b"], ["t"]), helper.make_node("Neg", ["t"], ["r"])]
        opsets = [helper.make_opsetid("", OPSET)]
        g.functions.append(helper.make_function("local", "Step", ["a", "b"], ["r"], body, opsets))
    return g.op("Step", xs[0], xs[1], domain="local")


def _sparse(g: Graph, xs: Sequence[str]) -> str:
    values = numpy_helper.from_array(np.array([1.0, 2.0], np.float32), g.name("sparse"))
    indices = numpy_helper.from_array(np.array([1, 4], np.int64), g.name("sparse"))
    sparse = helper.make_sparse_tensor(values, indices, [2, 3])
    out = g.name()
    g.nodes.append(helper.make_node("Constant", [], [out], sparse_value=sparse))
    return g.op("Add", xs[0], out)


def _narrow(kind: int) -> Step:
    """A constant of few bits, by way of QuantizeLinear's inverse or a Cast."""

    def step(g: Graph, xs: Sequence[str]) -> str:
        c = g.constant(helper.make_tensor("", kind, [3], [1, 0, 2]))
        if kind in (TensorProto.BFLOAT16,):
            return g.op("Mul", xs[0], g.op("Cast", c, to=TensorProto.FLOAT))
        scale = g.constant(np.float32(0.5))
        return g.op("Mul", xs[0], g.op("DequantizeLinear", c, scale))

    return step


OPAQUE: dict[str, Step] = {
    "If": _captured_by_if,
    "Loop": _captured_by_loop,
    "SequenceAt": _sequence,
    "ConcatFromSequence": _sequence_concat,
    "Optional": _optional,
    "string Equal": _strings,
    "string Gather": _string_labels,
    "shape of an unknown": _shape_from_opaque,
    "Concat of an unknown": _concat_of_unknown,
    "Add of an unknown": _unknown_into("Add"),
    "Max of an unknown": _unknown_into("Max"),
    "MatMul-free Sum of an unknown": _unknown_into("Sum"),
    "NonZero": _expand_to_opaque,
    "LSTM": _lstm,
    "local function": _function,
    "sparse constant": _sparse,
    "bfloat16 constant": _narrow(TensorProto.BFLOAT16),
    "float8 constant": _narrow(TensorProto.FLOAT8E4M3FN),
    "int4 constant": _narrow(TensorProto.INT4),
}


def model(steps: Sequence[tuple[str, int, int]], outputs: Sequence[int]) -> onnx.ModelProto:
    """A model of these steps, each with the numbers of the two values that it reads: 0 and 1 are
    the inputs, later ones the results of earlier steps. outputs: numbers of values."""
    g = Graph()
    every = {**PLAIN, **OPAQUE}
    values = ["x", "w"]
    for kind, a, b in steps:
        values.append(every[kind](g, (values[a % len(values)], values[b % len(values)])))
    names = dict.fromkeys(values[2:][k % len(steps)] for k in outputs)
    ends = []
    for k, name in enumerate(names):
        g.nodes.append(helper.make_node("Identity", [name], [f"y{k}"]))
        ends.append(helper.make_tensor_value_info(f"y{k}", TensorProto.FLOAT, SHAPE))
    ins = [helper.make_tensor_value_info(n, TensorProto.FLOAT, SHAPE) for n in ("x", "w")]
    graph = helper.make_graph(g.nodes, "g", ins, ends, g.initializers)
    int4 = any(t.data_type == TensorProto.INT4 for t in g.initializers)
    opsets = [helper.make_opsetid("", 21 if int4 else OPSET)]
    opsets += [helper.make_opsetid(d, 1) for d in sorted(g.domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=g.functions)
