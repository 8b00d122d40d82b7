"""Small files that ask for unbounded time, memory or depth: the inputs of the guards' tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
OPSET = 17
Build = Callable[[], onnx.ModelProto]


def value(name: str, element: int, shape: list[int | None]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def number(name: str, array: object, dtype: str = "i8") -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(array, dtype), name)


def model(
    nodes: list[onnx.NodeProto],
    constants: list[onnx.TensorProto] | None = None,
    outputs: list[onnx.ValueInfoProto] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    """A model of one input `x`, four floats, and by default one output `y` of unknown length."""
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", FLOAT, [4])],
        outputs or [value("y", FLOAT, [None])],
        constants or [],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    if functions:
        opsets.append(helper.make_opsetid("local", 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions or [])


def model_bytes(nodes: list[onnx.NodeProto]) -> bytes:
    return bytes(model(nodes).SerializeToString())


def loop(trips: int) -> onnx.ModelProto:
    """A Loop of so many trips over a Relu, whose number no rewrite lowers."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["ci"], ["co"]), helper.make_node("Relu", ["s"], ["so"])],
        "body",
        [value("i", INT64, []), value("ci", BOOL, []), value("s", FLOAT, [4])],
        [value("co", BOOL, []), value("so", FLOAT, [4])],
    )
    node = helper.make_node("Loop", ["M", "", "x"], ["y"], body=body)
    return model([node], [number("M", trips)])


def loop_with_weights() -> onnx.ModelProto:
    """An endless Loop beside nodes that rules rewrite."""
    made = loop(2**60)
    graph = made.graph
    graph.node[0].output[0] = "z"
    graph.node.extend(
        [
            helper.make_node("Add", ["x", "x"], ["a"]),
            helper.make_node("Add", ["a", "x"], ["b"]),
            helper.make_node("Add", ["b", "z"], ["y"]),
        ]
    )
    return made


def scan(length: int) -> onnx.ModelProto:
    """A Scan over a tensor that Expand makes of the input."""
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "e"], ["so"])],
        "body",
        [value("s", FLOAT, [4]), value("e", FLOAT, [4])],
        [value("so", FLOAT, [4])],
    )
    nodes = [
        helper.make_node("Expand", ["x", "shape"], ["long"]),
        helper.make_node("Scan", ["x", "long"], ["y"], body=body, num_scan_inputs=1),
    ]
    return model(nodes, [number("shape", [length, 4])])


def chain(length: int) -> onnx.ModelProto:
    """Relu and Add in turns."""
    nodes = []
    before = "x"
    for i in range(length):
        after = "y" if i == length - 1 else f"v{i}"
        kind, operands = ("Relu", [before]) if i % 2 == 0 else ("Add", [before, "c"])
        nodes.append(helper.make_node(kind, operands, [after]))
        before = after
    return model(nodes, [number("c", [1, 2, 3, 4], "f4")], [value("y", FLOAT, [4])])


def empty_nodes(count: int) -> onnx.ModelProto:
    """NodeProtos without operator, inputs or outputs: two bytes each."""
    made = model([helper.make_node("Relu", ["x"], ["y"])])
    rest = onnx.GraphProto()
    rest.ParseFromString(b"\x0a\x00" * count)
    made.graph.node.extend(rest.node)
    return made


def read_of(nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto]) -> onnx.ModelProto:
    """The largest element of `big`, added to the input: what is large is never an output."""
    return model(
        [
            *nodes,
            helper.make_node("ReduceMax", ["big"], ["top"], keepdims=0),
            helper.make_node("Add", ["x", "top"], ["y"]),
        ],
        constants,
    )


def constant_of_shape(side: int) -> onnx.ModelProto:
    return read_of(
        [
            helper.make_node("ConstantOfShape", ["s"], ["ones"], value=number("v", [1.0], "f4")),
            helper.make_node("Exp", ["ones"], ["big"]),
        ],
        [number("s", [side, side])],
    )


def doubling_concats(times: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0) for i in range(times)
    ]
    nodes.append(helper.make_node("Neg", [f"c{times}"], ["big"]))
    return read_of(nodes, [number("c0", [1, 2, 3, 4], "f4")])


def doubling_concats_of_input(times: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Concat", [f"c{i}", f"c{i}"], [f"c{i + 1}"], axis=0) for i in range(times)
    ]
    nodes[0].input[:] = ["x", "x"]
    nodes.append(helper.make_node("Neg", [f"c{times}"], ["big"]))
    return read_of(nodes, [])


def grown(
    op: str, operands: list[str], constants: list[onnx.TensorProto], **attributes: object
) -> onnx.ModelProto:
    """One operator that makes a huge tensor of small constants."""
    return read_of([helper.make_node(op, operands, ["big"], **attributes)], constants)


def one_hot(depth: int) -> onnx.ModelProto:
    return grown(
        "OneHot", ["i", "d", "v"],
        [number("i", list(range(1000))), number("d", depth), number("v", [0.0, 1.0], "f4")],
    )  # fmt: skip


def wide_range(length: int) -> onnx.ModelProto:
    return read_of(
        [
            helper.make_node("Range", ["a", "b", "c"], ["r"]),
            helper.make_node("Cast", ["r"], ["big"], to=FLOAT),
        ],
        [number("a", 0), number("b", length), number("c", 1)],
    )


