"""Tests of expressions for what decides their equality: the field, order, or chance."""

from __future__ import annotations

from math import prod

from superopt.partial.regions.term_sets import OPPOSITE
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.functions import scalar_function
from superopt.te.expr.node import Apply, Const, Expr, Load, Reduce


def is_order_dependent(e: Expr) -> bool:
    """True for a comparison or a maximum."""
    if isinstance(e, Reduce):
        return e.fn in OPPOSITE
    return (
        isinstance(e, Apply)
        and e.args[0].dtype.is_float
        and scalar_function(e.fn).field_semantics == "order"
    )


def is_chance_dependent(e: Expr) -> bool:
    """True if a bool or an integer is read, of which two may be equal by chance, or for an equality
    test of floats, which holds only by chance."""
    match e:
        case Load(t):
            return not t.dtype.is_float
        case Apply("eq" | "ne" | "isnan" | "isinf", args):
            return args[0].dtype.is_float
        case Apply("cast", (x,)):
            return x.dtype.is_float and not e.dtype.is_float
    return False


def satisfies_field_laws(e: Expr) -> bool:
    """True if the field satisfies all laws of this expression."""
    match e:
        case Const(value, dtype) if dtype.is_float:
            return value == value
        case Reduce(fn):
            return fn in ("sum", "prod")
        case Apply("pow", (_, by)):
            return isinstance(by, Const) and by.value in range(1, 65)
        case Apply(fn, args) if e.dtype.is_float or any(a.dtype.is_float for a in args):
            if fn == "cast":
                return e.dtype.is_float and (args[0].dtype == INDEX or args[0].dtype.is_float)
            return fn == "select" or scalar_function(fn).field_semantics in ("ring", "quotient")
    return True


def counts_infinities(e: Expr) -> bool:
    """True if an infinity is an operand of arithmetic, which has laws of its own."""
    match e:
        case Reduce(fn, _, body):
            return fn not in OPPOSITE and _may_be_infinite(body)
        case Apply(fn, args) if e.dtype.is_float and fn not in ("select", *OPPOSITE):
            return any(map(_may_be_infinite, args))
    return False


def _may_be_infinite(e: Expr) -> bool:
    match e:
        case Const(value, dtype):
            return dtype.is_float and abs(float(value)) == float("inf")
        case Apply("select", (_, yes, no)):
            return _may_be_infinite(yes) or _may_be_infinite(no)
    return False


def longest_maximum(e: Expr) -> int:
    """Return the number of terms of the longest maximum."""
    match e:
        case Reduce(fn, axes, body):
            return prod(a.size for a in axes if fn in ("max", "min")) * longest_maximum(body)
        case Apply("max" | "min", args):
            return sum(map(longest_maximum, args))
        case Apply(_, args):
            return max(map(longest_maximum, args))
        case Load(_, index):
            return max(map(longest_maximum, index), default=1)
    return 1
