"""From files to graphs: what becomes an attribute, what is followed, what is opaque and why."""

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from superopt.ir import graph
from superopt.onnx_io.import_.constants import SMALL_TENSOR_BYTES, ConstantPool
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import read_model
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType
from tests.support.onnx_io.models import conv_net, ints, model, value, weights
from tests.support.onnx_io.rounds import imported, text


def last(m: Model) -> graph.Node:
    (out,) = m.graph.outputs
    n = graph.producer(out)
    assert n is not None
    return n


def test_inputs_and_names() -> None:
    m = imported(conv_net())
    (x,) = m.graph.inputs
    assert x.name == "x"
    assert x.type == TensorType(F32, (Size("n"), 3, 8, 8))
    assert m.size_bindings == {"n": ("x", 0)}
    assert m.symbols == {"n": "n"}
    assert m.opset == 17
    assert m.names[last(m)] == "y"
    assert m.origins[last(m)].node.name == "gemm"
    assert [n.op.name for n in graph.nodes(m.graph)][:3] == ["Conv", "BatchNormalization", "Relu"]


def test_sizes_get_names_that_our_syntax_prints() -> None:
    dims = ["batch-size", "2*n", "f32", "x_d1", None, "f32 "]
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    m = imported(model(nodes, [value("x", dims)], [value("y", dims)]))
    shape = m.graph.inputs[0].type.shape or ()
    assert [str(d) for d in shape] == ["batch_size", "d_2_n", "d_f32", "x_d1", "x_d4", "f32_"]
    assert list(m.symbols) == ["batch-size", "2*n", "f32", "x_d1", "x_d4", "f32 "]


def test_a_nameless_size_never_gets_a_name_of_the_file() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    dims = [None, "x_d0"]
    m = imported(model(nodes, [value("x", dims)], [value("y", dims)]))
    a, b = m.graph.inputs[0].type.shape or ()
    assert a != b


@pytest.mark.parametrize("opset", [11, 12, 13, 17, 21])
def test_axes_are_an_attribute_wherever_onnx_has_them(opset: int) -> None:
    """`axes` of ReduceSum and Squeeze became operands in opset 13."""
    if opset < 13:
        nodes = [
            helper.make_node("ReduceSum", ["x"], ["h"], axes=[-1], keepdims=1),
            helper.make_node("Squeeze", ["h"], ["y"], axes=[1]),
        ]
        made = model(nodes, [value("x", [2, 3])], [value("y", [2])], opset=opset)
    else:
        nodes = [
            helper.make_node("ReduceSum", ["x", "minus"], ["h"], keepdims=1),
            helper.make_node("Squeeze", ["h", "one"], ["y"]),
        ]
        constants = [ints("minus", -1), ints("one", 1)]
        made = model(nodes, [value("x", [2, 3])], [value("y", [2])], constants, opset=opset,
                     ir_version=10)  # fmt: skip
    m = imported(made)
    assert m.opaque_reasons == ()
    squeeze = last(m)
    assert squeeze.attr("axes") == (1,)
    assert graph.producer(squeeze.inputs[0]).attr("axes") == (1,)  # type: ignore[arg-type,union-attr]


def test_what_an_older_opset_means_is_not_read_as_the_newest() -> None:
    nodes = [helper.make_node("Softmax", ["x"], ["y"])]  # of a matrix, until opset 13
    made = model(nodes, [value("x", [2, 3, 4])], [value("y", [2, 3, 4])], opset=11)
    why = "Softmax: in its opset over all dimensions from 1 on, of f32[2, 3, 4]"
    assert [why for _, why in imported(made).opaque_reasons] == [why]


