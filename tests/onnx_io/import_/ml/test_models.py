"""Models that begin or end with operators of ai.onnx.ml: what is around them is compiled, rewritten
and proved as if they were ONNX's own."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import superopt
from scripts.tree_models import forest
from superopt.ir import graph as ir_graph
from superopt.onnx_io.export.exporter import export_model
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.packed_parts import to_model_proto
from superopt.onnx_io.read.source import read_model

ort = pytest.importorskip("onnxruntime")

ML = "ai.onnx.ml"
RNG = np.random.default_rng(0)
FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
WIDTH = 64


def weights(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array((RNG.standard_normal(shape) * 0.1).astype(np.float32), name)


def ml(op: str, inputs: list[str], outputs: list[str], **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, domain=ML, **attributes)


def built(
    nodes: list[onnx.NodeProto],
    given: list[tuple[str, int, list[int]]],
    results: list[tuple[str, int, list[int]]],
    *more: onnx.TensorProto,
) -> onnx.ModelProto:
    inputs, outputs = (
        [helper.make_tensor_value_info(*row) for row in rows] for rows in (given, results)
    )
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(more))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(ML, 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def mlp(first: str, last: str, layers: int = 3) -> tuple[list[onnx.NodeProto], list]:
    nodes, held, x = [], [], first
    for k in range(layers):
        y = last if k == layers - 1 else f"r{k}"
        nodes.append(helper.make_node("MatMul", [x, f"w{k}"], [f"m{k}"]))
        nodes.append(helper.make_node("Relu", [f"m{k}"], [y]))
        held.append(weights(f"w{k}", WIDTH, WIDTH))
        x = y
    return nodes, held


def scaled(offset: float = 0.5, scale: float = 2.0) -> onnx.ModelProto:
    nodes, held = mlp("s", "y")
    first = ml("Scaler", ["x"], ["s"], offset=[offset] * WIDTH, scale=[scale] * WIDTH)
    return built([first, *nodes], [("x", FLOAT, [32, WIDTH])], [("y", FLOAT, [32, WIDTH])], *held)


def plain(offset: float = 0.5, scale: float = 2.0) -> onnx.ModelProto:
    """The same in ONNX's own operators, of the same weights."""
    made = scaled(offset, scale)
    node = made.graph.node[0]
    rest = list(made.graph.node[1:])
    del made.graph.node[:]
    constants = (("o", offset), ("c", scale))
    made.graph.node.extend([
        helper.make_node("Sub", ["x", "o"], ["d"]), helper.make_node("Mul", ["d", "c"], ["s"]),
        *rest,
    ])  # fmt: skip
    made.graph.initializer.extend(
        numpy_helper.from_array(np.full(WIDTH, v, np.float32), n) for n, v in constants
    )
    assert node.op_type == "Scaler"
    return made


def same(exe: object, model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> None:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    got = exe.run(feeds)  # type: ignore[attr-defined]
    for value, want in zip(model.graph.output, session.run(None, feeds), strict=True):
        if isinstance(want, list) or want.dtype.kind in "OUi":
            assert np.all(np.asarray(got[value.name]) == np.asarray(want))
        else:
            np.testing.assert_allclose(got[value.name], want, rtol=1e-4, atol=1e-6)


def test_what_follows_a_scaler_is_compiled() -> None:
    model = scaled()
    exe = superopt.compile(model, threads=1)
    same(exe, model, {"x": RNG.standard_normal((32, WIDTH)).astype(np.float32)})
    assert exe.fallback_nodes({}) == []


def test_a_model_is_written_back_with_its_own_nodes() -> None:
    model = scaled()
    out = to_model_proto(export_model(import_model(read_model(model))))
    assert out.graph == model.graph


def test_a_rewritten_graph_keeps_operators_of_other_domains() -> None:
    """Two transposes that cancel go; the Scaler before them is written as it was."""
    model = scaled()
    first, *rest = model.graph.node
    del model.graph.node[:]
    for node in rest:
        node.input[:] = ["b" if name == "s" else name for name in node.input]
    model.graph.node.extend([
        first, helper.make_node("Transpose", ["s"], ["a"], perm=[1, 0]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0]), *rest,
    ])  # fmt: skip
    read_ = import_model(read_model(model))
    turned = [n for n in ir_graph.nodes(read_.graph) if n.op.name == "Transpose"]
    before = turned[0].inputs[0]
    assert before is not None
    out = to_model_proto(export_model(read_, ir_graph.replace(read_.graph, {turned[1]: before})))
    assert [n.op_type for n in out.graph.node] == ["Scaler", *["MatMul", "Relu"] * 3]
    assert out.graph.node[0] == model.graph.node[0]
    x = RNG.standard_normal((32, WIDTH)).astype(np.float32)
    one, two = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
        for m in (model, out)
    )
    np.testing.assert_allclose(one.run(None, {"x": x})[0], two.run(None, {"x": x})[0], rtol=1e-4)


