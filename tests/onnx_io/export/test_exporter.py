"""From graphs to files: what opsets can say, names through rewrites, models of one node."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from superopt.ir import graph as ir_graph
from superopt.ir.op import Attr
from superopt.onnx_io.export.exporter import ExportError, export_graph, export_model, is_expressible
from superopt.onnx_io.export.one_node_model import one_node_model
from superopt.onnx_io.export.provenance import trace_provenance
from superopt.onnx_io.import_.model import Model
from superopt.ops import OPS
from superopt.te.expr.dtype import BOOL, F16, F32, STRING
from superopt.te.expr.tensor import TensorType
from tests.support.onnx_io.models import conv_net, model, value, weights
from tests.support.onnx_io.rounds import assert_runs_alike, imported, session, text


def proto_of(m: Model, graph: ir_graph.Graph) -> onnx.ModelProto:
    out = onnx_ir.to_proto(export_model(m, graph))
    onnx.checker.check_model(out, full_check=True)
    return out


def input_(*shape: int, name: str = "x") -> ir_graph.Input:
    return ir_graph.Input(name, TensorType(F32, shape))


def plain(n: ir_graph.Node, *inputs: ir_graph.Input, opset: int = 17) -> onnx.ModelProto:
    out = onnx_ir.to_proto(export_graph(ir_graph.Graph(inputs, (n,)), opset=opset, ir_version=8))
    onnx.checker.check_model(out, full_check=True)
    return out


# --- what an opset can say ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "opset", "can"),
    [
        ("Gelu", 19, False),
        ("Gelu", 20, True),
        ("LayerNormalization", 16, False),
        ("LayerNormalization", 17, True),
        ("Softmax", 12, False),  # there is one, with another meaning
        ("Softmax", 13, True),
        ("Relu", 1, True),
        ("Upsample", 9, True),
        ("Upsample", 10, False),  # deprecated
    ],
)
def test_expressible(name: str, opset: int, can: bool) -> None:
    assert is_expressible(OPS[name], opset) == can


def test_an_operator_of_a_newer_opset() -> None:
    x = input_(2)
    with pytest.raises(ExportError, match="Gelu is not in opset 17"):
        plain(ir_graph.node(OPS["Gelu"], [x]), x)


def test_an_attribute_of_a_newer_opset() -> None:
    x = input_(1, 1, 4, 4)
    say = dict[str, Attr](kernel_shape=(2, 2), dilations=(2, 2))
    n = ir_graph.node(OPS["AveragePool"], [x], **say)
    assert [a.name for a in plain(n, x, opset=19).graph.node[0].attribute].count("dilations") == 1
    with pytest.raises(ExportError, match=r"dilations=\(2, 2\) has no form in opset 17"):
        plain(n, x)
    other = ir_graph.node(OPS["AveragePool"], [x], kernel_shape=(2, 2))
    plain(other, x)  # dilations of 1 need not be said


@pytest.mark.parametrize("opset", [11, 12, 13])
@pytest.mark.parametrize("how", [{"scales": (1, 1, 2.0, 2.0)}, {"sizes": (1, 2, 6, 8)}])
def test_an_operand_that_older_opsets_require(opset: int, how: dict[str, Attr]) -> None:
    x = input_(1, 2, 3, 4)
    n = ir_graph.node(OPS["Resize"], [x], **how)
    run = session(plain(n, x, opset=opset))
    (found,) = run.run(None, {"x": np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)})
    assert found.shape == (1, 2, 6, 8)


def test_an_operand_of_a_newer_opset() -> None:
    x = input_(2, 3)
    n = ir_graph.node(OPS["ReduceSum"], [x], axes=(), noop_with_empty_axes=1)
    with pytest.raises(ExportError, match="noop_with_empty_axes=1 has no form in opset 11"):
        plain(n, x, opset=11)


WRITTEN: Mapping[tuple[str, str], tuple[dict[str, Attr], int, object]] = {
    ("LeakyRelu", "alpha"): ({"alpha": 0}, onnx.AttributeProto.FLOAT, 0.0),  # an int in a rule
    ("Gemm", "alpha"): ({"alpha": 2}, onnx.AttributeProto.FLOAT, 2.0),
    ("Cast", "to"): ({"to": F16}, onnx.AttributeProto.INT, TensorProto.FLOAT16),
    ("Transpose", "perm"): ({"perm": (1, 0)}, onnx.AttributeProto.INTS, [1, 0]),
    ("Einsum", "equation"): ({"equation": "ab->ba"}, onnx.AttributeProto.STRING, b"ab->ba"),
}


@pytest.mark.parametrize(("name", "key"), WRITTEN)
def test_attributes_have_the_type_that_the_schema_says(name: str, key: str) -> None:
    attrs, kind, wanted = WRITTEN[name, key]
    inputs = [input_(2, 2, name=f"x{k}") for k in range(2 if name == "Gemm" else 1)]
    out = plain(ir_graph.node(OPS[name], inputs, **attrs), *inputs)
    (a,) = (a for a in out.graph.node[0].attribute if a.name == key)
    assert a.type == kind
    assert onnx.helper.get_attribute_value(a) == wanted


def test_defaults_are_not_written() -> None:
    x = input_(2, 3)
    assert not plain(ir_graph.node(OPS["Elu"], [x], alpha=1.0), x).graph.node[0].attribute
    assert not plain(ir_graph.node(OPS["Softmax"], [x], axis=-1), x, opset=13).graph.node[
        0
    ].attribute or (
        plain(ir_graph.node(OPS["Softmax"], [x], axis=-1), x).graph.node[0].attribute[0].i == 1
    )


def test_unused_results_are_not_written() -> None:
    x, w = input_(2, 4), input_(4, name="w")
    n = ir_graph.node(OPS["LayerNormalization"], [x, w], axis=-1)
    both = ir_graph.Graph((x, w), (ir_graph.result(n, 0), ir_graph.result(n, 2)))
    out = onnx_ir.to_proto(export_graph(both, opset=17, ir_version=8))
    assert [bool(o) for o in out.graph.node[0].output] == [True, False, True]
    one = ir_graph.Graph((x, w), (ir_graph.result(n, 0),))
    out = onnx_ir.to_proto(export_graph(one, opset=17, ir_version=8))
    assert len(out.graph.node[0].output) == 1
    run = session(onnx_ir.to_proto(export_graph(both, opset=17, ir_version=8)))
    assert [r.shape for r in run.run(None, {"x": np.ones((2, 4), "f"), "w": np.ones(4, "f")})] == [
        (2, 4),
        (2, 1),
    ]


# --- names through rewrites -----------------------------------------------------------------------


def folded_norm(m: Model) -> ir_graph.Graph:
    """conv_net with its BatchNormalization in the weights of the convolution before it."""
    (norm,) = (n for n in ir_graph.nodes(m.graph) if n.op.name == "BatchNormalization")
    conv = ir_graph.producer(norm.inputs[0])  # type: ignore[arg-type]
    assert conv is not None
    w, b = (v.load() for v in conv.inputs[1:])  # type: ignore[union-attr]
    s, t, mean, var = (v.load() for v in norm.inputs[1:])  # type: ignore[union-attr]
    k = s / np.sqrt(var + np.float32(1e-5))
    new_w, new_b = (
        ir_graph.constant(w * k[:, None, None, None]),
        ir_graph.constant((b - mean) * k + t),
    )
    new = ir_graph.node(OPS["Conv"], [conv.inputs[0], new_w, new_b], **dict(conv.attrs))
    return ir_graph.replace(m.graph, {ir_graph.result(norm, 0): new})


def test_nodes_below_a_rewrite_keep_their_names() -> None:
    made = conv_net()
    for n in made.graph.node:
        n.doc_string = f"of {n.name}"
        n.metadata_props.add(key="was", value=n.name)
    m = imported(made)
    out = proto_of(m, folded_norm(m))
    names = ["conv1", "relu1", "conv2", "add", "pool", "flatten", "gemm"]
    assert [n.name for n in out.graph.node] == names
    assert [n.doc_string for n in out.graph.node] == [f"of {n}" for n in names]
    assert [n.metadata_props[0].value for n in out.graph.node] == names
    # the new convolution gives what the normalization gave: the value has that name
    assert [n.output[0] for n in out.graph.node] == ["n1", "r1", "c2", "a", "p", "f", "y"]
    assert {t.name for t in out.graph.initializer} >= {"w2", "w3", "b3"}
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype("f")
    assert_runs_alike(made, out, [{"x": x}], rtol=1e-4, atol=1e-5)


def test_heirs_are_of_one_only() -> None:
    m = imported(conv_net())
    new = folded_norm(m)
    found = trace_provenance(m.graph, new)
    assert len(set(found.nodes.values())) == len(found.nodes)
    assert len(set(found.values.values())) == len(found.values)
    assert not set(found.nodes) & set(ir_graph.nodes(m.graph))
    assert trace_provenance(m.graph, m.graph).nodes == {}
    assert trace_provenance(m.graph, m.graph).values == {}


def test_attributes_are_copied_only_where_they_mean_the_same() -> None:
    """axis=-1 of the file is axis 1 of a matrix; the rewritten operand has rank 3."""
    m = imported(
        text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 3] x) => (float[2, 3] y) { [soft] y = Softmax <axis = -1> (x) }""")
    )
    (x,) = m.graph.inputs
    wide = ir_graph.node(OPS["Unsqueeze"], [x], axes=(2,))
    soft = ir_graph.node(OPS["Softmax"], [wide], axis=1)
    y = ir_graph.node(OPS["Squeeze"], [soft], axes=(2,))
    out = proto_of(m, ir_graph.Graph((x,), (y,)))
    (n,) = (n for n in out.graph.node if n.op_type == "Softmax")
    assert n.attribute[0].i == 1


