"""What is wrong with a model, said so that somebody can mend it; and what is not wrong."""

import random
import time
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from superopt.errors import ExitCode, ModelError
from superopt.onnx_io.check.validate import validate
from superopt.onnx_io.read.source import read_model
from tests.support.onnx_io.models import MODELS, ints, large_weights, model, value, weights
from tests.support.onnx_io.mutations import doubling_functions

Edit = Callable[[onnx.ModelProto], object]


def refused(proto: onnx.ModelProto | bytes) -> str:
    """The three lines with which it is refused."""
    with pytest.raises(ModelError) as caught:
        validate(read_model(proto))
    assert caught.value.code == ExitCode.MODEL
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("the model: ")
    return str(caught.value)


def node(proto: onnx.ModelProto, name: str) -> onnx.NodeProto:
    nodes: dict[str, onnx.NodeProto] = {n.name: n for n in proto.graph.node}
    return nodes[name]


def initializer(proto: onnx.ModelProto, name: str) -> onnx.TensorProto:
    tensors: dict[str, onnx.TensorProto] = {t.name: t for t in proto.graph.initializer}
    return tensors[name]


def dim(info: onnx.ValueInfoProto, index: int) -> onnx.TensorShapeProto.Dimension:
    dims: list[onnx.TensorShapeProto.Dimension] = list(info.type.tensor_type.shape.dim)
    return dims[index]


def connect(name: str, index: int, other: str) -> Edit:
    return lambda m: node(m, name).input.__setitem__(index, other)


def set_attribute(name: str, key: str, to: object) -> Edit:
    def edit(proto: onnx.ModelProto) -> None:
        found = node(proto, name)
        kept = [a for a in found.attribute if a.name != key]
        del found.attribute[:]
        found.attribute.extend([*kept, helper.make_attribute(key, to)])

    return edit


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda m: m.ClearField("graph"), "there is no graph"),
        (lambda m: setattr(m, "ir_version", 99), "IR version 99 is not supported"),
        (lambda m: m.ClearField("ir_version"), "IR version 0 is not supported"),
        (lambda m: setattr(m.opset_import[0], "version", 999), "opset 999 of ai.onnx is not"),
        (lambda m: setattr(m.opset_import[0], "version", 0), "opset 0 of ai.onnx is not"),
        (lambda m: m.opset_import.add(domain="ai.onnx.ml", version=99), "opset 99 of ai.onnx.ml"),
        (connect("relu1", 0, "nowhere"), "reads 'nowhere', which does not exist"),
        (connect("relu1", 0, "n11"), "did you mean 'n1'?"),
        (connect("relu1", 0, "r1"), "'relu1' (Relu) -> 'relu1' (Relu)"),
        (connect("conv1", 0, "a"), "has a cycle"),
        (
            lambda m: m.graph.node.insert(9, m.graph.node.pop(0)),
            "reads 'c1', which node 'conv1' (Conv) gives only later",
        ),
        (
            lambda m: node(m, "relu1").output.__setitem__(0, "c1"),
            "node 'conv1' (Conv) and node 'relu1' (Relu) both give it",
        ),
        (lambda m: m.graph.initializer.append(m.graph.initializer[0]), "two initializers"),
        (lambda m: setattr(m.graph.output[0], "name", "z"), "output 'z' of the graph is not"),
        (lambda m: setattr(dim(m.graph.input[0], 0), "dim_value", -1), "has a negative size"),
        (lambda m: setattr(dim(m.graph.input[0], 0), "dim_value", 2**62), "any machine has"),
        (
            lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 77),
            "77 is not an element",
        ),
        (lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 0), "is UNDEFINED"),
        (lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 7), "insert a Cast"),
        (lambda m: initializer(m, "b1").dims.__setitem__(0, -4), "has a negative size"),
        (lambda m: initializer(m, "b1").dims.__setitem__(0, 2**61), "any machine has"),
        (lambda m: initializer(m, "b1").dims.__setitem__(0, 5), "needs 20 bytes, and there are 16"),
        (lambda m: setattr(initializer(m, "b1"), "data_type", 99), "99 is not an element type"),
        (lambda m: setattr(initializer(m, "b1"), "data_type", 11), "needs 32 bytes"),
        (
            lambda m: setattr(node(m, "relu1"), "op_type", "Unheard"),
            "node 'relu1' (Unheard) is not valid\nthere is no operator 'Unheard' in opset 17",
        ),
        (lambda m: setattr(node(m, "relu1"), "op_type", "Affine"), "no operator 'Affine'"),
        (
            lambda m: setattr(node(m, "relu1"), "op_type", "Gelu"),
            "Gelu exists since opset 20, and the model declares opset 17\nexport the model with",
        ),
        (set_attribute("flatten", "axis", "first"), "Mismatched attribute type"),
        (set_attribute("flatten", "unheard", 1), "Unrecognized attribute: unheard"),
        (set_attribute("conv1", "strides", [0, 0]), "'conv1' (Conv)"),
        (lambda m: node(m, "flatten").attribute[0].ClearField("type"), "'type'"),
        (lambda m: setattr(dim(m.graph.output[0], 1), "dim_value", 6), "(5) vs (6)"),
    ],
)
def test_refused(edit: Edit, words: str) -> None:
    proto = MODELS["conv_net"]()
    edit(proto)
    assert words in refused(proto)


def test_a_missing_attribute() -> None:
    proto = MODELS["shapes"]()
    del node(proto, "cast").attribute[:]
    assert "node 'cast' (Cast) is not valid\nonnx says: Required attribute 'to'" in refused(proto)


