"""Evaluate a program at some places over float64, for many random inputs at once.

A prime field has no order: 2 max(x, y) = max(2 x, 2 y) and the laws of floor do not hold there.
What the field distinguishes may be equal, and the reverse. A difference over floats is real. Inputs
are multiples of 1/256, so that sums and products of few of them are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from superopt.partial.regions.points import MAX_DRAWS, Points
from superopt.partial.regions.random_integers import random_integers
from superopt.te.eval.domain import Reals
from superopt.te.eval.keyed_hash import keyed_hash, mix
from superopt.te.eval.prime_field import PrimeField
from superopt.te.expr.dtype import F64, DType
from superopt.te.expr.functions import scalar_function
from superopt.te.expr.node import Apply, Const, Expr, Number
from superopt.te.expr.tensor import Tensor

EQUAL_TOLERANCE, DIFFERENT_TOLERANCE = (
    1e-9,
    1e-6,
)  # of the larger, or of 1: what rounding may do, and what it does not
MIN_VISIBLE_NUMBER, MAX_VISIBLE_NUMBER = (
    1e-6,
    1e6,
)  # of the numbers of a program, if these are to be seen at all
_REALS = Reals(F64)
_STEPS_PER_UNIT = 256  # of 1
_UNINTERPRETED_SCALE = 4  # times as large are numbers of which functions are taken that may be any
NEGATIVE_SIXTEENTHS = (8, 0, 16, 15, 8, 8, 8, 8)  # of 16 numbers that are below 0, by the draw
ONE_SIGN_DRAWS = (1, 2)  # draws of which all are above 0, or below
_INTEGER_DRAW, _TERNARY_DRAW = 4, 7  # draws of whole numbers; of -1, 0 and 1
_NEAR_CENTRE_DRAW, _WIDE_DRAW = 5, 6  # beside a number; of any size
_SIGNED_ROWS_DRAW = (
    3  # draws of which every other has rows of one sign, of eight one below 0: products of a
)
# matrix by itself are below 0 in such a row, all of them
_SMALL_SCALE = (
    1 / 16
)  # times as large, in one of four rounds of draws of one sign: x^2 is below x there


@dataclass(frozen=True, slots=True)
class _FloatDomain(PrimeField):
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
class _UninterpretedFloats(_FloatDomain):
    """Functions other than sums, products, maxima and conditions are uninterpreted: random
    functions of their arguments."""

    def apply(
        self, fn: str, args: Sequence[np.ndarray], kinds: Sequence[DType], dtype: DType
    ) -> np.ndarray:
        if (
            fn not in ("select", "cast")
            and scalar_function(fn).field_semantics not in _PIECEWISE_RATIONAL
        ):
            state = np.full((1,), keyed_hash(0, fn), np.uint64)
            for a in args:
                state = mix((a + 0.0).view(np.uint64) ^ state)  # 0 is -0
            args = [
                _random_multiples(mix(state + np.uint64(n))) * _UNINTERPRETED_SCALE
                for n in range(len(args))
            ]
        return super(_UninterpretedFloats, self).apply(fn, args, kinds, dtype)


def _random_multiples(state: np.ndarray) -> np.ndarray:
    """Return multiples of 1/256 from -4 to 4."""
    size = (state % np.uint64(1 << 10)).astype(np.float64) * (1 / _STEPS_PER_UNIT)
    return np.where(state >> np.uint64(63) == 1, -size, size)


@dataclass(slots=True)
class FloatPoints(Points):
    """Float inputs. centres: numbers near which some inputs lie. wide: include numbers up to 128,
    for which functions may overflow. free: functions are uninterpreted, see `_UninterpretedFloats`.
    """

    centres: tuple[float, ...] = (0.0,)
    wide: bool = False
    uninterpreted: bool = False

    def __post_init__(self) -> None:
        self.components, self.draws = 1, MAX_DRAWS
        self.domain = _UninterpretedFloats() if self.uninterpreted else _FloatDomain()

    def draw_elements(self, t: Tensor, where: np.ndarray) -> np.ndarray:
        state = mix(where.astype(np.uint64) ^ np.uint64(keyed_hash(self.seed, t.name)))
        draw = where % MAX_DRAWS
        if not t.dtype.is_float:
            x = random_integers(state, t.dtype, draw)
            x = self.with_sign(x, draw) if t.dtype.kind == "i" else x
            return x.astype(self.domain.storage_dtype(t.dtype))
        x = self.number(state, draw)
        if t.rank > 1:
            turned = (draw % len(NEGATIVE_SIXTEENTHS) == _SIGNED_ROWS_DRAW) & (
                draw // len(NEGATIVE_SIXTEENTHS) % 2 == 1
            )
            row = where // (MAX_DRAWS * max(1, int(t.shape[-1]))) * MAX_DRAWS + draw  # type: ignore[arg-type]
            below = mix(
                row.astype(np.uint64) ^ np.uint64(keyed_hash(self.seed, t.name))
            ) % np.uint64(8)
            x = np.where(turned, np.where(below == 0, -1, 1) * np.abs(x), x)
        return x[None]

    def with_sign(self, x: np.ndarray, draw: np.ndarray) -> np.ndarray:
        """Return integers with the sign of the draw."""
        above, below = (draw % len(NEGATIVE_SIXTEENTHS) == way for way in ONE_SIGN_DRAWS)
        x = np.where(above | below, np.abs(x) + 1, x)
        return np.where(below, -x, x)

    def scale(self, turn: np.ndarray) -> np.ndarray:
        """Return the factor of numbers of one sign in each round of draws."""
        return np.where(turn % 4 == 3, _SMALL_SCALE, 1.0)

    def number(self, state: np.ndarray, draw: np.ndarray) -> np.ndarray:
        """Return multiples of 1/256 up to 4, with the signs and other properties of the draw."""
        way = draw % len(NEGATIVE_SIXTEENTHS)
        size = (state % np.uint64(1 << 10)).astype(np.float64) * (1 / _STEPS_PER_UNIT)
        more = state >> np.uint64(10)
        negative = more % np.uint64(16) < np.asarray(NEGATIVE_SIXTEENTHS, np.uint64)[way]
        x = np.where(negative, -size, size)
        x = np.where(
            np.isin(way, ONE_SIGN_DRAWS), x * self.scale(draw // len(NEGATIVE_SIXTEENTHS)), x
        )
        if (way == _INTEGER_DRAW).any():
            x = np.where(way == _INTEGER_DRAW, np.rint(x), x)
        if (way == _TERNARY_DRAW).any():
            x = np.where(way == _TERNARY_DRAW, np.rint(x * 0.375), x)
        if (way == _NEAR_CENTRE_DRAW).any():
            at = (more >> np.uint64(4)) % np.uint64(len(self.centres))
            x = np.where(
                way == _NEAR_CENTRE_DRAW, x + np.asarray(self.centres)[at.astype(np.int64)], x
            )
        if self.wide and (way == _WIDE_DRAW).any():
            power = (more >> np.uint64(4)) % np.uint64(6)
            x = np.where(way == _WIDE_DRAW, np.ldexp(x, power.astype(np.int64)), x)
        return x


def is_piecewise_rational(e: Expr) -> bool:
    """True for a sum, product, maximum or condition, which many inputs distinguish from others.
    False for functions that saturate (a sigmoid is 1 far from 0), and for numbers that are nearly
    0."""
    match e:
        case Const(value, dtype) if dtype.is_float:
            size = abs(float(value))
            return size in (0, float("inf")) or MIN_VISIBLE_NUMBER <= size <= MAX_VISIBLE_NUMBER
        case Apply(fn, args) if e.dtype.is_float or any(a.dtype.is_float for a in args):
            return (
                fn in ("select", "cast")
                or scalar_function(fn).field_semantics in _PIECEWISE_RATIONAL
            )
    return True


def is_exact(e: Expr) -> bool:
    """True if inputs that are multiples of 1/256 cause no rounding."""
    match e:
        case Const(value, dtype) if dtype.is_float:
            return not abs(float(value)) < float("inf") or float(value) * _STEPS_PER_UNIT % 1 == 0
        case Apply("div", (_, by)) if e.dtype.is_float:
            return isinstance(by, Const) and _STEPS_PER_UNIT / abs(float(by.value) or 3) % 1 == 0
    return is_piecewise_rational(e)


def is_discontinuous(e: Expr) -> bool:
    """True if a small change of an argument may change the value much."""
    match e:
        case Apply("cast", (x,)):
            return x.dtype.is_float and not e.dtype.is_float
        case Apply(fn, args) if args[0].dtype.is_float:
            return fn in ("sign", "lt", "le") or scalar_function(fn).field_semantics in (
                "equal",
                "whole",
            )
    return False


_PIECEWISE_RATIONAL = frozenset(("ring", "quotient", "order", "equal", "whole", "never"))


def compare_floats(
    a: np.ndarray, b: np.ndarray, count_infinities: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return where elements are equal up to rounding, and where they differ by more. NaN on a side
    decides nothing, nor does an infinity on one side, unless `count_infinities`."""
    if a.dtype.kind != "f":
        return a == b, a != b
    with np.errstate(all="ignore"):
        size = np.maximum(np.maximum(np.abs(a), np.abs(b)), 1)
        gap = np.abs(a - b)
        finite = np.isfinite(a) & np.isfinite(b)
        infinite = (np.isinf(a) | np.isinf(b)) & ~np.isnan(a) & ~np.isnan(b) & count_infinities
        same = np.where(finite, gap <= EQUAL_TOLERANCE * size, ~infinite | (a == b))
        apart = np.where(finite, gap > DIFFERENT_TOLERANCE * size, infinite & (a != b))
    return np.asarray(same), np.asarray(apart)
