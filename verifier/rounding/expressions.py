"""Bounds of rounding errors of tensors, from their expressions.

An expression is evaluated once with bounds in place of elements. An array of bounds has an axis for
each index variable in scope, of length 1 where the bounds do not depend on it. Scales and weights
that are constants keep their elements, so that a sum over k of x[i, k] * w[k, j] is bounded for
each j by sum(|w[k, j]|) * max|x|; what is read at other indices than variables is bounded by the
largest element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, F32, INDEX, DType
from superopt.te.expr.node import Apply, Axis, Const, Dim, Expr, Load, Reduce, Size
from superopt.te.expr.tensor import Tensor
from superopt.verifier.elements.intervals import INTEGER_TYPES
from superopt.verifier.rounding.bound_arrays import Scope, largest_over_axes, read_bounds
from superopt.verifier.rounding.error_bounds import (
    Amount,
    Bounds,
    Limits,
    Unbounded,
    add,
    any_float,
    bounds_of_cast_integer,
    bounds_of_constant,
    bounds_of_either,
    bounds_of_extremum,
    bounds_of_integers,
    bounds_of_negative,
    bounds_of_product,
    bounds_of_quotient,
    bounds_of_square_root,
    bounds_of_sum,
    is_zero,
    multiply,
)
from superopt.verifier.rounding.posynomials import Posynomial, as_posynomial, symbol

MAX_SIMPLE_DENOMINATOR = 1 << 16  # of literals that no float type rounds


def any_value(dtype: DType) -> Bounds:
    """Return the bounds of any value of a type."""
    if dtype in INTEGER_TYPES:
        kind = INTEGER_TYPES[dtype]
        return bounds_of_integers(kind.low, kind.high)
    if dtype == F32:
        return any_float()
    raise Unbounded(f"values of {dtype}")


@dataclass(slots=True)
class TensorBounds:
    """The bounds of tensors.

    known: of tensors without a body, and of others that are not to be computed; others have any
    value of their type. name_of: the name of the unknown number that a float stands for, None for
    other numbers; if it is given, sizes are symbols.
    """

    limits: Limits
    known: dict[Tensor, Bounds] = field(default_factory=dict)
    name_of: Callable[[float | Fraction], str | None] = lambda _: None

    def tensor(self, t: Tensor) -> Bounds:
        """Return the bounds of the elements of a tensor; arrays have its rank."""
        found = self.known.get(t)
        if found is None:
            found = any_value(t.dtype) if t.body is None else self.element(t.body, t.axes)
            self.known[t] = found
        return found

    def element(self, e: Expr, scope: Scope) -> Bounds:
        """Return the bounds of an expression of the index variables in scope."""
        match e:
            case Const(value, dtype):
                return self.constant(value, dtype)
            case Load(t, places):
                return read_bounds(self.tensor(t), t, places, scope)
            case Reduce(
                ("max" | "min") as fn, axes, Apply("select", (guard, yes, Const(value)))
            ) if (
                isinstance(value, float) and np.isinf(value) and self.is_certain(guard, scope)
            ):  # padding, which is no element
                inner = self.element(yes, (*scope, *axes))
                return self.reduction(fn, axes, inner, scope, e.dtype)
            case Reduce(fn, axes, body):
                return self.reduction(fn, axes, self.element(body, (*scope, *axes)), scope, e.dtype)
            case Apply(fn, args, dtype):
                return self.function(fn, args, dtype, scope)
            case _:
                raise Unbounded(f"an element {e}")

    def constant(self, value: float | Fraction, dtype: DType) -> Bounds:
        if isinstance(value, float) and not np.isfinite(value):
            raise Unbounded(f"the number {value}")
        name = self.name_of(value)
        if name is not None:
            one = symbol(name)
            return Bounds(one, low=0.0, least=one, is_relative=True)
        number = Fraction(value)
        simple = number.denominator <= MAX_SIMPLE_DENOMINATOR and not (
            number.denominator & (number.denominator - 1)
        )
        rounded = dtype.is_float and not (simple and float(np.float32(value)) == number)
        return bounds_of_constant(np.asarray(float(number)), float(rounded))

    def function(self, fn: str, args: tuple[Expr, ...], dtype: DType, scope: Scope) -> Bounds:
        if fn == "select":
            return self.selection(args, scope)
        if fn == "cast" and args[0].dtype == INDEX:
            if dtype in INTEGER_TYPES:
                return any_value(dtype)
            raise Unbounded("sizes and indices as floats")
        if dtype not in INTEGER_TYPES and dtype != F32:
            raise Unbounded(f"{fn} of {dtype}")
        operands = [self.element(a, scope) for a in args]
        if fn == "cast":
            return _cast(operands[0], args[0].dtype, dtype)
        if dtype in INTEGER_TYPES:
            return _integer_function(fn, operands, dtype)
        return self.float_function(fn, operands)

    def float_function(self, fn: str, operands: list[Bounds]) -> Bounds:
        match fn, operands:
            case "add", [a, b]:
                return bounds_of_sum(a, b, self.limits)
            case "sub", [a, b]:
                return bounds_of_sum(a, bounds_of_negative(b), self.limits)
            case "mul", [a, b]:
                return bounds_of_product(a, b, self.limits)
            case "div", [a, b]:
                return bounds_of_quotient(a, b, self.limits)
            case "neg", [a]:
                return bounds_of_negative(a)
            case "sqrt", [a]:
                return bounds_of_square_root(a, self.limits)
            case (("max" | "min"), [a, b]):
                pick = np.maximum if fn == "max" else np.minimum
                return bounds_of_extremum(a, b, self.limits, pick)
            case (("round" | "floor" | "ceil"), [a]) if a.is_exact and not isinstance(
                a.size, Posynomial
            ):
                return Bounds(np.asarray(a.size) + 1.0, is_relative=True)
            case _:
                raise Unbounded(f"the function {fn}")

    def selection(self, args: tuple[Expr, ...], scope: Scope) -> Bounds:
        """Return the bounds of what indices, or exact values, choose."""
        guard, yes, no = args
        if not self.is_certain(guard, scope):
            raise Unbounded("a choice by rounded values")
        if not yes.dtype.is_float and yes.dtype not in INTEGER_TYPES:
            raise Unbounded(f"values of {yes.dtype}")
        return bounds_of_either(self.element(yes, scope), self.element(no, scope))

    def is_certain(self, e: Expr, scope: Scope) -> bool:
        """True if the computed truth of a guard is the truth."""
        match e:
            case Apply(("and" | "or" | "not"), args):
                return all(self.is_certain(a, scope) for a in args)
            case Apply(("lt" | "le" | "eq" | "ne"), args):
                return all(a.dtype == INDEX or self.element(a, scope).is_exact for a in args)
            case Const(_, dtype):
                return dtype == BOOL
            case _:
                return False

    def reduction(
        self, fn: str, axes: tuple[Axis, ...], body: Bounds, scope: Scope, dtype: DType
    ) -> Bounds:
        """Return the bounds of a reduction over axes, which are the last ones of the body's."""
        count: Amount = 1.0
        for a in axes:
            count = multiply(count, self.extent(a.extent))
        if fn in ("max", "min"):
            return largest_over_axes(body, len(scope))
        if fn != "sum":
            raise Unbounded(f"the reduction {fn}")
        size = self.total(body.size, scope, axes)
        error = self.total(body.error, scope, axes)
        if dtype in INTEGER_TYPES:
            low = self.total_of_numbers(body.low, scope, axes)
            high = self.total_of_numbers(body.high, scope, axes)
            return _in_type(replace(body, size=size, error=error, low=low, high=high), dtype)
        nonnegative = body.is_relative and bool(np.all(np.asarray(body.low) >= 0))
        return self.limits.require_finite(
            Bounds(
                size,
                multiply(body.count, count),
                body.roundings,
                error,
                0.0 if nonnegative else -np.inf,
                is_relative=nonnegative,
            )
        )

    def total(self, x: Amount, scope: Scope, axes: tuple[Axis, ...]) -> Amount:
        """Return the sum of an amount over axes."""
        if isinstance(x, Posynomial) or not np.ndim(x):
            for a in axes:
                x = multiply(x, self.extent(a.extent))
            return x
        array = np.asarray(x)
        for n, a in enumerate(axes):
            d = len(scope) + n
            by = self.extent(a.extent) if array.shape[d] == 1 else 1.0
            array = np.asarray(multiply(array.sum(axis=d, keepdims=True), by))
        return array.reshape(array.shape[: len(scope)])

    def total_of_numbers(
        self, x: float | np.ndarray, scope: Scope, axes: tuple[Axis, ...]
    ) -> float | np.ndarray:
        """Return the sum of the ends of ranges; infinite over symbolic sizes."""
        if not np.ndim(x) and not np.isfinite(x):
            return x
        low = self.total(np.minimum(x, 0.0) * -1.0, scope, axes)
        high = self.total(np.maximum(x, 0.0), scope, axes)
        if isinstance(low, Posynomial) or isinstance(high, Posynomial):
            return -np.inf if np.min(x) < 0 else np.inf
        return high - low

    def extent(self, d: Dim) -> Amount:
        """Return a size: symbolic ones as posynomials."""
        e = index.as_index(d)
        found = index.symbols(e)
        if not found:
            return float(index.evaluate(e, {}))
        return posynomial_of_size(e)


