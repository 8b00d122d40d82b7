"""Evaluate a program at some places over float64, for many random inputs at once.

A prime field has no order: 2 max(x, y) = max(2 x, 2 y) and the laws of floor do not hold there.
What the field distinguishes may be equal, and the reverse. A difference over floats is real. Inputs
are multiples of 1/256, so that sums and products of few of them are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from superopt.partial.drawn import whole
from superopt.partial.points import DRAWS, Points
from superopt.te.domain import Reals
from superopt.te.dtype import F64, DType
from superopt.te.expr import Tensor
from superopt.te.field import PrimeField
from superopt.te.fn import function
from superopt.te.keyed import key, mix
from superopt.te.node import Apply, Const, Expr, Number

NEAR, FAR = 1e-9, 1e-6  # of the larger, or of 1: what rounding may do, and what it does not
LEAST, MOST = 1e-6, 1e6  # of the numbers of a program, if these are to be seen at all
_REALS = Reals(F64)
_STEPS = 256  # of 1
_WIDER = 4  # times as large are numbers of which functions are taken that may be any
SIGNED = (8, 0, 16, 15, 8, 8, 8, 8)  # of 16 numbers that are below 0, by the draw
ONE_SIGN = (1, 2)  # draws of which all are above 0, or below
_WHOLE, _FEW = 4, 7  # draws of whole numbers; of -1, 0 and 1
_BESIDE, _WIDE = 5, 6  # beside a number; of any size
_ROWS = 3  # draws of which every other has rows of one sign, of eight one below 0: products of a
# matrix by itself are below 0 in such a row, all of them
_SMALL = 1 / 16  # times as large, in one of four rounds of draws of one sign: x^2 is below x there


@dataclass(frozen=True, slots=True)
class _Doubles(PrimeField):
    """Elements are float64, with a leading axis of length 1."""

    def const(self, value: Number, dtype: DType) -> np.ndarray:
        x = _REALS.const(value, dtype)
        return x[None] if dtype.is_float else x

    def apply(
        self, fn: str, args: Sequence[np.ndarray], kinds: Sequence[DType], dtype: DType
    ) -> np.ndarray:
        bare = [a[0] if k.is_float else a for a, k in zip(args, kinds, strict=True)]
        x = np.asarray(_REALS.apply(fn, bare, kinds, dtype))
        return x[None] if dtype.is_float else x

    def reduce(self, fn: str, x: np.ndarray, axes: tuple[int, ...], dtype: DType) -> np.ndarray:
        return _REALS.reduce(fn, x, axes, dtype)


@dataclass(frozen=True, slots=True)
class _Any(_Doubles):
    """Functions other than sums, products, maxima and conditions are uninterpreted: random
    functions of their arguments."""

    def apply(
        self, fn: str, args: Sequence[np.ndarray], kinds: Sequence[DType], dtype: DType
    ) -> np.ndarray:
        if fn not in ("select", "cast") and function(fn).field not in _PLAIN:
            state = np.full((1,), key(0, fn), np.uint64)
            for a in args:
                state = mix((a + 0.0).view(np.uint64) ^ state)  # 0 is -0
            args = [_drawn(mix(state + np.uint64(n))) * _WIDER for n in range(len(args))]
        return super(_Any, self).apply(fn, args, kinds, dtype)


def _drawn(state: np.ndarray) -> np.ndarray:
    """Return multiples of 1/256 from -4 to 4."""
    size = (state % np.uint64(1 << 10)).astype(np.float64) * (1 / _STEPS)
    return np.where(state >> np.uint64(63) == 1, -size, size)


@dataclass(slots=True)
class Doubles(Points):
    """Float inputs. centres: numbers near which some inputs lie. wide: include numbers up to 128,
    for which functions may overflow. free: functions are uninterpreted, see `_UninterpretedFloats`.
    """

    centres: tuple[float, ...] = (0.0,)
    wide: bool = False
    free: bool = False

    def __post_init__(self) -> None:
        self.components, self.draws = 1, DRAWS
        self.domain = _Any() if self.free else _Doubles()

    def drawing(self, t: Tensor, where: np.ndarray) -> np.ndarray:
        state = mix(where.astype(np.uint64) ^ np.uint64(key(self.seed, t.name)))
        draw = where % DRAWS
        if not t.dtype.is_float:
            x = whole(state, t.dtype, draw)
            x = self.signed(x, draw) if t.dtype.kind == "i" else x
            return x.astype(self.domain.store(t.dtype))
        x = self.number(state, draw)
        if t.rank > 1:
            turned = (draw % len(SIGNED) == _ROWS) & (draw // len(SIGNED) % 2 == 1)
            row = where // (DRAWS * max(1, int(t.shape[-1]))) * DRAWS + draw  # type: ignore[arg-type]
            below = mix(row.astype(np.uint64) ^ np.uint64(key(self.seed, t.name))) % np.uint64(8)
            x = np.where(turned, np.where(below == 0, -1, 1) * np.abs(x), x)
        return x[None]

    def signed(self, x: np.ndarray, draw: np.ndarray) -> np.ndarray:
        """Return integers with the sign of the draw."""
        above, below = (draw % len(SIGNED) == way for way in ONE_SIGN)
        x = np.where(above | below, np.abs(x) + 1, x)
        return np.where(below, -x, x)

    def scale(self, turn: np.ndarray) -> np.ndarray:
        """Return the factor of numbers of one sign in each round of draws."""
        return np.where(turn % 4 == 3, _SMALL, 1.0)

    def number(self, state: np.ndarray, draw: np.ndarray) -> np.ndarray:
        """Return multiples of 1/256 up to 4, with the signs and other properties of the draw."""
        way = draw % len(SIGNED)
        size = (state % np.uint64(1 << 10)).astype(np.float64) * (1 / _STEPS)
        more = state >> np.uint64(10)
        negative = more % np.uint64(16) < np.asarray(SIGNED, np.uint64)[way]
        x = np.where(negative, -size, size)
        x = np.where(np.isin(way, ONE_SIGN), x * self.scale(draw // len(SIGNED)), x)
        if (way == _WHOLE).any():
            x = np.where(way == _WHOLE, np.rint(x), x)
        if (way == _FEW).any():
            x = np.where(way == _FEW, np.rint(x * 0.375), x)
        if (way == _BESIDE).any():
            at = (more >> np.uint64(4)) % np.uint64(len(self.centres))
            x = np.where(way == _BESIDE, x + np.asarray(self.centres)[at.astype(np.int64)], x)
        if self.wide and (way == _WIDE).any():
            power = (more >> np.uint64(4)) % np.uint64(6)
            x = np.where(way == _WIDE, np.ldexp(x, power.astype(np.int64)), x)
        return x


def plain(e: Expr) -> bool:
    """True for a sum, product, maximum or condition, which many inputs distinguish from others.
    False for functions that saturate (a sigmoid is 1 far from 0), and for numbers that are nearly
    0."""
    match e:
        case Const(value, dtype) if dtype.is_float:
            size = abs(float(value))
            return size in (0, float("inf")) or LEAST <= size <= MOST
        case Apply(fn, args) if e.dtype.is_float or any(a.dtype.is_float for a in args):
            return fn in ("select", "cast") or function(fn).field in _PLAIN
    return True


def exact(e: Expr) -> bool:
    """True if inputs that are multiples of 1/256 cause no rounding."""
    match e:
        case Const(value, dtype) if dtype.is_float:
            return not abs(float(value)) < float("inf") or float(value) * _STEPS % 1 == 0
        case Apply("div", (_, by)) if e.dtype.is_float:
            return isinstance(by, Const) and _STEPS / abs(float(by.value) or 3) % 1 == 0
    return plain(e)


def steps(e: Expr) -> bool:
    """True if a small change of an argument may change the value much."""
    match e:
        case Apply("cast", (x,)):
            return x.dtype.is_float and not e.dtype.is_float
        case Apply(fn, args) if args[0].dtype.is_float:
            return fn in ("sign", "lt", "le") or function(fn).field in ("equal", "whole")
    return False


_PLAIN = frozenset(("ring", "quotient", "order", "equal", "whole", "never"))


def compared(a: np.ndarray, b: np.ndarray, sure: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return where elements are equal up to rounding, and where they differ by more. NaN on a side
    decides nothing, nor does an infinity on one side, unless `count_infinities`."""
    if a.dtype.kind != "f":
        return a == b, a != b
    with np.errstate(all="ignore"):
        size = np.maximum(np.maximum(np.abs(a), np.abs(b)), 1)
        gap = np.abs(a - b)
        finite = np.isfinite(a) & np.isfinite(b)
        infinite = (np.isinf(a) | np.isinf(b)) & ~np.isnan(a) & ~np.isnan(b) & sure
        same = np.where(finite, gap <= NEAR * size, ~infinite | (a == b))
        apart = np.where(finite, gap > FAR * size, infinite & (a != b))
    return np.asarray(same), np.asarray(apart)
