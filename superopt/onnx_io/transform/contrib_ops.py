"""Decompositions of ONNX Runtime's contrib operators into ONNX operators.

Such operators occur in models that ONNX Runtime or its transformer optimizer wrote. They are
specified in https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md. Operators
whose decomposition depends on types are expanded by the importer (onnx_io/import_/contrib).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

MIN_OPSET = 11  # opset


class NoDecomposition(ValueError):
    """A contrib node that has no decomposition."""


@dataclass(slots=True)
class NodeBuilder:
    """Builds the nodes that replace a contrib node. mixed_floats: True if the model has float types
    other than float32. initializer_shapes, value_shapes: known shapes. rank_checks: (value,
    required rank, value with the same first size or "")."""

    opset: int
    mixed_floats: bool
    initializer_shapes: Mapping[str, Sequence[int]]
    prefix: str = ""
    value_shapes: Mapping[str, Sequence[object]] = field(default_factory=dict)
    rank_checks: list[tuple[str, int, str]] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def add_node(self, kind: str, inputs: Sequence[str], *outputs: str, **attrs: Any) -> str:
        """Add a node and return its first output."""
        made = outputs or (self.unique_name(kind),)
        self.nodes.append(helper.make_node(kind, inputs, made, made[0], **attrs))
        return made[0]

    def unique_name(self, kind: str) -> str:
        return f"{self.prefix}/{len(self.nodes)}.{kind}"

    def scalar(self, value: float, like: str) -> str:
        """Add a scalar constant of the element type of `like`."""
        made = self.add_node(
            "Constant", (), value=numpy_helper.from_array(np.array(value, np.float32))
        )
        if not self.mixed_floats:
            return made
        if self.opset < 15:
            raise NoDecomposition("floats of several kinds before opset 15")
        return self.add_node("CastLike", (made, like))

    def integers(self, *values: int) -> str:
        return self.add_node(
            "Constant", (), value=numpy_helper.from_array(np.array(values, np.int64))
        )

    def add_with_axes(
        self, kind: str, since: int, x: str, *axes: int, out: str = "", **attrs: Any
    ) -> str:
        """Add an operator whose axes are an operand since opset `since` and were an attribute
        before."""
        outs = (out,) if out else ()
        if self.opset < since:
            return self.add_node(kind, (x,), *outs, axes=axes, **attrs)
        return self.add_node(kind, (x, self.integers(*axes)), *outs, **attrs)

    def split(self, x: str, sizes: Sequence[int]) -> list[str]:
        """Split along the last axis."""
        parts = [f"{self.unique_name('Split')}.{k}" for k in range(len(sizes))]
        if self.opset < 13:
            self.add_node("Split", (x,), *parts, axis=-1, split=sizes)
        else:
            self.add_node("Split", (x, self.integers(*sizes)), *parts, axis=-1)
        return parts

    def initializer_shape(self, name: str, rank: int) -> Sequence[int]:
        found = self.initializer_shapes.get(name, ())
        if len(found) != rank:
            raise NoDecomposition(f"{name} is not a constant of {rank} axes")
        return found


Attrs = Mapping[str, object]
# Its inputs ("": there is none) and its results.
Decompose = Callable[[NodeBuilder, Sequence[str], Attrs, Sequence[str]], None]


def _add_activation(
    m: NodeBuilder, x: str, kind: object, params: Sequence[float], out: str
) -> None:
    match kind, [*map(float, params)]:
        case "Relu" | "Tanh" | "Sigmoid", _:
            m.add_node(str(kind), (x,), out)
        case "LeakyRelu", [alpha, *_]:
            m.add_node("LeakyRelu", (x,), out, alpha=alpha)
        case "HardSigmoid", [alpha, beta, *_]:
            m.add_node("HardSigmoid", (x,), out, alpha=alpha, beta=beta)
        case "Clip", [low, high]:
            m.add_node("Clip", (x, m.scalar(low, x), m.scalar(high, x)), out)
        case _:
            raise NoDecomposition(f"activation {kind}")


def _fused_conv(m: NodeBuilder, inputs: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    own = {k: v for k, v in attrs.items() if not k.startswith("activation")}
    x, w, bias, beside = inputs
    y = m.add_node("Conv", (x, w, bias) if bias else (x, w), **own)
    y = m.add_node("Add", (y, beside)) if beside else y
    _add_activation(m, y, attrs.get("activation"), attrs.get("activation_params", ()), outs[0])  # type: ignore[arg-type]


def _fused_gemm(m: NodeBuilder, inputs: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    own = {k: v for k, v in attrs.items() if not k.startswith("activation")}
    params = [attrs[k] for k in ("activation_alpha", "activation_beta") if k in attrs]
    y = m.add_node("Gemm", [x for x in inputs if x], **own)
    _add_activation(m, y, attrs.get("activation"), params, outs[0])  # type: ignore[arg-type]


def _fused_matmul(m: NodeBuilder, inputs: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    if attrs.get("transBatchA") or attrs.get("transBatchB"):
        raise NoDecomposition("batches that are transposed")
    if m.opset < 12 and (attrs.get("transA") or attrs.get("transB")):
        raise NoDecomposition("an Einsum before opset 12")
    some = [
        m.add_node("Einsum", (x,), equation="...ij->...ji") if attrs.get(key) else x
        for x, key in zip(inputs[:2], ("transA", "transB"), strict=True)
    ]
    _scale(m, m.add_node("MatMul", some), attrs.get("alpha", 1.0), outs[0])


def _scale(m: NodeBuilder, x: str, factor: object, out: str) -> str:
    return m.add_node("Mul", (x, m.scalar(float(factor), x)), out)  # type: ignore[arg-type]


def _gelu(m: NodeBuilder, inputs: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    """x / 2 (1 + erf(x / sqrt(2)))"""
    x = _sum_inputs(m, inputs)
    y = m.add_node("Erf", (m.add_node("Div", (x, m.scalar(math.sqrt(2), x))),))
    _half_gate(m, x, y, outs[0])


def _fast_gelu(m: NodeBuilder, inputs: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    """By tanh (sqrt(2 / pi) (x + 0.044715 x^3))."""
    x = _sum_inputs(m, inputs)
    square = m.add_node("Mul", (x, x))
    inner = m.add_node("Mul", (square, m.scalar(0.044715 * math.sqrt(2 / math.pi), x)))
    inner = m.add_node("Add", (inner, m.scalar(math.sqrt(2 / math.pi), x)))
    _half_gate(m, x, m.add_node("Tanh", (m.add_node("Mul", (x, inner)),)), outs[0])


def _half_gate(m: NodeBuilder, x: str, y: str, out: str) -> None:
    more = m.add_node("Add", (y, m.scalar(1.0, x)))
    _scale(m, m.add_node("Mul", (x, more)), 0.5, out)


def _quick_gelu(m: NodeBuilder, inputs: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    x = inputs[0]
    inner = _scale(m, x, attrs.get("alpha", 1.702), m.unique_name("Mul"))
    m.add_node("Mul", (x, m.add_node("Sigmoid", (inner,))), outs[0])


def _sum_inputs(m: NodeBuilder, inputs: Sequence[str]) -> str:
    first, *rest = (x for x in inputs if x)
    for x in rest:
        first = m.add_node("Add", (first, x))
    return first


def _skip_layer_norm(
    m: NodeBuilder, inputs: Sequence[str], attrs: Attrs, outs: Sequence[str]
) -> None:
    x, skip, gamma, beta, bias = inputs
    total = _skip_sum(m, (x, skip, bias), outs)
    _layer_norm(m, total, gamma, beta, attrs.get("epsilon", 1e-12), outs[0])


def _skip_sum(m: NodeBuilder, inputs: Sequence[str], outs: Sequence[str]) -> str:
    """Return the normalized sum, which is also the fourth output."""
    total = _sum_inputs(m, inputs)
    return m.add_node("Identity", (total,), outs[3]) if outs[3:] and outs[3] else total


def _layer_norm(m: NodeBuilder, x: str, gamma: str, beta: str, epsilon: object, out: str) -> None:
    if m.opset >= 17:
        own = [x, gamma, beta] if beta else [x, gamma]
        m.add_node("LayerNormalization", own, out, axis=-1, epsilon=epsilon)
        return
    x = m.add_node("Sub", (x, m.add_with_axes("ReduceMean", 18, x, -1)))
    x = m.add_node("Div", (x, _root_mean_square(m, x, epsilon)))
    if beta:
        m.add_node("Add", (m.add_node("Mul", (x, gamma)), beta), out)
    else:
        m.add_node("Mul", (x, gamma), out)


def _root_mean_square(m: NodeBuilder, x: str, epsilon: object) -> str:
    """Return the root mean square along the last axis."""
    mean = m.add_with_axes("ReduceMean", 18, m.add_node("Mul", (x, x)), -1)
    return m.add_node("Sqrt", (m.add_node("Add", (mean, m.scalar(float(epsilon), x))),))  # type: ignore[arg-type]


def _skip_rms_norm(
    m: NodeBuilder, inputs: Sequence[str], attrs: Attrs, outs: Sequence[str]
) -> None:
    x, skip, gamma, bias = inputs
    total = _skip_sum(m, (x, skip, bias), outs)
    _rms_norm(m, total, gamma, attrs.get("epsilon", 1e-12), outs[0])


def _rms_norm(m: NodeBuilder, x: str, gamma: str, epsilon: object, out: str) -> None:
    """RMS normalization; 16-bit floats are computed in float32."""
    wide = m.add_node("Cast", (x,), to=onnx.TensorProto.FLOAT) if m.mixed_floats else x
    y = m.add_node("Div", (wide, _root_mean_square(m, wide, epsilon)))
    y = m.add_node("CastLike", (y, x)) if m.mixed_floats else y
    m.add_node("Mul", (y, gamma), out)


def _simplified_layer_norm(
    m: NodeBuilder, inputs: Sequence[str], attrs: Attrs, outs: Sequence[str]
) -> None:
    if attrs.get("axis", -1) != -1:
        raise NoDecomposition("a norm of several axes")
    _rms_norm(m, inputs[0], inputs[1], attrs.get("epsilon", 1e-5), outs[0])


def _contrib_layer_norm(
    m: NodeBuilder, inputs: Sequence[str], attrs: Attrs, outs: Sequence[str]
) -> None:
    if attrs.get("axis", -1) != -1:
        raise NoDecomposition("a norm of several axes")
    x, gamma, beta = inputs
    _layer_norm(m, x, gamma, beta, attrs.get("epsilon", 1e-5), outs[0])


def _attention(m: NodeBuilder, inputs: Sequence[str], attrs: Attrs, outs: Sequence[str]) -> None:
    x, weights, bias, mask, past, beside, count = inputs
    if past or count or attrs.get("unidirectional") or attrs.get("do_rotary"):
        raise NoDecomposition("attention with a past, or of one direction")
    _, columns = m.initializer_shape(weights, 2)
    sizes = attrs.get("qkv_hidden_sizes") or [columns // 3] * 3
    x = _sum_inputs(m, (m.add_node("MatMul", (x, weights)), bias))
    _scaled_dot_product(m, m.split(x, sizes), attrs, mask, beside, sizes[0], outs[0])  # type: ignore[arg-type,index]


def _scaled_dot_product(
    m: NodeBuilder,
    qkv: Sequence[str],
    attrs: Attrs,
    mask: str,
    attention_bias: str,
    hidden_size: int,
    out: str,
) -> None:
    """Scaled dot-product attention. mask: either positive where a key is visible, or the number of
    visible keys, counted from the first."""
    heads = int(attrs["num_heads"])  # type: ignore[call-overload]
    orders = (0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)
    q, k, v = (
        m.add_node(
            "Transpose", (m.add_node("Reshape", (x, m.integers(0, 0, heads, -1))),), perm=order
        )
        for x, order in zip(qkv, orders, strict=True)
    )
    factor = float(attrs.get("scale") or 1 / math.sqrt(hidden_size // heads))  # type: ignore[arg-type]
    scores = _scale(m, m.add_node("MatMul", (q, k)), factor, m.unique_name("Mul"))
    if mask:
        least = float(attrs.get("mask_filter_value", -10000.0))  # type: ignore[arg-type]
        counts = _key_mask(m, mask, qkv[1])
        some = m.add_node("Where", (counts, m.scalar(0.0, scores), m.scalar(least, scores)))
        scores = m.add_node("Add", (scores, some))
    if attention_bias:
        m.rank_checks.append((attention_bias, 4, ""))
    scores = _sum_inputs(m, (scores, attention_bias))
    y = m.add_node("MatMul", (m.add_node("Softmax", (scores,), axis=-1), v))
    m.add_node(
        "Reshape", (m.add_node("Transpose", (y,), perm=(0, 2, 1, 3)), m.integers(0, 0, -1)), out
    )


def _key_mask(m: NodeBuilder, mask: str, keys: str) -> str:
    """Return which keys of each batch element are visible."""
    rank = len(m.value_shapes.get(mask, ()))
    m.rank_checks.append((mask, rank, keys))
    if rank == 2:
        zero = m.add_node("Constant", (), value=numpy_helper.from_array(np.array(0, np.int32)))
        return m.add_with_axes("Unsqueeze", 13, m.add_node("Greater", (mask, zero)), 1, 2)
    if rank != 1:
        raise NoDecomposition(f"a mask of rank {rank}")
    places = _position_ids(m, keys)
    until = m.add_with_axes(
        "Unsqueeze", 13, m.add_node("Cast", (mask,), to=onnx.TensorProto.INT64), 1, 2, 3
    )
    return m.add_node("Less", (places, until))


def _position_ids(m: NodeBuilder, x: str) -> str:
    """Return 0, 1, ... up to the second size of a value."""
    begin, step = (
        m.add_node("Constant", (), value=numpy_helper.from_array(np.array(k, np.int64)))
        for k in (0, 1)
    )
    count = m.add_node("Gather", (m.add_node("Shape", (x,)), step))
    return m.add_node("Range", (begin, count, step))


def _embed_layer_norm(
    m: NodeBuilder, inputs: Sequence[str], attrs: Attrs, outs: Sequence[str]
) -> None:
    ids, segments, words, places, kinds, gamma, beta, mask, at = inputs
    x = m.add_node(
        "Add",
        (
            m.add_node("Gather", (words, ids)),
            m.add_node("Gather", (places, at or _position_ids(m, ids))),
        ),
    )
    if segments:
        x = m.add_node("Add", (x, m.add_node("Gather", (kinds, segments))))
    if outs[1:] and outs[1]:
        if not mask:
            raise NoDecomposition("an index of no mask")
        m.add_with_axes("ReduceSum", 13, mask, 1, keepdims=0, out=outs[1])
    if outs[2:] and outs[2]:
        m.add_node("Identity", (x,), outs[2])
    _layer_norm(m, x, gamma, beta, attrs.get("epsilon", 1e-12), outs[0])


# What has ONNX's own name before an opset that knows it, if any does.
CONTRIB_BEFORE_OPSET = {"SimplifiedLayerNormalization": 1 << 31, "LayerNormalization": 17}
# By name: how many inputs there may be, which results beside the first, and its expansion.
DECOMPOSITIONS: dict[str, tuple[int, tuple[int, ...], Decompose]] = {
    "FusedConv": (4, (), _fused_conv), "FusedGemm": (3, (), _fused_gemm),
    "FusedMatMul": (2, (), _fused_matmul), "Gelu": (1, (), _gelu), "BiasGelu": (2, (), _gelu),
    "FastGelu": (2, (), _fast_gelu), "QuickGelu": (1, (), _quick_gelu),
    "SkipLayerNormalization": (5, (3,), _skip_layer_norm),
    "SkipSimplifiedLayerNormalization": (4, (3,), _skip_rms_norm),
    "SimplifiedLayerNormalization": (2, (), _simplified_layer_norm),
    "LayerNormalization": (3, (), _contrib_layer_norm),
    "EmbedLayerNormalization": (9, (1, 2), _embed_layer_norm),
    "Attention": (7, (), _attention),
}  # fmt: skip
