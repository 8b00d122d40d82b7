"""What goes through import and export unchanged: everything that a model file says."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from superopt.ir.constant_folding import fold_constants
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType
from tests.support.onnx_io.models import MODELS, model, value, weights
from tests.support.onnx_io.rounds import (
    assert_runs_alike,
    assert_same,
    imported,
    plain,
    session,
    text,
    through,
)

# Files that come out as they were, to the last attribute and comment.
TEXTS = {
    "names and order of inputs and outputs": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] zeta, float[2] alpha, float[2] unused) => (float[2] last, float[2] first) {
            first = Add(zeta, alpha)
            last = Neg(first)
        }""",
    "sizes with names, without, and odd ones": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, ?, 3, M] x) => (float[N, ?, 3, M] y, float[?] z) {
            y = Relu(x)
            shape = Constant <value = int64[1] {-1}> ()
            z = Reshape(x, shape)
        }""",
    "no inputs": """<ir_version: 8, opset_import: ["" : 17]>
        g () => (float[2] y) { [only] y = Constant <value = float[2] {1, 2}> () }""",
    "an output that is an input": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] x, float[2] y) { y = Relu(x) }""",
    "an output that is an initializer": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] w, float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }""",
    "an input with a default value": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x, float[2] w = {1, 2}, int64[1] s = {-1}) => (float[?] y) {
            a = Add(x, w)
            y = Reshape(a, s)
        }""",
    "an absent operand in the middle": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x) => (float[4] y) <float m = {1}> { y = Clip(x, , m) }""",
    "an absent result in the middle": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 4] x) => (float[2, 4] y, float[2, 1] d) <float[4] w = {1, 2, 3, 4}> {
            y, , d = LayerNormalization <axis = -1> (x, w)
        }""",
    "absent results of a node without expression": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[5, 1, 2] x) => (float[1, 1, 3] c) <
            float[1, 12, 2] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 2, 3, 4, 5, 6, 7, 8, 9,
                                 10, 11, 12},
            float[1, 12, 3] r = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1, 2, 3, 4, 5, 6, 7, 8, 9,
                                 10, 11, 12, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
        > { , , c = LSTM <hidden_size = 3> (x, w, r) }""",
    "attributes that are defaults, or written the long way": """<
            ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 1, 4, 4] x) => (float[1, 1, 4, 4] y, float[1, 1, 4, 4] z) <
            float[1, 1, 3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}
        > {
            y = Conv <auto_pad = "SAME_UPPER", kernel_shape = [3, 3], group = 1> (x, w)
            z = Softmax <axis = -1> (x)
        }""",
    "nodes without names, values with odd ones": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] "in put/:0") => (float[2] "out::put") {
            "val/ue" = Relu("in put/:0")
            ["named/node"] "out::put" = Neg("val/ue")
        }""",
    "a domain and operators that nobody knows": """<
            ir_version: 8, opset_import: ["" : 17, "com.example": 3, "unused.domain": 1]>
        g (float[2] x) => (float[2] y) {
            t, u = com.example.Magic <level = 3, names = ["a", "b"], t = float[1] {2}> (x)
            y = Add(t, u)
        }""",
    "local functions, one that hides an operator": """<
            ir_version: 8, opset_import: ["" : 17, "own": 1]>
        g (float[2] x) => (float[2] y) {
            h = own.Twice <factor = 3.0> (x)
            y = own.Relu(h)
        }
        <domain: "own", opset_import: ["" : 17]>
        Twice <factor> (a) => (b) {
            c = Constant <value_float: float = @factor> ()
            b = Mul(a, c)
        }
        <domain: "own", opset_import: ["" : 17]>
        Relu (a) => (b) { b = Neg(a) }""",
    "Constant in every form": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y, int64[2] i, int64 j, string[2] s, string t) {
            a = Constant <value_float = 2.5> ()
            b = Constant <value_floats = [1.5, 2.5]> ()
            i = Constant <value_ints = [3, 4]> ()
            j = Constant <value_int = 5> ()
            s = Constant <value_strings = ["one", ""]> ()
            t = Constant <value_string = "alone"> ()
            c = Mul(x, a)
            y = Add(c, b)
        }""",
    "strings": """<ir_version: 8, opset_import: ["" : 17]>
        g (string[2] x, string[2] unused) => (string[2] y, string[2, 1] z) <
            string[2] w = {"left", "right"}
        > {
            y = Identity(x)
            shape = Constant <value = int64[2] {2, 1}> ()
            z = Reshape(w, shape)
        }""",
    "sizes of 0": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[0, 3] x) => (float[0, 3] y, float[0] z) <float[0] w = {}> {
            y = Relu(x)
            z = Neg(w)
        }""",
    "sequences and optional values": """<ir_version: 8, opset_import: ["" : 17]>
        g (seq(float[N]) s, optional(float[2]) o) => (seq(float[N]) t, float[?] e, float[2] g) {
            zero = Constant <value = int64 {0}> ()
            e = SequenceAt(s, zero)
            t = SequenceInsert(s, e)
            g = OptionalGetElement(o)
        }""",
    "types that cannot be inferred": """<
            ir_version: 8, opset_import: ["" : 17, "com.example": 1]>
        g (float[2] x) => (float[2] y) {
            a = com.example.Odd(x)
            b = Relu(a)
            y = Add(b, b)
        }""",
    "random": """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) {
            a = RandomNormal <shape = [2]> ()
            b = RandomNormal <shape = [2]> ()
            c = Sub(a, b)
            y = Add(x, c)
        }""",
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", TEXTS)
def test_a_file_comes_out_as_it_was(name: str) -> None:
    assert_same(text(TEXTS[name]))


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"shapes"}))
def test_small_models_come_out_as_they_were(name: str) -> None:
    assert_same(MODELS[name]())


