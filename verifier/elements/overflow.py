"""Integers that overflow: forms modulo 2^bits, and the values in the range of a type.

A form of an integer element is any integer that is congruent to it modulo 2^bits. Sums, differences
and products of such forms are right whatever overflows, and so are casts to types of as many bits
or fewer. All other functions need the value itself, which is

    wrap(form), the integer in the range of the type that is congruent to the form.

It is the form itself where that is in the range: an element of an input, a difference of two uint8
in an int32. Sizes, and what is computed of sizes and indices only, are mathematical integers.
"""

from __future__ import annotations

import math
from fractions import Fraction

from superopt.rules.lang.syntax import KINDS
from superopt.verifier.elements import normal, substitute
from superopt.verifier.elements.algebra import hoist_guards, power
from superopt.verifier.elements.integers import QUOTIENT, as_poly, floor_remainder
from superopt.verifier.elements.intervals import (
    IntegerType,
    function_name,
    indicator_cases,
    interval,
    magnitude_of_element,
    result_type,
    type_of_read,
)
from superopt.verifier.elements.normal import NF, Term
from superopt.verifier.elements.simplify import multiply, simplify_term
from superopt.verifier.poly.facts import Facts, ge
from superopt.verifier.poly.polynomial import (
    Atom,
    ElementIndex,
    Min,
    Poly,
    Quotient,
    Symbol,
    atom_poly,
    const,
)

WRAP = "wrap"
MAX_BITS = 1 << 10  # more than those of any type
MIN_OPEN_BITS = min(d.bits for d in KINDS["i"])  # of the types that `ANY_INTEGER` stands for
MAX_NESTED_WRAPS = 16
MIN_SIZE_BITS = 32  # of integer types that are assumed to hold sizes
VALUE_MARK = ".value"  # in the names of symbols that are elements of constants, not sizes


def value_in_range(a: NF, kind: IntegerType, facts: Facts) -> NF:
    """Return the value of an integer element from a form that is congruent to it."""
    if is_in_range(a, kind, facts):
        return a
    return hoist_guards([a], facts, lambda args, more: _wrap(args[0], kind, more))


def _wrap(a: NF, kind: IntegerType, facts: Facts) -> NF:
    if is_in_range(a, kind, facts):
        return a
    rest = residue(a, kind, facts)
    if is_in_range(rest, kind, facts):
        return rest
    low, high = interval(rest)
    if kind.bits and isinstance(low, Fraction):
        period = 1 << kind.bits
        shift = (low - kind.low) // period * period
        if kind.contains((low - shift, high - shift)):
            return normal.subtract(rest, normal.constant(facts.context, shift))
    return power(normal.fn(function_name(WRAP, kind), (rest,)))


def residue(a: NF, kind: IntegerType, facts: Facts) -> NF:
    """Return a form that is congruent to `a`: without values modulo a multiple of 2^bits, and with
    small coefficients."""
    if any(t.coefficient.denominator != 1 for t in a.terms):
        return a
    a = without_wraps(a, kind.bits or MAX_BITS, facts, kind)
    if not kind.bits:
        return a
    return normal.from_terms(
        facts.context,
        (
            Term(_least_residue(t.coefficient, kind.bits), t.bound, t.guards, t.powers)
            for t in a.terms
        ),
    )


def without_wraps(a: NF, bits: int, facts: Facts, kind: IntegerType | None = None) -> NF:
    """Return a form that is congruent to `a` modulo 2^bits, in place of values modulo multiples of
    it. kind: values in this type are replaced, too."""
    if any(t.coefficient.denominator != 1 for t in a.terms):
        return a
    for _ in range(MAX_NESTED_WRAPS):
        if not any(_wrapped_power(t, bits, kind) for t in a.terms):
            break
        a = normal.add_all(facts.context, (_without_wraps(t, bits, kind, facts) for t in a.terms))
    return a


def _least_residue(c: Fraction, bits: int) -> Fraction:
    """Return the residue of an integer from -2^(bits - 1)."""
    half = 1 << (bits - 1)
    return Fraction((int(c) + half) % (2 * half) - half)


