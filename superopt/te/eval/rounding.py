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

from superopt.te.eval.domain import Reals
from superopt.te.eval.rounding_columns import (
    ADDEND_VALUE,
    EVEN_FUNCTIONS,
    FACTOR_VALUE,
    FLOAT_TYPES,
    HASH_MASK,
    IDENTITY_HASH,
    IS_CONSTANT,
    LOWER_BOUND,
    NARROWEST_TYPE,
    ODD_FUNCTIONS,
    ORDER_KEY,
    RATIONAL_VALUE,
    REAL_VALUE,
    ROUNDING_COUNT,
    ROW_COUNT,
    UPPER_BOUND,
    absolute_value,
    as_addend,
    as_factor,
    count_rounding,
    extremum,
    float_row,
    is_constant_equal,
    make_constants,
    make_elements,
    mix_signed,
    narrowest_type,
    negate,
    product_bounds,
    set_bounds,
    set_float_row,
    signed_key,
    with_order_keys,
    with_reciprocal_bounds,
)
from superopt.te.eval.rounding_functions import folded_columns, function_columns
from superopt.te.expr.dtype import BF16, BOOL, F16, F32, F64, INDEX, DType
from superopt.te.expr.functions import identity_element
from superopt.te.expr.node import Number
from superopt.te.expr.tensor import TensorType

EXACTNESS_DEGREES = ("same", "reordered", "rational")
MANTISSA_BITS = {F64: 54, F32: 25, F16: 12, BF16: 9}  # integers with fewer bits are exact
_MAX_INTEGER_EXPONENT = 64
_FLOAT64_REALS = Reals(F64)