def test_shapes_that_are_computed_become_attributes() -> None:
    m = imported(
        text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 4, 6] x) => (float[?, ?, ?] y) <int64[1] tail = {-1}, int64 zero = {0}> {
            shape = Shape(x)
            n = Gather(shape, zero)
            two = Constant <value = int64 {2}> ()
            half = Div(n, two)
            axes = Constant <value = int64[1] {0}> ()
            h = Unsqueeze(half, axes)
            twos = Constant <value = int64[1] {2}> ()
            s = Concat <axis = 0> (twos, tail, h)
            y = Reshape(x, s)
        }""")
    )
    assert m.opaque_reasons == ()
    n = last(m)
    assert n.op.name == "Reshape"
    assert [str(d) for d in n.attr("shape")] == ["2", "((n * 24) // ((n // 2) * 2))", "(n // 2)"]  # type: ignore[union-attr]
    assert [v.op.name for v in graph.nodes(m.graph)] == ["Reshape"]  # the chain is not needed


def test_static_shapes_become_constants() -> None:
    m = imported(
        text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 3] x) => (int64[2] s) { s = Shape(x) }""")
    )
    (s,) = m.graph.outputs
    assert isinstance(s, graph.Constant)
    assert s.load().tolist() == [2, 3]
    assert m.names[s] == "s"


def test_sizes_through_floats() -> None:
    """As exporters write an upsampling: floor(cast(shape) * scale)."""
    m = imported(
        text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 3, 5, 7] x) => (float[1, 3, ?, ?] y) <float[4] scale = {1, 1, 2.5, 1.5}> {
            shape = Shape(x)
            f = Cast <to = 1> (shape)
            grown = Mul(f, scale)
            down = Floor(grown)
            s = Cast <to = 7> (down)
            c = Constant <value = float[1] {1}> ()
            y = Expand(c, s)
        }""")
    )
    assert m.opaque_reasons == ()
    assert last(m).attr("shape") == (1, 3, 12, 10)


REASONS = {
    "Reshape: shape depends on data": "float[2] x, int64[1] s) => (float[?] y) { y = Reshape(x, s)",
    "TopK: TopK in an order that each runtime chooses": """float[2] x) => (float[1] y) {
        one = Constant <value = int64[1] {1}> ()
        y, i = TopK <sorted = 0> (x, one)""",
    "NonZero: no tensor expression (opset 17)": "float[2] x) => (int64[?, ?] y) { y = NonZero(x)",
    "Magic: domain com.example (opset 1)": "float[2] x) => (float[2] y) { y = com.example.Magic(x)",
    "Relu: Relu on an operand of unknown type": """float[2] x) => (float[2] y) {
        h = com.example.Magic(x)
        y = Relu(h)""",
    "Resize: scales depends on data": """float[1, 1, 2, 2] x, float[4] s) => (float[?, ?, ?, ?] y) {
        y = Resize(x, , s)""",
}


@pytest.mark.parametrize("why", REASONS)
def test_why_a_node_is_opaque(why: str) -> None:
    opsets = '["" : 17, "com.example" : 1]'
    m = imported(text(f"<ir_version: 8, opset_import: {opsets}> g ({REASONS[why]} }}"))
    assert why in [w for _, w in m.opaque_reasons]


def test_a_local_function_hides_an_operator_of_its_name() -> None:
    made = text("""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[2] x) => (float[2] y) { [call] y = own.Relu(x) }
        <domain: "own", opset_import: ["" : 17]>
        Relu (a) => (b) { b = Neg(a) }""")
    m = imported(made)
    assert m.opaque_reasons == (("call", "Relu: a local function"),)
    assert last(m).type == TensorType(F32, (2,))  # by inference through the function


def test_inference_goes_on_behind_a_shape_that_onnx_does_not_infer() -> None:
    """Below opset 13 onnx's inference of the whole model knows no rank of `a`, whose sizes are
    computed, and none of `b`: a sum of sizes that may differ, which is opaque."""
    m = imported(
        text("""<ir_version: 8, opset_import: ["" : 12]>
        g (float[n, 8] x, float[m, 8] z) => (float[?, ?] y)
        <int64[1] two = {2}, int64[1] zero = {0}, int64[1] one = {1}, int64[1] eight = {8}> {
            sizes = Shape(x)
            rows = Slice(sizes, zero, one)
            odd = Mod(rows, two)
            even = Sub(rows, odd)
            more = Add(even, odd)
            shape = Concat<axis = 0>(more, eight)
            a = Reshape(x, shape)
            b = Add(a, z)
            y = Relu(b)
        }""")
    )
    relu = last(m)
    assert relu.op.name == "Relu"
    assert relu.type == TensorType(F32, (Size("b_d0"), 8))


def test_equal_nodes_are_one() -> None:
    m = imported(
        text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) <float[2] v = {1, 2}, float[2] w = {1, 2}> {
            a = Add(x, v)
            b = Add(x, w)
            y = Mul(a, b)
        }""")
    )
    a, b = last(m).inputs
    assert a is b
    assert m.names[a] == "a"  # type: ignore[index]