def _wrapped_power(
    t: Term, bits: int, kind: IntegerType | None
) -> tuple[normal.Fn, Fraction] | None:
    """Return a power of a value modulo a multiple of 2^bits, None if the term has none."""
    for f, e in t.powers:
        if not isinstance(f, normal.Fn) or not f.name.startswith(WRAP) or e.denominator != 1:
            continue
        own = result_type(f.name)
        if own is not None and e > 0 and (own == kind or bits <= (own.bits or MIN_OPEN_BITS)):
            return f, e
    return None


def _without_wraps(t: Term, bits: int, kind: IntegerType | None, facts: Facts) -> NF:
    if _wrapped_power(t, bits, kind) is None:
        return normal.from_terms(facts.context, (t,))
    u = substitute.open_term(t)
    found = _wrapped_power(u, bits, kind)
    assert found is not None
    f, e = found
    inner = facts.with_guards(*u.guards)
    others = tuple(p for p in u.powers if p[0] is not f)
    out = normal.from_terms(facts.context, (Term(u.coefficient, (), frozenset(), others),))
    for _ in range(int(e)):
        out = multiply(out, f.args[0], inner)
    terms: list[Term] = []
    for p in out.terms:
        v = substitute.open_term(p)
        whole = Term(v.coefficient, v.bound + u.bound, v.guards | u.guards, v.powers)
        terms += simplify_term(whole, facts)
    return normal.from_terms(facts.context, terms)


def is_in_range(a: NF, kind: IntegerType, facts: Facts) -> bool:
    """True if all values of `a` are shown to be in the range of the type."""
    return all(
        _has_bounds_inside(b, kind)
        or _is_one_value(b, kind, facts)
        or _is_size(b, kind, facts)
        or _is_small_sum(b, kind, facts)
        for b in indicator_cases(a)
    )


def _has_bounds_inside(a: NF, kind: IntegerType) -> bool:
    return kind.contains(interval(a))


def _is_small_sum(a: NF, kind: IntegerType, facts: Facts) -> bool:
    """True for sums over symbolic sizes whose terms' magnitudes add up to no more than the largest
    number of the signed type."""
    if not kind.bits or kind.low >= 0:
        return False
    total = const(facts.context, 0)
    for t in a.terms:
        sizes = [(f.atom, e) for f, e in t.powers if isinstance(f, normal.Num)]
        others = tuple(p for p in t.powers if not isinstance(p[0], normal.Num))
        largest = magnitude_of_element(Term(t.coefficient, t.bound, t.guards, others))
        if largest is None or any(e.denominator != 1 or e < 0 for _, e in sizes):
            return False
        counts = [v.extent for v in t.bound]
        counts += [atom_poly(n) for n, e in sizes for _ in range(int(e))]
        if not all(facts.holds(ge(n)) for n in dict.fromkeys(counts)):
            return False
        most = const(facts.context, math.ceil(largest))
        for n in counts:
            most = most * n
        total = total + most
    return total.value is None and facts.holds(ge(-total + kind.high))


def _is_one_value(a: NF, kind: IntegerType, facts: Facts) -> bool:
    """True for an element of the type, a value of a function in it, a remainder, and maxima of
    these."""
    if not a.terms or _is_truncated_remainder(a, kind, facts):
        return True
    one = a.single_term
    if one is None or len(one.powers) != 1 or one.powers[0][1] != 1:
        return False
    f, sign = one.powers[0][0], one.coefficient
    match f:
        case normal.Read() if sign == 1:
            return type_of_read(f) == kind
        case normal.Fn(name="mod of integers", args=(_, b)) if sign == 1:
            return is_in_range(b, kind, facts)
        case normal.Fn(name="div of integers", args=(p, q)) if sign == 1:
            return is_in_range(p, kind, facts) and _is_above_zero(q, facts)
        case normal.Fn() if sign == 1:
            return result_type(f.name) == kind
        case normal.Max() if abs(sign) == 1:
            return all(is_in_range(normal.scale(p.value, sign), kind, facts) for p in f.pieces)
        case _:
            return False


def _is_truncated_remainder(a: NF, kind: IntegerType, facts: Facts) -> bool:
    """True for p - q (p div q), which has the sign of p and is no larger."""
    if len(a.terms) < 2:
        return False
    for f in [f for t in a.terms for f, _ in t.powers]:
        if isinstance(f, normal.Fn) and f.name == QUOTIENT:
            p, q = f.args
            if a is normal.subtract(p, multiply(q, power(f), facts)):
                return is_in_range(p, kind, facts)
    return False


