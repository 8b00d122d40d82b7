"""Discrete Fourier transforms by their defining sums, in float64.

In float32 the sine of pi is -9e-8 instead of 0, which is visible in long sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.movement.layout import known_type
from superopt.ops.shared.broadcasting import normalize_axis
from superopt.ops.shared.precision import narrow_tensor, to_float64
from superopt.ops.shared.scalars import canonical_flags, expect_kinds
from superopt.ops.shared.sizes import floor_div, min_size, single_size
from superopt.te.expr import index
from superopt.te.expr.dtype import INDEX, DType
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import (
    Dim,
    Tensor,
    apply,
    cast,
    compare,
    compute,
    const,
    reduce_sum,
    select,
)


def _wave_table(fn: str, times: Dim, bins: Dim, n: Dim, dtype: DType) -> Tensor:
    """sin or cos of 2 pi t k / n, for t of `times` and k of `bins`."""
    period = index.as_index(n)

    def element(t: Expr, k: Expr) -> Expr:
        turns = cast(index.mod(index.as_index(t * k), period), dtype) / cast(period, dtype)
        return apply(fn, turns * (2 * math.pi))

    return compute((times, bins), element, name=fn)


def _bin_count(n: Dim, onesided: int) -> Dim:
    return index.dim(index.as_index(floor_div(n, 2)) + 1) if onesided else n


def _spectrum(
    lead: tuple[Dim, ...],
    at: Callable[..., Expr],
    parts: Dim,
    times: Dim,
    bins: Dim,
    n: Dim,
    inverse: int,
    dtype: DType,
) -> Tensor:
    """Sum over t of a signal times e^(-2 pi i t k / n), as (*lead, bins, 2); inverse: over n.

    `at(*lead, t, part)` is the signal, of one part (real) or two.
    """
    cosine, sine = (_wave_table(fn, times, bins, n, dtype) for fn in ("cos", "sin"))

    def summed(part: int, wave: Tensor, name: str) -> Tensor:
        return compute(
            (*lead, bins),
            lambda *i: reduce_sum(times, lambda t: at(*i[:-1], t, part) * wave[t, i[-1]]),
            name=name,
        )

    real, imaginary = summed(0, cosine, "real_cos"), summed(0, sine, "real_sin")
    if parts == 2:
        other_cos, other_sin = summed(1, cosine, "imag_cos"), summed(1, sine, "imag_sin")

    def element(*i: Expr) -> Expr:
        k = i[:-1]
        # (x + iy)(cos - i sin), with + for the inverse
        re: Expr = real[k]
        im: Expr = imaginary[k] if inverse else -imaginary[k]
        if parts == 2:
            re, im = (
                re - other_sin[k] if inverse else re + other_sin[k],
                im + other_cos[k],
            )
        out = select(compare("eq", i[-1], const(0, INDEX)), re, im)
        return out / cast(index.as_index(n), dtype) if inverse else out

    return compute((*lead, bins, 2), element, name="spectrum")


def _dft_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """The axis from 0, and the length."""
    t, shape = known_type(types)
    attrs = canonical_flags("inverse", "onesided")(types, attrs)
    axis = attrs["axis"]
    axis = normalize_axis(
        axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis, len(shape)
    )
    if axis == len(shape) - 1 or shape[-1] not in (1, 2):
        raise InferError(f"DFT of {t} on axis {axis}: the last axis is 1 or 2, real and imaginary")
    if attrs["dft_length"] is not None:
        length = single_size(attrs["dft_length"], "dft_length")
    elif attrs["inverse"] and attrs["onesided"]:
        length = index.dim((index.as_index(shape[axis]) - 1) * 2)
    else:
        length = shape[axis]
    if isinstance(length, int) and length < 1:
        raise InferError(f"DFT of {t}: length {length}")
    return attrs | {"axis": axis, "dft_length": length}


@op(
    "DFT",
    example=("f32[2,5,1] axis=1 onesided=1", "f32[2,3,2] axis=1 inverse=1 dft_length=4"),
    laws="linear",
    since=17,
    canonical=_dft_attrs,
)
def dft(
    x: Tensor,
    *,
    axis: int = -2,
    dft_length: Dim | None = None,
    inverse: int = 0,
    onesided: int = 0,
) -> Tensor:
    """The transform along `axis`, cut or filled with zeros to `dft_length`.

    The last axis is (real,) or (real, imaginary); `onesided` leaves out the conjugate half of the
    result or, in the inverse, of the operand.
    """
    expect_kinds("DFT", "f", x)
    assert dft_length is not None
    n, signal = dft_length, to_float64(x)
    lead = (*x.shape[:axis], *x.shape[axis + 1 : -1])

    def at(*i: Expr | int) -> Expr:
        return signal[(*i[:axis], i[-2], *i[axis:-2], i[-1])]

    if inverse and onesided:
        if x.shape[-1] != 2:
            raise InferError(f"DFT of {x.type}: the inverse of one side takes complex numbers")
        out = _real_inverse(lead, at, x.shape[axis], n, signal.dtype)
    else:
        times, bins = min_size(x.shape[axis], n), _bin_count(n, onesided)
        out = _spectrum(lead, at, x.shape[-1], times, bins, n, inverse, signal.dtype)
    shape = (*x.shape[:axis], out.shape[-2], *x.shape[axis + 1 : -1], out.shape[-1])
    back = compute(shape, lambda *i: out[(*i[:axis], *i[axis + 1 : -1], i[axis], i[-1])])
    return narrow_tensor(back, x.dtype)


def _real_inverse(
    lead: tuple[Dim, ...], at: Callable[..., Expr], given: Dim, n: Dim, dtype: DType
) -> Tensor:
    """The real signal of length n with the half spectrum `at(*lead, k, part)`, as (*lead, n, 1)."""
    if not isinstance(n, int):
        raise InferError(f"DFT: the inverse of one side to the symbolic length {n}")
    bins = min_size(given, n // 2 + 1)
    cosine, sine = (_wave_table(fn, bins, n, n, dtype) for fn in ("cos", "sin"))

    def weight(k: Expr) -> Expr:
        """2 for the bins whose conjugate is left out."""
        alone = compare("eq", index.mod(index.as_index(k * 2), const(n, INDEX)), const(0, INDEX))
        return select(alone, const(1, dtype), const(2, dtype))

    def element(*i: Expr) -> Expr:
        def term(k: Expr) -> Expr:
            turned = at(*i[:-2], k, 0) * cosine[k, i[-2]] - at(*i[:-2], k, 1) * sine[k, i[-2]]
            return turned * weight(k)

        return reduce_sum(bins, term) / const(n, dtype)

    return compute((*lead, n, 1), element, name="signal")


def _stft_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """The length of a frame, which is the window's by default."""
    t, shape = known_type(types)
    attrs = canonical_flags("onesided")(types, attrs)
    step = single_size(attrs["frame_step"], "frame_step")
    window = types[1].shape if len(types) > 1 and types[1] is not None else None
    if attrs["frame_length"] is not None:
        length = single_size(attrs["frame_length"], "frame_length")
    elif window:
        length = window[0]
    else:
        raise InferError(f"STFT of {t}: neither a window nor a frame length")
    # torch writes real signals of two dimensions, too, and onnxruntime reads them
    signal = len(shape) == 2 or (len(shape) == 3 and shape[-1] in (1, 2))
    if not signal or window not in (None, (length,)):
        raise InferError(f"STFT of {t} with window {window} in frames of {length}")
    return attrs | {"frame_step": step, "frame_length": length}


