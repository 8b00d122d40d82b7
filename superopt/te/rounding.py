"""Elements that know by which float operations they came about, at three degrees of exactness.

    same       equal only where the same operations round the same numbers; what never rounds
               (signs, a factor of one, a zero that is added, the order of two operands) is left out
    reordered  sums are bags of addends, products bags of factors; nothing is multiplied out
    rational   rational functions of the inputs, and of what other functions give: exp, sqrt, ...

`same` is a hash of the expression. The others are its value at random numbers over the reals, where
a law that is not meant does not hold: in `reordered` each sum that is multiplied, and each product
that is added, goes through an odd function of no other law; in `rational` functions that overflow,
or are not defined everywhere, are replaced by such ones. Beside them goes the real value, which
decides where the sides branch: max, min and abs pick an operand; what a comparison or a cast to
integers asks is noted.

An element is a column of 64-bit integers, in which floats stand with their bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from superopt.te.domain import Reals
from superopt.te.dtype import BF16, F16, F32, F64, DType
from superopt.te.expr import TensorType
from superopt.te.fn import function, unit
from superopt.te.node import Number

# The real value; as an addend, as a factor; the rational value: floats, the others are integers.
_REAL, _SUM, _PRODUCT, _RATIONAL = 0, 1, 2, 3
_SAME = 4
_HELD = 5  # the narrowest type that holds the element, counted in _FLOATS
_CONST = 6  # is it a constant?
_ROUGH = 7  # may it be off by more than one rounding? Then a greater one may be of a less argument
_ROWS = 8
DEGREES = ("same", "reordered", "rational")
_FLOATS = (F64, F32, F16, BF16)  # any other float type is counted as the one behind them
_ODD = frozenset(("sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf", "round"))
_EVEN = frozenset(("cos", "cosh"))
_CORRECT = frozenset(("sqrt", "floor", "round", "mod", "fmod"))  # rounded once, or not at all
# What overflows, or is no number for some arguments: a law of these is one of exceptions, too.
_EXCEPTIONAL = frozenset(
    ("exp", "log", "sqrt", "pow", "sinh", "cosh", "asin", "acos", "acosh", "atanh", "tan", "asinh")
)
_WHOLE_POWER = 64
_POSITIVE = np.int64((1 << 62) - 1)  # so that no sum of two hashes overflows
_REALS = Reals(F64)
NEAR = 1e-6  # constants and attributes are rounded to float32


@dataclass(frozen=True, slots=True)
class Asked:
    """What was compared, or cast to an integer: as operations, and with sums and products in any
    order. A comparison asks for the sign of a difference, and so does its converse."""

    same: set[int] = field(default_factory=set)
    reordered: list[np.ndarray] = field(default_factory=list)

    def within(self, other: Asked, degree: int) -> bool:
        """Was nothing else asked here than there?"""
        if degree == 0:
            return self.same <= other.same
        if degree > 1 or not self.reordered:
            return True
        if not other.reordered:
            return False
        own, there = (np.concatenate(a.reordered) for a in (self, other))
        there = np.sort(np.append(there, np.inf))
        after = np.searchsorted(there, own)
        apart = np.minimum(np.abs(there[after] - own), np.abs(there[after - 1] - own))
        return bool((apart <= NEAR * (1 + own)).all())


@dataclass(frozen=True, slots=True)
class Rounding:
    """The domain. site: the operator that computes, with its attributes and its operands' types:
    a sum is the same where the same operator computes the same element of its result. fused: the
    name of an operator that rounds more than once, and may do so in other ways than those it could
    be written with."""

    seed: int = 0
    site: str = ""
    fused: str = ""
    asked: Asked = field(default_factory=Asked)

    def at(self, site: str, fused: str) -> Rounding:
        """The same, in another operator."""
        return replace(self, site=site, fused=fused)

    def store(self, dtype: DType) -> np.dtype:
        return np.dtype(np.int64) if dtype.is_float else _REALS.store(dtype)

    def lead(self, dtype: DType) -> tuple[int, ...]:
        return (_ROWS,) if dtype.is_float else ()

    def load(self, array: np.ndarray, type: TensorType) -> np.ndarray:
        """Elements as they are; real numbers as constants."""
        assert type.dtype is not None
        if not type.dtype.is_float:
            return _REALS.load(array, type)
        if array.dtype == np.int64 and array.shape[:1] == (_ROWS,):
            return array
        return _constants(array.astype(np.float64), type.dtype)

    def leaves(self, array: np.ndarray, dtype: DType, name: str) -> np.ndarray:
        """The elements of an input that has these real values."""
        x = array.astype(np.float64)
        place = np.arange(x.size, dtype=np.int64).reshape(x.shape)
        out = _elements(x, dtype, const=0)
        out[_SAME] = _mixed(place ^ np.int64(_key(self.seed, f"leaf {name}")))
        return _as_factor(out)

    def const(self, value: Number, dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return _REALS.const(value, dtype)
        return _constants(np.asarray(float(value), np.float64), dtype)

    def apply(
        self, fn: str, args: Sequence[np.ndarray], kinds: Sequence[DType], dtype: DType
    ) -> np.ndarray:
        if fn == "select":
            return np.where(args[0], args[1], args[2])
        if not dtype.is_float and not any(k.is_float for k in kinds):
            return _REALS.apply(fn, args, kinds, dtype)
        if fn == "cast":
            return self._cast(args[0], kinds[0], dtype)
        args = np.broadcast_arrays(*args)
        reals = [_floats(a, _REAL) for a in args]
        match fn:
            case "lt" | "le" | "eq" | "ne":
                self._ask(self._add(args[0], _negated(args[1]), F64))
            case "sign":
                self._ask(args[0])
                return _constants(np.sign(reals[0]), dtype)
        if not dtype.is_float:
            return _REALS.apply(fn, reals, [F64] * len(reals), dtype)
        match fn:
            case "max" | "min":
                return _greater(fn, *args)
            case "abs":
                return np.where(reals[0] < 0, _negated(args[0]), args[0])
            case "neg":
                return _negated(args[0])
            case "ceil":
                return _negated(self.apply("floor", [_negated(args[0])], kinds, dtype))
            case "floor" | "round" if (reals[0] == np.rint(reals[0])).all():
                return args[0]
            case "add":
                return self._add(args[0], args[1], dtype)
            case "sub":
                return self._add(args[0], _negated(args[1]), dtype)
            case "mul":
                return self._multiply(args[0], args[1], dtype)
            case "div":
                return self._divide(args[0], args[1], dtype)
            case "pow":
                return self._power(args[0], args[1], dtype)
            case _:
                return self._called(fn, args, dtype)

    def wide(self, dtype: DType) -> DType:
        return dtype

    def reduce(self, fn: str, x: np.ndarray, axes: tuple[int, ...], dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return _REALS.reduce(fn, x, axes, dtype)
        rank = x.ndim - 1
        kept = [a for a in range(-rank, 0) if a not in axes]
        shape = [1 if a in axes else x.shape[a] for a in range(-rank, 0)]
        flat = x.transpose(0, *kept, *axes).reshape(_ROWS, *(x.shape[a] for a in kept), -1)
        length = flat.shape[-1]
        if not length:
            nothing = self.const(unit(fn, dtype), dtype).reshape(_ROWS, *(1,) * rank)
            return np.broadcast_to(nothing, (_ROWS, *shape))
        if fn in ("sum", "prod"):
            out = self._folded(fn, flat, dtype)
        else:
            out = flat[..., 0]
            for k in range(1, length):
                out = _greater(fn, out, flat[..., k])
        return out.reshape(_ROWS, *shape)

    def matmul(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return _REALS.matmul(a, b, dtype)
        left, right = np.broadcast_arrays(a[..., :, :, None], b[..., None, :, :])
        return self.reduce("sum", self._multiply(left, right, dtype), (-2,), dtype)[..., 0, :]

    def random(self, type: TensorType, seed: int) -> np.ndarray:
        x = _REALS.random(type, seed)
        assert type.dtype is not None
        return self.leaves(x, type.dtype, f"random {seed}") if type.dtype.is_float else x

    # --- what rounds ---

    def _add(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        out = _elements(_floats(a, _REAL) + _floats(b, _REAL), dtype, a, b)
        _set(out, _RATIONAL, _floats(a, _RATIONAL) + _floats(b, _RATIONAL))
        _set(out, _SUM, _floats(a, _SUM) + _floats(b, _SUM))
        out[_SAME] = self._sum_of(a[_SAME], b[_SAME], dtype)
        out = _as_factor(out)
        return np.where(_is(a, 0), b, np.where(_is(b, 0), a, out))

    def _sum_of(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        """The same for both orders; of the opposites it is the opposite."""
        total = a + b
        sign = np.sign(total)
        hashed = self._hash("add", [total * sign, np.square(a - b)], dtype) & _POSITIVE
        return np.asarray(hashed * sign)

    def _multiply(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        out = _elements(_floats(a, _REAL) * _floats(b, _REAL), dtype, a, b)
        _set(out, _RATIONAL, _floats(a, _RATIONAL) * _floats(b, _RATIONAL))
        _set(out, _PRODUCT, _floats(a, _PRODUCT) * _floats(b, _PRODUCT))
        x, y = np.abs(a[_SAME]), np.abs(b[_SAME])
        sign = np.sign(a[_SAME]) * np.sign(b[_SAME])
        out[_SAME] = (self._hash("mul", [x + y, x * y], dtype) & _POSITIVE) * sign
        out = _as_addend(out)
        for one, other in ((a, b), (b, a)):
            if (two := _is(one, 2)).any():  # x * 2 is x + x to the bit
                twice = self._sum_of(other[_SAME], other[_SAME], dtype)
                out[_SAME] = np.where(two, twice, out[_SAME])
            out = np.where(_is(one, 1), other, np.where(_is(one, -1), _negated(other), out))
        return self._zero_where(_is(a, 0) | _is(b, 0), out, dtype)

    def _divide(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        out = _elements(_floats(a, _REAL) / _floats(b, _REAL), dtype, a, b)
        _set(out, _RATIONAL, _floats(a, _RATIONAL) / _floats(b, _RATIONAL))
        _set(out, _PRODUCT, _floats(a, _PRODUCT) / _floats(b, _PRODUCT))
        sign = np.sign(a[_SAME]) * np.sign(b[_SAME])
        hashed = self._hash("div", [np.abs(a[_SAME]), np.abs(b[_SAME])], dtype)
        out[_SAME] = (hashed & _POSITIVE) * sign
        out = _as_addend(out)
        out = np.where(_is(b, 1), a, np.where(_is(b, -1), _negated(a), out))
        return self._zero_where(_is(a, 0), out, dtype)

    def _zero_where(self, there: np.ndarray, x: np.ndarray, dtype: DType) -> np.ndarray:
        zero = self.const(0, dtype).reshape(_ROWS, *(1,) * (x.ndim - 1))
        return np.where(there, zero, x) if there.any() else x

    def _power(self, x: np.ndarray, exponent: np.ndarray, dtype: DType) -> np.ndarray:
        n = _floats(exponent, _REAL)
        fixed = exponent[_CONST] == 1
        whole = fixed & (n == np.rint(n)) & (np.abs(n) <= _WHOLE_POWER)
        raised = _elements(_floats(x, _REAL) ** n, dtype, x, exponent)
        raised[_SAME] = self._hash("pow", [x[_SAME], exponent[_SAME]], dtype)
        for row in (_RATIONAL, _PRODUCT):
            _set(raised, row, _floats(x, row) ** n)
        raised[_ROUGH] = 1
        out = np.where(whole, _as_addend(raised), self._called("pow", [x, exponent], dtype))
        out = np.where(fixed & (n == 0.5), self._called("sqrt", [x], dtype), out)
        return np.where(fixed & (n == 1), x, out)

    def _called(self, fn: str, args: Sequence[np.ndarray], dtype: DType) -> np.ndarray:
        """A function of one rounding, or more."""
        reals = [_floats(a, _REAL) for a in args]
        own = function(fn).floats if fn != "bitcast" else None
        out = _elements(own(*reals) if own is not None else reals[0], dtype, *args)
        out[_ROUGH] = fn not in _CORRECT
        mirrored = fn in _ODD or fn in _EVEN
        same = [np.abs(a[_SAME]) if mirrored else a[_SAME] for a in args]
        out[_SAME] = self._hash(fn, same, dtype)
        if fn in _ODD:
            out[_SAME] = (out[_SAME] & _POSITIVE) * np.sign(args[0][_SAME])
        for row in (_SUM, _RATIONAL):
            given = [_floats(a, row) for a in args]
            known = row == _RATIONAL and fn not in _EXCEPTIONAL and own is not None
            value = own(*given) if known and own is not None else _unlike(fn, given)
            _set(out, row, np.where(out[_CONST] == 1, _floats(out, _REAL), value))
        return _as_factor(out)

    def _folded(self, fn: str, flat: np.ndarray, dtype: DType) -> np.ndarray:
        """A sum or product over the last axis, which is not empty."""
        fold = np.add.reduce if fn == "sum" else np.multiply.reduce
        out = _elements(fold(_floats(flat, _REAL), axis=-1), dtype, *np.moveaxis(flat, -1, 0))
        out[_ROUGH] = 1
        place = np.arange(max(out[0].size, 1), dtype=np.int64).reshape(out[0].shape)
        state = self._hash(f"{fn} {self.site}", [place], dtype)
        for k in range(flat.shape[-1]):
            state = self._hash(fn, [state, flat[_SAME][..., k]], dtype)
        out[_SAME] = state
        own = _SUM if fn == "sum" else _PRODUCT
        for row in (_RATIONAL, own):
            _set(out, row, fold(_floats(flat, row), axis=-1))
        out = _as_factor(out) if fn == "sum" else _as_addend(out)
        working = ~_is(flat, 0 if fn == "sum" else 1)
        which = np.argmax(working, axis=-1)
        first = np.take_along_axis(flat, np.asarray(which)[None, ..., None], axis=-1)[..., 0]
        return np.where(working.sum(axis=-1) <= 1, first, out)

    def _cast(self, x: np.ndarray, kind: DType, dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            self._ask(x)
            return _REALS.apply("cast", [_floats(x, _REAL)], (F64,), dtype)
        if not kind.is_float:
            return _constants(x.astype(np.float64), dtype)
        target = _held(dtype)
        rounded = x.copy()  # the reals do not round
        hashed = self._hash(f"round to {dtype}", [np.abs(x[_SAME])], None) & _POSITIVE
        rounded[_SAME] = hashed * np.sign(x[_SAME])
        rounded[_HELD] = target
        fits = (x[_HELD] == target) | (target < np.minimum(x[_HELD], _FLOATS.index(F16)))
        return np.where(fits, x, rounded)

    def _ask(self, x: np.ndarray) -> None:
        asked = x[:, (x[_CONST] == 0) & (x[_SAME] != 0)]  # not of x == x, which asks for NaN
        if asked.size:
            self.asked.same.update(np.unique(np.abs(asked[_SAME])).tolist())
            sizes = np.abs(_floats(asked, _SUM))
            self.asked.reordered.append(sizes[np.isfinite(sizes)])

    def _hash(self, fn: str, args: Sequence[np.ndarray], dtype: DType | None) -> np.ndarray:
        key = _key(self.seed, f"{fn} {dtype} {self.fused if dtype else ''}")
        state = np.asarray(key, np.int64)
        for a in args:
            state = _mixed(state ^ _mixed(np.asarray(a)))
        return state


def agree(degree: int, a: np.ndarray, b: np.ndarray, dtype: DType) -> bool:
    """Are elements equal to this degree? Integers and truths are what they are."""
    if not dtype.is_float:
        return bool((a == b).all())
    if degree == 0:
        return bool((a[_SAME] == b[_SAME]).all())
    x, y = (_floats(v, _SUM if degree == 1 else _RATIONAL) for v in (a, b))
    fine = np.isfinite(x) & np.isfinite(y)
    scale = np.sqrt(np.mean(np.square(x[fine]))) if fine.any() else 0.0
    near = np.abs(x - y) <= NEAR * (scale + np.abs(x)) + NEAR * NEAR
    return bool(np.where(fine, near, (x == y) | (np.isnan(x) & np.isnan(y))).all())


# --- elements -------------------------------------------------------------------------------------


def _elements(value: np.ndarray, dtype: DType, *args: np.ndarray, const: int = 1) -> np.ndarray:
    """Elements of real values that are computed from others; all that hangs on them is to come."""
    out = np.empty((_ROWS, *np.shape(value)), np.int64)
    for row in (_REAL, _SUM, _PRODUCT, _RATIONAL):
        _set(out, row, value)
    out[_SAME], out[_HELD], out[_CONST], out[_ROUGH] = 0, _held(dtype), const, 0
    for a in args:
        out[_CONST] &= a[_CONST]
        out[_ROUGH] |= a[_ROUGH]
    return out


def _constants(x: np.ndarray, dtype: DType) -> np.ndarray:
    out = _elements(x, dtype)
    out[_SAME] = _constant_keys(x)
    return out


def _constant_keys(x: np.ndarray) -> np.ndarray:
    """What stands for a constant among operations: of its opposite the opposite, of zero zero."""
    sizes = np.abs(x).view(np.int64)
    sign = np.where(x == 0, 0, np.where(np.signbit(x), -1, 1))
    return np.asarray((_mixed(sizes) & _POSITIVE) * sign)


def _floats(x: np.ndarray, row: int) -> np.ndarray:
    return np.asarray(x[row]).view(np.float64)


def _set(x: np.ndarray, row: int, value: np.ndarray) -> None:
    x[row] = np.asarray(value, np.float64).view(np.int64)


def _held(dtype: DType) -> int:
    return _FLOATS.index(dtype) if dtype in _FLOATS else len(_FLOATS)


def _is(x: np.ndarray, value: int) -> np.ndarray:
    """Which elements are this constant?"""
    return np.asarray((x[_CONST] == 1) & (_floats(x, _REAL) == value))


def _negated(x: np.ndarray) -> np.ndarray:
    out = x.copy()
    for row in (_REAL, _SUM, _PRODUCT, _RATIONAL):
        _set(out, row, -_floats(x, row))
    out[_SAME] = -x[_SAME]
    return out


def _greater(fn: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The one of two elements that is the greater, or less. Of two that are rough it is not known
    which one is, but that any order has laws: there the hashes are compared."""
    left, right = _floats(a, _REAL), _floats(b, _REAL)
    hashes = a[_SAME] > b[_SAME] if fn == "max" else a[_SAME] < b[_SAME]
    first = (left > right if fn == "max" else left < right) | ((left == right) & hashes)
    out = np.where(first, a, b)
    rough = ((a[_ROUGH] | b[_ROUGH]) == 1) & ((a[_CONST] | b[_CONST]) == 0)
    out[_SAME] = np.where(rough, np.where(hashes, a[_SAME], b[_SAME]), out[_SAME])
    out[_ROUGH] |= rough
    return out