def eye(side: int) -> onnx.ModelProto:
    return read_of(
        [
            helper.make_node("ConstantOfShape", ["s"], ["z"], value=number("v", [1.0], "f4")),
            helper.make_node("EyeLike", ["z"], ["big"]),
        ],
        [number("s", [side, side])],
    )


def outer_product(length: int) -> onnx.ModelProto:
    """A product of two constants, n by 1 and 1 by n."""
    return read_of(
        [
            helper.make_node("Reshape", ["a", "column"], ["l"]),
            helper.make_node("Reshape", ["a", "row"], ["r"]),
            helper.make_node("MatMul", ["l", "r"], ["big"]),
        ],
        [
            number("a", np.ones(length), "f4"),
            number("column", [length, 1]),
            number("row", [1, length]),
        ],
    )


def strings(length: int) -> onnx.ModelProto:
    """Strings repeated, of which the shape is read."""
    text = helper.make_tensor("t", TensorProto.STRING, [1], [b"a" * 1000])
    return model(
        [
            helper.make_node("Tile", ["t", "n"], ["many"]),
            helper.make_node("Shape", ["many"], ["s"]),
            helper.make_node("Cast", ["s"], ["f"], to=FLOAT),
            helper.make_node("Add", ["x", "f"], ["y"]),
        ],
        [text, number("n", [length])],
    )


def nested_functions(levels: int) -> onnx.ModelProto:
    """Each function calls the one below twice."""
    functions = []
    for i in range(levels):
        domain, below = ("", "Relu") if i == 0 else ("local", f"f{i - 1}")
        nodes = [
            helper.make_node(below, ["a"], ["t"], domain=domain),
            helper.make_node(below, ["t"], ["b"], domain=domain),
        ]
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("local", 1)]
        functions.append(helper.make_function("local", f"f{i}", ["a"], ["b"], nodes, opsets))
    return model(
        [helper.make_node(f"f{levels - 1}", ["x"], ["y"], domain="local")], functions=functions
    )


def nested_ifs(depth: int) -> onnx.ModelProto:
    """An If in an If: as deep as protobuf reads."""

    def branch(inside: onnx.NodeProto | None, name: str) -> onnx.GraphProto:
        node = inside or helper.make_node("Relu", ["x"], [f"{name}_out"])
        return helper.make_graph([node], name, [], [value(node.output[0], FLOAT, None)])

    node: onnx.NodeProto | None = None
    for i in range(depth):
        then, other = branch(node, f"t{i}"), branch(None, f"e{i}")
        node = helper.make_node("If", ["k"], [f"o{i}"], then_branch=then, else_branch=other)
    assert node is not None
    node.output[0] = "y"
    cond = helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0)
    cast = helper.make_node("Cast", ["m"], ["k"], to=BOOL)
    return model([cond, cast, node])


def powers(count: int) -> onnx.ModelProto:
    """x + x, and that twice, ...: a path for each of 2^count terms."""
    nodes = [helper.make_node("Add", [f"p{i}", f"p{i}"], [f"p{i + 1}"]) for i in range(count)]
    nodes[0].input[:] = ["x", "x"]
    nodes[-1].output[0] = "y"
    return model(nodes, outputs=[value("y", FLOAT, [4])])


KINDS: dict[str, Build] = {
    "loop-2^60": lambda: loop(2**60),
    "loop-beside-adds": loop_with_weights,
    "scan-long": lambda: scan(100_000_000),
    "chain-100000": lambda: chain(100_000),
    "empty-nodes-2000000": lambda: empty_nodes(2_000_000),
    "constant-of-shape": lambda: constant_of_shape(50_000),
    "doubling-concats": lambda: doubling_concats(30),
    "doubling-concats-of-input": lambda: doubling_concats_of_input(30),
    "expand": lambda: grown("Expand", ["c", "s"], [number("c", [1.0], "f4"), number("s", [2**31])]),
    "tile": lambda: grown("Tile", ["c", "n"], [number("c", [1.0], "f4"), number("n", [2**31])]),
    "range": lambda: wide_range(2**31),
    "one-hot": lambda: one_hot(2_000_000),
    "eye-like": lambda: eye(50_000),
    "pad": lambda: grown(
        "Pad", ["c", "p"], [number("c", [1.0], "f4"), number("p", [2**30, 2**30])]
    ),
    "resize": lambda: grown(
        "Resize", ["c", "", "", "s"],
        [number("c", [[[[1.0]]]], "f4"), number("s", [1, 1, 50_000, 50_000])], mode="nearest",
    ),
    "outer-product": lambda: outer_product(50_000),
    "strings": lambda: strings(100_000_000),
    "nested-functions-2^19": lambda: nested_functions(19),
    "nested-functions-2^30": lambda: nested_functions(30),
    "nested-ifs": lambda: nested_ifs(30),
    "powers-2^200": lambda: powers(200),
}  # fmt: skip


def write(name: str, folder: Path) -> Path:
    """The file of a kind, made where it is not there."""
    path = folder / f"{name.replace('^', '')}.onnx"
    if not path.exists():
        path.write_bytes(KINDS[name]().SerializeToString())
    return path
