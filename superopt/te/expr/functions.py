"""The table of scalar functions that `Apply.fn` names.

A row has the function on arrays of floats, on arrays of integers (None where undefined), and its
semantics over a prime field:

ring      exact in the field: add, sub, mul, neg
quotient  multiplication by the inverse
power     repeated multiplication for small integer exponents, else keyed
order     by the keyed total order of the field
equal     exact (in)equality
hom       exp: a homomorphism from sums to products
keyed     an unknown function: a keyed hash of the arguments
whole     the identity on small integers, else keyed: floor, ceil, round
never     false: field elements are never NaN or Inf
logic     on bools and integers only, so never over the field
special   select, cast and bitcast, which have operands of several element types
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from superopt.te.expr.dtype import BOOL, DType
from superopt.te.expr.erf import erf
from superopt.te.expr.node import Number

ArrayFunction = Callable[..., np.ndarray]


@dataclass(frozen=True, slots=True)
class Function:
    """A scalar function: its name, arity, and semantics on each kind of element."""

    name: str
    arity: int
    float_impl: ArrayFunction | None
    int_impl: ArrayFunction | None
    field_semantics: str


def _truncating_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return integer division rounded toward zero; x / 0 is 0."""
    quotient: np.ndarray = np.floor_divide(a, b)
    if a.dtype.kind == "u":
        return quotient
    inexact = (np.multiply(quotient, b) != a) & ((a < 0) != (b < 0)) & (b != 0)
    out: np.ndarray = quotient + inexact.astype(quotient.dtype)
    return out


def _integer_power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a ** b with wrap-around; a negative power is 1/a^-b rounded toward zero."""
    if a.dtype.kind == "u":
        out: np.ndarray = np.power(a, b)
        return out
    positive: np.ndarray = np.power(a, np.maximum(b, 0))
    unit = np.where(a == 1, 1, np.where(a == -1, 1 - 2 * (b & 1), 0)).astype(positive.dtype)
    return np.where(b < 0, unit, positive)


def _c99_power(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return a ** b as C99 defines it: for an exponent array of 0.5 numpy takes square roots, which
    give NaN for -inf."""
    out: np.ndarray = np.power(a, b)
    rooted = np.isneginf(a) & np.isfinite(b) & (b != np.rint(b))
    return np.where(rooted, np.where(b > 0, np.inf, 0), out).astype(out.dtype, copy=False)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    out: np.ndarray = np.reciprocal(np.exp(-x) + 1)
    return out


def _false(x: np.ndarray) -> np.ndarray:
    return np.zeros(np.shape(x), np.bool_)


def _select(guard: np.ndarray, yes: np.ndarray, no: np.ndarray) -> np.ndarray:
    return np.where(guard, yes, no)


_FUNCTION_TABLE = (
    Function("add", 2, np.add, np.add, "ring"),
    Function("sub", 2, np.subtract, np.subtract, "ring"),
    Function("mul", 2, np.multiply, np.multiply, "ring"),
    Function("neg", 1, np.negative, np.negative, "ring"),
    Function("div", 2, np.divide, _truncating_divide, "quotient"),
    Function("pow", 2, _c99_power, _integer_power, "power"),
    Function("mod", 2, np.mod, np.mod, "keyed"),
    Function("fmod", 2, np.fmod, np.fmod, "keyed"),
    Function("max", 2, np.maximum, np.maximum, "order"),
    Function("min", 2, np.minimum, np.minimum, "order"),
    Function("abs", 1, np.abs, np.abs, "order"),
    Function("sign", 1, np.sign, np.sign, "order"),
    Function("lt", 2, np.less, np.less, "order"),
    Function("le", 2, np.less_equal, np.less_equal, "order"),
    Function("eq", 2, np.equal, np.equal, "equal"),
    Function("ne", 2, np.not_equal, np.not_equal, "equal"),
    Function("exp", 1, np.exp, None, "hom"),
    Function("floor", 1, np.floor, np.positive, "whole"),
    Function("ceil", 1, np.ceil, np.positive, "whole"),
    Function("round", 1, np.rint, np.positive, "whole"),
    Function("sqrt", 1, np.sqrt, None, "keyed"),
    Function("log", 1, np.log, None, "keyed"),
    Function("sin", 1, np.sin, None, "keyed"),
    Function("cos", 1, np.cos, None, "keyed"),
    Function("tan", 1, np.tan, None, "keyed"),
    Function("asin", 1, np.arcsin, None, "keyed"),
    Function("acos", 1, np.arccos, None, "keyed"),
    Function("atan", 1, np.arctan, None, "keyed"),
    Function("sinh", 1, np.sinh, None, "keyed"),
    Function("cosh", 1, np.cosh, None, "keyed"),
    Function("tanh", 1, np.tanh, None, "keyed"),
    Function("asinh", 1, np.arcsinh, None, "keyed"),
    Function("acosh", 1, np.arccosh, None, "keyed"),
    Function("atanh", 1, np.arctanh, None, "keyed"),
    Function("erf", 1, erf, None, "keyed"),
    Function("sigmoid", 1, _sigmoid, None, "keyed"),
    Function("isnan", 1, np.isnan, _false, "never"),
    Function("isinf", 1, np.isinf, _false, "never"),
    Function("and", 2, None, np.logical_and, "logic"),
    Function("or", 2, None, np.logical_or, "logic"),
    Function("xor", 2, None, np.logical_xor, "logic"),
    Function("not", 1, None, np.logical_not, "logic"),
    Function("bitand", 2, None, np.bitwise_and, "logic"),
    Function("bitor", 2, None, np.bitwise_or, "logic"),
    Function("bitxor", 2, None, np.bitwise_xor, "logic"),
    Function("bitnot", 1, None, np.invert, "logic"),
    Function("shl", 2, None, np.left_shift, "logic"),
    Function("shr", 2, None, np.right_shift, "logic"),
    Function("select", 3, _select, _select, "special"),
    Function("cast", 1, None, None, "special"),
    Function("bitcast", 1, None, None, "special"),
)
FUNCTIONS: Mapping[str, Function] = MappingProxyType({f.name: f for f in _FUNCTION_TABLE})
# The binary function that each of the six reductions repeats.
REDUCTION_COMBINERS: Mapping[str, str] = MappingProxyType(
    {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}
)


def identity_element(fn: str, dtype: DType) -> Number:
    """Return the identity of a reduction: its result over no elements."""
    match fn:
        case "sum" | "any":
            return 0
        case "prod" | "all":
            return 1
    if dtype.is_float:
        return -math.inf if fn == "max" else math.inf
    if dtype == BOOL:
        return int(fn == "min")
    low = -(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0
    return low if fn == "max" else low + (1 << dtype.bits) - 1


def scalar_function(name: str) -> Function:
    """Return the row of `name`; KeyError lists the known names."""
    try:
        return FUNCTIONS[name]
    except KeyError:
        raise KeyError(f"no scalar function {name!r}; there are {', '.join(FUNCTIONS)}") from None
