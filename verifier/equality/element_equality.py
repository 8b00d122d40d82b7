"""Equality of two elements wherever the facts hold.

The difference is brought into normal form. A nonzero rest is split further: by guards on output
indices, by clearing denominators, by the order of two elements, and by a bijection between the
domains of two sums.
"""

from __future__ import annotations

from dataclasses import dataclass

from superopt.verifier.elements import normal, substitute
from superopt.verifier.elements.index_digits import (
    MAX_CASE_VALUES,
    remainder_cases,
    split_output_index,
    split_sum_indices,
)
from superopt.verifier.elements.intervals import IntegerType
from superopt.verifier.elements.normal import NF, Factor, Term
from superopt.verifier.elements.order import (
    definedness_conditions,
    drop_known_factor,
    is_order_contradictory,
    is_order_implied,
    split_element,
)
from superopt.verifier.elements.overflow import residue
from superopt.verifier.elements.simplify import outer_guard
from superopt.verifier.equality.denominators import clear_denominators
from superopt.verifier.equality.max_matching import cancel_equal_maxima
from superopt.verifier.equality.refine import refine
from superopt.verifier.equality.sum_matching import cancel_equal_sums
from superopt.verifier.equality.unroll import unroll
from superopt.verifier.poly.facts import Facts, Guard, eq, ge, negate
from superopt.verifier.poly.polynomial import Poly, Var, const, linear_coefficients

MAX_CASES = 400
MAX_ORDER_SPLITS = 6
MAX_UNROLLINGS = 12


@dataclass(slots=True)
class CaseBudget:
    """How many cases and unrollings are left."""

    cases: int = MAX_CASES
    unrolled: int = MAX_UNROLLINGS


def are_equal(a: NF, b: NF, facts: Facts) -> bool:
    """True if a == b is shown."""
    return a is b or is_zero(normal.subtract(a, b), facts, CaseBudget(), 0)


def are_equal_elements(a: NF, b: NF, kind: IntegerType | None, facts: Facts) -> bool:
    """True if elements are shown to be equal; those of an integer type are forms modulo 2^bits."""
    if kind is None or a is b:
        return are_equal(a, b, facts)
    d = residue(normal.subtract(a, b), kind, facts)
    return is_zero(d, facts, CaseBudget(), 0)


def are_equal_where_defined(a: NF, b: NF, facts: Facts) -> bool:
    """True if a == b is shown where a is defined: where arguments of its roots and logarithms are
    nonnegative."""
    inside = facts
    for element, strictly in definedness_conditions(a):
        inside = inside.with_order(element, strictly)
    if inside is facts or is_order_contradictory(inside):
        return False
    d = normal.subtract(*(refine(x, inside) for x in (a, b)))
    return is_zero(d, inside, CaseBudget(), 0)


def is_zero(d: NF, facts: Facts, budget: CaseBudget, depth: int) -> bool:
    """True if `d` is shown to be zero."""
    if not d.terms:
        return True
    budget.cases -= 1
    if budget.cases < 0:
        return False
    d = _drop_undefined(d)
    digit = split_output_index(d)
    if digit is not None:
        return _is_zero_at(d, facts, *digit, budget, depth)
    rests = remainder_cases(d, facts)
    if rests is not None:
        return all(_is_zero_at(d, facts, *one, budget, depth) for one in rests)
    g = outer_guard(d)
    if g is not None:
        if _is_zero_on_both_sides(d, g, facts, budget, depth):
            return True
        return _is_zero_for_each_value(d, facts, budget, depth)
    rest = cancel_equal_maxima(cancel_equal_sums(d, facts), facts)
    if rest is not d or not rest.terms:
        return is_zero(rest, facts, budget, depth)
    apart = split_sum_indices(d)
    if apart is not d:
        return is_zero(refine(apart, facts), facts, budget, depth)
    if depth == 0 and not facts.context.use_solver:
        facts.context.use_solver = True
        try:
            again = refine(d, facts)
            if again is not d:
                return is_zero(again, facts, budget, 1)
        finally:
            facts.context.use_solver = False
    if depth < MAX_ORDER_SPLITS:
        known = _is_zero_by_order(d, facts, budget, depth)
        if known is not None:
            return known
    elif _is_ordered_both_ways(d, facts):
        return True
    out = unroll(d, facts) if budget.unrolled else d
    if out is not d:
        budget.unrolled -= 1
        return is_zero(refine(out, facts), facts, budget, depth)
    return _is_zero_for_each_value(d, facts, budget, depth)


