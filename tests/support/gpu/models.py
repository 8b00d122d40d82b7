"""Models of several kernels that a GPU's plan makes one: attention, products beside each other,
parts that are joined. By name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from zlib import crc32

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.support.compilation.models import F, model

I64 = TensorProto.INT64


def drawn(*shape: int, scale: float = 1.0, of: str = "") -> np.ndarray:
    """of: what it is for: of one shape others are other numbers."""
    rng = np.random.default_rng(sum(shape) + crc32(of.encode()))
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def node(op: str, *names: str, **how: object) -> onnx.NodeProto:
    *given, out = names
    return helper.make_node(op, given, [out], **how)


def values_of_heads(batch: int = 3, h: int = 12, n: int = 128, d: int = 64) -> onnx.ModelProto:
    """Probabilities times values, which are a part of a product's columns, as GPT-2 has them, and
    the projection behind these."""
    c = h * d
    known = {
        "rows": np.array([batch, n, 3 * c]), "b": np.array([2 * c]), "e": np.array([3 * c]),
        "a": np.array([2]), "split": np.array([batch, n, h, d]), "joined": np.array([batch * n, c]),
        "w": drawn(c, c, scale=c**-0.5),
    }  # fmt: skip
    nodes = [
        node("Reshape", "x", "rows", "x3"), node("Slice", "x3", "b", "e", "a", "v0"),
        node("Reshape", "v0", "split", "v1"), node("Transpose", "v1", "v", perm=[0, 2, 1, 3]),
        node("MatMul", "p", "v", "z0"), node("Transpose", "z0", "z1", perm=[0, 2, 1, 3]),
        node("Reshape", "z1", "joined", "z"), node("MatMul", "z", "w", "y"),
    ]  # fmt: skip
    return model(nodes, {"p": (F, [batch, h, n, n]), "x": (F, [batch * n, 3 * c])}, ["y"], known)


def heads(
    n: int, h: int, d: int, keys: int = 0, grouped: int = 1, mask: np.ndarray | None = None,
    chosen: bool = False, least: float = -np.inf,
) -> onnx.ModelProto:  # fmt: skip
    """Of x, projected to queries, keys and values; keys: of another input, of that length; grouped:
    heads that share keys; mask: added, or, where `chosen`, it says what is `least`."""
    c, rest = h * d, h // grouped * d
    known: dict[str, np.ndarray] = {
        "wq": drawn(c, c, scale=c**-0.5, of="q"),
        "wk": drawn(c, rest, scale=c**-0.5, of="k") * 2,
        "wv": drawn(c, rest, scale=c**-0.5, of="v"), "bq": drawn(c, of="q"),
        "bv": drawn(rest, of="v"),
        "split": np.array([0, 0, h, d]), "few": np.array([0, 0, h // grouped, d]),
        "joined": np.array([0, 0, c]), "scale": np.float32(d**-0.5),
    }  # fmt: skip
    z = "z" if keys else "x"
    nodes = [
        node("MatMul", "x", "wq", "q0"), node("Add", "q0", "bq", "q1"),
        node("MatMul", z, "wk", "k1"), node("MatMul", z, "wv", "v0"), node("Add", "v0", "bv", "v1"),
        node("Reshape", "q1", "split", "q2"), node("Transpose", "q2", "q", perm=[0, 2, 1, 3]),
        node("Reshape", "k1", "few", "k2"), node("Transpose", "k2", "k3", perm=[0, 2, 3, 1]),
        node("Reshape", "v1", "few", "v2"), node("Transpose", "v2", "v3", perm=[0, 2, 1, 3]),
    ]  # fmt: skip
    k, v = "k3", "v3"
    if grouped > 1:
        length = keys or n
        for name, old, size in (("k", "k3", [d, length]), ("v", "v3", [length, d])):
            known |= {
                f"{name}one": np.array([2]),
                f"{name}more": np.array([1, 1, grouped, 1, 1]),
                f"{name}all": np.array([2, h, *size]),
            }
            nodes += [
                node("Unsqueeze", old, f"{name}one", f"{name}5"),
                node("Expand", f"{name}5", f"{name}more", f"{name}6"),
                node("Reshape", f"{name}6", f"{name}all", f"{name}7"),
            ]
        k, v = "k7", "v7"
    nodes += [node("MatMul", "q", k, "s0"), node("Mul", "s0", "scale", "s1")]
    if mask is not None and chosen:
        known |= {"mask": mask, "least": np.float32(least)}
        nodes.append(node("Where", "mask", "least", "s1", "s"))
    elif mask is not None:
        known["mask"] = mask
        nodes.append(node("Add", "s1", "mask", "s"))
    else:
        nodes.append(node("Identity", "s1", "s"))
    nodes += [
        node("Softmax", "s", "p", axis=-1), node("MatMul", "p", v, "o"),
        node("Transpose", "o", "o1", perm=[0, 2, 1, 3]), node("Reshape", "o1", "joined", "y"),
    ]  # fmt: skip
    given = {"x": (F, [2, n, c])} | ({"z": (F, [2, keys, c])} if keys else {})
    return model(nodes, given, ["y"], known)


def causal(n: int, least: float = -1e9) -> np.ndarray:
    return np.triu(np.full((n, n), least, np.float32), 1)


def beyond(n: int, first: int) -> np.ndarray:
    """The first keys are left out, and of one query all but one."""
    mask = np.zeros((1, 1, n, n), bool)
    mask[..., :first] = True
    mask[..., 5, :-1] = True
    return mask


def branches() -> onnx.ModelProto:
    """Convolutions of one picture, of which two are of one kind."""
    known = {
        "a": drawn(8, 16, 1, 1, scale=0.3), "b": drawn(12, 16, 1, 1, scale=0.3), "u": drawn(8),
        "v": drawn(12), "c": drawn(20, 12, 3, 3, scale=0.1), "d": drawn(9, 8, 1, 1, scale=0.3),
    }  # fmt: skip
    nodes = [
        node("Relu", "x", "z"),
        node("Conv", "z", "a", "u", "p"), node("Relu", "p", "p1"), node("Conv", "z", "b", "v", "q"),
        node("Relu", "q", "q1"), node("Conv", "q1", "c", "r", pads=[1] * 4),
        node("Conv", "p1", "d", "s"), node("Concat", "r", "s", "y", axis=1),
    ]  # fmt: skip
    return model(nodes, {"x": (F, [2, 16, 6, 7])}, ["y"], known)


def products() -> onnx.ModelProto:
    """Three of one operand, of which one constant is used twice, and one product is an output."""
    known = {"a": drawn(20, 16, scale=0.3), "b": drawn(20, 24, scale=0.3)}
    known |= {"u": drawn(16), "v": drawn(24)}
    nodes = [
        node("MatMul", "x", "a", "p"), node("Add", "p", "u", "p1"), node("Tanh", "p1", "p2"),
        node("MatMul", "x", "b", "q"), node("Add", "q", "v", "q1"), node("Tanh", "q1", "q2"),
        node("MatMul", "x", "a", "r"), node("Add", "r", "u", "r1"), node("Tanh", "r1", "r2"),
        node("Softmax", "q2", "z", axis=-1), node("Mul", "p2", "r2", "y"),
        node("MatMul", "x", "b", "w"),
    ]  # fmt: skip
    return model(nodes, {"x": (F, [18, 20])}, ["y", "z", "w"], known)


def rotary(n: int = 19, h: int = 2, d: int = 12) -> onnx.ModelProto:
    """Halves of rows turned by angles of their positions, which are too large for 16 bits."""
    known = {
        "freq": (100.0 ** -(np.arange(d // 2, dtype=np.float32) / d)).reshape(1, d // 2, 1),
        "row": np.array([1]), "zero": np.array([0]), "half": np.array([d // 2]),
        "end": np.array([d]), "last": np.array([-1]),
    }  # fmt: skip
    nodes = [
        node("Cast", "i", "f", to=F), node("Unsqueeze", "f", "row", "f1"),
        node("MatMul", "freq", "f1", "g"), node("Transpose", "g", "t", perm=[0, 2, 1]),
        node("Concat", "t", "t", "e", axis=-1), node("Cos", "e", "c"), node("Sin", "e", "s"),
        node("Slice", "x", "zero", "half", "last", "a"),
        node("Slice", "x", "half", "end", "last", "b"), node("Neg", "b", "b1"),
        node("Concat", "b1", "a", "r", axis=-1), node("Mul", "x", "c", "y1"),
        node("Mul", "r", "s", "y2"), node("Add", "y1", "y2", "y"),
    ]  # fmt: skip
    return model(nodes, {"x": (F, [h, n, d]), "i": (I64, [1, n])}, ["y"], known)


def columns() -> onnx.ModelProto:
    """Rows of tables beside each other, and a product after them, and one between."""
    known = {f"t{k}": drawn(30, 8 + k) for k in range(3)} | {
        "w": drawn(5, 6), "one": np.array([1]), "k0": np.array(0), "k1": np.array(1),
        "k2": np.array(2),
    }  # fmt: skip
    nodes = [node("Gather", "i", f"k{k}", f"c{k}", axis=1) for k in range(3)]
    nodes += [node("Gather", f"t{k}", f"c{k}", f"r{k}") for k in range(3)]
    nodes += [
        node("MatMul", "x", "w", "p"), node("Concat", "r0", "r1", "p", "r2", "y", axis=1),
        node("Concat", "r0", "r1", "z", axis=1),
    ]  # fmt: skip
    return model(nodes, {"i": (I64, [4, 3]), "x": (F, [4, 5])}, ["y", "z"], known)


def turned() -> onnx.ModelProto:
    """Pictures in another order and back, and rows as columns."""
    nodes = [
        node("Relu", "x", "a"), node("Transpose", "a", "b", perm=[0, 2, 3, 1]),
        node("Mul", "b", "c", "y"), node("Transpose", "y", "d", perm=[0, 3, 1, 2]),
        node("Neg", "d", "z"), node("Transpose", "z", "w", perm=[3, 1, 2, 0]),
    ]  # fmt: skip
    given = {"x": (F, [2, 20, 5, 13])}
    return model(nodes, given, ["y", "z", "w"], {"c": drawn(20)})


def nested() -> onnx.ModelProto:
    """Parts that are joined, and joined again."""
    nodes = [
        node("Concat", "x", "z", "a", axis=0), node("Concat", "a", "x", "y", axis=0),
        node("Neg", "x", "b"), node("Concat", "b", "z", "c", axis=1),
        node("Concat", "c", "c", "d", axis=0), node("Relu", "d", "w"),
    ]  # fmt: skip
    return model(nodes, {"x": (F, [2, 3]), "z": (F, [2, 3])}, ["y", "w"], {})


def left_out(n: int) -> np.ndarray:
    """A causal mask whose first query has no key, for Where."""
    mask = np.triu(np.ones((n, n), bool), 1)
    mask[0] = True
    return mask


def scalars() -> onnx.ModelProto:
    """An input and an output of no dimensions."""
    nodes = [
        node("Mul", "x", "s", "a"), node("ReduceSum", "a", "y", keepdims=0), node("Neg", "s", "z")
    ]  # fmt: skip
    return model(nodes, {"x": (F, [4, 5]), "s": (F, [])}, ["y", "z"], {})


ATTENTION: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "heads": lambda: heads(24, 2, 16),
    "ragged heads": lambda: heads(37, 2, 20),
    "causal heads": lambda: heads(33, 2, 16, mask=causal(33)),
    "long keys": lambda: heads(20, 1, 16, keys=150),
    "heads in groups": lambda: heads(24, 4, 16, grouped=2),
    "masked heads": lambda: heads(70, 2, 16, mask=beyond(70, 40), chosen=True),
    "chosen by a square": lambda: heads(24, 2, 16, mask=left_out(24), chosen=True, least=-1e9),
    "a mask beyond halves": lambda: heads(
        24, 2, 16, mask=np.where(left_out(24), np.finfo(np.float32).min, 0).astype(np.float32)
    ),
    "masked by -inf": lambda: heads(40, 1, 32, mask=causal(40, -np.inf)),
}
ONE: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "branches": branches, "products": products, "rotary": rotary, "columns": columns,
    "turned": turned, "nested": nested,
    "scalars": scalars,
}  # fmt: skip


def conv(c: int, k: int, size: int, kernel: int, **how: Any) -> onnx.ModelProto:
    groups = how.get("group", 1)
    w = drawn(k, c // groups, kernel, kernel, scale=(c // groups * kernel**2) ** -0.5)
    nodes = [node("Conv", "x", "w", "b", "a", **how), node("Relu", "a", "y")]
    return model(nodes, {"x": (F, [1, c, size, size])}, ["y"], {"w": w, "b": drawn(k)})


def block() -> onnx.ModelProto:
    """A residual block of which one side is a projection, pooled, and a classifier."""
    nodes = [
        node("Conv", "x", "w1", "a", pads=[1] * 4), node("Relu", "a", "b"),
        node("Conv", "b", "w2", "c", pads=[1] * 4), node("Conv", "x", "w3", "d"),
        node("Add", "c", "d", "e"), node("Relu", "e", "f"), node("GlobalAveragePool", "f", "g"),
        node("Flatten", "g", "h"), node("Gemm", "h", "w4", "b4", "y", transB=1),
    ]  # fmt: skip
    known = {
        "w1": drawn(32, 16, 3, 3, scale=0.1), "w2": drawn(32, 32, 3, 3, scale=0.1),
        "w3": drawn(32, 16, 1, 1, scale=0.2), "w4": drawn(40, 32, scale=0.2), "b4": drawn(40),
    }  # fmt: skip
    return model(nodes, {"x": (F, [2, 16, 9, 7])}, ["y"], known)


MODELS = {
    "a convolution": lambda: conv(16, 24, 9, 3, pads=[1] * 4),
    "of few channels": lambda: conv(3, 20, 13, 5, strides=[2, 2], pads=[2] * 4),
    "pointwise": lambda: conv(40, 33, 7, 1),
    "dilated": lambda: conv(32, 16, 12, 3, dilations=[2, 2], pads=[2] * 4),
    "depthwise": lambda: conv(24, 24, 9, 3, group=24, pads=[1] * 4),
    "in groups": lambda: conv(24, 36, 8, 3, group=3),
    "of a long sum": lambda: conv(512, 16, 4, 1),
    "of a prime sum": lambda: conv(211, 16, 4, 1),
    "of a few terms": lambda: conv(11, 16, 5, 1),
    "a block": block,
    **ATTENTION,
    **ONE,
    "layer norm": lambda: model(
        [node("LayerNormalization", "x", "s", "b", "y", axis=-1)], {"x": (F, [3, 5, 50])}, ["y"],
        {"s": drawn(50), "b": drawn(50)},
    ),
    "one row": lambda: model(
        [node("MatMul", "x", "w", "a"), node("Tanh", "a", "y")], {"x": (F, [1, 300])}, ["y"],
        {"w": drawn(300, 70, scale=0.05)},
    ),
    "powers": lambda: model(
        [node("Pow", "x", "two", "a"), node("Pow", "z", "x", "b"), node("Add", "a", "b", "c"),
         node("Pow", "more", "x", "d"), node("Add", "c", "d", "e"), node("Abs", "s", "t"),
         node("Pow", "t", "x", "f"), node("Add", "e", "f", "y"),
         node("Cast", "i", "j", to=TensorProto.UINT32),
         node("BitShift", "one", "j", "k", direction="LEFT"), node("Cast", "k", "w", to=F)],
        {"x": (F, [7, 9]), "z": (F, [7, 9]), "s": (F, [1]), "i": (I64, [7])},
        ["y", "w"], {"two": np.float32(2), "more": np.float32(2.5), "one": np.uint32(1)},
    ),
    "remainders": lambda: model(
        [node("Mod", "x", "z", "a", fmod=1), node("Mod", "x", "k", "b", fmod=1),
         node("Add", "a", "b", "y")], {"x": (F, [7, 9]), "z": (F, [7, 9])}, ["y"],
        {"k": np.float32(0.7)},
    ),
    "angles": lambda: model(
        [node("Tanh", "x", "a"), node("Asin", "a", "b"), node("Atan", "x", "c"),
         node("Add", "b", "c", "d"), node("Sinh", "d", "e"), node("Asinh", "e", "y")],
        {"x": (F, [7, 9])}, ["y"], {},
    ),
    "joined": lambda: model(
        [node("Relu", "x", "a"), node("Neg", "x", "b"), node("Concat", "a", "b", "y", axis=1)],
        {"x": (F, [2, 5, 6])}, ["y"], {},
    ),
    "rows of a table": lambda: model(
        [node("Gather", "w", "i", "a"), node("ReduceSum", "a", "axes", "y")],
        {"i": (I64, [2, 6])}, ["y"], {"w": drawn(30, 20), "axes": np.array([1])},
    ),
    "pooled": lambda: model(
        [node("MaxPool", "x", "a", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
         node("AveragePool", "a", "y", kernel_shape=[2, 2])], {"x": (F, [1, 8, 11, 9])}, ["y"], {},
    ),
}  # fmt: skip


def gemms() -> onnx.ModelProto:
    """Products with and without something behind them, of a constant that lies either way."""
    nodes = [
        node("Gemm", "x", "w", "b", "a", transB=1), node("Relu", "a", "c"),
        node("MatMul", "c", "v", "y"),
    ]  # fmt: skip
    known = {"w": drawn(40, 24, scale=0.2), "b": drawn(40), "v": drawn(40, 33, scale=0.2)}
    return model(nodes, {"x": (F, [20, 24])}, ["y"], known)


def branches() -> onnx.ModelProto:
    """As in an inception net: of one picture several small convolutions, joined, twice."""
    nodes, known, x = [], {}, "x"
    for n in range(2):
        for k, (c, size) in enumerate(((16, 1), (12, 3), (8, 1))):
            known[f"w{n}{k}"] = drawn(c, 16 if n == 0 else 36, size, size, scale=0.05)
            nodes += [
                node("Conv", x, f"w{n}{k}", f"a{n}{k}", pads=[size // 2] * 4),
                node("Relu", f"a{n}{k}", f"b{n}{k}"),
            ]
        x = f"c{n}"
        nodes.append(node("Concat", *(f"b{n}{k}" for k in range(3)), x, axis=1))
    nodes.append(node("Relu", x, "y"))
    return model(nodes, {"x": (F, [1, 16, 5, 5])}, ["y"], known)


def resized(scale: float, size: int, **how: object) -> onnx.ModelProto:
    nodes = [node("Resize", "x", "", "s", "y", **how)]
    scales = np.array([1, 1, 1, scale], np.float32)
    return model(nodes, {"x": (F, [1, 2, 5, size])}, ["y"], {"s": scales})
