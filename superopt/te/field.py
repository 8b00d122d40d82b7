"""Elements of a prime field: exact arithmetic that distinguishes rational functions.

A float element is a pair of residues (see `residues.py`), a leading axis of length 2 of its array.
Integers and bools are unchanged. A function without a meaning in a field is a keyed function: the
same for the same argument, else random:

max, min, <, <=     by a keyed total order in which small numbers keep their own order, so
                    that all laws of lattices hold (none that mixes + and max does)
exp                 component 0 of exp(v) is g^(v modulo q), so that exp(a + b) = exp(a) exp(b)
sqrt, log, tanh...  a hash; at 0 and 1 their own value
float to integer    small numbers unchanged, others a hash below 7

Component 1 exists for exp alone. After exp it is a hash: equality, order and hashes use component 0
only, and `elements_equal` compares that. Laws of exp(exp(x)) are not found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from superopt.te import residues as rs
from superopt.te.domain import Reals
from superopt.te.dtype import BOOL, F64, DType, to_numpy
from superopt.te.expr import TensorType
from superopt.te.fn import function, unit
from superopt.te.keyed import key, mix
from superopt.te.node import Number

_PART = 16  # small numbers are n / 16 with |n| <= _MAX_GRID_NUMERATOR
_NEAR = 1 << 20
_HASHED = 7  # a float that is not small becomes an integer below this
_LARGEST_POWER = 64
_HALF = Fraction(1, 2)
# Known values of keyed functions at 0 and at 1.
_AT_ZERO: dict[str, Fraction] = {
    **dict.fromkeys(
        ("sqrt", "sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf"), Fraction(0)
    ),
    **dict.fromkeys(("cos", "cosh"), Fraction(1)),
    "sigmoid": _HALF,
}
_AT_ONE: dict[str, Fraction] = {"sqrt": Fraction(1), "log": Fraction(0), "acosh": Fraction(0)}
_INTEGERS = Reals()
_ZEROS: ContextVar[list[str] | None] = ContextVar("divisions by zero", default=None)


@contextmanager
def zero_divisions() -> Iterator[list[str]]:
    """Collect a note for each division by zero in the field, whose value is arbitrary."""
    notes: list[str] = []
    token = _ZEROS.set(notes)
    try:
        yield notes
    finally:
        _ZEROS.reset(token)


@dataclass(frozen=True, slots=True)
class PrimeField:
    """The field of p elements with that of q; `seed` is the key of all keyed functions.
    sixteenths_above: of 16 numbers that are not small, how many follow the small ones in the order;
    None for any."""

    seed: int = 0
    above: int | None = field(default=None, kw_only=True)

    def store(self, dtype: DType) -> np.dtype:
        return np.dtype(np.int64) if dtype.is_float else to_numpy(dtype)

    def lead(self, dtype: DType) -> tuple[int, ...]:
        return (2,) if dtype.is_float else ()

    def load(self, array: np.ndarray, type: TensorType) -> np.ndarray:
        """Return pairs of residues unchanged, real numbers as the fractions that they are."""
        assert type.dtype is not None
        if not type.dtype.is_float:
            return _INTEGERS.load(array, type)
        if array.dtype == np.int64 and array.shape[:1] == (2,):
            return array
        if array.dtype not in (to_numpy(type.dtype), np.float64):
            raise TypeError(f"got {array.dtype} elements for {type}")
        x = array.astype(np.float64)
        finite = np.isfinite(x)
        out = rs.of_floats(np.where(finite, x, 0))
        if not finite.all():
            for value in (np.inf, -np.inf, np.nan):
                where = np.isnan(x) if value != value else x == value
                at = self.const(value, type.dtype).reshape(2, *(1,) * x.ndim)
                out = np.where(where, at, out)
        return out

    def const(self, value: Number, dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return _INTEGERS.const(value, dtype)
        if isinstance(value, float):
            if value != value:
                return np.array([self._secret("nan", m) for m in rs.MODULI], np.int64)
            if abs(value) == float("inf"):
                plus = np.array([self._secret("inf", m) for m in rs.MODULI], np.int64)
                return plus if value > 0 else rs.negate(plus)
            value = Fraction(value)
        return rs.of(value)

    def apply(
        self, fn: str, args: Sequence[np.ndarray], kinds: Sequence[DType], dtype: DType
    ) -> np.ndarray:
        if fn == "select":
            return np.where(args[0], args[1], args[2])
        if not dtype.is_float and not any(k.is_float for k in kinds):
            return _INTEGERS.apply(fn, args, kinds, dtype)
        if fn == "cast":
            return self._cast(args[0], kinds[0], dtype)
        if fn == "bitcast":
            bits = self._hash(fn, [args[0][0] if kinds[0].is_float else args[0].astype(np.int64)])
            return bits if dtype.is_float else bits[0].astype(to_numpy(dtype))
        match function(fn).field:
            case "ring":
                return self._ring(fn, args)
            case "quotient":
                return rs.multiply(args[0], self._inverse(args[1]))
            case "power":
                return self._power(args[0], args[1])
            case "order":
                return self._ordered(fn, args)
            case "equal":
                equal = args[0][0] == args[1][0]
                return np.asarray(equal if fn == "eq" else ~equal)
            case "hom":
                return self._exponential(args[0])
            case "whole":
                return self._whole(fn, args[0])
            case "never":
                return np.zeros(args[0].shape[1:], np.bool_)
            case "keyed":
                return self._keyed(fn, args)
            case meaning:
                raise TypeError(f"{fn} ({meaning}) has no meaning on {kinds[0]}")

    def wide(self, dtype: DType) -> DType:
        return dtype

    def reduce(self, fn: str, x: np.ndarray, axes: tuple[int, ...], dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return _INTEGERS.reduce(fn, x, axes, dtype)
        match fn:
            case "sum":
                return rs.total(x, axes)
            case "prod":
                return rs.product(x, axes)
            case "max" | "min":
                return self._extreme(fn, x, axes, dtype)
            case _:
                raise ValueError(f"no reduction {fn!r} of {dtype}")

    def matmul(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        return rs.matmul(a, b) if dtype.is_float else _INTEGERS.matmul(a, b, dtype)

    def random(self, type: TensorType, seed: int) -> np.ndarray:
        assert type.dtype is not None
        assert type.shape is not None
        if not type.dtype.is_float:
            return _INTEGERS.random(type, seed)
        shape = tuple(int(d) for d in type.shape if isinstance(d, int))
        rng = np.random.default_rng(seed)
        return np.stack([rng.integers(0, m, shape, np.int64) for m in rs.MODULI])

    def agree(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        """Return where elements are equal as far as the field decides: component 0 of a float."""
        return np.asarray(a[0] == b[0] if dtype.is_float else a == b)

    # --- exact functions ---

    def _ring(self, fn: str, args: Sequence[np.ndarray]) -> np.ndarray:
        match fn:
            case "add":
                return rs.add(args[0], args[1])
            case "sub":
                return rs.add(args[0], rs.negate(args[1]))
            case "mul":
                return rs.multiply(args[0], args[1])
            case _:
                return rs.negate(args[0])

    def _inverse(self, x: np.ndarray) -> np.ndarray:
        zero = x == 0
        out = rs.inverse(x)
        if not zero[0].any():
            return out
        notes = _ZEROS.get()
        if notes is not None:
            notes.append(f"{int(zero[0].sum())} of {x[0].size} divisors are 0")
        secret = np.array([self._secret("1/0", m) for m in rs.MODULI], np.int64)
        return np.where(zero, secret.reshape(2, *(1,) * (x.ndim - 1)), out)

    def _power(self, x: np.ndarray, exponent: np.ndarray) -> np.ndarray:
        x, exponent = np.broadcast_arrays(x, exponent)
        n, small = _sixteenths(exponent[0])
        whole = small & (n % _PART == 0) & (np.abs(n) <= _LARGEST_POWER * _PART)
        out = self._hash("pow", [x[0], exponent[0]])
        for e in np.unique(n[whole]):
            k = int(e) // _PART
            raised = rs.power(x if k >= 0 else self._inverse(x), (abs(k), abs(k)))
            out = np.where(whole & (n == e), raised, out)
        half = small & (n == _PART // 2)
        return np.where(half, self._keyed("sqrt", [x]), out) if half.any() else out

    def _exponential(self, x: np.ndarray) -> np.ndarray:
        out = self._hash("exp", [x[0]])
        base = pow(self._secret("g", rs.P - 3) + 2, 2, rs.P)
        out[0] = rs.exponential(base, x[1])
        out = np.where(x[0] == 0, 1, out)
        return np.where(x[0] == self.const(-np.inf, F64)[0], 0, out)

    def _cast(self, x: np.ndarray, kind: DType, dtype: DType) -> np.ndarray:
        if kind.is_float and dtype.is_float:
            return x
        if dtype.is_float:
            return rs.of_integers(x)
        if dtype == BOOL:
            return np.asarray(x[0] != 0)
        n, small = _sixteenths(x[0])
        near = np.where(n < 0, -(-n // _PART), n // _PART)
        hashed = self._hash("cast", [x[0]])[0] % _HASHED
        return np.where(small, near, hashed).astype(to_numpy(dtype))

    # --- order ---

    def _rank(self, x: np.ndarray) -> np.ndarray:
        """Return the rank of component 0 in the total order, as an unsigned integer."""
        x = np.asarray(x)
        if not x.ndim:  # numpy warns of overflow in scalars, not in arrays
            return np.asarray(self._rank(x[None])[0])
        n, small = _sixteenths(x)
        middle = np.uint64(1 << 63)
        near = middle + (n.astype(np.uint64) << np.uint64(40))  # n wraps on purpose
        place = mix(x.astype(np.uint64) ^ np.uint64(self._key("order")))
        if self.above is not None:
            place = place >> np.uint64(1)
            place |= np.where(place % np.uint64(16) < self.above, middle, np.uint64(0))
        place = np.where(small, near, place)
        infinity = self.const(np.inf, F64)[0]
        place = np.where(x == infinity, np.uint64((1 << 64) - 1), place)
        return np.where(x == rs.P - infinity, np.uint64(0), place)

    def _ordered(self, fn: str, args: Sequence[np.ndarray]) -> np.ndarray:
        match fn:
            case "abs":
                return self._ordered("max", (args[0], rs.negate(args[0])))
            case "sign":
                place, zero = self._rank(args[0][0]), self._rank(np.zeros((), np.int64))
                return rs.of_integers((place > zero).astype(np.int64) - (place < zero))
        a, b = args
        left, right = self._rank(a[0]), self._rank(b[0])
        match fn:
            case "lt":
                return np.asarray(left < right)
            case "le":
                return np.asarray(left <= right)
            case "max":
                return np.where(left >= right, a, b)
            case _:
                return np.where(left <= right, a, b)

    def _extreme(self, fn: str, x: np.ndarray, axes: tuple[int, ...], dtype: DType) -> np.ndarray:
        kept = [a for a in range(-(x.ndim - 1), 0) if a not in axes]
        shape = [1 if a in axes else x.shape[a] for a in range(-(x.ndim - 1), 0)]
        flat = x.transpose(0, *kept, *axes).reshape(2, *(x.shape[a] for a in kept), -1)
        if flat.shape[-1] == 0:
            nothing = self.const(unit(fn, dtype), dtype).reshape(2, *(1,) * len(shape))
            return np.broadcast_to(nothing, (2, *shape))
        place = self._rank(flat[0])
        at = (np.argmax if fn == "max" else np.argmin)(place, axis=-1)
        found = np.take_along_axis(flat, np.asarray(at)[None, ..., None], axis=-1)
        return found.reshape(2, *shape)

    # --- keyed functions ---

    def _whole(self, fn: str, x: np.ndarray) -> np.ndarray:
        n, small = _sixteenths(x[0])
        match fn:
            case "floor":
                near = n // _PART
            case "ceil":
                near = -(-n // _PART)
            case _:
                near = np.rint(n / _PART).astype(np.int64)
        return np.where(small, rs.of_integers(near), self._hash(fn, [x[0]]))

    def _keyed(self, fn: str, args: Sequence[np.ndarray]) -> np.ndarray:
        out = self._hash(fn, [a[0] for a in args])
        for table, at in ((_AT_ZERO, 0), (_AT_ONE, 1)):
            if fn in table:
                known = rs.of(table[fn]).reshape(2, *(1,) * (out.ndim - 1))
                out = np.where(args[0][0] == at, known, out)
        return out

    def _hash(self, fn: str, args: Sequence[np.ndarray]) -> np.ndarray:
        """Return a pair of residues for each tuple of arguments."""
        state = np.full((), self._key(fn), np.uint64)
        for a in args:
            state = mix(state ^ mix(a.astype(np.uint64)))
        parts = [(state % np.uint64(rs.P)), (mix(state) % np.uint64(rs.Q))]
        return np.stack(parts).astype(np.int64)

    def _key(self, what: str) -> int:
        return key(self.seed, what)

    def _secret(self, what: str, m: int) -> int:
        """Return a keyed number modulo `m`."""
        return self._key(f"{what}:{m}") % m


def _sixteenths(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (n, small): residues modulo p that are n / 16 for a small integer n."""
    n = x * _PART % rs.P
    n = np.where(n > rs.P // 2, n - rs.P, n)
    return n, np.abs(n) <= _NEAR