def _as_factor(x: np.ndarray) -> np.ndarray:
    """`x`, known as an addend, with what it is as a factor."""
    return _other(x, _SUM, _PRODUCT, "factor")


def _as_addend(x: np.ndarray) -> np.ndarray:
    """`x`, known as a factor, with what it is as an addend."""
    return _other(x, _PRODUCT, _SUM, "addend")


def _other(x: np.ndarray, row: int, to: int, what: str) -> np.ndarray:
    value, const = _floats(x, row), x[_CONST] == 1
    _set(x, to, np.where(const, value, value * (1 + _unknown(what, [np.abs(value)]) / 2)))
    if const.any():
        x[_SAME] = np.where(const, _constant_keys(_floats(x, _REAL)), x[_SAME])
    return x


def _unlike(fn: str, args: Sequence[np.ndarray]) -> np.ndarray:
    """A function that has no law but to be odd, or even, and is far from 0: what is divided by a
    sum of them must not hang on how a constant was rounded."""
    if fn not in _ODD and fn not in _EVEN:
        return 2 + _unknown(fn, args)
    (x,) = args
    value = 2 + _unknown(fn, [np.abs(x)])
    return value * np.sign(x) if fn in _ODD else value


def _unknown(fn: str, args: Sequence[np.ndarray]) -> np.ndarray:
    """A smooth function, between -1 and 1, that has no law."""
    out = np.zeros(())
    for n, a in enumerate(args):
        first, second, third = (1 + (_key(n, f"{fn} {k}") & 0xFFFF) / 0x8000 for k in range(3))
        out = np.sin(out + first * np.arctan(a) + second * np.cos(third * np.arctan(a)))
    return np.asarray(out)


@lru_cache(maxsize=1 << 14)
def _key(seed: int, what: str) -> int:
    digest = hashlib.blake2b(f"{seed}:{what}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def _mixed(x: np.ndarray) -> np.ndarray:
    """A bijection of 64-bit numbers that spreads every bit (the finalizer of splitmix64)."""
    with np.errstate(over="ignore"):
        u = np.asarray(x, np.int64).view(np.uint64)
        u = (u ^ (u >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        u = (u ^ (u >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(u ^ (u >> np.uint64(31))).view(np.int64)
