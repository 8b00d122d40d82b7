"""Models whose kernels are of every kind, for code that emulators run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx

from tests.support.compilation.models import F, I, model, net, picture
from tests.support.compilation.recurrent import feeds, recurrent
from tests.support.quantized_models import LAYER_WIDTH, QuantizedLayers

node = onnx.helper.make_node
Case = tuple[onnx.ModelProto, dict[str, np.ndarray], Mapping[str, int]]


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def images() -> Case:
    return net("s"), {"x": picture(2, 14)}, {"n": 2, "s": 14}


def attention() -> Case:
    """A layer of a transformer, for any batch and length."""
    d, heads = 32, 4
    w = {name: drawn(d, n) / 6 for name, n in (("q", d), ("k", d), ("v", d), ("o", d), ("f", 64))}
    w |= {"g": drawn(64, d) / 8, "one": np.ones(d, np.float32), "zero": np.zeros(d, np.float32)}
    split = np.array([0, 0, heads, d // heads])
    w |= {"split": split, "join": np.array([0, 0, d]), "scale": np.float32(heads / d) ** 0.5}
    w["half"], w["root"], w["unit"] = (np.float32(x) for x in (0.5, 2**-0.5, 1))
    nodes = []
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [node("MatMul", ["x", name], [f"{name}0"]),
                  node("Reshape", [f"{name}0", "split"], [f"{name}1"]),
                  node("Transpose", [f"{name}1"], [f"{name}2"], perm=perm)]  # fmt: skip
    nodes += [
        node("MatMul", ["q2", "k2"], ["s"]), node("Mul", ["s", "scale"], ["t"]),
        node("Softmax", ["t"], ["p"], axis=-1), node("MatMul", ["p", "v2"], ["a"]),
        node("Transpose", ["a"], ["b"], perm=[0, 2, 1, 3]), node("Reshape", ["b", "join"], ["c"]),
        node("MatMul", ["c", "o"], ["e"]), node("Add", ["e", "x"], ["r"]),
        node("LayerNormalization", ["r", "one", "zero"], ["n"]),
        node("MatMul", ["n", "f"], ["h"]), node("Mul", ["h", "root"], ["i"]),
        node("Erf", ["i"], ["j"]), node("Add", ["j", "unit"], ["l"]),
        node("Mul", ["h", "l"], ["m"]), node("Mul", ["m", "half"], ["u"]),
        node("MatMul", ["u", "g"], ["z"]), node("Add", ["z", "n"], ["y"]),
    ]  # fmt: skip
    m = model(nodes, {"x": (F, ["batch", "length", d])}, ["y"], w)
    return m, {"x": drawn(2, 21, d)}, {"batch": 2, "length": 21}


def wide_convolution() -> Case:
    w = {"w": drawn(32, 32, 3, 3) / 12, "b": drawn(32)}
    nodes = [node("Conv", ["x", "w", "b"], ["a"], pads=[1] * 4), node("Relu", ["a"], ["y"])]
    return model(nodes, {"x": (F, [1, 32, 28, 28])}, ["y"], w), {"x": drawn(1, 32, 28, 28)}, {}


def separable_convolutions() -> Case:
    w = {"d": drawn(24, 1, 3, 3), "p": drawn(40, 24, 1, 1) / 4, "t": drawn(40, 8, 2, 2) / 4}
    nodes = [node("Conv", ["x", "d"], ["a"], group=24, strides=[2, 2], pads=[1] * 4),
             node("Clip", ["a", "low", "high"], ["b"]), node("Conv", ["b", "p"], ["c"]),
             node("HardSwish", ["c"], ["e"]),
             node("ConvTranspose", ["e", "t"], ["y"], strides=[2, 2])]  # fmt: skip
    w |= {"low": np.float32(0), "high": np.float32(6)}
    return model(nodes, {"x": (F, [1, 24, 15, 15])}, ["y"], w), {"x": drawn(1, 24, 15, 15)}, {}


def product() -> Case:
    w = {"w": drawn(128, 96) / 8, "b": drawn(96)}
    nodes = [node("Gemm", ["x", "w", "b"], ["a"]), node("Tanh", ["a"], ["y"])]
    return model(nodes, {"x": (F, ["rows", 128])}, ["y"], w), {"x": drawn(67, 128)}, {"rows": 67}


def recurrence() -> Case:
    m = recurrent("LSTM", direction="bidirectional")
    return m, feeds(m), {}


def quantized_layers() -> Case:
    return QuantizedLayers(depth=2, rows=20).model(), {"x": drawn(20, LAYER_WIDTH)}, {}


def functions() -> Case:
    names = ("Exp", "Log", "Sigmoid", "Softplus", "Sin", "Atan", "Erf", "Sqrt", "Floor", "Mish")
    nodes = [node(op, ["x"], [f"y{n}"]) for n, op in enumerate(names)]
    m = model(nodes, {"x": (F, [5, 37])}, [f"y{n}" for n in range(len(names))])
    m.opset_import[0].version = 18
    return m, {"x": np.abs(drawn(5, 37)) + np.float32(0.1)}, {}


def movement() -> Case:
    """Rows of a table by index, a border, every second column, and a larger image."""
    w = {"table": drawn(50, 12), "pads": np.array([0, 1, 2, 0, 0, 1]), "fill": np.float32(-1),
         "from": np.array([1]), "to": np.array([99]), "axis": np.array([2]),
         "by": np.array([2]), "none": np.array([], np.float32),
         "scales": np.array([1, 1.5, 2], np.float32)}  # fmt: skip
    nodes = [node("Gather", ["table", "i"], ["a"]), node("Pad", ["a", "pads", "fill"], ["b"]),
             node("Slice", ["b", "from", "to", "axis", "by"], ["c"]),
             node("Resize", ["c", "none", "scales"], ["d"], mode="linear"),
             node("Transpose", ["d"], ["y"], perm=[2, 0, 1])]  # fmt: skip
    i = np.array([[3, 49, 0, 7], [1, -1, 2, 2]])
    return model(nodes, {"i": (I, [2, 4])}, ["y"], w), {"i": i}, {}


def reductions() -> Case:
    w = {"k": np.array([3]), "axes": np.array([1]), "axis": np.array(1)}
    nodes = [node("ReduceSum", ["x", "axes"], ["sum"]), node("ReduceMax", ["x"], ["max"], axes=[0]),
             node("ArgMax", ["x"], ["at"], axis=1), node("CumSum", ["x", "axis"], ["sums"]),
             node("ReduceL2", ["x"], ["norm"], axes=[0, 1]),
             node("TopK", ["x", "k"], ["most", "where"])]  # fmt: skip
    outputs = ["sum", "max", "at", "sums", "norm", "most", "where"]
    return model(nodes, {"x": (F, [33, 19])}, outputs, w), {"x": drawn(33, 19)}, {}


MODELS: dict[str, Callable[[], Case]] = {
    "images": images, "attention": attention, "wide convolution": wide_convolution,
    "separable convolutions": separable_convolutions, "product": product,
    "recurrence": recurrence, "quantized": quantized_layers, "functions": functions,
    "movement": movement, "reductions": reductions,
}  # fmt: skip
