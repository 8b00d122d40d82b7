"""Operators of older opsets: the same expression where they mean the same, opaque where not."""

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from superopt.ir.evaluate import evaluate
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 7 - 1
C = np.array([0.5, 2, 1], np.float32)


def model(
    name: str, opset: int, feeds: dict[str, np.ndarray], attrs: dict[str, object]
) -> onnx.ModelProto:
    node = helper.make_node(name, list(feeds), ["y"], **attrs)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in feeds.items()
    ]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.mark.parametrize(
    ("name", "opset", "operands", "attrs"),
    [
        ("ReduceSum", 11, [X], {"axes": [1], "keepdims": 0}),
        ("ReduceMean", 11, [X], {"axes": [-1]}),
        ("ReduceMax", 1, [X], {"axes": [0, 2]}),
        ("ReduceLogSumExp", 13, [X], {}),
        ("ArgMax", 11, [X], {"axis": 2, "keepdims": 0}),
        ("Max", 8, [X, X[0], X[:, :1]], {}),
        ("Dropout", 10, [X], {"ratio": 0.3}),
        ("InstanceNormalization", 6, [X, C, C], {"epsilon": 1e-3}),
        # onnx's evaluator computes as many channels as there are instances
        ("LRN", 1, [X.reshape(2, 2, 6, 1)], {"size": 2, "alpha": 0.5}),
        ("Elu", 6, [X], {"alpha": 0.5}),
        ("Cast", 9, [X], {"to": onnx.TensorProto.FLOAT}),
        ("Mul", 7, [X, X[0]], {}),
        ("PRelu", 9, [X, C[:, None]], {}),
    ],
)
def test_means_the_same(
    name: str, opset: int, operands: list[np.ndarray], attrs: dict[str, object]
) -> None:
    feeds = {f"x{n}": a for n, a in enumerate(operands)}
    proto = model(name, opset, feeds, attrs)
    imported = import_model(read_model(proto))
    assert not imported.opaque_reasons
    (got,) = evaluate(imported.graph, feeds)
    (wanted,) = ReferenceEvaluator(proto).run(None, feeds)
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-6)


def test_batch_normalization_with_one_result_is_that_of_inference() -> None:
    feeds = {"x": X, "scale": C, "b": C, "mean": C, "var": C}
    attrs = {"epsilon": 1e-3, "momentum": 0.5}
    old, new = (model("BatchNormalization", opset, feeds, attrs) for opset in (9, 15))
    imported = import_model(read_model(old))
    assert not imported.opaque_reasons
    (got,) = evaluate(imported.graph, feeds)
    (wanted,) = ReferenceEvaluator(new).run(None, feeds)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "opset", "operands", "attrs"),
    [
        ("Softmax", 11, [X], {"axis": 1}),  # flattened to a matrix
        ("LogSoftmax", 1, [X], {}),
        ("Hardmax", 11, [X], {}),
        ("Add", 6, [X, C], {"broadcast": 1, "axis": 1}),  # broadcasts from an axis on
        ("PRelu", 6, [X, C], {}),  # one slope a channel
        ("BatchNormalization", 8, [X, C, C, C, C], {"spatial": 0}),
        ("GroupNormalization", 18, [X, C[:1], C[:1]], {"num_groups": 1}),  # a scale a group
        ("OneHot", 9, [np.array([1, 2]), np.array(3), C[:2]], {}),  # negative indices are off
    ],
)
def test_means_something_else(
    name: str, opset: int, operands: list[np.ndarray], attrs: dict[str, object]
) -> None:
    proto = model(name, opset, {f"x{n}": a for n, a in enumerate(operands)}, attrs)
    assert import_model(read_model(proto)).opaque_reasons