@op(
    "STFT",
    example="f32[2,9,1] f32[4] frame_step=2",
    laws="linear",
    since=17,
    canonical=_stft_attrs,
)
def stft(
    signal: Tensor,
    window: Tensor | None = None,
    *,
    frame_step: Dim,
    frame_length: Dim | None = None,
    onesided: int = 1,
) -> Tensor:
    """The transforms of the frames of a signal, weighted by `window`: (batch, frames, bins, 2)."""
    expect_kinds("STFT", "f", signal, window)
    assert frame_length is not None
    parts = 1 if signal.rank == 2 else signal.shape[2]
    if onesided and parts != 1:
        raise InferError(f"STFT of {signal.type}: one side of the spectrum of complex numbers")
    n, wide = frame_length, to_float64(signal)
    weights = None if window is None else to_float64(window)
    room = index.dim(index.as_index(signal.shape[1]) - n)
    if isinstance(room, int) and room < 0:
        raise InferError(f"STFT of {signal.type}: a frame of {n} does not fit")
    frames = index.dim(index.as_index(floor_div(room, frame_step)) + 1)

    def at(b: Expr, f: Expr, t: Expr, part: int) -> Expr:
        where = b, f * frame_step + t
        value = wide[where] if signal.rank == 2 else wide[(*where, part)]
        return value if weights is None else value * weights[t]

    lead, bins = (signal.shape[0], frames), _bin_count(n, onesided)
    out = _spectrum(lead, at, parts, n, bins, n, 0, wide.dtype)
    return narrow_tensor(out, signal.dtype)