def test_new_nodes_take_no_name_that_the_file_has() -> None:
    made = text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] relu) => (float[2] neg) {
            [exp] abs = Exp(relu)
            [relu] neg = Neg(abs)
        }""")
    m = imported(made)
    (x,) = m.graph.inputs
    y: ir_graph.Node = ir_graph.node(OPS["Abs"], [ir_graph.node(OPS["Relu"], [x])])
    y = ir_graph.node(OPS["Sqrt"], [ir_graph.node(OPS["Relu"], [ir_graph.node(OPS["Exp"], [y])])])
    out = proto_of(m, ir_graph.Graph((x,), (y,)))
    names = [*(v.name for v in out.graph.input), *(o for n in out.graph.node for o in n.output)]
    assert len(names) == len(set(names))
    assert names[0] == "relu"
    assert names[-1] == "neg"


def test_an_output_that_was_an_intermediate_value_changes_its_name() -> None:
    made = text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) { h = Relu(x) y = Neg(h) }""")
    m = imported(made)
    (y,) = m.graph.outputs
    h = y.inputs[0]  # type: ignore[union-attr]
    twice = ir_graph.node(OPS["Add"], [y, h])  # type: ignore[list-item]
    out = proto_of(m, ir_graph.Graph(m.graph.inputs, (twice,)))
    assert out.graph.node[-1].output[0] == "y"  # and the Neg has another name now
    assert [v.name for v in out.graph.output] == ["y"]


