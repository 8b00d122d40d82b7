"""Fractions of symbolic sizes in floats, as exporters compute sizes: floor(0.5 * cast(n)).

Rounding a quotient n / d to float32 does not change its floor or ceiling below n = 2**24: where d
does not divide n, the next integer is at least 1 / d away, which is more than half a unit in the
last place of n / d. A product with 2**-k is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from superopt.te.expr import index
from superopt.te.expr.dtype import DType
from superopt.te.expr.node import Expr


@dataclass(frozen=True, slots=True)
class Quotient:
    """numerator / denominator, which need not be an integer."""

    numerator: Expr
    denominator: int


def quotient(numerator: Expr, denominator: int) -> Expr | Quotient:
    """Return a fraction; an index expression if it is an integer for all sizes."""
    divisor = index.as_index(denominator)
    if index.mod(numerator, divisor) == index.as_index(0):
        return index.floordiv(numerator, divisor)
    return Quotient(numerator, denominator)


def float_function(fn: str, args: Sequence[object], dtype: DType) -> Expr | Quotient | None:
    """Return a function of floats as a fraction of sizes, or as an integer; None if it is neither.
    dtype: of the result."""
    match fn, args:
        case "div", (Expr() as a, int() | float() as b) if b == int(b) and b >= 1:
            return quotient(a, int(b))
        case ("mul", (Expr() as a, float() as b)) | ("mul", (float() as b, Expr() as a)):
            part = Fraction(b)
            return quotient(a, part.denominator) if part.numerator == 1 else None
        case "floor", (Quotient(n, d),):
            return index.floordiv(n, index.as_index(d))
        case "ceil", (Quotient(n, d),):
            return index.floordiv(index.as_index(n + (d - 1)), index.as_index(d))
        case "cast", (Quotient(n, d) as q,):
            if dtype.is_float:
                return q
            low, _ = index.bounds(n)  # integers are truncated
            return index.floordiv(n, index.as_index(d)) if low is not None and low >= 0 else None
    return None
