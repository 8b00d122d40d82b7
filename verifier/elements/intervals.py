"""Ranges of elements: the types of integers, and intervals of forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from superopt.rules.lang.syntax import KINDS
from superopt.te.expr.dtype import DTYPES, DType
from superopt.verifier.elements import normal
from superopt.verifier.elements.normal import NF, Factor, Term
from superopt.verifier.poly.polynomial import Var

MAX_INDICATORS = 4  # of which all values are tried
MAX_POWER = 64
ROUNDING: Mapping[str, Callable[[Fraction], int]] = {"floor": math.floor, "round": round}


@dataclass(frozen=True, slots=True)
class IntegerType:
    """The integers from `low` to `high`, modulo 2^bits. bits is 0 for the type that stands for all
    types of a kind of rule parameters: then the range is that of their common values."""

    name: str
    bits: int
    low: int
    high: int

    def contains(self, interval: Interval) -> bool:
        return self.low <= interval[0] and interval[1] <= self.high


Bound = Fraction | float  # a float only if it is infinite
Interval = tuple[Bound, Bound]
EVERYTHING: Interval = (-math.inf, math.inf)


def _type_of(d: DType) -> IntegerType:
    half = 1 << (d.bits - 1)
    low, high = (-half, half - 1) if d.kind == "i" else (0, 2 * half - 1)
    return IntegerType(d.name, d.bits, low, high)


INTEGER_TYPES: Mapping[DType, IntegerType] = {d: _type_of(d) for d in DTYPES.values() if d.is_int}
_OPEN = [INTEGER_TYPES[d] for d in KINDS["i"]]
ANY_INTEGER = IntegerType("any integer", 0, max(t.low for t in _OPEN), min(t.high for t in _OPEN))
TYPES_BY_NAME: Mapping[str, IntegerType] = {
    t.name: t for t in (*INTEGER_TYPES.values(), ANY_INTEGER)
}
RESULT = " in "  # between the name of a function and that of the type of its results


def function_name(fn: str, kind: IntegerType) -> str:
    """Return the name of a function whose values are in the range of an integer type."""
    return f"{fn}{RESULT}{kind.name}"


def result_type(name: str) -> IntegerType | None:
    """Return the type of the results of a function by its name, None if that says nothing."""
    return TYPES_BY_NAME.get(name.rpartition(RESULT)[2]) if RESULT in name else None


def type_of_read(f: normal.Read) -> IntegerType | None:
    """Return the type of an element of an input; None for other numbers."""
    found = f.context.element_types.get(f.name)
    return None if found is None else TYPES_BY_NAME.get(found)


def interval(a: NF) -> Interval:
    """Return bounds of the values of `a`, which may be infinite."""
    every = [_interval_of_terms(b) for b in indicator_cases(a)]
    return min(low for low, _ in every), max(high for _, high in every)


def indicator_cases(a: NF) -> list[NF]:
    """Return `a` for all values of the indicators among its factors; only itself if these are
    many."""
    found = dict.fromkeys(
        f for t in a.terms if not t.bound for f, _ in t.powers if isinstance(f, normal.Truth)
    )
    if not found or len(found) > MAX_INDICATORS:
        return [a]
    return [
        _with_indicators(a, dict(zip(found, values, strict=True)))
        for values in product((False, True), repeat=len(found))
    ]


def _with_indicators(a: NF, values: Mapping[Factor, bool]) -> NF:
    out: list[Term] = []
    for t in a.terms:
        if t.bound:
            out.append(t)
        elif all(values.get(f, True) for f, _ in t.powers):
            powers = tuple(p for p in t.powers if p[0] not in values)
            out.append(Term(t.coefficient, t.bound, t.guards, powers))
    return normal.from_terms(a.context, out)


def _interval_of_terms(a: NF) -> Interval:
    low: Bound = Fraction(0)
    high: Bound = Fraction(0)
    for t in a.terms:
        one = _interval_of_term(t)
        low, high = low + one[0], high + one[1]
        if (low, high) == EVERYTHING:
            break
    return low, high


def magnitude_of_element(t: Term) -> Fraction | None:
    """Return the largest magnitude of one element of a term's sum; None if it is not known."""
    low, high = _interval_of_elements(t)
    most = max(-low, high)
    return most if isinstance(most, Fraction) else None


