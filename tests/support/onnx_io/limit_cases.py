"""Models with limits of the values of indices, and calls within and beyond them."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.support.onnx_io.decoder_operators import Case, Feeds

CAPACITY, BATCH, GROUPS, SIZE = 8, 2, 1, 16
I32, I64 = TensorProto.INT32, TensorProto.INT64


def cache_case() -> Case:
    """A write into a cache, and attention to its valid keys."""
    case = Case("cache")
    case.inputs = {"q": ("b", GROUPS, "s", SIZE), "pk": ("b", GROUPS, "c", SIZE)}
    case.integer_inputs = {"at": (I64, ("b",)), "valid": (I64, ("b",))}
    case.outputs = {"y": case.inputs["q"], "nk": case.inputs["pk"]}
    case.add("TensorScatter", ["pk", "q", "at"], ["nk"], axis=2)
    case.add("Attention", ["q", "nk", "nk", "", "", "", "valid"], ["y"])
    return case


def grouped_case() -> Case:
    """GroupQueryAttention with caches of a fixed capacity."""
    case = Case("grouped")
    case.inputs = {"q": ("b", "s", SIZE), "pk": ("b", GROUPS, "c", SIZE)}
    case.integer_inputs = {"last": (I32, ("b",)), "total": (I32, ())}
    case.outputs = {"y": case.inputs["q"], "nk": case.inputs["pk"], "nv": case.inputs["pk"]}
    names = ["q", "q", "q", "pk", "pk", "last", "total"]
    heads = {"num_heads": GROUPS, "kv_num_heads": GROUPS}
    case.add("GroupQueryAttention", names, [*case.outputs], "com.microsoft", **heads)
    return case


def rotary_case() -> Case:
    """Rotation at given positions."""
    case = Case("rotary")
    case.inputs = {"q": ("b", GROUPS, "s", SIZE)}
    case.integer_inputs = {"places": (I64, (1,))}
    case.constants = {n: np.ones((CAPACITY, SIZE // 2), np.float32) for n in ("cos", "sin")}
    case.outputs = {"y": case.inputs["q"]}
    case.add("RotaryEmbedding", ["q", "places", "cos", "sin"], ["y"], "com.microsoft")
    return case


def masked_case() -> Case:
    """GroupQueryAttention whose lengths are the sums of an attention mask."""
    case = grouped_case()
    case.integer_inputs = {"mask": (I64, ("b", "c"))}
    case.constants = {"one": np.array([1]), "capacity": np.array(CAPACITY, np.int32)}
    case.nodes, (attention,) = [], case.nodes
    case.add("ReduceSum", ["mask", "one"], ["count"], keepdims=0)
    case.add("Sub", ["count", "one"], ["last64"])
    case.add("Cast", ["last64"], ["last"], to=I32)
    attention.input[6] = "capacity"
    case.nodes.append(attention)
    return case


def scatter_case() -> Case:
    """Rows written at given positions, by three operators."""
    case = Case("scatter")
    case.inputs = {"rows": ("c", SIZE), "new": ("s", SIZE), "column": ("s",)}
    case.integer_inputs = {"at": (I64, ("s",)), "i": (I64, ("s",)), "j": (I64, ("s",))}
    case.integer_inputs |= {"k": (I64, ("s", SIZE))}
    case.constants = {"one": np.array([1])}
    case.outputs = dict.fromkeys(("y", "z", "w"), case.inputs["rows"])
    for name in ("at", "i", "j"):
        case.add("Unsqueeze", [name, "one"], [f"{name}1"])
    case.add("ScatterND", ["rows", "at1", "new"], ["y"])
    case.add("Concat", ["i1", "j1"], ["ij"], axis=1)
    case.add("ScatterND", ["rows", "ij", "column"], ["z"])
    case.add("ScatterElements", ["rows", "k", "new"], ["w"], axis=0)
    return case


def feeds(case: Case, length: int, **values: int) -> Feeds:
    sizes = {"b": BATCH, "s": length, "c": CAPACITY}
    out = case.feeds(np.random.default_rng(0), sizes)
    for name, value in values.items():
        kind, shape = case.integer_inputs[name]
        dims = [sizes[d] if isinstance(d, str) else d for d in shape]
        out[name] = np.full(dims, value, np.int32 if kind == I32 else np.int64)
    return out


ALLOWED = [
    (cache_case, 3, {"at": 5, "valid": 8}),
    (cache_case, 8, {"at": 0, "valid": 0}),
    (grouped_case, 1, {"last": 7, "total": 8}),
    (grouped_case, 8, {"last": 7, "total": 8}),
    (masked_case, 1, {"mask": 1}),
    (rotary_case, 3, {"places": 5}),
    (scatter_case, 1, {"at": 7, "i": 7, "j": 15, "k": 7}),
    (scatter_case, 1, {"at": -8, "i": -8, "j": -16, "k": -8}),
]
REFUSED = [
    (cache_case, 3, {"at": 6, "valid": 8}, "'at' has the value 6", "from 0 up to 5"),
    (cache_case, 3, {"at": -1, "valid": 8}, "'at' has the value -1", "from 0 up to 5"),
    (cache_case, 9, {"at": 0, "valid": 8}, "'at' has the value 0", "from 0 up to -1"),
    (cache_case, 1, {"at": 0, "valid": 9}, "'valid' has the value 9", "Attention has fewer keys"),
    (grouped_case, 1, {"last": 8, "total": 9}, "'last' has the value 8", "up to 7"),
    (grouped_case, 9, {"last": 0, "total": 9}, "'last' has the value 0", "the cache has no room"),
    (masked_case, 1, {"mask": 2}, "'mask' has the sum 16", "sums up to 8 are possible"),
    (rotary_case, 3, {"places": 6}, "'places' has the value 6", "from 0 up to 5"),
    (scatter_case, 1, {"at": 8, "i": 0, "j": 0, "k": 0}, "'at' has the value 8", "from -8 up to 7"),
    (
        scatter_case,
        1,
        {"at": -9, "i": 0, "j": 0, "k": 0},
        "'at' has the value -9",
        "axis of size c",
    ),
    (scatter_case, 1, {"at": 0, "i": 8, "j": 0, "k": 0}, "'i' has the value 8", "up to 7"),
    (scatter_case, 1, {"at": 0, "i": 0, "j": 16, "k": 0}, "'j' has the value 16", "up to 15"),
    (scatter_case, 1, {"at": 0, "i": 0, "j": 0, "k": 8}, "'k' has the value 8", "ScatterElements"),
]
