"""Programs for images of many sizes, against ONNX Runtime."""

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import superopt
from superopt.compilation.model.compile_class import compile_size_class

Attrs = dict[str, object]


def image_model(nodes: Sequence[tuple[str, list[str], Attrs]], **weights: np.ndarray) -> bytes:
    """Return a model of images x of 16 channels; node n is named by its number, the last one y."""
    last = len(nodes) - 1
    made = [
        helper.make_node(op, given, ["y" if n == last else str(n)], **attrs)
        for n, (op, given, attrs) in enumerate(nodes)
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16, "h", "w"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(a, name) for name, a in weights.items()]
    graph = helper.make_graph(made, "g", [x], [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return model.SerializeToString()


def weight(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


PAD = {"pads": [1, 1, 1, 1]}
MODELS = {
    "convolution": image_model([("Conv", ["x", "k"], PAD)], k=weight(32, 16, 3, 3)),
    "border of an inner image": image_model(
        [
            ("Conv", ["x", "k"], {"pads": [3, 3, 3, 3], "strides": [2, 2]}),
            ("Relu", ["0"], {}),
            ("MaxPool", ["1"], {"kernel_shape": [3, 3], "strides": [2, 2], **PAD}),
            ("Conv", ["2", "j"], PAD),
            ("Conv", ["3", "j"], PAD),
            ("Add", ["2", "4"], {}),
        ],
        k=weight(16, 16, 7, 7),
        j=weight(16, 16, 3, 3),
    ),
    "pooling with ceil_mode": image_model(
        [
            ("MaxPool", ["x"], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
            ("Conv", ["0", "k"], PAD),
            ("MaxPool", ["1"], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
            ("Conv", ["2", "k"], PAD),
        ],
        k=weight(16, 16, 3, 3),
    ),
    "average pooling": image_model(
        [("AveragePool", ["x"], {"kernel_shape": [3, 3], "strides": [2, 2], **PAD})]
    ),
    "depthwise convolution": image_model(
        [
            ("Conv", ["x", "k"], {"group": 16, "strides": [2, 2], **PAD}),
            ("Conv", ["0", "j"], {}),
            ("Clip", ["1", "low", "high"], {}),
            ("Conv", ["2", "k"], {"group": 16, **PAD}),
        ],
        k=weight(16, 1, 3, 3),
        j=weight(16, 16, 1, 1),
        low=np.float32(0)[...],
        high=np.float32(6)[...],
    ),
    "grouped convolution": image_model(
        [("Conv", ["x", "k"], {"group": 4, **PAD})], k=weight(32, 4, 3, 3)
    ),
    "dilated convolution": image_model(
        [("Conv", ["x", "k"], {"dilations": [2, 2], "pads": [2, 2, 2, 2]})], k=weight(16, 16, 3, 3)
    ),
    "transposed convolution": image_model(
        [
            ("Conv", ["x", "j"], PAD),
            ("ConvTranspose", ["0", "k"], {"strides": [2, 2], **PAD}),
            ("Conv", ["1", "j"], PAD),
        ],
        k=weight(16, 16, 4, 4),
        j=weight(16, 16, 3, 3),
    ),
    "global pooling and a product": image_model(
        [
            ("Conv", ["x", "k"], PAD),
            ("GlobalAveragePool", ["0"], {}),
            ("Flatten", ["1"], {}),
            ("Gemm", ["2", "b"], {}),
        ],
        k=weight(32, 16, 3, 3),
        b=weight(32, 10),
    ),
    "squeeze and excitation": image_model(
        [
            ("Conv", ["x", "k"], PAD),
            ("GlobalAveragePool", ["0"], {}),
            ("Conv", ["1", "j"], {}),
            ("Sigmoid", ["2"], {}),
            ("Mul", ["0", "3"], {}),
        ],
        k=weight(16, 16, 3, 3),
        j=weight(16, 16, 1, 1),
    ),
    "concatenated channels": image_model(
        [
            ("Conv", ["x", "k"], PAD),
            ("Conv", ["x", "j"], {}),
            ("Concat", ["0", "1", "x"], {"axis": 1}),
            ("Conv", ["2", "l"], PAD),
        ],
        k=weight(16, 16, 3, 3),
        j=weight(32, 16, 1, 1),
        l=weight(16, 64, 3, 3),
    ),
    "concatenated rows": image_model(
        [("Conv", ["x", "k"], PAD), ("Concat", ["0", "x", "0"], {"axis": 2})],
        k=weight(16, 16, 3, 3),
    ),
    "resized": image_model(
        [
            ("Conv", ["x", "k"], PAD),
            ("Resize", ["0", "", "s"], {"mode": "nearest", "nearest_mode": "floor",
                                        "coordinate_transformation_mode": "asymmetric"}),
            ("Conv", ["1", "k"], PAD),
        ],
        k=weight(16, 16, 3, 3),
        s=np.array([1, 1, 2, 2], np.float32),
    ),
    "padded by reflection": image_model(
        [("Pad", ["x", "p"], {"mode": "reflect"}), ("Conv", ["0", "k"], {})],
        p=np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        k=weight(16, 16, 3, 3),
    ),
}  # fmt: skip
IMAGES = (136, 160), (129, 131), (128, 257), (150, 171), (191, 128), (140, 139)
SIZES = [*((2, h, w) for h, w in IMAGES), *((n, h, w) for n in (3, 5) for h, w in IMAGES[1:3])]


@pytest.mark.ci
@pytest.mark.one_in(8)
@pytest.mark.parametrize(
    ("name", "threads"), [*((name, 1) for name in MODELS), ("border of an inner image", 2)]
)
def test_one_program_for_many_images(name: str, threads: int) -> None:
    model = MODELS[name]
    exe = superopt.compile(onnx.load_from_string(model), threads=threads, specialize="never")
    found = compile_size_class(exe.compiler, {"n": 2, "h": 136, "w": 160})
    assert found is not None
    session = ort.InferenceSession(model)
    rng = np.random.default_rng(1)
    for n, h, w in SIZES:
        sizes = {"n": n, "h": h, "w": w}
        assert found.formulas.admits(sizes)
        x = rng.standard_normal((n, 16, h, w), np.float32)
        (want,) = session.run(None, {"x": x})
        variant = found.variant(sizes)
        assert variant is not None
        (step,) = variant.kernel_steps
        (got,) = step.run_bound([x])
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())