def documented() -> onnx.ModelProto:
    """A model that says everything that can be said beside the computation."""
    n = helper.make_node("Relu", ["x"], ["h"], "relu", doc_string="of the node", domain="")
    n.metadata_props.add(key="node", value="1")
    alpha = helper.make_node("LeakyRelu", ["h"], ["y"], "leaky", alpha=0.5)
    alpha.attribute[0].doc_string = "of the attribute"
    w = weights("w", 2)
    w.doc_string = "of the tensor"
    add = helper.make_node("Add", ["y", "w"], ["z"], "add")
    made = model([n, alpha, add], [value("x", ["N"])], [value("z", ["N"])], [w], ir_version=11)
    made.graph.value_info.append(value("h", ["N"]))
    for info in (made.graph.input[0], made.graph.output[0], made.graph.value_info[0]):
        info.doc_string = f"of {info.name}"
        info.metadata_props.add(key="value", value=info.name)
        info.type.denotation = "IMAGE"
        info.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    made.graph.doc_string = "of the graph"
    made.graph.metadata_props.add(key="graph", value="2")
    note = made.graph.quantization_annotation.add(tensor_name="h")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    made.doc_string, made.domain, made.model_version = "of the model", "tests", 7
    made.producer_version = "1.2"
    return made


def test_documentation_and_metadata_stay() -> None:
    assert_same(documented())


def test_placement_on_devices_stays() -> None:
    made = documented()
    made.configuration.add(name="two", num_devices=2).device.extend(["cpu", "gpu"])
    place = made.graph.node[0].device_configurations.add(configuration_id="two", pipeline_stage=1)
    place.sharding_spec.add(tensor_name="x", device=[0, 1])
    assert_same(made)


@pytest.mark.parametrize("version", [3, 4, 7, 8, 10, 13])
def test_versions_are_kept(version: int) -> None:
    for opset in (7, 13, 17) if version > 3 else (7,):
        made = documented()
        del made.graph.value_info[:], made.graph.metadata_props[:]
        made.ir_version, made.opset_import[0].version = version, opset
        if version == 3:
            made.graph.input.append(value("w", [2]))
        out = through(made)
        assert out.ir_version == version
        assert list(out.opset_import) == list(made.opset_import)
        assert [n.name for n in out.graph.node] == ["relu", "leaky", "add"]


def test_the_default_domain_by_its_long_name() -> None:
    made = MODELS["conv_net"]()
    made.opset_import[0].domain = "ai.onnx"
    assert imported(made).opaque_reasons == ()
    assert_same(made)


def ir3() -> onnx.ModelProto:
    """Initializers among the inputs, as before IR version 4."""
    nodes = [
        helper.make_node("Add", ["x", "a"], ["h"], "add"),
        helper.make_node("Constant", [], ["c"], "constant", value=weights("", 2)),
        helper.make_node("Mul", ["h", "c"], ["i"], "mul"),
        helper.make_node("Sub", ["i", "b"], ["y"], "sub"),
    ]
    inputs = [value("a", [2]), value("x", [2]), value("b", [2]), value("unused", [2])]
    return model(nodes, inputs, [value("y", [2])], [weights("b", 2), weights("a", 2)],
                 ir_version=3, opset=7)  # fmt: skip


def test_initializers_as_inputs_of_ir_version_3() -> None:
    made = ir3()
    assert [i.name for i in imported(made).graph.inputs] == ["x", "unused"]
    assert_same(made)


