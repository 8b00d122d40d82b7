"""Elements that record the float operations that produced them, at three degrees of exactness.

same       equal only if the same operations round the same numbers; operations that never round
           (signs, a factor of one, the addition of zero, the order of two operands) are ignored
reordered  sums are multisets of addends, products of factors; nothing is multiplied out
rational   rational functions of the inputs and of the results of other functions: exp, sqrt, ...

`same` is a hash of the expression. The others are its value at random real inputs, built so that
unintended laws fail: in `reordered`, each sum that is multiplied and each product that is added
passes through an odd function without other laws; in `rational`, functions that overflow or are
partial are replaced by such functions. The real value is kept as well; it decides branches: max,
min, abs and comparisons. Rounding may change the outcome for sums and for functions of more than
one rounding; there a pseudorandom number decides.

An element is a column of 64-bit integers; floats are stored as their bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from superopt.te.columns import (
    CONST,
    EVEN,
    FLOATS,
    HELD,
    HIGH,
    LOW,
    NEAR,
    ODD,
    ORDER,
    POSITIVE,
    PRODUCT,
    RATIONAL,
    REAL,
    ROUNDED,
    ROWS,
    SAME,
    SUM,
    absolute,
    as_addend,
    as_factor,
    between,
    constants,
    elements,
    equals,
    floats,
    greater,
    held,
    mixed,
    negated,
    ordered,
    product_bounds,
    put,
    reciprocal_bounds,
    rounded_again,
    signed_key,
    unlike,
)
from superopt.te.domain import Reals
from superopt.te.dtype import BF16, BOOL, F16, F32, F64, INDEX, DType
from superopt.te.expr import TensorType
from superopt.te.fn import function, unit
from superopt.te.node import Number

DEGREES = ("same", "reordered", "rational")
_CORRECT = frozenset(("sqrt", "floor", "round", "mod", "fmod"))  # rounded once, or not at all
# Functions that overflow or are NaN for some arguments: a law of these also concerns exceptions.
_EXCEPTIONAL = frozenset(
    ("exp", "log", "sqrt", "pow", "sinh", "cosh", "asin", "acos", "acosh", "atanh", "tan", "asinh")
)
_EXACT = frozenset(("floor", "round"))
MANTISSA = {F64: 54, F32: 25, F16: 12, BF16: 9}  # integers with fewer bits are exact
_RANGES = {
    "exp": (0, np.inf), "sqrt": (0, np.inf), "cosh": (1, np.inf), "acosh": (0, np.inf),
    "sigmoid": (0, 1), "tanh": (-1, 1), "erf": (-1, 1), "sin": (-1, 1), "cos": (-1, 1),
    "acos": (0, 4),
}  # fmt: skip
_SIGNED = frozenset(("tanh", "erf", "sinh", "asinh", "atan", "asin"))  # the sign of the argument
_WHOLE_POWER = 64
_REALS = Reals(F64)


@dataclass(frozen=True, slots=True)
class Rounding:
    """The domain. site: the operator that computes, with its attributes and operand types; sums are
    the same if the same operator computes the same element of its result. fused: the name of an
    operator that rounds more than once, perhaps differently from its decomposition. undecided: the
    identity hashes of elements whose comparisons may change under other rounding."""

    seed: int = 0
    site: str = ""
    fused: str = ""
    unsure: set[int] = field(default_factory=set)

    def at(self, site: str, fused: str) -> Rounding:
        """Return the domain for another operator."""
        return replace(self, site=site, fused=fused)

    def store(self, dtype: DType) -> np.dtype:
        return np.dtype(np.int64) if dtype.is_float else _REALS.store(dtype)

    def lead(self, dtype: DType) -> tuple[int, ...]:
        return (ROWS,) if dtype.is_float else ()

    def load(self, array: np.ndarray, type: TensorType) -> np.ndarray:
        """Return elements unchanged, real numbers as constants."""
        assert type.dtype is not None
        if not type.dtype.is_float:
            return _REALS.load(array, type)
        if array.dtype == np.int64 and array.shape[:1] == (ROWS,):
            return array
        return constants(array.astype(np.float64), type.dtype)

    def leaves(self, array: np.ndarray, dtype: DType, name: str) -> np.ndarray:
        """Return the elements of an input with these real values."""
        x = array.astype(np.float64)
        place = np.arange(x.size, dtype=np.int64).reshape(x.shape)
        out = elements(x, dtype, const=0)
        out[SAME] = mixed(place ^ signed_key(self.seed, f"leaf {name}"))
        return as_factor(out)

    def const(self, value: Number, dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return _REALS.const(value, dtype)
        return constants(np.asarray(float(value), np.float64), dtype)

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
        reals = [floats(a, REAL) for a in args]
        match fn:
            case "lt" | "le" | "eq" | "ne":
                sign = self._sign(self._add(args[0], negated(args[1]), F64))
                return _REALS.apply(fn, [sign, np.zeros_like(sign)], (F64, F64), dtype)
            case "sign":
                return constants(self._sign(args[0]), dtype)
        if fn == "isinf":  # overflow is not known
            asked = self._asked(args[0], 1) & (mixed(args[0][SAME]) & 1 == 1)
            return np.asarray(asked | np.isinf(reals[0]))
        if not dtype.is_float:
            return _REALS.apply(fn, reals, [F64] * len(reals), dtype)
        match fn:
            case "max" | "min":
                return greater(fn, *args)
            case "abs":
                return absolute(args[0])
            case "neg":
                return negated(args[0])
            case "ceil":
                return negated(self.apply("floor", [negated(args[0])], kinds, dtype))
            case "floor" | "round":
                unsure = self._asked(args[0], 1)
                if (reals[0] == np.rint(reals[0])).all() and not unsure.any():
                    return args[0]
                return self._called(fn, args, dtype)
            case "add":
                return self._add(args[0], args[1], dtype)
            case "sub":
                return self._add(args[0], negated(args[1]), dtype)
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
        flat = x.transpose(0, *kept, *axes).reshape(ROWS, *(x.shape[a] for a in kept), -1)
        length = flat.shape[-1]
        if not length:
            nothing = self.const(unit(fn, dtype), dtype).reshape(ROWS, *(1,) * rank)
            return np.broadcast_to(nothing, (ROWS, *shape))
        if fn in ("sum", "prod"):
            out = self._folded(fn, flat, dtype)
        else:
            out = flat[..., 0]
            for k in range(1, length):
                out = greater(fn, out, flat[..., k])
        return out.reshape(ROWS, *shape)

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
        out = elements(floats(a, REAL) + floats(b, REAL), dtype, a, b)
        put(out, RATIONAL, floats(a, RATIONAL) + floats(b, RATIONAL))
        put(out, SUM, floats(a, SUM) + floats(b, SUM))
        between(out, floats(a, LOW) + floats(b, LOW), floats(a, HIGH) + floats(b, HIGH))
        rounded_again(out)
        out[SAME] = self._sum_of(a[SAME], b[SAME], dtype)
        out = ordered(as_factor(out))
        return np.where(equals(a, 0), b, np.where(equals(b, 0), a, out))

    def _sum_of(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        """Return a hash that is symmetric in its operands and odd under negation of both."""
        total = a + b
        sign = np.sign(total)
        hashed = self._hash("add", [total * sign, np.square(a - b)], dtype) & POSITIVE
        return np.asarray(hashed * sign)

    def _multiply(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        out = elements(floats(a, REAL) * floats(b, REAL), dtype, a, b)
        put(out, RATIONAL, floats(a, RATIONAL) * floats(b, RATIONAL))
        put(out, PRODUCT, floats(a, PRODUCT) * floats(b, PRODUCT))
        between(out, *product_bounds(a, b))
        rounded_again(out)
        x, y = np.abs(a[SAME]), np.abs(b[SAME])
        sign = np.sign(a[SAME]) * np.sign(b[SAME])
        out[SAME] = (self._hash("mul", [x + y, x * y], dtype) & POSITIVE) * sign
        out = as_addend(out)
        for one, other in ((a, b), (b, a)):
            if (two := equals(one, 2)).any():  # x * 2 equals x + x bit for bit
                twice = self._sum_of(other[SAME], other[SAME], dtype)
                out[SAME] = np.where(two, twice, out[SAME])
        out = ordered(out)
        for one, other in ((a, b), (b, a)):
            out = np.where(equals(one, 1), other, np.where(equals(one, -1), negated(other), out))
        return self._zero_where(equals(a, 0) | equals(b, 0), out, dtype)

    def _divide(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        out = elements(floats(a, REAL) / floats(b, REAL), dtype, a, b)
        put(out, RATIONAL, floats(a, RATIONAL) / floats(b, RATIONAL))
        put(out, PRODUCT, floats(a, PRODUCT) / floats(b, PRODUCT))
        between(out, *product_bounds(a, reciprocal_bounds(b)))
        rounded_again(out)
        sign = np.sign(a[SAME]) * np.sign(b[SAME])
        hashed = self._hash("div", [np.abs(a[SAME]), np.abs(b[SAME])], dtype)
        out[SAME] = (hashed & POSITIVE) * sign
        out = ordered(as_addend(out))
        out = np.where(equals(b, 1), a, np.where(equals(b, -1), negated(a), out))
        return self._zero_where(equals(a, 0), out, dtype)

    def _zero_where(self, there: np.ndarray, x: np.ndarray, dtype: DType) -> np.ndarray:
        zero = self.const(0, dtype).reshape(ROWS, *(1,) * (x.ndim - 1))
        return np.where(there, zero, x) if there.any() else x

    def _power(self, x: np.ndarray, exponent: np.ndarray, dtype: DType) -> np.ndarray:
        n = floats(exponent, REAL)
        fixed = exponent[CONST] == 1
        whole = fixed & (n == np.rint(n)) & (np.abs(n) <= _WHOLE_POWER)
        raised = elements(floats(x, REAL) ** n, dtype, x, exponent)
        raised[SAME] = self._hash("pow", [x[SAME], exponent[SAME]], dtype)
        for row in (RATIONAL, PRODUCT):
            put(raised, row, floats(x, row) ** n)
        raised[ROUNDED] = 2
        between(raised, np.where((n % 2 == 0) | (floats(x, LOW) >= 0), 0, -np.inf), np.inf)
        out = np.where(whole, ordered(as_addend(raised)), self._called("pow", [x, exponent], dtype))
        out = np.where(fixed & (n == 0.5), self._called("sqrt", [x], dtype), out)
        return np.where(fixed & (n == 1), x, out)

    def _called(self, fn: str, args: Sequence[np.ndarray], dtype: DType) -> np.ndarray:
        """Return a function that rounds once or more."""
        reals = [floats(a, REAL) for a in args]
        own = function(fn).floats if fn != "bitcast" else None
        out = elements(own(*reals) if own is not None else reals[0], dtype, *args)
        if fn not in _EXACT:
            out[ROUNDED] = 1 if fn in _CORRECT and not out[ROUNDED].any() else 2
        between(out, *_bounds(fn, args))
        mirrored = fn in ODD or fn in EVEN
        same = [np.abs(a[SAME]) if mirrored else a[SAME] for a in args]
        out[SAME] = self._hash(fn, same, dtype)
        if fn in ODD:
            out[SAME] = (out[SAME] & POSITIVE) * np.sign(args[0][SAME])
        for row in (SUM, RATIONAL):
            given = [floats(a, row) for a in args]
            known = row == RATIONAL and fn not in _EXCEPTIONAL and own is not None
            value = own(*given) if known and own is not None else unlike(fn, given)
            put(out, row, np.where(out[CONST] == 1, floats(out, REAL), value))
        return ordered(as_factor(out))

    def _folded(self, fn: str, flat: np.ndarray, dtype: DType) -> np.ndarray:
        """Return a sum or product over the last axis, which is not empty."""
        fold = np.add.reduce if fn == "sum" else np.multiply.reduce
        out = elements(fold(floats(flat, REAL), axis=-1), dtype, *np.moveaxis(flat, -1, 0))
        out[ROUNDED] = 2
        if fn == "sum":
            between(out, floats(flat, LOW).sum(axis=-1), floats(flat, HIGH).sum(axis=-1))
        elif (floats(flat, LOW) >= 0).all():
            between(out, 0, np.inf)
        place = np.arange(max(out[0].size, 1), dtype=np.int64).reshape(out[0].shape)
        state = self._hash(f"{fn} {self.site}", [place], dtype)
        for k in range(flat.shape[-1]):
            state = self._hash(fn, [state, flat[SAME][..., k]], dtype)
        out[SAME] = state
        own = SUM if fn == "sum" else PRODUCT
        for row in (RATIONAL, own):
            put(out, row, fold(floats(flat, row), axis=-1))
        out = ordered(as_factor(out) if fn == "sum" else as_addend(out))
        working = ~equals(flat, 0 if fn == "sum" else 1)
        which = np.argmax(working, axis=-1)
        first = np.take_along_axis(flat, np.asarray(which)[None, ..., None], axis=-1)[..., 0]
        return np.where(working.sum(axis=-1) <= 1, first, out)

    def _cast(self, x: np.ndarray, kind: DType, dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            value = self._sign(x) if dtype == BOOL else self._whole(x)
            return _REALS.apply("cast", [value], (F64,), dtype)
        if not kind.is_float:
            return self._from_integers(x, kind, dtype)
        target = held(dtype)
        rounded = x.copy()  # the real value is not rounded
        hashed = self._hash(f"round to {dtype}", [np.abs(x[SAME])], None) & POSITIVE
        rounded[SAME] = hashed * np.sign(x[SAME])
        rounded[HELD] = target
        rounded_again(rounded)
        fits = (x[HELD] == target) | (target < np.minimum(x[HELD], FLOATS.index(F16)))
        return np.where(fits, x, ordered(rounded))

    def _from_integers(self, x: np.ndarray, kind: DType, dtype: DType) -> np.ndarray:
        out = constants(x.astype(np.float64), dtype)
        if kind in (BOOL, INDEX):
            return out
        out[CONST] = 0
        between(out, -np.inf, np.inf)
        hashed = self._hash("from an integer", [np.abs(out[SAME])], dtype) & POSITIVE
        out[SAME] = hashed * np.sign(out[SAME])
        if kind.bits >= MANTISSA.get(dtype, 4):
            rounded_again(out)
        return ordered(as_factor(out))

    def _asked(self, x: np.ndarray, least: int) -> np.ndarray:
        """Return the elements that were rounded at least `min_roundings` times, and record them as
        undecided."""
        unsure = np.asarray((x[ROUNDED] >= least) & (x[CONST] == 0) & (x[SAME] != 0))
        self.unsure.update(np.unique(np.abs(x[SAME][unsure])).tolist())
        return unsure

    def _sign(self, x: np.ndarray) -> np.ndarray:
        """Return the sign, which is known for elements rounded at most once. Otherwise it is
        pseudorandom, and 0 for two of eight elements: rounded differences may be equal."""
        equal = self._asked(x, 2) & (mixed(np.abs(x[SAME])) & 7 < 2)
        return np.where(equal, 0.0, np.sign(floats(x, ORDER)))

    def _whole(self, x: np.ndarray) -> np.ndarray:
        """Return the integer part: pseudorandom where rounding may reach the next integer."""
        other = mixed(x[SAME]) % 8
        return np.where(self._asked(x, 1), other, np.trunc(floats(x, REAL)))

    def _hash(self, fn: str, args: Sequence[np.ndarray], dtype: DType | None) -> np.ndarray:
        first = signed_key(self.seed, f"{fn} {dtype} {self.fused if dtype else ''}")
        state = np.asarray(first, np.int64)
        for a in args:
            state = mixed(state ^ mixed(np.asarray(a)))
        return state


def _bounds(fn: str, args: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of a function's results, including rounding."""
    low, high = floats(args[0], LOW), floats(args[0], HIGH)
    if fn in _EXACT:
        own = np.floor if fn == "floor" else np.rint
        return own(low), own(high)
    first, last = _RANGES.get(fn, (-np.inf, np.inf))
    signed = fn in _SIGNED
    least = np.where((low >= 0) & (signed or fn == "pow"), np.maximum(0, first), first)
    return least, np.where((high <= 0) & signed, 0, last)


def agree(degree: int, a: np.ndarray, b: np.ndarray, dtype: DType) -> bool:
    """True if elements are equal to this degree. Integers and bools compare exactly."""
    if not dtype.is_float:
        return bool((a == b).all())
    if degree == 0:
        return bool((a[SAME] == b[SAME]).all())
    x, y = (floats(v, SUM if degree == 1 else RATIONAL) for v in (a, b))
    fine = np.isfinite(x) & np.isfinite(y)
    scale = np.sqrt(np.mean(np.square(x[fine]))) if fine.any() else 0.0
    near = np.abs(x - y) <= NEAR * (scale + np.abs(x)) + NEAR * NEAR
    return bool(np.where(fine, near, (x == y) | (np.isnan(x) & np.isnan(y))).all())
