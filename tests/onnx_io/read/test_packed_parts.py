"""Map types and sparse tensors, which onnx_ir does not hold, go through all the same."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from superopt.onnx_io.read.packed_parts import pack_unsupported, unpack_unsupported
from tests.support.onnx_io.models import model, value, weights
from tests.support.onnx_io.rounds import assert_runs_alike, assert_same, imported, through


def classifier() -> onnx.ModelProto:
    """As scikit-learn's exporter writes it: the scores as a list of maps from label to number."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"], "linear"),
        helper.make_node("Softmax", ["scores"], ["p"], "softmax", axis=1),
        helper.make_node("ZipMap", ["p"], ["z"], "zip", domain="ai.onnx.ml",
                         classlabels_int64s=[3, 5]),
    ]  # fmt: skip
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, None))
    outputs = [helper.make_value_info("z", helper.make_sequence_type_proto(kind))]
    made = model(nodes, [value("x", ["n", 4])], outputs, [weights("w", 4, 2)],
                 domains=["ai.onnx.ml"])  # fmt: skip
    made.graph.value_info.append(helper.make_value_info("unread", kind))
    return made


def sparse(name: str) -> onnx.SparseTensorProto:
    values = helper.make_tensor(name, TensorProto.FLOAT, [2], [2.0, 3.0])
    indices = helper.make_tensor("", TensorProto.INT64, [2], [0, 5])
    return helper.make_sparse_tensor(values, indices, [6])


def sparse_everywhere() -> onnx.ModelProto:
    """ONNX's own operators take no sparse operands, so that a weight may be sparse for others'."""
    nodes = [
        helper.make_node("Constant", [], ["c"], "constant", sparse_value=sparse("")),
        helper.make_node("Add", ["x", "c"], ["y"], "add"),
        helper.make_node("Use", ["s"], ["z"], "use", domain="com.example"),
    ]
    outputs = [value("y", [6]), value("z", [1])]
    made = model(nodes, [value("x", [6])], outputs, domains=["com.example"])
    made.graph.sparse_initializer.append(sparse("s"))
    return made


def test_map_types_stay() -> None:
    made = classifier()
    del made.graph.value_info[:]  # of a value that is not there
    assert_same(made)
    m = imported(made)
    assert [n.op.name for n in (m.graph.outputs[0],)] == ["ZipMap"]  # type: ignore[union-attr]
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert_runs_alike(made, through(made, folded=True), [{"x": x}])


def test_sparse_tensors_stay() -> None:
    made = sparse_everywhere()
    assert_same(made)
    assert [name for name, _ in imported(made).opaque_reasons] == ["use"]


@pytest.mark.parametrize("make", [classifier, sparse_everywhere])
def test_unpacking_gives_what_was_packed(make: object) -> None:
    made = make()  # type: ignore[operator]
    packed = onnx.ModelProto()
    packed.CopyFrom(made)
    pack_unsupported(packed)
    assert packed != made
    unpack_unsupported(packed)
    assert packed == made