def test_an_output_with_the_name_of_another_input() -> None:
    m = imported(
        text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] x) { unused = Relu(x) }""")
    )
    (x,) = m.graph.inputs
    with pytest.raises(ExportError, match="x is both an input and an output"):
        export_model(m, ir_graph.Graph((x,), (ir_graph.node(OPS["Neg"], [x]),)))


def test_a_value_of_another_graph() -> None:
    m = imported(conv_net())
    with pytest.raises(ExportError, match="is not a value of the graph"):
        export_model(m, ir_graph.Graph(m.graph.inputs, (input_(2, name="stranger"),)))


def test_exporting_changes_neither_the_model_nor_the_next_export() -> None:
    m = imported(conv_net())
    first = onnx_ir.to_proto(export_model(m)).SerializeToString(deterministic=True)
    proto_of(m, folded_norm(m))
    assert onnx_ir.to_proto(export_model(m)).SerializeToString(deterministic=True) == first


def test_extra_outputs() -> None:
    made = conv_net()
    m = imported(made)
    inner = [v for v in ir_graph.walk(m.graph) if m.names[v] in ("r1", "f")]
    out = onnx_ir.to_proto(export_model(m, extra_outputs=inner))
    assert [v.name for v in out.graph.output] == ["y", "extra0", "extra1"]
    run = session(out)
    shapes = [a.shape for a in run.run(None, {"x": np.ones((2, 3, 8, 8), "f")})]
    assert shapes == [(2, 5), (2, 4, 4, 4), (2, 4)]


def test_renamed_weights_stay_in_their_file() -> None:
    """A large initializer under another name is still the bytes of the file, read when written."""
    from superopt.onnx_io.read.region_tensors import region_of

    made = model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [value("x", [9000])],
        [value("y", [9000]), value("v", [9000])],
        [
            weights("w", 9000),
            numpy_helper.from_array(numpy_helper.to_array(weights("w", 9000)), "v"),
        ],
    )
    m = imported(made)
    out = export_model(m)
    (kept,) = out.graph.initializers.values()
    assert kept.name == "v"
    assert region_of(kept.const_value) is not None  # type: ignore[arg-type]


# --- models of one node ---------------------------------------------------------------------------


def test_one_node() -> None:
    t = TensorType(F32, (2, 3))
    w = TensorType(F32, (3, 4))
    kind = OPS["MatMul"]
    out = (TensorType(F32, (2, 4)),)
    data = one_node_model(kind, [(t, False), (w, True)], (), out, opset=13, ir_version=7, seed=1)
    proto = onnx.load_model_from_string(data)
    onnx.checker.check_model(proto, full_check=True)
    assert [v.name for v in proto.graph.input] == ["x0"]
    assert [tuple(i.dims) for i in proto.graph.initializer] == [(3, 4)]
    assert data == one_node_model(
        kind, [(t, False), (w, True)], (), out, opset=13, ir_version=7, seed=1
    )
    assert session(proto).run(None, {"x0": np.ones((2, 3), "f")})[0].shape == (2, 4)


def test_one_node_of_ir_version_3() -> None:
    """Weights are no inputs there: they would not count as constants."""
    t, out = TensorType(F32, (2, 2)), (TensorType(F32, (2, 2)),)
    data = one_node_model(
        OPS["MatMul"], [(t, False), (t, True)], (), out, opset=8, ir_version=3, seed=1
    )
    proto = onnx.load_model_from_string(data)
    onnx.checker.check_model(proto, full_check=True)
    assert [v.name for v in proto.graph.input] == ["x0"]
    assert session(proto).run(None, {"x0": np.ones((2, 2), "f")})[0].shape == (2, 2)


@pytest.mark.parametrize("dtype", [F32, F16, BOOL, STRING], ids=str)
def test_one_node_on_every_kind_of_element(dtype: object) -> None:
    t = TensorType(dtype, (3,))  # type: ignore[arg-type]
    data = one_node_model(OPS["Identity"], [(t, True)], (), (t,), opset=13, ir_version=7, seed=0)
    assert session(onnx.load_model_from_string(data)).run(None, {})[0].shape == (3,)


def test_one_node_that_cannot_be() -> None:
    t = TensorType(F32, (1 << 14, 1 << 14))
    with pytest.raises(ExportError, match="bytes of operands"):
        one_node_model(OPS["Relu"], [(t, False)], (), (t,), opset=13, ir_version=7, seed=0)
    small = TensorType(F32, (2,))
    with pytest.raises(ExportError, match="Gelu is not in opset 13"):
        one_node_model(OPS["Gelu"], [(small, False)], (("approximate", "none"),), (small,),
                       opset=13, ir_version=7, seed=0)  # fmt: skip