def test_values_that_are_constant_only_by_default_are_inputs() -> None:
    m = imported(
        text("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x, float[2] d = {1, 2}) => (float[2] y) { y = Add(x, d) }""")
    )
    x, d = m.graph.inputs
    assert list(m.input_defaults) == [d]
    assert last(m).inputs == (x, d)


def test_large_tensors_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even to find out whether two are equal, while three small pieces of them differ."""
    proto = model(
        [helper.make_node("Add", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "v"], ["y"])],
        [value("x", [9000])],
        [value("y", [9000])],
        [weights("w", 9000), weights("v", 9000)],
    )
    source = read_model(proto)
    monkeypatch.setattr(onnx_ir.Tensor, "numpy", lambda self: pytest.fail(f"read {self.name}"))
    m = import_model(source)
    assert [c.nbytes for c in m.tensors] == [36000, 36000]
    monkeypatch.undo()
    for c, t in m.tensors.items():
        assert c.load().tobytes() == t.numpy().tobytes()


def test_constants_of_different_pools_are_never_taken_for_each_other() -> None:
    """They were known by an address, which comes back once the first pool is gone."""
    seen = []
    for k in range(20):
        t = onnx_ir.Tensor(np.full(SMALL_TENSOR_BYTES, k, np.float32), name="w")
        pool = ConstantPool()
        pool.announce([t])
        seen.append(pool.constant(t))
        del pool, t
    assert [float(c.load()[0]) for c in seen] == list(range(20))


def test_tensors_of_strings() -> None:
    words = [f"word {k}" for k in range(2000)]
    pool = ConstantPool()
    tensors = [
        onnx_ir.StringTensor([w.encode() for w in ws], shape=onnx_ir.Shape((2000,)))
        for ws in (words, list(words), words[::-1])
    ]
    pool.announce(tensors)
    a, b, c = map(pool.constant, tensors)
    assert a is b
    assert a is not c


def test_a_chain_of_twenty_thousand_nodes() -> None:
    nodes = [helper.make_node("Relu", [f"v{k}"], [f"v{k + 1}"], f"n{k}") for k in range(20_000)]
    m = import_model(read_model(model(nodes, [value("v0", [2])], [value("v20000", [2])])))
    assert len(graph.nodes(m.graph)) == 20_000


def test_the_opset_of_a_model_that_uses_none() -> None:
    proto = onnx.ModelProto(ir_version=8)
    proto.opset_import.add(domain="com.example", version=2)
    proto.graph.name = "g"
    proto.graph.input.append(value("x", [2]))
    proto.graph.output.append(value("y", [2]))
    proto.graph.node.append(helper.make_node("Magic", ["x"], ["y"], domain="com.example"))
    m = imported(proto)
    assert m.opset == 1
    assert [n for n, _ in m.opaque_reasons] == ["y"]


def test_small_integers_of_every_type_are_followed() -> None:
    for dtype in (TensorProto.INT32, TensorProto.UINT8, TensorProto.BOOL, TensorProto.INT64):
        array = np.array([1, 0], helper.tensor_dtype_to_np_dtype(dtype))
        nodes = [
            helper.make_node("Cast", ["c"], ["i"], to=TensorProto.INT64),
            helper.make_node("Add", ["i", "one"], ["s"]),
            helper.make_node("Expand", ["x", "s"], ["y"]),
        ]
        made = model(nodes, [value("x", [1, 1])], [value("y", [2, 1])],
                     [numpy_helper.from_array(array, "c"), ints("one", 1)])  # fmt: skip
        assert last(imported(made)).attr("shape") == (2, 1)