def test_a_folded_constant_is_no_new_input_of_ir_version_3() -> None:
    made = ir3()
    made.graph.node[2].input[0] = "b"  # mul: of constants only, so that add is dead
    made.graph.node[3].input[1] = "x"
    out = through(made, folded=True)
    onnx.checker.check_model(out, full_check=True)
    assert [v.name for v in out.graph.input] == ["x", "unused"]
    assert [t.name for t in out.graph.initializer] == []
    assert [n.op_type for n in out.graph.node] == ["Constant", "Sub"]
    assert out.graph.node[0].output[0] == "i"  # the name of what it is the value of
    feeds = [{"x": np.ones(2, "f"), "unused": np.ones(2, "f")}]
    assert_runs_alike(made, out, feeds, rtol=1e-6)


DTYPES: dict[int, np.dtype] = {
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    TensorProto.DOUBLE: np.dtype(np.float64),
    TensorProto.UINT8: np.dtype(np.uint8),
    TensorProto.INT16: np.dtype(np.int16),
    TensorProto.UINT64: np.dtype(np.uint64),
    TensorProto.BOOL: np.dtype(np.bool_),
    TensorProto.COMPLEX64: np.dtype(np.complex64),
    TensorProto.FLOAT8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    TensorProto.FLOAT8E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    TensorProto.FLOAT8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    TensorProto.FLOAT8E5M2FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz),
    TensorProto.FLOAT8E8M0: np.dtype(ml_dtypes.float8_e8m0fnu),
    TensorProto.FLOAT4E2M1: np.dtype(ml_dtypes.float4_e2m1fn),
    TensorProto.INT4: np.dtype(ml_dtypes.int4),
    TensorProto.UINT4: np.dtype(ml_dtypes.uint4),
    TensorProto.INT2: np.dtype(ml_dtypes.int2),
    TensorProto.UINT2: np.dtype(ml_dtypes.uint2),
}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("count", [7, 20_001], ids=["small", "large"])
@pytest.mark.parametrize("dtype", DTYPES, ids=TensorProto.DataType.Name)
def test_tensors_of_every_type(dtype: int, count: int) -> None:
    """Odd numbers of elements: the last byte of packed types is half empty."""
    values = (1 + np.arange(count) % 3 // 2).astype(DTYPES[dtype])
    values[0] = 0
    inner = numpy_helper.from_array(values[::-1].copy(), "inner")
    nodes = [
        helper.make_node("Constant", [], ["c"], "constant", value=inner),
        helper.make_node("Use", ["w", "c"], ["u"], "use", domain="com.example"),
        helper.make_node("Identity", ["w"], ["y"], "weight"),
        helper.make_node("Identity", ["c"], ["z"], "literal"),
    ]
    outputs = [value("u", [1]), *(value(n, [count], dtype) for n in ("y", "z"))]
    weight = numpy_helper.from_array(values, "w")
    made = model(nodes, [], outputs, [weight], opset=25, ir_version=13, domains=["com.example"])
    out = through(made, folded=True)  # now the results of the Identity nodes are constants
    assert [n.op_type for n in out.graph.node if n.domain] == ["Use"]
    found = {t.name: t for t in out.graph.initializer}
    found |= {n.output[0]: n.attribute[0].t for n in out.graph.node if n.op_type == "Constant"}
    for name, wanted in (("y", values), ("z", values[::-1])):
        assert numpy_helper.to_array(found[name]).tobytes() == wanted.tobytes()
    del made.graph.node[2:], made.graph.output[1:]
    assert_same(made)


def test_an_overridable_default_is_never_folded() -> None:
    made = text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] d = {1, 2}) => (float[2] y) { y = Neg(d) }""")
    out = through(made, folded=True)
    assert plain(out) == plain(made)
    runs = session(out)
    np.testing.assert_array_equal(runs.run(None, {})[0], [-1, -2])
    np.testing.assert_array_equal(runs.run(None, {"d": np.array([3, 4], "f")})[0], [-3, -4])


def test_random_nodes_are_never_one_and_never_folded() -> None:
    made = text(TEXTS["random"])
    out = through(made, folded=True)
    assert [n.op_type for n in out.graph.node] == ["RandomNormal", "RandomNormal", "Sub", "Add"]
    graph = imported(made).graph
    assert fold_constants(graph).graph == graph


def test_an_unknown_type_is_unknown_and_its_users_opaque() -> None:
    m = imported(text(TEXTS["types that cannot be inferred"]))
    assert [name for name, _ in m.opaque_reasons] == ["a", "b", "y"]
    assert m.opaque_reasons[0][1] == "Odd: domain com.example (opset 1)"
    b, y = m.graph.outputs[0].inputs[0], m.graph.outputs[0]  # type: ignore[union-attr]
    assert b.type == TensorType(None, None)
    assert y.type == TensorType(F32, (2,))  # what the file declares
