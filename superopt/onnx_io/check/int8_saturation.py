"""Detect int8 products in which the sum of two terms may overflow 16 bits.

On x86 without VNNI, ONNX Runtime multiplies uint8 activations by int8 weights with `vpmaddubsw`,
which adds the terms 2i and 2i + 1 of a sum in 16 bits with saturation. Two terms with weights a, b
reach 255 (max(a, 0) + max(b, 0)) and 255 (min(a, 0) + min(b, 0)), so the weights decide whether a
node may saturate: https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain

import numpy as np
import onnx_ir as oir

MAX_UINT8 = 255  # the largest uint8
INT16_LIMITS = np.iinfo(np.int16)
CONTRIB_DOMAIN = "com.microsoft"


class Remedy(Enum):
    """How ONNX Runtime can be made to compute such a node exactly."""

    UNSIGNED_WEIGHTS = "session.x64quantprecision"  # weights become uint8, summed in 32 bits
    NO_FUSION = "the optimization level basic"  # dequantized, and multiplied as floats
    NONE = "none"


@dataclass(frozen=True, slots=True)
class SaturatingNode:
    """A node whose result may saturate. name: of its first output."""

    op: str
    name: str
    remedy: Remedy


@dataclass(frozen=True, slots=True)
class _WeightOperands:
    """Positions of the activation and the weights among a node's inputs. axis: the summed axis of
    the weights; None: all axes but the first. since: first opset for which ONNX Runtime has no
    remedy."""

    activation: int
    weights: tuple[int, ...]
    axis: int | None = -2
    no_remedy_since_opset: int = 1 << 31


# ConvInteger is not here: onnxruntime multiplies int8 weights by uint8 data in 32 bits.
_INTEGER_OPS: dict[tuple[str, str], _WeightOperands] = {
    ("", "MatMulInteger"): _WeightOperands(0, (1,)),
    ("", "QLinearMatMul"): _WeightOperands(0, (3,), no_remedy_since_opset=21),
    ("", "QLinearConv"): _WeightOperands(0, (3,), None),
    (CONTRIB_DOMAIN, "MatMulIntegerToFloat"): _WeightOperands(0, (1,)),
    (CONTRIB_DOMAIN, "DynamicQuantizeMatMul"): _WeightOperands(0, (1,)),
    (CONTRIB_DOMAIN, "QGemm"): _WeightOperands(0, (3,)),
    (CONTRIB_DOMAIN, "QAttention"): _WeightOperands(0, (1,)),
    (CONTRIB_DOMAIN, "DynamicQuantizeLSTM"): _WeightOperands(0, (1, 2)),
}
# Between DequantizeLinear nodes, which onnxruntime fuses to the above.
_QDQ_OPS = {"MatMul": -2, "Gemm": -2, "Conv": None}


def can_saturate(weights: np.ndarray, axis: int | None) -> bool:
    """True if two terms of a sum may overflow 16 bits. axis: the summed axis, in the order in which
    the processor pairs terms; None: all axes but the first, in any order."""
    if not weights.size:
        return False
    w = weights.astype(np.int32)
    if axis is None:
        w = np.sort(w.reshape(len(w), -1).T, axis=0)
        low, high = w[:2].clip(max=0), w[-2:].clip(min=0)
    else:
        w = np.moveaxis(w, axis, 0)
        w = np.concatenate([w, np.zeros((len(w) % 2, *w.shape[1:]), w.dtype)])
        pairs = w.reshape(len(w) // 2, 2, -1)
        low, high = pairs.clip(max=0).swapaxes(0, 1), pairs.clip(min=0).swapaxes(0, 1)
    least, most = low.sum(axis=0).min(), high.sum(axis=0).max()
    return bool(MAX_UINT8 * most > INT16_LIMITS.max or MAX_UINT8 * least < INT16_LIMITS.min)


def saturating_nodes(model: oir.Model) -> tuple[SaturatingNode, ...]:
    """Return the nodes of a model, its subgraphs and functions that may saturate."""
    opset = model.opset_imports.get("", model.opset_imports.get("ai.onnx", 0))
    bodies = (f.all_nodes() for f in model.functions.values())
    nodes = chain(model.graph.all_nodes(), *bodies)
    return tuple(found for n in nodes for found in _check_node(n, opset))


def _check_node(n: oir.Node, opset: int) -> Iterator[SaturatingNode]:
    name = next((v.name for v in n.outputs if v.name), n.name) or ""
    key = ("" if n.domain == "ai.onnx" else n.domain, n.op_type)
    if (known := _INTEGER_OPS.get(key)) is not None:
        if _dtype(_input(n, known.activation)) == oir.DataType.INT8:
            return  # multiplied in 32 bits
        dangers = [_weights_saturate(_input(n, k), known.axis) for k in known.weights]
        if any(danger is not False for danger in dangers):
            fixed = None not in dangers and opset < known.no_remedy_since_opset
            yield SaturatingNode(n.op_type, name, Remedy.UNSIGNED_WEIGHTS if fixed else Remedy.NONE)
    elif key[0] == "" and n.op_type in _QDQ_OPS:
        data, weights = (_quantized_source(_input(n, k)) for k in (0, 1))
        if data is None or weights is None or _dtype(weights) != oir.DataType.INT8:
            return
        axis = _QDQ_OPS[n.op_type]
        turned = n.op_type == "Gemm" and (a := n.attributes.get("transB")) and a.as_int()
        danger = _weights_saturate(weights, -1 if turned else axis)
        if danger is None:
            yield SaturatingNode(n.op_type, name, Remedy.NO_FUSION)
        elif danger:
            yield SaturatingNode(n.op_type, name, Remedy.UNSIGNED_WEIGHTS)


def _weights_saturate(v: oir.Value | None, axis: int | None) -> bool | None:
    """Return whether these weights may saturate, or None if they are known only at run time."""
    if v is None or _dtype(v) == oir.DataType.UINT8:
        return False
    if v.const_value is None:
        return None
    array = v.const_value.numpy()
    if array.dtype != np.int8 or not array.ndim:
        return False
    return can_saturate(array, axis if array.ndim > 1 else 0)


def _quantized_source(v: oir.Value | None) -> oir.Value | None:
    """Return the quantized value that `v` was dequantized from, or None."""
    n = None if v is None else v.producer()
    return n.inputs[0] if n is not None and n.op_type == "DequantizeLinear" else None


def _input(n: oir.Node, k: int) -> oir.Value | None:
    return n.inputs[k] if k < len(n.inputs) else None


def _dtype(v: oir.Value | None) -> oir.DataType | None:
    if v is None:
        return None
    return v.const_value.dtype if v.const_value is not None else v.dtype
