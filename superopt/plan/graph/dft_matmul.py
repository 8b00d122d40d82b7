"""Lower discrete Fourier transforms to products with a constant matrix of sines and cosines;
windowed frames of a signal become a convolution.

An FFT needs fewer operations but not less time: onnxruntime's FFT takes as long for 512 samples as
a product, and for lengths that are not a power of two it computes several FFTs each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2, prod

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant
from superopt.ir.substitute import replace_all
from superopt.ops import OPS
from superopt.te.expr import index
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import Dim

MAX_MATRIX_BYTES = 1 << 25  # of the constant matrix
# Microseconds on one core of Zen 4 with AVX-512: of a product for each operation, and for each byte
# of its constant; of onnxruntime 1.32 for each n log2(n), where n is a power of two, or otherwise
# the power of two above twice the length.
US_PER_FLOP, US_PER_BYTE = 1e-5, 4e-5
US_PER_FFT_STEP_POWER_OF_TWO, US_PER_FFT_STEP = 1.8e-3, 8e-3


@dataclass(frozen=True, slots=True)
class _Transform:
    """A transform of `samples` numbers with one or two components (real, imaginary), padded with
    zeros to `length`, with `bins` results. real: the results are real, by the inverse of a
    one-sided spectrum."""

    node: ir_graph.Node
    length: int
    samples: int
    components: int
    bins: int
    inverse: bool
    real: bool

    @property
    def rows(self) -> int:
        return self.samples * self.components

    @property
    def columns(self) -> int:
        return self.bins * (1 if self.real else 2)


def lower_dft_to_matmul(graph: ir_graph.Graph) -> ir_graph.Graph:
    """Return the graph with products in place of float32 DFT and STFT of known length."""
    some = {n: t for n in ir_graph.nodes(graph) if (t := _match_transform(n)) is not None}
    made: dict[ir_graph.Value, ir_graph.Value] = {}
    made |= {n: v for n, t in some.items() if (v := _lower_transform(t)) is not None}
    return replace_all(graph, made) if made else graph


def is_matmul_faster(n: ir_graph.Node, sizes: Mapping[str, int]) -> bool:
    """True if the product is as fast as onnxruntime's transform."""
    t = _match_transform(n)
    if t is None:
        return False
    count = prod(index.evaluate(d, dict(sizes)) for d in n.type.shape or ()) // t.columns
    size = t.length
    power = size & (size - 1) == 0
    fast = size if power else 1 << (2 * size - 1).bit_length()
    other = (
        count
        * (US_PER_FFT_STEP_POWER_OF_TWO if power else US_PER_FFT_STEP)
        * fast
        * max(log2(fast), 1)
    )
    return t.rows * t.columns * max(2 * count * US_PER_FLOP, 4 * US_PER_BYTE) < other


def _match_transform(n: ir_graph.Node) -> _Transform | None:
    if n.op.name not in ("DFT", "STFT") or n.op.domain or n.op.opaque:
        return None
    (x, *window), said = n.inputs, dict(n.attrs)
    assert x is not None
    assert x.type.shape is not None
    shape, one = x.type.shape, bool(said["onesided"])
    if n.op.name == "STFT":
        length, inverse, real = said["frame_length"], False, False
        parts: Dim = 1 if len(shape) == 2 else shape[2]
        given: Dim = length if isinstance(length, int) else 0
        if parts != 1 or any(w is not None and not is_constant(w, {}) for w in window):
            return None
    else:
        length, inverse = said["dft_length"], bool(said["inverse"])
        axis, parts, real = said["axis"], shape[-1], inverse and one
        assert isinstance(axis, int)
        given = shape[axis]
    if not isinstance(length, int) or not isinstance(given, int) or not isinstance(parts, int):
        return None
    if x.type.dtype != F32 or not length or not given:
        return None
    half = length // 2 + 1
    times = min(given, half if real else length)
    bins = length if real or not one else half
    out = _Transform(n, length, times, parts, bins, inverse, real)
    return out if out.rows * out.columns * 4 <= MAX_MATRIX_BYTES else None


def _dft_matrix(t: _Transform) -> np.ndarray:
    """Return the matrix (rows, columns): the transform of each unit vector, real parts before
    imaginary ones."""
    each = np.eye(t.samples, dtype=complex)
    rows = np.stack((each, 1j * each)[: t.components], axis=1).reshape(t.rows, t.samples)
    if t.real:
        return np.fft.irfft(rows, t.length)
    turned = (np.fft.ifft if t.inverse else np.fft.fft)(rows, t.length)[:, : t.bins]
    return np.concatenate((turned.real, turned.imag), axis=1)


def _float32_constant(array: np.ndarray) -> ir_graph.Value:
    return ir_graph.constant(array.astype(np.float32))


def _lower_transform(t: _Transform) -> ir_graph.Value | None:
    return _lower_stft(t) if t.node.op.name == "STFT" else _lower_dft(t)


def _lower_stft(t: _Transform) -> ir_graph.Value | None:
    """Return a convolution whose channels are the bins."""
    (x, *window), numbers = t.node.inputs, _dft_matrix(t)
    assert x is not None
    assert x.type.shape is not None
    for w in window:
        if w is not None:
            if not isinstance(w, ir_graph.Constant):
                return None
            numbers = numbers * w.load()[:, None]
    batch, long = x.type.shape[:2]
    line = ir_graph.node(OPS["Reshape"], [x], shape=(batch, 1, long))
    windows = _float32_constant(numbers.T[:, None])
    made = ir_graph.node(OPS["Conv"], [line, windows], strides=(t.node.attr("frame_step"),))
    frames = made.type.shape[2]  # type: ignore[index]
    apart = ir_graph.node(OPS["Reshape"], [made], shape=(batch, 2, t.bins, frames))
    return ir_graph.node(OPS["Transpose"], [apart], perm=(0, 3, 2, 1))


def _lower_dft(t: _Transform) -> ir_graph.Value:
    """Return a matrix product whose columns are the bins, with the transformed axis last."""
    (x, *_), axis = t.node.inputs, t.node.attr("axis")
    assert x is not None
    assert isinstance(axis, int)
    last = len(x.type.shape or ()) - 1
    order = (*(d for d in range(last) if d != axis), axis, last)
    if x.type.shape[axis] != t.samples:  # type: ignore[index]
        cut = {"axes": (axis,), "starts": (0,), "ends": (t.samples,), "steps": (1,)}
        x = ir_graph.node(OPS["Slice"], [x], **cut)
    behind = ir_graph.node(OPS["Transpose"], [x], perm=order)
    lead = behind.type.shape[:-2]  # type: ignore[index]
    rows = ir_graph.node(OPS["Reshape"], [behind], shape=(*lead, t.rows))
    made = ir_graph.node(OPS["MatMul"], [rows, _float32_constant(_dft_matrix(t))])
    if t.real:
        out = ir_graph.node(OPS["Reshape"], [made], shape=(*lead, t.bins, 1))
    else:
        apart = ir_graph.node(OPS["Reshape"], [made], shape=(*lead, 2, t.bins))
        count = len(lead)
        out = ir_graph.node(OPS["Transpose"], [apart], perm=(*range(count), count + 1, count))
    back = tuple(order.index(d) for d in range(last + 1))
    return ir_graph.node(OPS["Transpose"], [out], perm=back)
