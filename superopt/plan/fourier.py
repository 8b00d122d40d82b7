"""Discrete Fourier transforms as products with a constant: sines and cosines are numbers then, and
frames of a signal, weighted by a window, are what a convolution sums.

A fast transform takes fewer operations, but not less time: onnxruntime's takes as long for 512
numbers as a product does, and where their count is no power of two it computes several for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log2, prod

import numpy as np

from superopt.ir import graph as g
from superopt.ir.constancy import is_constant
from superopt.ir.substitute import replace_all
from superopt.ops import OPS
from superopt.te import index as ix
from superopt.te.dtype import F32
from superopt.te.expr import Dim

MOST = 1 << 25  # bytes of the constant
# Microseconds on one core of Zen 4 with AVX-512: of a product for each operation, and for each byte
# of its constant; of onnxruntime 1.32 for each n log2(n), n a power of two or the next one of twice
# the length.
FLOP, BYTE = 1e-5, 4e-5
FAST, SLOW = 1.8e-3, 8e-3


@dataclass(frozen=True, slots=True)
class _Transform:
    """Of `times` numbers, of one part or two (real, imaginary), filled with zeros to `length`, the
    `bins` results. real: these are real numbers, the inverse of one side of a spectrum."""

    node: g.Node
    length: int
    times: int
    parts: int
    bins: int
    inverse: bool
    real: bool

    @property
    def terms(self) -> int:
        return self.times * self.parts

    @property
    def sums(self) -> int:
        return self.bins * (1 if self.real else 2)


def as_products(graph: g.Graph) -> g.Graph:
    """The graph with products in place of DFT and STFT of float32 whose lengths are numbers."""
    some = {n: t for n in g.nodes(graph) if (t := _transform(n)) is not None}
    made: dict[g.Value, g.Value] = {}
    made |= {n: v for n, t in some.items() if (v := _product(t)) is not None}
    return replace_all(graph, made) if made else graph


def pays(n: g.Node, sizes: Mapping[str, int]) -> bool:
    """Is the product as fast as onnxruntime's transform?"""
    t = _transform(n)
    if t is None:
        return False
    count = prod(ix.evaluate(d, dict(sizes)) for d in n.type.shape or ()) // t.sums
    size = t.length
    power = size & (size - 1) == 0
    fast = size if power else 1 << (2 * size - 1).bit_length()
    other = count * (FAST if power else SLOW) * fast * max(log2(fast), 1)
    return t.terms * t.sums * max(2 * count * FLOP, 4 * BYTE) < other


def _transform(n: g.Node) -> _Transform | None:
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
    return out if out.terms * out.sums * 4 <= MOST else None


def _numbers(t: _Transform) -> np.ndarray:
    """Of each term, what it adds to each sum: the transform of one that is alone. (terms, sums),
    real parts before imaginary ones."""
    each = np.eye(t.times, dtype=complex)
    rows = np.stack((each, 1j * each)[: t.parts], axis=1).reshape(t.terms, t.times)
    if t.real:
        return np.fft.irfft(rows, t.length)
    turned = (np.fft.ifft if t.inverse else np.fft.fft)(rows, t.length)[:, : t.bins]
    return np.concatenate((turned.real, turned.imag), axis=1)


def _constant(array: np.ndarray) -> g.Value:
    return g.constant(array.astype(np.float32))


def _product(t: _Transform) -> g.Value | None:
    return _of_frames(t) if t.node.op.name == "STFT" else _of_axis(t)


def _of_frames(t: _Transform) -> g.Value | None:
    """A convolution, whose channels are the bins."""
    (x, *window), numbers = t.node.inputs, _numbers(t)
    assert x is not None
    assert x.type.shape is not None
    for w in window:
        if w is not None:
            if not isinstance(w, g.Constant):
                return None
            numbers = numbers * w.load()[:, None]
    batch, long = x.type.shape[:2]
    line = g.node(OPS["Reshape"], [x], shape=(batch, 1, long))
    windows = _constant(numbers.T[:, None])
    made = g.node(OPS["Conv"], [line, windows], strides=(t.node.attr("frame_step"),))
    frames = made.type.shape[2]  # type: ignore[index]
    apart = g.node(OPS["Reshape"], [made], shape=(batch, 2, t.bins, frames))
    return g.node(OPS["Transpose"], [apart], perm=(0, 3, 2, 1))


def _of_axis(t: _Transform) -> g.Value:
    """A product of matrices, whose columns are the bins, behind all other axes."""
    (x, *_), axis = t.node.inputs, t.node.attr("axis")
    assert x is not None
    assert isinstance(axis, int)
    last = len(x.type.shape or ()) - 1
    order = (*(d for d in range(last) if d != axis), axis, last)
    if x.type.shape[axis] != t.times:  # type: ignore[index]
        cut = {"axes": (axis,), "starts": (0,), "ends": (t.times,), "steps": (1,)}
        x = g.node(OPS["Slice"], [x], **cut)
    behind = g.node(OPS["Transpose"], [x], perm=order)
    lead = behind.type.shape[:-2]  # type: ignore[index]
    rows = g.node(OPS["Reshape"], [behind], shape=(*lead, t.terms))
    made = g.node(OPS["MatMul"], [rows, _constant(_numbers(t))])
    if t.real:
        out = g.node(OPS["Reshape"], [made], shape=(*lead, t.bins, 1))
    else:
        apart = g.node(OPS["Reshape"], [made], shape=(*lead, 2, t.bins))
        count = len(lead)
        out = g.node(OPS["Transpose"], [apart], perm=(*range(count), count + 1, count))
    back = tuple(order.index(d) for d in range(last + 1))
    return g.node(OPS["Transpose"], [out], perm=back)
