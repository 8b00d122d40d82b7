"""Decompositions of ONNX Runtime's contrib operators into ONNX operators.

Such operators occur in models that ONNX Runtime or its transformer optimizer wrote. They are
specified in https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md. A model
with an operator that has no decomposition here is not changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

DOMAIN = "com.microsoft"
LEAST = 11  # opset


class Untold(ValueError):
    """A contrib node that has no decomposition."""


@dataclass(slots=True)
class Maker:
    """Builds the nodes that replace a contrib node. mixed_floats: True if the model has float types
    other than float32. initializer_shapes, value_shapes: known shapes. rank_checks: (value,
    required rank, value with the same first size or "")."""

    opset: int
    kinds: bool
    shapes: Mapping[str, Sequence[int]]
    prefix: str = ""
    known: Mapping[str, Sequence[object]] = field(default_factory=dict)
    asked: list[tuple[str, int, str]] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def op(self, kind: str, inputs: Sequence[str], *outputs: str, **attrs: Any) -> str:
        """Add a node and return its first output."""
        made = outputs or (self.name(kind),)
        self.nodes.append(helper.make_node(kind, inputs, made, made[0], **attrs))
        return made[0]

    def name(self, kind: str) -> str:
        return f"{self.prefix}/{len(self.nodes)}.{kind}"

    def number(self, value: float, like: str) -> str:
        """Add a scalar constant of the element type of `like`."""
        made = self.op("Constant", (), value=numpy_helper.from_array(np.array(value, np.float32)))
        if not self.kinds:
            return made
        if self.opset < 15:
            raise Untold("floats of several kinds before opset 15")
        return self.op("CastLike", (made, like))

    def whole(self, *values: int) -> str:
        return self.op("Constant", (), value=numpy_helper.from_array(np.array(values, np.int64)))

    def over(self, kind: str, since: int, x: str, *axes: int, out: str = "", **attrs: Any) -> str:
        """Add an operator whose axes are an operand since opset `since` and were an attribute
        before."""
        outs = (out,) if out else ()
        if self.opset < since:
            return self.op(kind, (x,), *outs, axes=axes, **attrs)
        return self.op(kind, (x, self.whole(*axes)), *outs, **attrs)

    def split(self, x: str, sizes: Sequence[int]) -> list[str]:
        """Split along the last axis."""
        parts = [f"{self.name('Split')}.{k}" for k in range(len(sizes))]
        if self.opset < 13:
            self.op("Split", (x,), *parts, axis=-1, split=sizes)
        else:
            self.op("Split", (x, self.whole(*sizes)), *parts, axis=-1)
        return parts

    def shape(self, name: str, rank: int) -> Sequence[int]:
        found = self.shapes.get(name, ())
        if len(found) != rank:
            raise Untold(f"{name} is no constant of {rank} axes")
        return found


Attrs = Mapping[str, object]
# Its inputs ("": there is none) and its results.
Told = Callable[[Maker, Sequence[str], Attrs, Sequence[str]], None]


def _activated(m: Maker, x: str, kind: object, params: Sequence[float], out: str) -> None:
    match kind, [*map(float, params)]:
        case "Relu" | "Tanh" | "Sigmoid", _:
            m.op(str(kind), (x,), out)
        case "LeakyRelu", [alpha, *_]:
            m.op("LeakyRelu", (x,), out, alpha=alpha)
        case "HardSigmoid", [alpha, beta, *_]:
            m.op("HardSigmoid", (x,), out, alpha=alpha, beta=beta)
        case "Clip", [low, high]:
            m.op("Clip", (x, m.number(low, x), m.number(high, x)), out)
        case _:
            raise Untold(f"activation {kind}")


def _fused_conv(m: Maker, given: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    own = {k: v for k, v in attrs.items() if not k.startswith("activation")}
    x, w, bias, beside = given
    y = m.op("Conv", (x, w, bias) if bias else (x, w), **own)
    y = m.op("Add", (y, beside)) if beside else y
    _activated(m, y, attrs.get("activation"), attrs.get("activation_params", ()), outs[0])  # type: ignore[arg-type]


def _fused_gemm(m: Maker, given: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    own = {k: v for k, v in attrs.items() if not k.startswith("activation")}
    params = [attrs[k] for k in ("activation_alpha", "activation_beta") if k in attrs]
    y = m.op("Gemm", [x for x in given if x], **own)
    _activated(m, y, attrs.get("activation"), params, outs[0])  # type: ignore[arg-type]


def _fused_matmul(m: Maker, given: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    if attrs.get("transBatchA") or attrs.get("transBatchB"):
        raise Untold("batches that are transposed")
    if m.opset < 12 and (attrs.get("transA") or attrs.get("transB")):
        raise Untold("an Einsum before opset 12")
    some = [
        m.op("Einsum", (x,), equation="...ij->...ji") if attrs.get(key) else x
        for x, key in zip(given[:2], ("transA", "transB"), strict=True)
    ]
    _scaled(m, m.op("MatMul", some), attrs.get("alpha", 1.0), outs[0])


def _scaled(m: Maker, x: str, factor: object, out: str) -> str:
    return m.op("Mul", (x, m.number(float(factor), x)), out)  # type: ignore[arg-type]


def _gelu(m: Maker, given: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    """x / 2 (1 + erf(x / sqrt(2)))"""
    x = _sum(m, given)
    y = m.op("Erf", (m.op("Div", (x, m.number(math.sqrt(2), x))),))
    _gate(m, x, y, outs[0])


def _fast_gelu(m: Maker, given: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    """By tanh (sqrt(2 / pi) (x + 0.044715 x^3))."""
    x = _sum(m, given)
    square = m.op("Mul", (x, x))
    inner = m.op("Mul", (square, m.number(0.044715 * math.sqrt(2 / math.pi), x)))
    inner = m.op("Add", (inner, m.number(math.sqrt(2 / math.pi), x)))
    _gate(m, x, m.op("Tanh", (m.op("Mul", (x, inner)),)), outs[0])


def _gate(m: Maker, x: str, y: str, out: str) -> None:
    more = m.op("Add", (y, m.number(1.0, x)))
    _scaled(m, m.op("Mul", (x, more)), 0.5, out)


def _quick_gelu(m: Maker, given: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    x = given[0]
    inner = _scaled(m, x, attrs.get("alpha", 1.702), m.name("Mul"))
    m.op("Mul", (x, m.op("Sigmoid", (inner,))), outs[0])


def _sum(m: Maker, given: Sequence[str]) -> str:
    first, *rest = (x for x in given if x)
    for x in rest:
        first = m.op("Add", (first, x))
    return first


def _skip_norm(m: Maker, given: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    x, skip, gamma, beta, bias = given
    total = _total(m, (x, skip, bias), outs)
    _layer_norm(m, total, gamma, beta, attrs.get("epsilon", 1e-12), outs[0])


def _total(m: Maker, given: Sequence[str], outs: Sequence[str]) -> str:
    """Return the normalized sum, which is also the fourth output."""
    total = _sum(m, given)
    return m.op("Identity", (total,), outs[3]) if outs[3:] and outs[3] else total


def _layer_norm(m: Maker, x: str, gamma: str, beta: str, epsilon: object, out: str) -> None:
    if m.opset >= 17:
        own = [x, gamma, beta] if beta else [x, gamma]
        m.op("LayerNormalization", own, out, axis=-1, epsilon=epsilon)
        return
    x = m.op("Sub", (x, m.over("ReduceMean", 18, x, -1)))
    x = m.op("Div", (x, _root(m, x, epsilon)))
    if beta:
        m.op("Add", (m.op("Mul", (x, gamma)), beta), out)
    else:
        m.op("Mul", (x, gamma), out)


def _root(m: Maker, x: str, epsilon: object) -> str:
    """Return the root mean square along the last axis."""
    mean = m.over("ReduceMean", 18, m.op("Mul", (x, x)), -1)
    return m.op("Sqrt", (m.op("Add", (mean, m.number(float(epsilon), x))),))  # type: ignore[arg-type]


def _skip_rms(m: Maker, given: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    x, skip, gamma, bias = given
    total = _total(m, (x, skip, bias), outs)
    _rms(m, total, gamma, attrs.get("epsilon", 1e-12), outs[0])


def _rms(m: Maker, x: str, gamma: str, epsilon: object, out: str) -> None:
    """RMS normalization; 16-bit floats are computed in float32."""
    wide = m.op("Cast", (x,), to=onnx.TensorProto.FLOAT) if m.kinds else x
    y = m.op("Div", (wide, _root(m, wide, epsilon)))
    y = m.op("CastLike", (y, x)) if m.kinds else y
    m.op("Mul", (y, gamma), out)


def _rms_alone(m: Maker, given: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    if attrs.get("axis", -1) != -1:
        raise Untold("a norm of several axes")
    _rms(m, given[0], given[1], attrs.get("epsilon", 1e-5), outs[0])


def _norm_alone(m: Maker, given: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    if attrs.get("axis", -1) != -1:
        raise Untold("a norm of several axes")
    x, gamma, beta = given
    _layer_norm(m, x, gamma, beta, attrs.get("epsilon", 1e-5), outs[0])


def _attention(m: Maker, given: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    x, weights, bias, mask, past, beside, count = given
    if past or count or attrs.get("unidirectional") or attrs.get("do_rotary"):
        raise Untold("attention with a past, or of one direction")
    _, columns = m.shape(weights, 2)
    sizes = attrs.get("qkv_hidden_sizes") or [columns // 3] * 3
    x = _sum(m, (m.op("MatMul", (x, weights)), bias))
    _attended(m, m.split(x, sizes), attrs, mask, beside, sizes[0], outs[0])  # type: ignore[arg-type,index]


def _multi_head(m: Maker, given: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    *qkv, bias, mask, beside, past, old, count, cache = given
    if not all(qkv) or not bias or any((mask, past, old, count, cache)):
        raise Untold("attention with a past, a padding or operands in one")
    if attrs.get("unidirectional"):
        raise Untold("attention of one direction")
    (columns,) = m.shape(bias, 1)
    m.asked += [(x, 3, "") for x in qkv]
    sizes = [columns // 3] * 3
    some = [m.op("Add", pair) for pair in zip(qkv, m.split(bias, sizes), strict=True)]
    _attended(m, some, attrs, "", beside, sizes[0], outs[0])


def _attended(
    m: Maker, qkv: Sequence[str], attrs: Attrs, mask: str, beside: str, columns: int, out: str
) -> None:
    """Scaled dot-product attention. mask: either positive where a key is visible, or the number of
    visible keys, counted from the first."""
    heads = int(attrs["num_heads"])  # type: ignore[call-overload]
    orders = (0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)
    q, k, v = (
        m.op("Transpose", (m.op("Reshape", (x, m.whole(0, 0, heads, -1))),), perm=order)
        for x, order in zip(qkv, orders, strict=True)
    )
    factor = float(attrs.get("scale") or 1 / math.sqrt(columns // heads))  # type: ignore[arg-type]
    scores = _scaled(m, m.op("MatMul", (q, k)), factor, m.name("Mul"))
    if mask:
        least = float(attrs.get("mask_filter_value", -10000.0))  # type: ignore[arg-type]
        counts = _counted(m, mask, qkv[1])
        some = m.op("Where", (counts, m.number(0.0, scores), m.number(least, scores)))
        scores = m.op("Add", (scores, some))
    if beside:
        m.asked.append((beside, 4, ""))
    scores = _sum(m, (scores, beside))
    y = m.op("MatMul", (m.op("Softmax", (scores,), axis=-1), v))
    m.op("Reshape", (m.op("Transpose", (y,), perm=(0, 2, 1, 3)), m.whole(0, 0, -1)), out)


def _counted(m: Maker, mask: str, keys: str) -> str:
    """Return which keys of each batch element are visible."""
    rank = len(m.known.get(mask, ()))
    m.asked.append((mask, rank, keys))
    if rank == 2:
        zero = m.op("Constant", (), value=numpy_helper.from_array(np.array(0, np.int32)))
        return m.over("Unsqueeze", 13, m.op("Greater", (mask, zero)), 1, 2)
    if rank != 1:
        raise Untold(f"a mask of rank {rank}")
    places = _places(m, keys)
    until = m.over("Unsqueeze", 13, m.op("Cast", (mask,), to=onnx.TensorProto.INT64), 1, 2, 3)
    return m.op("Less", (places, until))


def _places(m: Maker, x: str) -> str:
    """Return 0, 1, ... up to the second size of a value."""
    begin, step = (
        m.op("Constant", (), value=numpy_helper.from_array(np.array(k, np.int64))) for k in (0, 1)
    )
    count = m.op("Gather", (m.op("Shape", (x,)), step))
    return m.op("Range", (begin, count, step))


def _embedded(m: Maker, given: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    ids, segments, words, places, kinds, gamma, beta, mask, at = given
    x = m.op("Add", (m.op("Gather", (words, ids)), m.op("Gather", (places, at or _places(m, ids)))))
    if segments:
        x = m.op("Add", (x, m.op("Gather", (kinds, segments))))
    if outs[1:] and outs[1]:
        if not mask:
            raise Untold("an index of no mask")
        m.over("ReduceSum", 13, mask, 1, keepdims=0, out=outs[1])
    if outs[2:] and outs[2]:
        m.op("Identity", (x,), outs[2])
    _layer_norm(m, x, gamma, beta, attrs.get("epsilon", 1e-12), outs[0])


# What has ONNX's own name before an opset that knows it, if any does.
UNDER_ONNX = {"SimplifiedLayerNormalization": 1 << 31, "LayerNormalization": 17}
# By name: how many inputs there may be, which results beside the first, and how it is told.
TOLD: dict[str, tuple[int, tuple[int, ...], Told]] = {
    "FusedConv": (4, (), _fused_conv), "FusedGemm": (3, (), _fused_gemm),
    "FusedMatMul": (2, (), _fused_matmul), "Gelu": (1, (), _gelu), "BiasGelu": (2, (), _gelu),
    "FastGelu": (2, (), _fast_gelu), "QuickGelu": (1, (), _quick_gelu),
    "SkipLayerNormalization": (5, (3,), _skip_norm),
    "SkipSimplifiedLayerNormalization": (4, (3,), _skip_rms),
    "SimplifiedLayerNormalization": (2, (), _rms_alone),
    "LayerNormalization": (3, (), _norm_alone),
    "EmbedLayerNormalization": (9, (1, 2), _embedded),
    "Attention": (7, (), _attention), "MultiHeadAttention": (10, (), _multi_head),
}  # fmt: skip
