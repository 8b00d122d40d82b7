"""Sizes without a telling name get a value by their place."""

import pytest
from onnx import TensorProto, helper

from superopt.loading.representative_sizes import DEFAULT_SIZE, representative_sizes
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


@pytest.mark.parametrize(
    ("name", "kind", "shape", "wanted"),
    [
        ("x", FLOAT, ["DynamicDimension.0", 3, "DynamicDimension.1", "DynamicDimension.2"],
         [1, 224, 224]),
        ("x", FLOAT, ["unk__17", 1, 64, "?"], [1, 224]),
        ("x", FLOAT, ["unk__17", 32, 64, "?"], [1, DEFAULT_SIZE]),
        ("waveforms", FLOAT, ["batch_size", "N"], [1, 16_000]),
        ("features", FLOAT, ["batch_size", "N"], [1, DEFAULT_SIZE]),
        ("ids", INT, ["unk__1", "unk__2"], [1, 128]),
        ("x", FLOAT, ["rows", "columns"], [DEFAULT_SIZE, DEFAULT_SIZE]),
        ("x", FLOAT, ["n"], [DEFAULT_SIZE]),
    ],
)  # fmt: skip
def test_size_of_a_place(name: str, kind: int, shape: list[str | int], wanted: list[int]) -> None:
    x = helper.make_tensor_value_info(name, kind, shape)
    y = helper.make_tensor_value_info("y", kind, shape)
    body = helper.make_graph([helper.make_node("Identity", [name], ["y"])], "g", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    proto = helper.make_model(body, opset_imports=opset, ir_version=8)
    found = representative_sizes(import_model(read_model(proto.SerializeToString())), {})
    assert list(found.values()) == wanted
