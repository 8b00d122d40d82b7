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

from superopt.te.eval import residues
from superopt.te.eval.domain import Reals
from superopt.te.eval.keyed_hash import keyed_hash, mix
from superopt.te.expr.dtype import BOOL, F64, DType, to_numpy
from superopt.te.expr.functions import identity_element, scalar_function
from superopt.te.expr.node import Number
from superopt.te.expr.tensor import TensorType

_GRID_DENOMINATOR = 16  # small numbers are n / 16 with |n| <= _MAX_GRID_NUMERATOR
_MAX_GRID_NUMERATOR = 1 << 20
_HASHED_INT_BOUND = 7  # a float that is not small becomes an integer below this
_MAX_INTEGER_EXPONENT = 64
_HALF = Fraction(1, 2)
# Known values of keyed functions at 0 and at 1.
_VALUES_AT_ZERO: dict[str, Fraction] = {
    **dict.fromkeys(
        ("sqrt", "sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf"), Fraction(0)
    ),
    **dict.fromkeys(("cos", "cosh"), Fraction(1)),
    "sigmoid": _HALF,
}
_VALUES_AT_ONE: dict[str, Fraction] = {
    "sqrt": Fraction(1),
    "log": Fraction(0),
    "acosh": Fraction(0),
}
_INTEGER_DOMAIN = Reals()
_ZERO_DIVISIONS: ContextVar[list[str] | None] = ContextVar("divisions by zero", default=None)


@contextmanager
def record_zero_divisions() -> Iterator[list[str]]:
    """Collect a note for each division by zero in the field, whose value is arbitrary."""
    notes: list[str] = []
    token = _ZERO_DIVISIONS.set(notes)
    try:
        yield notes
    finally:
        _ZERO_DIVISIONS.reset(token)