def test_names_of_subgraphs() -> None:
    proto = MODELS["control_flow"]()
    node(proto, "loop").attribute[0].g.node[0].input[0] = "lost"
    assert "'body_add' (Add) of body of node 'loop' (Loop) reads 'lost'" in refused(proto)


def test_a_cycle_through_a_subgraph() -> None:
    proto = MODELS["control_flow"]()
    branch = next(a.g for a in node(proto, "if").attribute if a.name == "then_branch")
    branch.node[0].input[0] = "last"  # what the loop makes of this If
    assert "'loop' (Loop) -> 'if' (If) -> 'loop' (Loop)" in refused(proto)


def test_deep_subgraphs() -> None:
    def nested(depth: int) -> onnx.ModelProto:
        leaf = helper.make_graph(
            [helper.make_node("Neg", ["x"], ["n"])], "leaf", [], [value("n", [2])]
        )
        body = leaf
        for level in range(depth):
            outer = helper.make_node("If", ["c"], [f"z{level}"], then_branch=body, else_branch=leaf)
            body = helper.make_graph([outer], "body", [], [value(f"z{level}", [2])])
        inputs = [value("x", [2]), value("c", [], TensorProto.BOOL)]
        return model(body.node, inputs, body.output)

    validate(read_model(nested(24)))
    assert "subgraphs are nested too deep" in refused(nested(25))


def single(
    name: str, inputs: dict[str, list[int]], outputs: int, **attributes: int | bytes
) -> onnx.ModelProto:
    """A model of one node, whose outputs have unknown shapes."""
    given = [value(n, s, TensorProto.INT64 if n == "i" else 1) for n, s in inputs.items()]
    made = helper.make_node(name, list(inputs), [f"y{i}" for i in range(outputs)], "it")
    for key, setting in attributes.items():
        kind = onnx.AttributeProto.INT if isinstance(setting, int) else onnx.AttributeProto.STRING
        made.attribute.add(
            name=key, type=kind, **{"i" if isinstance(setting, int) else "s": setting}
        )
    types = [helper.make_tensor_type_proto(1, [f"d{i}" for i in range(4)])] * outputs
    ends = [helper.make_value_info(n, t) for n, t in zip(made.output, types, strict=True)]
    return model([made], given, ends, opset=18)


@pytest.mark.ci
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "proto",
    [
        single("LayerNormalization", {"x": [2, 3, 4, 5], "w": [5]}, 3, axis=2**31),
        single("GatherND", {"x": [2, 2, 2], "i": [2, 1]}, 1, batch_dims=-(2**31)),
        single("Einsum", {"x": [], "y": [5]}, 1, equation=b"\xff\0"),
        single("Split", {"x": [6, 1, 1, 1]}, 9, num_outputs=1),
    ],
    ids=lambda proto: str(proto.graph.node[0].op_type),
)
def test_what_the_checker_does_not_survive(proto: onnx.ModelProto) -> None:
    """Seen to crash it or to keep it busy for ever; another version may say what is wrong."""
    start = time.process_time()
    said = refused(proto)
    assert "the model cannot be checked" in said or "node 'it'" in said
    assert time.process_time() - start < 10


def test_functions_that_double() -> None:
    proto = MODELS["local_function"]()
    doubling_functions(proto, random.Random(0))
    assert "with its local functions expanded" in refused(proto)


def test_calls_of_functions() -> None:
    proto = MODELS["local_function"]()
    node(proto, "first").input.append("x")
    assert "it has 3 inputs, and the local function 'Block' has 2" in refused(proto)


def test_inferred_sizes() -> None:
    """Nothing declared is too large, but what a node would make is."""
    nodes = [
        helper.make_node("Expand", ["x", "to"], ["e"], "expand"),
        helper.make_node("ReduceSum", ["e"], ["y"], "sum", keepdims=0),
    ]
    proto = model(nodes, [value("x", [1])], [value("y", [])], [ints("to", 2**30, 2**30)])
    onnx.checker.check_model(proto, full_check=True)
    assert "inferred type of value 'e'" in refused(proto)


def test_text_that_is_none() -> None:
    data = MODELS["conv_net"]().SerializeToString().replace(b"relu1", b"relu\xff")
    assert "is not text" in refused(data)


def test_large_tensors_are_checked_without_their_data() -> None:
    proto = large_weights()
    tensor = initializer(proto, "w1")
    tensor.dims[0] = 91
    assert "needs 29120 bytes, and there are 28800" in refused(proto)
    tensor.dims[:] = [80, 90]
    assert "'first' (MatMul)" in refused(proto)
    assert np.prod(tensor.dims) * 4 == len(tensor.raw_data)


@pytest.mark.parametrize("name", MODELS)
def test_accepted(name: str) -> None:
    validate(read_model(MODELS[name]()))


def test_more_that_is_accepted() -> None:
    scalar = numpy_helper.from_array(np.array(2, np.float32), "two")
    empty = weights("none", 0, 4)
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["m"]),
        helper.make_node("Concat", ["m", "none"], ["y"], axis=0),
        helper.make_node("Dropout", ["y", "", ""], ["d", ""]),
    ]
    outputs = [value("y", [None, 4]), value("d", ["any", 4]), value("x", ["n", 4])]
    inputs = [value("x", ["n", 4]), value("unused", [1]), value("two", [])]
    proto = model(nodes, inputs, outputs, [scalar, empty])
    proto.graph.value_info.append(value("m", ["n", 4]))
    onnx.checker.check_model(proto, full_check=True)
    validate(read_model(proto))
