"""Nodes that onnxruntime computes faster than kernels do."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from weakref import WeakKeyDictionary

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant
from superopt.plan.graph.dft_matmul import is_matmul_faster
from superopt.plan.lowering.nbits_weights import has_constant_nbits_weights
from superopt.te.analysis.bind_sizes import evaluate_shape
from superopt.te.expr.tensor import TensorType

MAX_PREFIX_SUM_EXTENT = 16
MAX_TOPK_EXTENT = 64  # the extent of an axis whose largest elements are selected
MAX_COMPARISONS_PER_RESULT = 4  # of indices, for each element of a scatter's result
# Elements of a transposed convolution for each of its input, strides apart. A kernel has 0.7 to 0.8
# times the speed of onnxruntime at 4, a third at 16, and twice at 1 (one thread of a Xeon).
MAX_ELEMENTS_BETWEEN_INPUTS = 3
SMALL_RESULT_ELEMENTS = 1 << 12  # elements of a result that are too few to matter
# Steps to the deepest leaf for each step that a tree needs on average. Above this ratio
# onnxruntime, which stops at each leaf, is faster (300 trees of 20 levels and 4 steps: kernels have
# 0.8 times its speed; of 12 levels: 1.5 times).
MAX_TREE_DEPTH_RATIO = 4
MAX_FOLDED_COMPARISONS = 1 << 27  # comparisons that are done ahead of time: about a second
_MEAN_TREE_DEPTHS: WeakKeyDictionary[ir_graph.Node, float] = WeakKeyDictionary()


def slow_reason(n: ir_graph.Node, sizes: Mapping[str, int]) -> str:
    """Return why onnxruntime, if available, computes a node faster than its kernel; an empty string
    if it does not, or if the node is computed ahead of time."""
    match n.op.name:
        case "CumSum" if _has_long_axis(n.type, sizes):
            return "a kernel would recompute each prefix sum"
        case "ScatterElements" | "ScatterND":
            result, indices = evaluate_shape(n.type, sizes), n.inputs[1]
            assert indices is not None
            shape = evaluate_shape(indices.type, sizes)
            places, rows = prod(result), prod(shape[:-1])
            most = MAX_COMPARISONS_PER_RESULT * prod(result)
            if n.op.name == "ScatterElements":
                most = MAX_COMPARISONS_PER_RESULT * SMALL_RESULT_ELEMENTS
                axis = dict(n.attrs)["axis"]
                assert isinstance(axis, int)
                rows = shape[axis]
            elif shape:
                places = prod(result[: shape[-1]])
            once = places * rows <= MAX_FOLDED_COMPARISONS and is_constant(
                ir_graph.result(n, 0), {}
            )
            if places * rows > most and not once:
                return "a kernel would compare each element with all indices"
        case "TopK":
            (x, *_), axis = n.inputs, dict(n.attrs)["axis"]
            assert x is not None
            assert isinstance(axis, int)
            if evaluate_shape(x.type, sizes)[axis] > MAX_TOPK_EXTENT:
                return "a kernel would compare each element with all others"
        case "ConvTranspose" if _is_sparse(n, sizes):
            return "a kernel would mostly multiply weights with elements beyond the image"
        case "DFT" | "STFT" if _has_long_axis(n.type, sizes) and not is_matmul_faster(n, sizes):
            return "onnxruntime's FFT needs fewer operations"
        case "Einsum" if len(n.inputs) > 2:
            return "a kernel would reduce over all indices at once"
        case "TreeWeights" if n.attr("depth") > MAX_TREE_DEPTH_RATIO * _mean_tree_depth(n):  # type: ignore[operator]
            return "a kernel would walk every tree to the deepest leaf"
        case "MatMulNBits" if not has_constant_nbits_weights(n):
            return "a kernel would read weights that are not repacked ahead of time"
        case "GridSample":
            return "a kernel would recompute the sampling positions for each channel"
    return ""


def _is_sparse(n: ir_graph.Node, sizes: Mapping[str, int]) -> bool:
    """True if a transposed convolution has many more elements than its input, strides apart. A
    kernel computes each of them from all weights, most of which meet no element of the input. One
    pixel without padding, whose result has the size of the window, is a matrix product
    (deconv-1x1)."""
    x, w = n.inputs[:2]
    assert x is not None
    assert w is not None
    strides, pads = n.attr("strides"), n.attr("pads")
    assert isinstance(strides, tuple)
    assert isinstance(pads, tuple)
    given, window, result = (evaluate_shape(t, sizes)[2:] for t in (x.type, w.type, n.type))
    is_product = prod(given) == 1 and result == window and not any(pads) and n.attr("group") == 1
    read = prod(given) * prod(strides)  # type: ignore[arg-type]
    return not is_product and prod(result) > MAX_ELEMENTS_BETWEEN_INPUTS * read


def _mean_tree_depth(n: ir_graph.Node) -> float:
    """Return the mean number of steps to a leaf, if both children of a node are equally likely."""
    if n not in _MEAN_TREE_DEPTHS:
        depth, children, roots = n.attr("depth"), *(*n.inputs, None, None)[4:6]
        assert isinstance(depth, int)
        if not isinstance(children, ir_graph.Constant) or not isinstance(roots, ir_graph.Constant):
            return float(depth)  # complete trees
        below, first = children.load(), roots.load()
        inner = below[:, 0] != np.arange(len(below))
        inner |= below[:, 1] != np.arange(len(below))
        here: np.ndarray = np.bincount(first, minlength=len(below)) / len(first)
        total = 0.0
        for _ in range(depth):
            moving = np.where(inner, here, 0) / 2
            total += 2 * moving.sum()
            here = np.bincount(below.reshape(-1), np.repeat(moving, 2), len(below))
        _MEAN_TREE_DEPTHS[n] = float(total)
    return _MEAN_TREE_DEPTHS[n]


def _has_long_axis(t: TensorType, sizes: Mapping[str, int]) -> bool:
    return max(evaluate_shape(t, sizes), default=1) > MAX_PREFIX_SUM_EXTENT