def posynomial_of_size(e: Expr) -> Posynomial:
    """Return a size as a posynomial. Raises Unbounded for differences and quotients."""
    match e:
        case Const(value):
            if value < 0:
                raise Unbounded(f"a size {e}")
            return as_posynomial(float(value))
        case Size(name):
            return symbol(name)
        case Apply("add", args):
            out = as_posynomial(0.0)
            for a in args:
                out = out + posynomial_of_size(a)
            return out
        case Apply("mul", args):
            out = as_posynomial(1.0)
            for a in args:
                out = out * posynomial_of_size(a)
            return out
        case _:
            raise Unbounded(f"a size {e}")


# --- functions ------------------------------------------------------------------------------------


def _cast(a: Bounds, source: DType, dtype: DType) -> Bounds:
    if source == dtype:
        return a
    if source in INTEGER_TYPES and dtype in INTEGER_TYPES:
        return _in_type(a, dtype)
    if source in INTEGER_TYPES and dtype == F32:
        return bounds_of_cast_integer(a)
    if source == F32 and dtype in INTEGER_TYPES and a.is_exact:
        return any_value(dtype)
    raise Unbounded(f"a cast from {source} to {dtype}")


def _integer_function(fn: str, operands: list[Bounds], dtype: DType) -> Bounds:
    """Return the bounds of a function of integers, which is exact; errors are of operands."""
    if all(is_zero(x.error) for x in operands) and fn not in ("add", "sub", "mul", "neg"):
        return any_value(dtype)
    low: float | np.ndarray = -np.inf
    high: float | np.ndarray = np.inf
    match fn, operands:
        case "neg", [a]:
            return _in_type(bounds_of_negative(a), dtype)
        case (("add" | "sub"), [a, b]):
            b = b if fn == "add" else bounds_of_negative(b)
            size, error = add(a.size, b.size), add(a.error, b.error)
            low, high = np.add(a.low, b.low), np.add(a.high, b.high)
        case "mul", [a, b]:
            size = multiply(a.size, b.size)
            error = add(
                add(multiply(a.size, b.error), multiply(b.size, a.error)),
                multiply(a.error, b.error),
            )
            ends = [np.asarray(multiply(x, y)) for x in (a.low, a.high) for y in (b.low, b.high)]
            if all(np.isfinite(x).all() for x in ends):
                low = np.minimum.reduce(np.broadcast_arrays(*ends))
                high = np.maximum.reduce(np.broadcast_arrays(*ends))
        case (("max" | "min"), [a, b]):
            pick = np.maximum if fn == "max" else np.minimum
            return bounds_of_extremum(a, b, Limits(), pick)
        case _:
            raise Unbounded(f"the function {fn} of integers that differ")
    return _in_type(Bounds(size, error=error, low=low, high=high, is_relative=True), dtype)


def _in_type(a: Bounds, dtype: DType) -> Bounds:
    """Return the bounds of an integer in the range of a type, modulo 2^bits."""
    kind = INTEGER_TYPES[dtype]
    low, high = np.asarray(a.low), np.asarray(a.high)
    if np.all(low >= kind.low) and np.all(high <= kind.high):
        size = a.size if isinstance(a.size, Posynomial) else np.maximum(np.abs(low), np.abs(high))
        return replace(a, size=size)
    if not is_zero(a.error):
        raise Unbounded(f"integers of {dtype} that differ, and overflow")
    if kind.low < 0 and isinstance(a.size, Posynomial):
        # a number beyond the range is larger than what it wraps to
        return Bounds(a.size, low=kind.low, high=kind.high, is_relative=True)
    return any_value(dtype)