def test_a_scaler_is_proved_to_be_a_difference_and_a_product() -> None:
    global RNG
    RNG = np.random.default_rng(5)
    one = scaled()
    RNG = np.random.default_rng(5)
    two = plain()
    RNG = np.random.default_rng(5)
    other = plain(scale=2.5)
    assert superopt.verify(one, two).decision == "proved"
    assert superopt.verify(one, other).decision == "differs"


CATEGORIES = ["a", "b", "c", "d"]
TYPED = [
    (ml("CategoryMapper", ["x"], ["k"], cats_strings=CATEGORIES, cats_int64s=[0, 1, 2, 3],
        default_int64=0), True),
    (ml("LabelEncoder", ["x"], ["k"], keys_strings=CATEGORIES, values_int64s=[0, 1, 2, 3],
        default_int64=0), True),
    (ml("OneHotEncoder", ["x"], ["k"], cats_strings=CATEGORIES, zeros=1), False),
]  # fmt: skip


@pytest.mark.parametrize(("node", "indices"), TYPED, ids=[n.op_type for n, _ in TYPED])
def test_what_follows_a_table_of_strings_is_compiled(node: onnx.NodeProto, indices: bool) -> None:
    nodes, held = mlp("e", "y")
    table = weights("table", 4, WIDTH)
    look = helper.make_node(
        "Gather" if indices else "MatMul", ["table", "k"] if indices else ["k", "table"], ["e"]
    )
    model = built(
        [node, look, *nodes], [("x", STRING, [512])], [("y", FLOAT, [512, WIDTH])], *held, table
    )  # fmt: skip
    exe = superopt.compile(model, threads=1)
    same(exe, model, {"x": RNG.choice([*CATEGORIES, "z"], 512).astype(object)})
    assert [n.op.name for n, _ in exe.fallback_nodes({})] == [node.op_type]


@pytest.mark.parametrize("strings", [False, True])
def test_maps_of_probabilities_are_carried(strings: bool) -> None:
    """ZipMap gives maps, in onnxruntime; integer labels and scores before it have kernels."""
    names: dict[str, object] = {"classlabels_int64s": [3, 5, 8]}
    if strings:
        names = {"classlabels_strings": ["u", "v", "w"]}
    attributes = forest(np.random.default_rng(0), 100, 5, 8, targets=3, each=True, of="class")
    label = STRING if strings else INT64
    nodes = [
        ml("TreeEnsembleClassifier", ["x"], ["label", "p"], **attributes, **names),
        ml("ZipMap", ["p"], ["maps"], **names),
    ]
    model = built(nodes, [("x", FLOAT, [2000, 8])], [("label", label, [2000])])
    kind = helper.make_map_type_proto(label, helper.make_tensor_type_proto(FLOAT, []))
    maps = helper.make_sequence_type_proto(kind)
    model.graph.output.append(onnx.ValueInfoProto(name="maps", type=maps))
    exe = superopt.compile(model, threads=1)
    x = RNG.standard_normal((2000, 8)).astype(np.float32)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    got, want = exe.run({"x": x}), session.run(None, {"x": x})
    assert np.all(got["label"] == want[0])
    assert [m.keys() for m in got["maps"]] == [m.keys() for m in want[1]]
    for one, two in zip(got["maps"], want[1], strict=True):
        np.testing.assert_allclose(list(one.values()), list(two.values()), rtol=1e-4, atol=1e-6)
    own = [] if not strings else ["TreeEnsembleClassifier"]
    assert [n.op.name for n, _ in exe.fallback_nodes({})] == [*own, "ZipMap"]