@dataclass(frozen=True, slots=True)
class RoundingDomain:
    """The domain. site: the operator that computes, with its attributes and operand types; sums are
    the same if the same operator computes the same element of its result. fused: the name of an
    operator that rounds more than once, perhaps differently from its decomposition. undecided: the
    identity hashes of elements whose comparisons may change under other rounding."""

    seed: int = 0
    site: str = ""
    fused: str = ""
    undecided: set[int] = field(default_factory=set)

    def for_operator(self, site: str, fused: str) -> RoundingDomain:
        """Return the domain for another operator."""
        return replace(self, site=site, fused=fused)

    def storage_dtype(self, dtype: DType) -> np.dtype:
        return np.dtype(np.int64) if dtype.is_float else _FLOAT64_REALS.storage_dtype(dtype)

    def component_shape(self, dtype: DType) -> tuple[int, ...]:
        return (ROW_COUNT,) if dtype.is_float else ()

    def load(self, array: np.ndarray, type: TensorType) -> np.ndarray:
        """Return elements unchanged, real numbers as constants."""
        assert type.dtype is not None
        if not type.dtype.is_float:
            return _FLOAT64_REALS.load(array, type)
        if array.dtype == np.int64 and array.shape[:1] == (ROW_COUNT,):
            return array
        return make_constants(array.astype(np.float64), type.dtype)

    def input_elements(self, array: np.ndarray, dtype: DType, name: str) -> np.ndarray:
        """Return the elements of an input with these real values."""
        x = array.astype(np.float64)
        place = np.arange(x.size, dtype=np.int64).reshape(x.shape)
        out = make_elements(x, dtype, const=0)
        out[IDENTITY_HASH] = mix_signed(place ^ signed_key(self.seed, f"leaf {name}"))
        return as_factor(out)

    def const(self, value: Number, dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return _FLOAT64_REALS.const(value, dtype)
        return make_constants(np.asarray(float(value), np.float64), dtype)

    def apply(
        self, fn: str, args: Sequence[np.ndarray], kinds: Sequence[DType], dtype: DType
    ) -> np.ndarray:
        if fn == "select":
            return np.where(args[0], args[1], args[2])
        if not dtype.is_float and not any(k.is_float for k in kinds):
            return _FLOAT64_REALS.apply(fn, args, kinds, dtype)
        if fn == "cast":
            return self._cast(args[0], kinds[0], dtype)
        args = np.broadcast_arrays(*args)
        reals = [float_row(a, REAL_VALUE) for a in args]
        match fn:
            case "lt" | "le" | "eq" | "ne":
                sign = self._sign(self._add(args[0], negate(args[1]), F64))
                return _FLOAT64_REALS.apply(fn, [sign, np.zeros_like(sign)], (F64, F64), dtype)
            case "sign":
                return make_constants(self._sign(args[0]), dtype)
        if fn == "isinf":  # overflow is not known
            asked = self._mark_undecided(args[0], 1) & (mix_signed(args[0][IDENTITY_HASH]) & 1 == 1)
            return np.asarray(asked | np.isinf(reals[0]))
        if not dtype.is_float:
            return _FLOAT64_REALS.apply(fn, reals, [F64] * len(reals), dtype)
        match fn:
            case "max" | "min":
                return extremum(fn, *args)
            case "ceil":
                return negate(self.apply("floor", [negate(args[0])], kinds, dtype))
            case "floor" | "round":
                unsure = self._mark_undecided(args[0], 1)
                if (reals[0] == np.rint(reals[0])).all() and not unsure.any():
                    return args[0]
            case _:
                pass
        return self._arithmetic(fn, args, dtype)

    def _arithmetic(self, fn: str, args: Sequence[np.ndarray], dtype: DType) -> np.ndarray:
        match fn:
            case "abs":
                return absolute_value(args[0])
            case "neg":
                return negate(args[0])
            case "add":
                return self._add(args[0], args[1], dtype)
            case "sub":
                return self._add(args[0], negate(args[1]), dtype)
            case "mul":
                return self._multiply(args[0], args[1], dtype)
            case "div":
                return self._divide(args[0], args[1], dtype)
            case "pow":
                return self._power(args[0], args[1], dtype)
            case _:
                return self._rounded_function(fn, args, dtype)

    def accumulation_dtype(self, dtype: DType) -> DType:
        return dtype

    def reduce(self, fn: str, x: np.ndarray, axes: tuple[int, ...], dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return _FLOAT64_REALS.reduce(fn, x, axes, dtype)
        rank = x.ndim - 1
        kept = [a for a in range(-rank, 0) if a not in axes]
        shape = [1 if a in axes else x.shape[a] for a in range(-rank, 0)]
        flat = x.transpose(0, *kept, *axes).reshape(ROW_COUNT, *(x.shape[a] for a in kept), -1)
        length = flat.shape[-1]
        if not length:
            nothing = self.const(identity_element(fn, dtype), dtype).reshape(
                ROW_COUNT, *(1,) * rank
            )
            return np.broadcast_to(nothing, (ROW_COUNT, *shape))
        if fn in ("sum", "prod"):
            out = self._reduce_last_axis(fn, flat, dtype)
        else:
            out = flat[..., 0]
            for k in range(1, length):
                out = extremum(fn, out, flat[..., k])
        return out.reshape(ROW_COUNT, *shape)

    def matmul(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            return _FLOAT64_REALS.matmul(a, b, dtype)
        left, right = np.broadcast_arrays(a[..., :, :, None], b[..., None, :, :])
        return self.reduce("sum", self._multiply(left, right, dtype), (-2,), dtype)[..., 0, :]

    def random(self, type: TensorType, seed: int) -> np.ndarray:
        x = _FLOAT64_REALS.random(type, seed)
        assert type.dtype is not None
        return self.input_elements(x, type.dtype, f"random {seed}") if type.dtype.is_float else x

    # --- what rounds ---

    def _add(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        out = make_elements(float_row(a, REAL_VALUE) + float_row(b, REAL_VALUE), dtype, a, b)
        set_float_row(
            out, RATIONAL_VALUE, float_row(a, RATIONAL_VALUE) + float_row(b, RATIONAL_VALUE)
        )
        set_float_row(out, ADDEND_VALUE, float_row(a, ADDEND_VALUE) + float_row(b, ADDEND_VALUE))
        set_bounds(
            out,
            float_row(a, LOWER_BOUND) + float_row(b, LOWER_BOUND),
            float_row(a, UPPER_BOUND) + float_row(b, UPPER_BOUND),
        )
        count_rounding(out)
        out[IDENTITY_HASH] = self._sum_hash(a[IDENTITY_HASH], b[IDENTITY_HASH], dtype)
        out = with_order_keys(as_factor(out))
        return np.where(is_constant_equal(a, 0), b, np.where(is_constant_equal(b, 0), a, out))

    def _sum_hash(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        """Return a hash that is symmetric in its operands and odd under negation of both."""
        total = a + b
        sign = np.sign(total)
        hashed = self._hash("add", [total * sign, np.square(a - b)], dtype) & HASH_MASK
        return np.asarray(hashed * sign)

    def _multiply(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        out = make_elements(float_row(a, REAL_VALUE) * float_row(b, REAL_VALUE), dtype, a, b)
        set_float_row(
            out, RATIONAL_VALUE, float_row(a, RATIONAL_VALUE) * float_row(b, RATIONAL_VALUE)
        )
        set_float_row(out, FACTOR_VALUE, float_row(a, FACTOR_VALUE) * float_row(b, FACTOR_VALUE))
        set_bounds(out, *product_bounds(a, b))
        count_rounding(out)
        x, y = np.abs(a[IDENTITY_HASH]), np.abs(b[IDENTITY_HASH])
        sign = np.sign(a[IDENTITY_HASH]) * np.sign(b[IDENTITY_HASH])
        out[IDENTITY_HASH] = (self._hash("mul", [x + y, x * y], dtype) & HASH_MASK) * sign
        out = as_addend(out)
        for one, other in ((a, b), (b, a)):
            if (two := is_constant_equal(one, 2)).any():  # x * 2 equals x + x bit for bit
                twice = self._sum_hash(other[IDENTITY_HASH], other[IDENTITY_HASH], dtype)
                out[IDENTITY_HASH] = np.where(two, twice, out[IDENTITY_HASH])
        out = with_order_keys(out)
        for one, other in ((a, b), (b, a)):
            out = np.where(
                is_constant_equal(one, 1),
                other,
                np.where(is_constant_equal(one, -1), negate(other), out),
            )
        return self._zero_where(is_constant_equal(a, 0) | is_constant_equal(b, 0), out, dtype)

    def _divide(self, a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
        out = make_elements(float_row(a, REAL_VALUE) / float_row(b, REAL_VALUE), dtype, a, b)
        set_float_row(
            out, RATIONAL_VALUE, float_row(a, RATIONAL_VALUE) / float_row(b, RATIONAL_VALUE)
        )
        set_float_row(out, FACTOR_VALUE, float_row(a, FACTOR_VALUE) / float_row(b, FACTOR_VALUE))
        set_bounds(out, *product_bounds(a, with_reciprocal_bounds(b)))
        count_rounding(out)
        sign = np.sign(a[IDENTITY_HASH]) * np.sign(b[IDENTITY_HASH])
        hashed = self._hash("div", [np.abs(a[IDENTITY_HASH]), np.abs(b[IDENTITY_HASH])], dtype)
        out[IDENTITY_HASH] = (hashed & HASH_MASK) * sign
        out = with_order_keys(as_addend(out))
        out = np.where(
            is_constant_equal(b, 1), a, np.where(is_constant_equal(b, -1), negate(a), out)
        )
        return self._zero_where(is_constant_equal(a, 0), out, dtype)

    def _zero_where(self, mask: np.ndarray, x: np.ndarray, dtype: DType) -> np.ndarray:
        zero = self.const(0, dtype).reshape(ROW_COUNT, *(1,) * (x.ndim - 1))
        return np.where(mask, zero, x) if mask.any() else x

    def _power(self, x: np.ndarray, exponent: np.ndarray, dtype: DType) -> np.ndarray:
        n = float_row(exponent, REAL_VALUE)
        fixed = exponent[IS_CONSTANT] == 1
        whole = fixed & (n == np.rint(n)) & (np.abs(n) <= _MAX_INTEGER_EXPONENT)
        raised = make_elements(float_row(x, REAL_VALUE) ** n, dtype, x, exponent)
        raised[IDENTITY_HASH] = self._hash(
            "pow", [x[IDENTITY_HASH], exponent[IDENTITY_HASH]], dtype
        )
        for row in (RATIONAL_VALUE, FACTOR_VALUE):
            set_float_row(raised, row, float_row(x, row) ** n)
        raised[ROUNDING_COUNT] = 2
        set_bounds(
            raised, np.where((n % 2 == 0) | (float_row(x, LOWER_BOUND) >= 0), 0, -np.inf), np.inf
        )
        out = np.where(
            whole,
            with_order_keys(as_addend(raised)),
            self._rounded_function("pow", [x, exponent], dtype),
        )
        out = np.where(fixed & (n == 0.5), self._rounded_function("sqrt", [x], dtype), out)
        return np.where(fixed & (n == 1), x, out)

    def _rounded_function(self, fn: str, args: Sequence[np.ndarray], dtype: DType) -> np.ndarray:
        """Return a function that rounds once or more."""
        out = function_columns(fn, args, dtype)
        mirrored = fn in ODD_FUNCTIONS or fn in EVEN_FUNCTIONS
        same = [np.abs(a[IDENTITY_HASH]) if mirrored else a[IDENTITY_HASH] for a in args]
        out[IDENTITY_HASH] = self._hash(fn, same, dtype)
        if fn in ODD_FUNCTIONS:
            out[IDENTITY_HASH] = (out[IDENTITY_HASH] & HASH_MASK) * np.sign(args[0][IDENTITY_HASH])
        return with_order_keys(as_factor(out))

    def _reduce_last_axis(self, fn: str, flat: np.ndarray, dtype: DType) -> np.ndarray:
        """Return a sum or product over the last axis, which is not empty."""
        out = folded_columns(fn, flat, dtype)
        place = np.arange(max(out[0].size, 1), dtype=np.int64).reshape(out[0].shape)
        state = self._hash(f"{fn} {self.site}", [place], dtype)
        for k in range(flat.shape[-1]):
            state = self._hash(fn, [state, flat[IDENTITY_HASH][..., k]], dtype)
        out[IDENTITY_HASH] = state
        out = with_order_keys(as_factor(out) if fn == "sum" else as_addend(out))
        working = ~is_constant_equal(flat, 0 if fn == "sum" else 1)
        which = np.argmax(working, axis=-1)
        first = np.take_along_axis(flat, np.asarray(which)[None, ..., None], axis=-1)[..., 0]
        return np.where(working.sum(axis=-1) <= 1, first, out)

    def _cast(self, x: np.ndarray, source_dtype: DType, dtype: DType) -> np.ndarray:
        if not dtype.is_float:
            value = self._sign(x) if dtype == BOOL else self._integer_part(x)
            return _FLOAT64_REALS.apply("cast", [value], (F64,), dtype)
        if not source_dtype.is_float:
            return self._from_integers(x, source_dtype, dtype)
        target = narrowest_type(dtype)
        rounded = x.copy()  # the real value is not rounded
        hashed = self._hash(f"round to {dtype}", [np.abs(x[IDENTITY_HASH])], None) & HASH_MASK
        rounded[IDENTITY_HASH] = hashed * np.sign(x[IDENTITY_HASH])
        rounded[NARROWEST_TYPE] = target
        count_rounding(rounded)
        fits = (x[NARROWEST_TYPE] == target) | (
            target < np.minimum(x[NARROWEST_TYPE], FLOAT_TYPES.index(F16))
        )
        return np.where(fits, x, with_order_keys(rounded))

    def _from_integers(self, x: np.ndarray, source_dtype: DType, dtype: DType) -> np.ndarray:
        out = make_constants(x.astype(np.float64), dtype)
        if source_dtype in (BOOL, INDEX):
            return out
        out[IS_CONSTANT] = 0
        set_bounds(out, -np.inf, np.inf)
        hashed = self._hash("from an integer", [np.abs(out[IDENTITY_HASH])], dtype) & HASH_MASK
        out[IDENTITY_HASH] = hashed * np.sign(out[IDENTITY_HASH])
        if source_dtype.bits >= MANTISSA_BITS.get(dtype, 4):
            count_rounding(out)
        return with_order_keys(as_factor(out))

    def _mark_undecided(self, x: np.ndarray, min_roundings: int) -> np.ndarray:
        """Return the elements that were rounded at least `min_roundings` times, and record them as
        undecided."""
        unsure = np.asarray(
            (x[ROUNDING_COUNT] >= min_roundings) & (x[IS_CONSTANT] == 0) & (x[IDENTITY_HASH] != 0)
        )
        self.undecided.update(np.unique(np.abs(x[IDENTITY_HASH][unsure])).tolist())
        return unsure

    def _sign(self, x: np.ndarray) -> np.ndarray:
        """Return the sign, which is known for elements rounded at most once. Otherwise it is
        pseudorandom, and 0 for two of eight elements: rounded differences may be equal."""
        equal = self._mark_undecided(x, 2) & (mix_signed(np.abs(x[IDENTITY_HASH])) & 7 < 2)
        return np.where(equal, 0.0, np.sign(float_row(x, ORDER_KEY)))

    def _integer_part(self, x: np.ndarray) -> np.ndarray:
        """Return the integer part: pseudorandom where rounding may reach the next integer."""
        other = mix_signed(x[IDENTITY_HASH]) % 8
        return np.where(self._mark_undecided(x, 1), other, np.trunc(float_row(x, REAL_VALUE)))

    def _hash(self, fn: str, args: Sequence[np.ndarray], dtype: DType | None) -> np.ndarray:
        first = signed_key(self.seed, f"{fn} {dtype} {self.fused if dtype else ''}")
        state = np.asarray(first, np.int64)
        for a in args:
            state = mix_signed(state ^ mix_signed(np.asarray(a)))
        return state
