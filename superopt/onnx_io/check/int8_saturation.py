"""Detect int8 products in which the sum of two terms may overflow 16 bits.

On x86 without VNNI, ONNX Runtime multiplies uint8 activations by int8 weights with `vpmaddubsw`,
which adds the terms 2i and 2i + 1 of a sum in 16 bits with saturation. Two terms with weights a, b
reach 255 (max(a, 0) + max(b, 0)) and 255 (min(a, 0) + min(b, 0)), so the weights decide whether a
node may saturate: https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
class PairReach:
    """How far sums of two terms reach. channels: columns of the weights that may overflow 16 bits,
    of `of`; terms: of a sum; largest: the sum of two products that is farthest from 0."""

    channels: int
    of: int
    terms: int
    largest: int


@dataclass(frozen=True, slots=True)
class SaturatingNode:
    """A node whose result may saturate. name: of its first output; reach: None if its weights are
    known only at run time."""

    op: str
    name: str
    remedy: Remedy
    reach: PairReach | None = None


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
    """True if two terms of a sum may overflow 16 bits; see `pair_reach`."""
    return pair_reach(weights, axis).channels > 0


def pair_reach(weights: np.ndarray, axis: int | None) -> PairReach:
    """Return how far sums of two terms reach. axis: the summed axis, in the order in which the
    processor pairs terms; None: all axes but the first, in any order.

    >>> pair_reach(np.int8([[65, -128], [64, 1]]), 0)
    PairReach(channels=1, of=2, terms=2, largest=32895)
    """
    if not weights.size:
        return PairReach(0, 0, 0, 0)
    w = weights.astype(np.int32)
    if axis is None:
        w = np.sort(w.reshape(len(w), -1).T, axis=0)
        low, high = w[:2].clip(max=0), w[-2:].clip(min=0)
    else:
        w = np.moveaxis(w, axis, 0)
        w = np.concatenate([w, np.zeros((len(w) % 2, *w.shape[1:]), w.dtype)])
        pairs = w.reshape(len(w) // 2, 2, -1)
        low, high = pairs.clip(max=0).swapaxes(0, 1), pairs.clip(min=0).swapaxes(0, 1)
    columns = weights.shape[0] if axis is None else weights.size // weights.shape[axis]
    terms = weights.size // columns
    if axis is None:
        least, most = MAX_UINT8 * low.sum(axis=0), MAX_UINT8 * high.sum(axis=0)
    else:  # of all pairs of a column
        least = MAX_UINT8 * low.sum(axis=0).min(axis=0)
        most = MAX_UINT8 * high.sum(axis=0).max(axis=0)
    overflows = (most > INT16_LIMITS.max) | (least < INT16_LIMITS.min)
    largest = int(max(most.max(), -least.min()))
    return PairReach(int(overflows.sum()), columns, terms, largest)


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
        reaches = [_weights_reach(_input(n, k), known.axis) for k in known.weights]
        if any(r is None or r.channels for r in reaches):
            fixed = None not in reaches and opset < known.no_remedy_since_opset
            remedy = Remedy.UNSIGNED_WEIGHTS if fixed else Remedy.NONE
            yield SaturatingNode(n.op_type, name, remedy, _total_reach(reaches))
    elif key[0] == "" and n.op_type in _QDQ_OPS:
        data, weights = (_quantized_source(_input(n, k)) for k in (0, 1))
        if data is None or weights is None or _dtype(weights) != oir.DataType.INT8:
            return
        axis = _QDQ_OPS[n.op_type]
        turned = n.op_type == "Gemm" and (a := n.attributes.get("transB")) and a.as_int()
        reach = _weights_reach(weights, -1 if turned else axis)
        if reach is None:
            yield SaturatingNode(n.op_type, name, Remedy.NO_FUSION)
        elif reach.channels:
            yield SaturatingNode(n.op_type, name, Remedy.UNSIGNED_WEIGHTS, reach)


NO_REACH = PairReach(0, 0, 0, 0)


def _weights_reach(v: oir.Value | None, axis: int | None) -> PairReach | None:
    """Return how far pairs of products with these weights reach, or None if they are known only at
    run time; NO_REACH if they are not int8."""
    if v is None or _dtype(v) == oir.DataType.UINT8:
        return NO_REACH
    if v.const_value is None:
        return None
    array = v.const_value.numpy()
    if array.dtype != np.int8 or not array.ndim:
        return NO_REACH
    return pair_reach(array, axis if array.ndim > 1 else 0)


def _total_reach(reaches: Sequence[PairReach | None]) -> PairReach | None:
    """Return the reach of a node with several weights; None if some are not known."""
    known = [r for r in reaches if r is not None]
    if len(known) < len(reaches):
        return None
    return PairReach(
        sum(r.channels for r in known),
        sum(r.of for r in known),
        max(r.terms for r in known),
        max(r.largest for r in known),
    )


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