def _interval_of_term(t: Term) -> Interval:
    out = _interval_of_elements(t)
    for v in t.bound:
        n = v.extent.value
        if n is None or n < 0:
            n = 0 if out == (0, 0) else None
        out = EVERYTHING if n is None else _product(out, (Fraction(n), Fraction(n)))
    return out


def _interval_of_elements(t: Term) -> Interval:
    """Return the bounds of the elements that a term sums up."""
    out: Interval = (t.coefficient, t.coefficient)
    for f, e in t.powers:
        if e.denominator != 1 or not 0 < e <= MAX_POWER:
            return EVERYTHING
        one = _interval_of_factor(f)
        for _ in range(int(e)):
            out = _product(out, one)
        if out == EVERYTHING:
            return EVERYTHING
    if t.guards:  # which may leave out some of the values
        out = min(out[0], Fraction(0)), max(out[1], Fraction(0))
    return out


def _product(a: Interval, b: Interval) -> Interval:
    every = [x * y if x and y else Fraction(0) for x in a for y in b]
    return min(every), max(every)


def _interval_of_factor(f: Factor) -> Interval:
    match f:
        case normal.Read():
            return _range_of(type_of_read(f))
        case normal.Truth():
            return Fraction(0), Fraction(1)
        case normal.Num(atom=Var(extent=n)) if n.value is not None:
            return Fraction(0), Fraction(max(n.value - 1, 0))
        case normal.Max():
            return _interval_of_maximum(f)
        case normal.Fn():
            return _interval_of_function(f)
        case _:
            return EVERYTHING


def _range_of(kind: IntegerType | None) -> Interval:
    if kind is None or not kind.bits:
        return EVERYTHING
    return Fraction(kind.low), Fraction(kind.high)


def _interval_of_maximum(f: normal.Max) -> Interval:
    every = [(interval(p.value), not p.bound and not p.guards) for p in f.pieces]
    lows = [low for (low, _), always in every if always]
    low = max(lows) if lows else min(low for (low, _), _ in every)
    return low, max(high for (_, high), _ in every)


def _interval_of_function(f: normal.Fn) -> Interval:
    rounding = ROUNDING.get(f.name)
    if rounding is not None:
        low, high = interval(f.args[0])
        return (
            low if isinstance(low, float) else Fraction(rounding(low)),
            high if isinstance(high, float) else Fraction(rounding(high)),
        )
    match f.name:
        case "sign of integers":
            return Fraction(-1), Fraction(1)
        case "mod of integers":
            low, high = interval(f.args[1])
            if low > 0:
                return Fraction(0), high - 1
            return min(low + 1, Fraction(0)), max(high - 1, Fraction(0))
        case "div of integers":
            low, high = interval(f.args[0])
            most = max(low, -low, high, -high)
            return -most, most
        case name:
            return _range_of(result_type(name))


def is_whole(a: NF) -> bool:
    """True if all values of `a` are shown to be integers."""
    return all(
        t.coefficient.denominator == 1
        and all(e.denominator == 1 and e > 0 and _is_whole_factor(f) for f, e in t.powers)
        for t in a.terms
    )


def _is_whole_factor(f: Factor) -> bool:
    match f:
        case normal.Read():
            return type_of_read(f) is not None
        case normal.Truth() | normal.Num():
            return True
        case normal.Max():
            return all(is_whole(p.value) for p in f.pieces)
        case normal.Fn(name=name):
            return name in _WHOLE_FUNCTIONS or result_type(name) is not None
        case _:
            return False


_WHOLE_FUNCTIONS = frozenset(
    ("floor", "round", "sign", "sign of integers", "mod of integers", "div of integers")
)
