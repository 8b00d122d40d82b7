"""A scalar interpreter of tensor expressions: the oracle of the array evaluator.

Elements are Python ints, floats, fractions, or symbolic sizes (index expressions as values of
integer tensors, by which the importer propagates shapes that a model computes).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import numpy as np

from superopt.errors import SuperoptError
from superopt.te.eval.domain import wrap
from superopt.te.eval.quotient import Quotient, float_function
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import BOOL, INDEX, DType, to_numpy
from superopt.te.expr.functions import REDUCTION_COMBINERS, identity_element
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load, Number, Reduce, Size
from superopt.te.expr.tensor import Tensor

Scalar = int | float | Fraction | Expr | object
Reader = Callable[[tuple[int, ...]], Scalar]


class Undecided(SuperoptError):
    """A value depends on a symbolic size in a way that cannot be expressed or decided."""


class Algebra(Protocol):
    """The arithmetic of elements; index arithmetic is always on integers and sizes."""

    def const(self, value: Number, dtype: DType) -> Scalar:
        """Return a constant."""

    def apply(self, fn: str, args: list[Scalar], kinds: list[DType], dtype: DType) -> Scalar:
        """Return a scalar function; never called for select."""

    def truth(self, value: Scalar) -> bool:
        """Return a bool element as a bool; raises Undecided."""


def reference_elements(
    tensor: Tensor, inputs: Mapping[str, Reader], algebra: Algebra | None = None
) -> np.ndarray:
    """Return all elements of `tensor` as an array of objects.

    `inputs` maps each input's name to a function from an index to an element. Raises Undecided
    where a symbolic size blocks evaluation, IndexError where a load that is reached is out of
    range.
    """
    return _ReferenceEvaluator(inputs, algebra or PythonNumbers(), {}).tensor(tensor)


@dataclass(frozen=True, slots=True)
class _ReferenceEvaluator:
    inputs: Mapping[str, Reader]
    algebra: Algebra
    results: dict[Tensor, np.ndarray]

    def tensor(self, t: Tensor) -> np.ndarray:
        if t in self.results:
            return self.results[t]
        shape = tuple(_as_int(d, f"the shape of {t.name}{list(t.shape)}") for d in t.shape)
        out = np.empty(shape, object)
        for where in np.ndindex(shape):
            if t.body is None:
                out[where] = self.inputs[t.name](where)
            else:
                out[where] = self.value(t.body, dict(zip(t.axes, where, strict=True)))
        self.results[t] = out
        return out

    def value(self, e: Expr, axis_values: dict[Axis, int]) -> Scalar:
        match e:
            case Const(value, dtype):
                return int(value) if dtype == INDEX else self.algebra.const(value, dtype)
            case Size():
                return e
            case Axis():
                return axis_values[e]
            case Apply("select", (guard, yes, no), _):
                chosen = yes if self.algebra.truth(self.value(guard, axis_values)) else no
                return self.value(chosen, axis_values)
            case Apply(fn, args, dtype):
                values = [self.value(a, axis_values) for a in args]
                kinds = [a.dtype for a in args]
                if dtype == INDEX or kinds[0] == INDEX:
                    return _index_function(fn, values, dtype, self.algebra)
                return self.algebra.apply(fn, values, kinds, dtype)
            case Load(t, index, _):
                return self.load(
                    t, tuple(_as_int(self.value(i, axis_values), str(e)) for i in index)
                )
            case Index(element, bound, _):
                n = _as_int(self.value(bound, axis_values), str(bound))
                i = _as_int(self.value(element, axis_values), str(e))
                if not -n <= i < n:
                    raise IndexError(f"index {i} is not in [-{n}, {n}) in {e}")
                return i % n
            case Reduce(fn, axes, body, dtype):
                return self.reduce(fn, axes, body, dtype, axis_values)
        raise TypeError(f"cannot evaluate {e}")

    def load(self, t: Tensor, index: tuple[int, ...]) -> Scalar:
        for i, d in zip(index, t.shape, strict=True):
            n = _as_int(d, f"the shape of {t.name}{list(t.shape)}") if i else None
            if i < 0 or (n is not None and i >= n):
                raise IndexError(f"{t.name}{list(index)} is out of the shape {list(t.shape)}")
        return self.inputs[t.name](index) if t.body is None else self.tensor(t)[index]

    def reduce(
        self,
        fn: str,
        axes: tuple[Axis, ...],
        body: Expr,
        dtype: DType,
        axis_values: dict[Axis, int],
    ) -> Scalar:
        ranges = [range(_as_int(a.extent, f"the extent of {a}")) for a in axes]
        total: Scalar = None
        for where in itertools.product(*ranges):
            item = self.value(body, axis_values | dict(zip(axes, where, strict=True)))
            first = total is None
            total = (
                item
                if first
                else self.algebra.apply(
                    REDUCTION_COMBINERS[fn], [total, item], [dtype, dtype], dtype
                )
            )
        return self.algebra.const(identity_element(fn, dtype), dtype) if total is None else total


def _as_int(value: Scalar, description: str) -> int:
    match value:
        case int() | np.integer():
            return int(value)
        case Const(v):
            return int(v)
        case _:
            raise Undecided(f"{description} depends on a symbolic size", f"it is {value}")


def _index_function(fn: str, args: list[Scalar], dtype: DType, algebra: Algebra) -> Scalar:
    """Return index arithmetic on integers and sizes."""
    if fn == "cast":
        (x,) = args
        if isinstance(x, (int, float)):
            return algebra.const(x, dtype)
        return algebra.apply("cast", [x], [INDEX], dtype)
    terms = [te_index.as_index(a if isinstance(a, Expr) else int(a)) for a in args]  # type: ignore[call-overload]
    if fn in ("add", "mul"):
        out = terms[0]
        for t in terms[1:]:
            out = te_index.apply(fn, (out, t), INDEX)
    else:
        out = te_index.apply(fn, tuple(terms), dtype)
    return int(out.value) if isinstance(out, Const) else out


@dataclass(frozen=True, slots=True)
class PythonNumbers:
    """Python numbers with the semantics of the element types, and symbolic sizes among integers.
    Floats are computed in float64, whatever their type."""

    def const(self, value: Number, dtype: DType) -> Scalar:
        return _convert_number(value, dtype)

    def truth(self, value: Scalar) -> bool:
        if isinstance(value, Expr):
            raise Undecided(f"cannot decide {value}", "it depends on a symbolic size")
        return bool(value)

    def apply(self, fn: str, args: list[Scalar], kinds: list[DType], dtype: DType) -> Scalar:
        if any(isinstance(a, Expr | Quotient) for a in args):
            if kinds[0].is_float and (made := float_function(fn, args, dtype)) is not None:
                return made
            return _symbolic_function(fn, args, kinds[0], dtype)
        values = [a for a in args if isinstance(a, (int, float, Fraction))]
        if len(values) != len(args):
            raise TypeError(f"{fn} of {args}")
        if fn == "cast":
            return _convert_number(values[0], dtype)
        if fn == "bitcast":
            stored = np.array(values[0], np.float64 if kinds[0].is_float else None)
            return stored.astype(to_numpy(kinds[0])).view(to_numpy(dtype)).item()  # type: ignore[no-any-return]
        table = _INTS if kinds[0].is_int or kinds[0] == BOOL else _FLOATS
        try:
            out = table[fn](*values)
        except KeyError:
            raise TypeError(f"{fn} has no meaning on {kinds[0]}") from None
        except (ValueError, OverflowError, ZeroDivisionError):
            out = _ieee_result(fn, values)
        return _convert_number(out, dtype)


def _convert_number(value: Number, dtype: DType) -> Number:
    """Return a number as an element of `dtype`; integers are truncated and wrapped."""
    if dtype == BOOL:
        return int(value != 0)
    if dtype.is_int:
        return wrap(math.trunc(value), dtype) if math.isfinite(value) else 0
    return value if isinstance(value, Fraction) else float(value)


def _symbolic_function(fn: str, args: list[Scalar], operand_dtype: DType, dtype: DType) -> Scalar:
    """Return a function of integers of which some are symbolic sizes: polynomials, floor division,
    order.

    An integral float counts as an integer, so that Cast, Mul, Floor, Cast chains can be evaluated.
    """
    whole: list[Expr] = []
    for a in args:
        if isinstance(a, Expr):
            whole.append(a)
        elif isinstance(a, (int, float, Fraction)) and a == math.floor(a):
            whole.append(Const(int(a), INDEX))
        else:
            raise Undecided(
                f"cannot compute {fn}({', '.join(map(str, args))})", f"{a} is not an integer"
            )
    match fn:
        case "cast" if dtype.is_number:
            return whole[0]
        case "floor" | "ceil" | "round":
            return whole[0]
        case "add" | "sub" | "mul" | "neg" | "min" | "max" | "lt" | "le" | "eq" | "ne":
            return _unwrap_constant(
                te_index.apply(fn, tuple(whole), BOOL if fn in _COMPARISONS else INDEX)
            )
        case "div" | "mod" | "fmod":
            return _symbolic_division(fn, whole[0], whole[1], operand_dtype)
        case "abs" if _is_at_least(whole[0], 0):
            return whole[0]
        case "sign" if _is_at_least(whole[0], 1):
            return 1
        case "cast" | "abs" | "sign" | "sqrt" | "pow":
            pass
    raise Undecided(f"cannot compute {fn}({', '.join(map(str, args))})", "it has a symbolic size")


_COMPARISONS = ("lt", "le", "eq", "ne")


def _symbolic_division(fn: str, a: Expr, b: Expr, operand_dtype: DType) -> Scalar:
    """Return a / b or a mod b. Floor division equals truncating division for non-negative
    operands."""
    exact = (
        _is_at_least(b, 1)
        and isinstance(te_index.mod(a, b), Const)
        and te_index.mod(a, b) == Const(0, INDEX)
    )
    if exact:
        return _unwrap_constant(te_index.floordiv(a, b)) if fn == "div" else 0
    if (whole := _without_remainder(a, b)) is not None:
        return _unwrap_constant(te_index.floordiv(whole, b)) if fn == "div" else 0
    if fn == "mod" and operand_dtype.is_int and isinstance(b, Const) and b.value >= 1:
        # of the same remainder, and at least 0: mod rounds down, and -n = (b - 1) n modulo b
        rest = {m: c % int(b.value) for m, c in te_index.polynomial(a).items()}
        return _unwrap_constant(te_index.mod(te_index.from_polynomial(rest), b))
    if operand_dtype.is_int and _is_at_least(b, 1) and _is_at_least(a, 0):
        return _unwrap_constant(te_index.floordiv(a, b) if fn == "div" else te_index.mod(a, b))
    raise Undecided(f"cannot compute {fn}({a}, {b})", "the signs or the remainder are unknown")


def _without_remainder(a: Expr, b: Expr) -> Expr | None:
    """Return p if `a` is p - p mod b, which is a multiple of b: the floor division of p."""
    if not isinstance(b, Const) or b.value < 1:
        return None
    for m, c in te_index.polynomial(a).items():
        match m:
            case (Apply("mod", (q, n)),) if c == -1 and n == b:
                p = a + m[0]
                return p if te_index.mod(p - q, b) == Const(0, INDEX) else None
    return None


def _is_at_least(e: Expr, bound: int) -> bool:
    low, _ = te_index.bounds(e)
    return low is not None and low >= bound


def _unwrap_constant(e: Expr) -> Scalar:
    return int(e.value) if isinstance(e, Const) else e


def _ieee_result(fn: str, values: list[Number]) -> Number:
    """Return the IEEE result where Python raises an exception."""
    with np.errstate(all="ignore"):
        x = [np.float64(v) for v in values]
        out = _IEEE[fn](*x) if fn in _IEEE else math.nan
    return float(out)


_IEEE: dict[str, Callable[..., float]] = {
    "div": lambda a, b: np.divide(a, b),
    "exp": lambda a: math.inf,
    "log": lambda a: -math.inf if a == 0 else math.nan,
    "sinh": lambda a: math.copysign(math.inf, a),
    "cosh": lambda a: math.inf,
    "atanh": lambda a: math.copysign(math.inf, a) if abs(a) == 1 else math.nan,
    "pow": lambda a, b: np.power(a, b),
    "mod": lambda a, b: np.mod(a, b),
    "fmod": lambda a, b: np.fmod(a, b),
    "floor": lambda a: a,
    "ceil": lambda a: a,
    "round": lambda a: a,
}


def _sign(a: float) -> float:
    return a if a != a else (a > 0) - (a < 0)


def _maximum(a: float, b: float) -> float:
    return a if a != a or a >= b else b


def _minimum(a: float, b: float) -> float:
    return a if a != a or a <= b else b


def _real_power(a: float, b: float) -> float:
    return math.pow(a, b)


def _divide_integers(a: int, b: int) -> int:
    if b == 0:
        return 0
    return -(-a // b) if (a < 0) != (b < 0) else a // b


_COMMON: dict[str, Callable[..., Number]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "abs": abs,
    "sign": _sign,
    "max": _maximum,
    "min": _minimum,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "isnan": lambda a: a != a,
    "isinf": lambda a: abs(a) == math.inf,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
}
_FLOATS: dict[str, Callable[..., Number]] = _COMMON | {
    "div": lambda a, b: a / b,
    "mod": lambda a, b: a % b,
    "fmod": math.fmod,
    "pow": _real_power,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "asin": math.asin,
    "acos": math.acos,
    "atan": math.atan,
    "sinh": math.sinh,
    "cosh": math.cosh,
    "tanh": math.tanh,
    "asinh": math.asinh,
    "acosh": math.acosh,
    "atanh": math.atanh,
    "erf": math.erf,
    "sigmoid": lambda a: 1 / (1 + math.exp(-a)) if a > -700 else 0.0,
}
_INTS: dict[str, Callable[..., Number]] = _COMMON | {
    "div": _divide_integers,
    "mod": lambda a, b: a % b if b else 0,
    "fmod": lambda a, b: a - b * _divide_integers(a, b) if b else 0,
    "pow": lambda a, b: a**b if b >= 0 else math.trunc(Fraction(a) ** b) if a else 0,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "xor": lambda a, b: (a != 0) != (b != 0),
    "not": lambda a: not a,
    "bitand": lambda a, b: a & b,
    "bitor": lambda a, b: a | b,
    "bitxor": lambda a, b: a ^ b,
    "bitnot": lambda a: ~a,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
}