@dataclass(frozen=True, slots=True)
class PrimeField:
    """The field of p elements with that of q; `seed` is the key of all keyed functions.
    sixteenths_above: of 16 numbers that are not small, how many follow the small ones in the order;
    None for any."""

    seed: int = 0
    sixteenths_above: int | None = field(default=None, kw_only=True)

    def storage_dtype(self, dtype: DType) -> np.dtype:
        return np.dtype(np.int64) if dtype.is_float else to_numpy(dtype)

    def component_shape(self, dtype: DType) -> tuple[int, ...]:
        return (2,) if dtype.is_float else ()

    def load(self, array: np.ndarray, type: TensorType) -> np.ndarray:
        """Return pairs of residues unchanged, real numbers as the fractions that they are."""
        assert type.dtype is not None
        if not type.dtype.is_float:
            return _INTEGER_DOMAIN.load(array, type)
        if array.dtype == np.int64 and array.shape[:1] == (2,):
            return array
        if array.dtype not in (to_numpy(type.dtype), np.float64):
            raise TypeError(f"got {array.dtype} elements for {type}")
        x = array.astype(np.float64)
        finite = np.isfinite(x)
        out = residues.from_floats(np.where(finite, x, 0))
        if not finite.all():
            for value in (np.inf, -np.inf, np.nan):
                where = np.isnan(x) if value != value else x == value
                at = self.const(value, type.dtype).reshape(2, *(1,) * x.ndim)
                out = np.where(where, at, out)
        return out

    def const(self, value: Number, dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return _INTEGER_DOMAIN.const(value, dtype)
        if isinstance(value, float):
            if value != value:
                return np.array([self._keyed_residue("nan", m) for m in residues.MODULI], np.int64)
            if abs(value) == float("inf"):
                plus = np.array([self._keyed_residue("inf", m) for m in residues.MODULI], np.int64)
                return plus if value > 0 else residues.negate(plus)
            value = Fraction(value)
        return residues.from_number(value)

    def apply(
        self, fn: str, args: Sequence[np.ndarray], kinds: Sequence[DType], dtype: DType
    ) -> np.ndarray:
        if fn == "select":
            return np.where(args[0], args[1], args[2])
        if not dtype.is_float and not any(k.is_float for k in kinds):
            return _INTEGER_DOMAIN.apply(fn, args, kinds, dtype)
        if fn == "cast":
            return self._cast(args[0], kinds[0], dtype)
        if fn == "bitcast":
            bits = self._hash(fn, [args[0][0] if kinds[0].is_float else args[0].astype(np.int64)])
            return bits if dtype.is_float else bits[0].astype(to_numpy(dtype))
        match scalar_function(fn).field_semantics:
            case "ring":
                return self._ring(fn, args)
            case "quotient":
                return residues.multiply(args[0], self._inverse(args[1]))
            case "power":
                return self._power(args[0], args[1])
            case "order":
                return self._order_function(fn, args)
            case "equal":
                equal = args[0][0] == args[1][0]
                return np.asarray(equal if fn == "eq" else ~equal)
            case "hom":
                return self._exponential(args[0])
            case "whole":
                return self._round_to_integer(fn, args[0])
            case "never":
                return np.zeros(args[0].shape[1:], np.bool_)
            case "keyed":
                return self._keyed_function(fn, args)
            case meaning:
                raise TypeError(f"{fn} ({meaning}) has no meaning on {kinds[0]}")

    def accumulation_dtype(self, dtype: DType) -> DType:
        return dtype

    def reduce(self, fn: str, x: np.ndarray, axes: tuple[int, ...], dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return _INTEGER_DOMAIN.reduce(fn, x, axes, dtype)
        match fn:
            case "sum":
                return residues.sum_over(x, axes)
            case "prod":
                return residues.product_over(x, axes)
            case "max" | "min":
                return self._extremum(fn, x, axes, dtype)
            case _:
                raise ValueError(f"no reduction {fn!r} of {dtype}")

    def matmul(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        return residues.matmul(a, b) if dtype.is_float else _INTEGER_DOMAIN.matmul(a, b, dtype)

    def random(self, type: TensorType, seed: int) -> np.ndarray:
        assert type.dtype is not None
        assert type.shape is not None
        if not type.dtype.is_float:
            return _INTEGER_DOMAIN.random(type, seed)
        shape = tuple(int(d) for d in type.shape if isinstance(d, int))
        rng = np.random.default_rng(seed)
        return np.stack([rng.integers(0, m, shape, np.int64) for m in residues.MODULI])

    def elements_equal(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        """Return where elements are equal as far as the field decides: component 0 of a float."""
        return np.asarray(a[0] == b[0] if dtype.is_float else a == b)

    # --- exact functions ---

    def _ring(self, fn: str, args: Sequence[np.ndarray]) -> np.ndarray:
        match fn:
            case "add":
                return residues.add(args[0], args[1])
            case "sub":
                return residues.add(args[0], residues.negate(args[1]))
            case "mul":
                return residues.multiply(args[0], args[1])
            case _:
                return residues.negate(args[0])

    def _inverse(self, x: np.ndarray) -> np.ndarray:
        zero = x == 0
        out = residues.inverse(x)
        if not zero[0].any():
            return out
        notes = _ZERO_DIVISIONS.get()
        if notes is not None:
            notes.append(f"{int(zero[0].sum())} of {x[0].size} divisors are 0")
        secret = np.array([self._keyed_residue("1/0", m) for m in residues.MODULI], np.int64)
        return np.where(zero, secret.reshape(2, *(1,) * (x.ndim - 1)), out)

    def _power(self, x: np.ndarray, exponent: np.ndarray) -> np.ndarray:
        x, exponent = np.broadcast_arrays(x, exponent)
        n, small = _grid_numerator(exponent[0])
        whole = (
            small
            & (n % _GRID_DENOMINATOR == 0)
            & (np.abs(n) <= _MAX_INTEGER_EXPONENT * _GRID_DENOMINATOR)
        )
        out = self._hash("pow", [x[0], exponent[0]])
        for e in np.unique(n[whole]):
            k = int(e) // _GRID_DENOMINATOR
            raised = residues.power(x if k >= 0 else self._inverse(x), (abs(k), abs(k)))
            out = np.where(whole & (n == e), raised, out)
        half = small & (n == _GRID_DENOMINATOR // 2)
        return np.where(half, self._keyed_function("sqrt", [x]), out) if half.any() else out

    def _exponential(self, x: np.ndarray) -> np.ndarray:
        out = self._hash("exp", [x[0]])
        base = pow(self._keyed_residue("g", residues.P - 3) + 2, 2, residues.P)
        out[0] = residues.exponential(base, x[1])
        out = np.where(x[0] == 0, 1, out)
        return np.where(x[0] == self.const(-np.inf, F64)[0], 0, out)

    def _cast(self, x: np.ndarray, source_dtype: DType, dtype: DType) -> np.ndarray:
        if source_dtype.is_float and dtype.is_float:
            return x
        if dtype.is_float:
            return residues.from_integers(x)
        if dtype == BOOL:
            return np.asarray(x[0] != 0)
        n, small = _grid_numerator(x[0])
        near = np.where(n < 0, -(-n // _GRID_DENOMINATOR), n // _GRID_DENOMINATOR)
        hashed = self._hash("cast", [x[0]])[0] % _HASHED_INT_BOUND
        return np.where(small, near, hashed).astype(to_numpy(dtype))

    # --- order ---

    def _order_rank(self, x: np.ndarray) -> np.ndarray:
        """Return the rank of component 0 in the total order, as an unsigned integer."""
        x = np.asarray(x)
        if not x.ndim:  # numpy warns of overflow in scalars, not in arrays
            return np.asarray(self._order_rank(x[None])[0])
        n, small = _grid_numerator(x)
        middle = np.uint64(1 << 63)
        near = middle + (n.astype(np.uint64) << np.uint64(40))  # n wraps on purpose
        place = mix(x.astype(np.uint64) ^ np.uint64(self._key("order")))
        if self.sixteenths_above is not None:
            place = place >> np.uint64(1)
            place |= np.where(place % np.uint64(16) < self.sixteenths_above, middle, np.uint64(0))
        place = np.where(small, near, place)
        infinity = self.const(np.inf, F64)[0]
        place = np.where(x == infinity, np.uint64((1 << 64) - 1), place)
        return np.where(x == residues.P - infinity, np.uint64(0), place)

    def _order_function(self, fn: str, args: Sequence[np.ndarray]) -> np.ndarray:
        match fn:
            case "abs":
                return self._order_function("max", (args[0], residues.negate(args[0])))
            case "sign":
                place, zero = self._order_rank(args[0][0]), self._order_rank(np.zeros((), np.int64))
                return residues.from_integers((place > zero).astype(np.int64) - (place < zero))
        a, b = args
        left, right = self._order_rank(a[0]), self._order_rank(b[0])
        match fn:
            case "lt":
                return np.asarray(left < right)
            case "le":
                return np.asarray(left <= right)
            case "max":
                return np.where(left >= right, a, b)
            case _:
                return np.where(left <= right, a, b)

    def _extremum(self, fn: str, x: np.ndarray, axes: tuple[int, ...], dtype: DType) -> np.ndarray:
        kept = [a for a in range(-(x.ndim - 1), 0) if a not in axes]
        shape = [1 if a in axes else x.shape[a] for a in range(-(x.ndim - 1), 0)]
        flat = x.transpose(0, *kept, *axes).reshape(2, *(x.shape[a] for a in kept), -1)
        if flat.shape[-1] == 0:
            nothing = self.const(identity_element(fn, dtype), dtype).reshape(2, *(1,) * len(shape))
            return np.broadcast_to(nothing, (2, *shape))
        place = self._order_rank(flat[0])
        at = (np.argmax if fn == "max" else np.argmin)(place, axis=-1)
        found = np.take_along_axis(flat, np.asarray(at)[None, ..., None], axis=-1)
        return found.reshape(2, *shape)

    # --- keyed functions ---

    def _round_to_integer(self, fn: str, x: np.ndarray) -> np.ndarray:
        n, small = _grid_numerator(x[0])
        match fn:
            case "floor":
                near = n // _GRID_DENOMINATOR
            case "ceil":
                near = -(-n // _GRID_DENOMINATOR)
            case _:
                near = np.rint(n / _GRID_DENOMINATOR).astype(np.int64)
        return np.where(small, residues.from_integers(near), self._hash(fn, [x[0]]))

    def _keyed_function(self, fn: str, args: Sequence[np.ndarray]) -> np.ndarray:
        out = self._hash(fn, [a[0] for a in args])
        for table, at in ((_VALUES_AT_ZERO, 0), (_VALUES_AT_ONE, 1)):
            if fn in table:
                known = residues.from_number(table[fn]).reshape(2, *(1,) * (out.ndim - 1))
                out = np.where(args[0][0] == at, known, out)
        return out

    def _hash(self, fn: str, args: Sequence[np.ndarray]) -> np.ndarray:
        """Return a pair of residues for each tuple of arguments."""
        state = np.full((), self._key(fn), np.uint64)
        for a in args:
            state = mix(state ^ mix(a.astype(np.uint64)))
        parts = [
            part - np.floor_divide(part, np.uint64(m)) * np.uint64(m)  # faster than a remainder
            for part, m in zip((state, mix(state)), residues.MODULI, strict=True)
        ]
        return np.stack(parts).astype(np.int64)

    def _key(self, name: str) -> int:
        return keyed_hash(self.seed, name)

    def _keyed_residue(self, name: str, m: int) -> int:
        """Return a keyed number modulo `m`."""
        return self._key(f"{name}:{m}") % m


def _grid_numerator(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (n, small): residues modulo p that are n / 16 for a small integer n."""
    n = x * _GRID_DENOMINATOR
    n -= np.floor_divide(n, residues.P) * residues.P  # faster than a remainder
    n = np.where(n > residues.P // 2, n - residues.P, n)
    return n, np.abs(n) <= _MAX_GRID_NUMERATOR
