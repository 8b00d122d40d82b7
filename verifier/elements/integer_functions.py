"""Functions and comparisons of integers, which may overflow."""

from __future__ import annotations

from superopt.verifier.elements import normal
from superopt.verifier.elements.algebra import hoist_guards, uninterpreted_function
from superopt.verifier.elements.comparisons import equals_zero, less_than_zero
from superopt.verifier.elements.integers import truncated_quotient
from superopt.verifier.elements.intervals import IntegerType, function_name, interval
from superopt.verifier.elements.normal import NF
from superopt.verifier.elements.overflow import difference, remainder
from superopt.verifier.elements.scalars import (
    FUNCTIONS,
    Function,
    by_cases,
    maximum,
    negation,
    sign_function,
)
from superopt.verifier.elements.simplify import multiply
from superopt.verifier.poly.facts import Facts


def integer_function(fn: str, values: list[NF], kind: IntegerType, facts: Facts) -> NF:
    """Return a form that is congruent to a function of integers of a type, given their values."""
    function = FUNCTIONS_OF_INTEGERS.get(fn)
    if function is not None:
        return function(values, facts)
    return uninterpreted_function(function_name(fn, kind), values, facts)


def compare_elements(fn: str, x: NF, y: NF, kind: IntegerType | None, facts: Facts) -> NF:
    """Return 1 where x < y ("lt"), y < x ("le") or x == y, else 0. kind: the type of integers,
    which for "eq" and "ne" may be any that are congruent."""
    if fn not in ("lt", "le"):
        d = normal.subtract(x, y) if kind is None else difference(x, y, kind, facts)
        return equals_zero(d, facts)
    d = normal.subtract(y, x) if fn == "le" else normal.subtract(x, y)
    low, high = interval(d)
    if low >= 0 or high < 0:
        return normal.constant(facts.context, int(high < 0))
    return less_than_zero(d, facts)


def _truncated_remainder(args: list[NF], facts: Facts) -> NF:
    """Return a - b * quotient."""
    a, b = args
    return normal.subtract(a, multiply(b, hoist_guards(args, facts, truncated_quotient), facts))


FUNCTIONS_OF_INTEGERS: dict[str, Function] = {
    **FUNCTIONS,
    "abs": lambda x, facts: maximum([x[0], negation(x[0])], facts),
    "div": by_cases(truncated_quotient),
    "fmod": _truncated_remainder,
    "mod": by_cases(remainder),
    "sign": by_cases(lambda x, _: sign_function("sign of integers", x[0])),
}
