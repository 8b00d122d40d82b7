"""Nodes that onnxruntime computes faster than kernels do."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import superopt
from tests.support.onnx_io.rounds import session


def transposed_convolution(kernel: int, size: int, **attributes: Any) -> onnx.ModelProto:
    weights = np.random.default_rng(0).standard_normal((4, 3, kernel, kernel)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weights, "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


@pytest.mark.parametrize(
    ("kernel", "size", "attributes", "is_slow"),
    [
        (3, 16, {}, False),
        (4, 16, {"strides": [2, 2]}, False),
        (4, 12, {"strides": [2, 2], "dilations": [9, 9]}, True),
        (3, 8, {"dilations": [8, 8]}, True),
        (15, 6, {}, True),
        (4, 1, {}, False),  # a matrix product
        (4, 1, {"pads": [1, 1, 1, 1]}, True),
        (3, 1, {"dilations": [2, 2]}, True),
        (15, 6, {"pads": [9, 9, 9, 9]}, False),  # two results for each element
    ],
)
def test_transposed_convolutions_with_few_elements_of_the_input_beside_each_other(
    kernel: int, size: int, attributes: dict[str, list[int]], is_slow: bool
) -> None:
    m = transposed_convolution(kernel, size, **attributes)
    exe = superopt.compile(m)
    assert ["beyond the image" in why for _, why in exe.fallbacks()] == [True] * is_slow
    x = np.random.default_rng(1).standard_normal((1, 4, size, size)).astype(np.float32)
    (wanted,) = session(m).run(None, {"x": x})
    np.testing.assert_allclose(exe(x=x)["y"], wanted, rtol=1e-4, atol=1e-4)
