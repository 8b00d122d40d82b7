"""Models whose results hang on the rounding of fp16 and bf16 values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx

Array = np.ndarray
KINDS = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


SHAPE = (200, 40)


@dataclass(frozen=True)
class Case:
    """Nodes that compute y of a and b, with their element type at {t} (its number at {n}); what
    they give in the arithmetic of that type; and the element type of y, if it is another."""

    nodes: str
    wanted: Callable[[Array, Array], Array]
    gives: str = ""


def _mod(a: Array, b: Array) -> Array:
    return np.fmod(a.astype("f"), b.astype("f")).astype(a.dtype)


def _hardmax(x: Array) -> Array:
    return (np.arange(x.shape[1]) == np.argmax(x, 1)[:, None]).astype(x.dtype)


def _order(x: Array) -> Array:
    return np.argsort(-x.astype("f"), 1, kind="stable")[:, :5]


def _quantized(x: Array) -> Array:
    return np.clip(np.rint(x / x.dtype.type(0.25)).astype("f"), -128, 127).astype(np.int8)


def big(x: Array) -> np.generic:
    """A number that a sum with numbers around 1 swallows the last bits of."""
    return x.dtype.type(2048 if x.dtype == np.float16 else 256)


BIG = "f = Constant<value_float={big}>() c = Cast<to={n}>(f) "
SMALL = "f = Constant<value_float=3.0>() c = Cast<to={n}>(f) "
# Where one rounding less leads to another result for some of 8000 pairs of random numbers.
CASES = {
    "floor": Case("t = Add(a, b) u = Mul(t, a) y = Floor(u)", lambda a, b: np.floor((a + b) * a)),
    "ceil": Case("t = Add(a, b) u = Mul(t, a) y = Ceil(u)", lambda a, b: np.ceil((a + b) * a)),
    "round": Case("t = Add(a, b) u = Mul(t, a) y = Round(u)", lambda a, b: np.rint((a + b) * a)),
    "sign": Case("t = Div(a, b) u = Mul(t, b) v = Sub(u, a) y = Sign(v)",
                 lambda a, b: np.sign(a / b * b - a)),
    "mod": Case("t = Mul(a, b) u = Add(t, a) y = Mod<fmod=1>(u, b)",
                lambda a, b: _mod(a * b + a, b)),
    "integer": Case("t = Mul(a, b) u = Mul(t, a) y = Cast<to=7>(u)",
                    lambda a, b: (a * b * a).astype(np.int64), "int64"),
    "bool": Case("t = Div(a, b) u = Mul(t, b) v = Sub(u, a) y = Cast<to=9>(v)",
                 lambda a, b: (a / b * b - a) != 0, "bool"),
    "equal": Case("t = Div(a, b) u = Mul(t, b) y = Equal(u, a)", lambda a, b: a / b * b == a,
                  "bool"),
    "less": Case("t = Div(a, b) u = Mul(t, b) y = Less(u, a)", lambda a, b: a / b * b < a, "bool"),
    "greater": Case("t = Div(a, b) u = Mul(t, b) y = GreaterOrEqual(u, a)",
                    lambda a, b: a / b * b >= a, "bool"),
    "where": Case("t = Div(a, b) u = Mul(t, b) g = Greater(u, a) y = Where(g, a, b)",
                  lambda a, b: np.where(a / b * b > a, a, b)),
    "argmax": Case("m = Abs(a) r = Sqrt(m) q = Sqrt(r) t = Sqrt(q)"
                   " y = ArgMax<axis=1, keepdims=0>(t)",
                   lambda a, b: np.argmax(np.sqrt(np.sqrt(np.sqrt(np.abs(a)))), 1), "int64"),
    "argmin": Case("m = Abs(a) r = Sqrt(m) q = Sqrt(r) t = Sqrt(q) o = Neg(t)"
                   " y = ArgMin<axis=1, keepdims=0>(o)",
                   lambda a, b: np.argmax(np.sqrt(np.sqrt(np.sqrt(np.abs(a)))), 1), "int64"),
    "topk": Case("m = Abs(a) r = Sqrt(m) q = Sqrt(r) t = Sqrt(q)"
                 " k = Constant<value_ints=[5]>() v, y = TopK<axis=1>(t, k)",
                 lambda a, b: _order(np.sqrt(np.sqrt(np.sqrt(np.abs(a))))), "int64"),
    "hardmax": Case("m = Abs(a) r = Sqrt(m) q = Sqrt(r) t = Sqrt(q) y = Hardmax<axis=1>(t)",
                    lambda a, b: _hardmax(np.sqrt(np.sqrt(np.sqrt(np.abs(a)))))),
    "quantized": Case("t = Mul(a, b) s = Constant<value_float=0.25>() h = Cast<to={n}>(s)"
                      " z = Constant<value=int8 {0}>() u = Mul(t, a) y = QuantizeLinear(u, h, z)",
                      lambda a, b: _quantized(a * b * a), "int8"),
    "thresholded": Case("t = Div(a, b) u = Mul(t, b) v = Sub(u, a)"
                        " w = ThresholdedRelu<alpha=0.0>(v) y = Sign(w)",
                        lambda a, b: np.sign(np.maximum(a / b * b - a, a.dtype.type(0)))),
    "moved": Case("t = Mul(a, b) i = Transpose(t) k = Constant<value_ints=[40, 200]>()"
                  " j = Reshape(i, k) u = Mul(j, j) v = Transpose(u) y = Floor(v)",
                  lambda a, b: np.floor((a * b) * (a * b))),
    "joined": Case("t = Mul(a, b) i = Concat<axis=0>(t, b) u = Mul(i, i) y = Floor(u)",
                   lambda a, b: np.floor(np.concatenate([a * b, b]) ** 2)),
    "cast on the way": Case("t = Mul(a, b) u = Mul(t, a) v = Cast<to=1>(u) y = Floor(v)",
                            lambda a, b: np.floor((a * b * a).astype("f")), "float"),
    "relu on the way": Case("t = Mul(a, b) r = Relu(t) u = Mul(r, a) y = Floor(u)",
                            lambda a, b: np.floor(np.maximum(a * b, a.dtype.type(0)) * a)),
    "swallowed": Case(BIG + "t = Mul(a, b) u = Add(c, t) y = Sub(u, c)",
                      lambda a, b: (big(a) + a * b) - big(a)),
    "swallowed from the right": Case(BIG + "t = Mul(a, b) u = Add(t, c) y = Sub(c, u)",
                                     lambda a, b: big(a) - (a * b + big(a))),
    "swallowed and added": Case(BIG + "t = Mul(a, b) u = Sub(t, c) y = Add(u, c)",
                                lambda a, b: (a * b - big(a)) + big(a)),
    "swallowed by another number": Case(
        BIG + "g = Constant<value_float=-17.0>() d = Cast<to={n}>(g) u = Add(a, c) y = Add(u, d)",
        lambda a, b: (a + big(a)) + a.dtype.type(-17)),
    "swallowed by a tensor": Case("t = Add(a, b) y = Sub(t, a)", lambda a, b: (a + b) - a),
    "swallowed and moved": Case("t = Add(a, b) i = Transpose(t) j = Transpose(a) k = Sub(i, j)"
                                " y = Transpose(k)", lambda a, b: (a + b) - a),
    "swallowed and negated": Case("o = Neg(a) t = Add(a, b) y = Sum(t, o)",
                                  lambda a, b: (a + b) + -a),
    "swallowed in parts": Case(SMALL + "t = Mul(a, c) u = Add(t, b) v = Add(u, a) y = Sub(v, t)",
                               lambda a, b: ((a * a.dtype.type(3) + b) + a) - a * a.dtype.type(3)),
}  # fmt: skip


def model(case: Case, kind: str) -> onnx.ModelProto:
    number = onnx.TensorProto.DataType.Value(kind.upper())
    nodes = case.nodes.replace("{n}", str(number))
    nodes = nodes.replace("{big}", "2048.0" if kind == "float16" else "256.0")
    shape = f"{SHAPE[0]}, {SHAPE[1]}"
    return onnx.parser.parse_model(
        f'<ir_version: 11, opset_import: ["": 24]> g ({kind}[{shape}] a, {kind}[{shape}] b)'
        f" => ({case.gives or kind}[] y) {{ {nodes} }}"
    )


def drawn(kind: str) -> tuple[Array, Array]:
    rng = np.random.default_rng(3)
    a, b = (rng.uniform(0.6, 1.9, SHAPE) * rng.choice([-1, 1], SHAPE) for _ in "ab")
    return a.astype(KINDS[kind]), b.astype(KINDS[kind])


def check(got: Array, case: Case, kind: str) -> None:
    a, b = drawn(kind)
    wanted = np.asarray(case.wanted(a, b))
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(got.astype("d"), wanted.astype("d"))