def _is_zero_by_order(d: NF, facts: Facts, budget: CaseBudget, depth: int) -> bool | None:
    """Clear denominators, or split by the sign of an element; None if neither applies."""
    clear = clear_denominators(d, facts)
    if clear is not None and clear is not d:
        facts.context.steps.add("clear denominators")
        return is_zero(clear, facts, budget, depth + 1)
    if _is_ordered_both_ways(d, facts):
        return True
    element = split_element(d)
    if element is None:
        return None
    facts.context.steps.add("order")
    element = drop_known_factor(element, facts)
    sides = (facts.with_order(element, False), facts.with_order(normal.scale(element, -1), True))
    return all(
        is_order_contradictory(more) or is_zero(refine(d, more), more, budget, depth + 1)
        for more in sides
    )


def _is_ordered_both_ways(d: NF, facts: Facts) -> bool:
    """True if d >= 0 and d <= 0 follow from the order facts."""
    return (
        bool(facts.nonneg)
        and is_order_implied(d, facts)
        and is_order_implied(normal.scale(d, -1), facts)
    )


def _drop_undefined(d: NF) -> NF:
    """Drop terms that are nonzero only where they divide by 0."""
    kept = [t for t in d.terms if not any(_divides_by_zero(f, t) for f, _ in t.powers)]
    return d if len(kept) == len(d.terms) else normal.from_terms(d.context, kept)


def _divides_by_zero(f: Factor, t: Term) -> bool:
    """True if the term divides by what the indicator `f` says is 0."""
    if not isinstance(f, normal.Truth) or f.fn != "eq":
        return False
    one = f.argument.single_term
    plain = one.powers[0][0] if one is not None and len(one.powers) == 1 else None
    return any(
        e < 0 and (g is plain or (isinstance(g, normal.Sum) and g.argument is f.argument))
        for g, e in t.powers
    )


def _is_zero_for_each_value(d: NF, facts: Facts, budget: CaseBudget, depth: int) -> bool:
    """Split by the values of a variable with a small extent."""
    for v in sorted(d.vars, key=lambda v: v.number):
        n = v.extent.value
        if n is not None and n <= MAX_CASE_VALUES:
            return all(
                _is_zero_at(d, facts, v, const(facts.context, k), (), budget, depth)
                for k in range(n)
            )
    return False


def _is_zero_at(
    d: NF,
    facts: Facts,
    v: Var,
    value: Poly,
    extra: tuple[Guard, ...],
    budget: CaseBudget,
    depth: int,
) -> bool:
    """True if `d` is zero where the variable v has this value."""
    env = {v: value}
    hypotheses = (*(substitute.guard_at(h, env) for h in facts.hypotheses), *extra)
    more = Facts(
        facts.context,
        tuple(h for h in hypotheses if h.p.value is None or not Facts(facts.context).holds(h)),
        nonneg=tuple(substitute.form_at(o, env) for o in facts.nonneg if isinstance(o, NF)),
        positive=tuple(substitute.form_at(o, env) for o in facts.positive if isinstance(o, NF)),
    )
    if any(h.p.value is not None for h in more.hypotheses):
        return True  # a hypothesis is false here
    return is_zero(refine(substitute.form_at(d, env), more), more, budget, depth)


def _is_zero_on_both_sides(d: NF, g: Guard, facts: Facts, budget: CaseBudget, depth: int) -> bool:
    for side in (g, negate(g)):
        more = facts.with_guards(side)
        if more.is_last_contradicted():
            continue
        ends = side.kind == "ge" and side.p.vars and more.holds(ge(-side.p))
        fixed = _solve_guard(eq(side.p) if ends else side)
        if fixed is not None:
            if not _is_zero_at(d, facts, *fixed, budget, depth):
                return False
            continue
        if not is_zero(refine(d, more), more, budget, depth):
            return False
    return True


def _solve_guard(g: Guard) -> tuple[Var, Poly, tuple[Guard, ...]] | None:
    """Return (v, value, guards) if an equation determines a variable."""
    if g.kind != "eq":
        return None
    for v in sorted(g.p.vars, key=lambda v: -v.number):
        split = linear_coefficients(g.p, v)
        if split is not None and split[0].value in (1, -1):
            value = split[1] if split[0].value == -1 else -split[1]
            return v, value, (ge(value), ge(v.extent - 1 - value))
    return None