def _is_above_zero(a: NF, facts: Facts) -> bool:
    size = as_poly(a, facts)
    return interval(a)[0] > 0 or (size is not None and facts.holds(ge(size - 1)))


def _is_size(a: NF, kind: IntegerType, facts: Facts) -> bool:
    """True for a polynomial of sizes and indices, in a type that is assumed to hold these or is
    shown to, and for an element of a constant."""
    if (kind.name, a) in a.context.index_elements:
        return True
    p = as_poly(a, facts)
    if p is None or p.value is not None:
        return False
    narrow = 0 < kind.bits < MIN_SIZE_BITS
    if narrow or any(map(_is_element_of_constant, p.atoms())):
        return _is_bounded(p, kind, facts)
    return kind.low < 0 or facts.holds(ge(p))


def _is_bounded(p: Poly, kind: IntegerType, facts: Facts) -> bool:
    """True if p is shown to be in the range of the type, or between 0 and an element of a
    constant."""
    if facts.holds(ge(p - kind.low)) and facts.holds(ge(-p + kind.high)):
        return True
    if not facts.holds(ge(p)):
        return False
    bounds = (as_poly(b, facts) for name, b in facts.context.index_elements if name == kind.name)
    return any(b is not None and facts.holds(ge(b - p)) for b in bounds)


def _is_element_of_constant(a: Atom) -> bool:
    """True for an atom that is, or depends on, any integer that a constant may hold."""
    match a:
        case Symbol(name=name):
            return name.endswith(VALUE_MARK)
        case Quotient() | Min():
            return any(map(_is_element_of_constant, (*a.p.atoms(), *a.q.atoms())))
        case ElementIndex():  # in [0, bound)
            return any(map(_is_element_of_constant, a.bound.atoms()))
        case _:
            return False


def difference(a: NF, b: NF, kind: IntegerType, facts: Facts) -> NF:
    """Return a form that is zero where two integer elements are equal, and nowhere else."""
    d = normal.subtract(a, b)
    if _is_within_period(d, kind, facts) or (
        is_in_range(a, kind, facts) and is_in_range(b, kind, facts)
    ):
        return d
    return value_in_range(d, kind, facts)


def _is_within_period(d: NF, kind: IntegerType, facts: Facts) -> bool:
    """True if only 0 is congruent to 0 among the values of `d`."""
    bounds = interval(d)
    if kind.bits and max(-bounds[0], bounds[1]) < 1 << kind.bits:
        return True
    ordered = sorted(d.terms, key=lambda t: t.coefficient)
    if [t.coefficient for t in ordered] != [-1, 1]:
        return False
    low, high = (normal.from_terms(d.context, (t,)) for t in ordered)
    return is_in_range(normal.scale(low, -1), kind, facts) and is_in_range(high, kind, facts)


def remainder(args: list[NF], facts: Facts) -> NF:
    """Return the remainder with the sign of the divisor. Modulo a power of two, values modulo
    higher powers of two are the forms that they are congruent to."""
    a, b = args
    n = b.constant
    if n is not None and n > 0 and n.denominator == 1 and int(n).bit_count() == 1:
        a = without_wraps(a, int(n).bit_length() - 1, facts)
    return floor_remainder([a, b], facts)


def record_index(a: NF, kind: IntegerType) -> None:
    """Record that an index is an element of an integer type, so that the type has its value: an
    element of a constant, or a size in a type that is assumed to hold these."""
    if not kind.bits or kind.bits >= MIN_SIZE_BITS or _is_constant_element(a):
        a.context.index_elements[kind.name, a] = None


def _is_constant_element(a: NF) -> bool:
    """True for v - 1 or -v, as `Choices.any_integer` has them."""
    found = {
        t.powers: t.coefficient
        for t in a.terms
        if not t.bound and not t.guards and len(t.powers) < 2
    }
    if len(found) < len(a.terms):
        return False
    constant = found.pop((), Fraction(0))
    if len(found) != 1:
        return False
    ((powers, c),) = found.items()
    f, e = powers[0]
    plain = e == 1 and isinstance(f, normal.Num) and _is_element_of_constant(f.atom)
    return plain and constant == (-1 if c == 1 else 0) and abs(c) == 1
