"""Equality of two elements wherever the facts hold.

The difference is brought into normal form. A nonzero rest is split further: by guards on output
indices, by clearing denominators, by the order of two elements, and by a bijection between the
domains of two sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from superopt.verifier.elements import normal, substitute
from superopt.verifier.elements.algebra import (
    Undefined,
    exponential,
    hoist_guards,
    power,
    reciprocal,
    record_step,
)
from superopt.verifier.elements.comparisons import equals_zero, less_than_zero
from superopt.verifier.elements.index_digits import (
    MAX_CASE_VALUES,
    remainder_cases,
    split_output_index,
    split_piece_indices,
    split_sum_indices,
)
from superopt.verifier.elements.maxima import max_of_pieces
from superopt.verifier.elements.normal import NF, Factor, Piece, Term
from superopt.verifier.elements.order import (
    definedness_conditions,
    drop_known_factor,
    is_order_contradictory,
    is_order_implied,
    split_element,
)
from superopt.verifier.elements.products import product_over
from superopt.verifier.elements.quotients import USE_SOLVER
from superopt.verifier.elements.scalars import apply_function
from superopt.verifier.elements.simplify import (
    multiply,
    open_piece,
    outer_guard,
    restrict,
    simplify_term,
)
from superopt.verifier.equality.denominators import clear_denominators
from superopt.verifier.equality.max_matching import (
    absorb_pieces,
    cancel_equal_maxima,
    join_adjacent_pieces,
)
from superopt.verifier.equality.sum_matching import cancel_equal_sums
from superopt.verifier.equality.unify import solve_equations, unify_forms
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
    if not rest.terms:
        return True
    if rest is not d:
        return is_zero(rest, facts, budget, depth)
    apart = split_sum_indices(d)
    if apart is not d:
        return is_zero(refine(apart, facts), facts, budget, depth)
    if depth == 0 and not USE_SOLVER[0]:
        USE_SOLVER[0] = True
        try:
            again = refine(d, facts)
            if again is not d:
                return is_zero(again, facts, budget, 1)
        finally:
            USE_SOLVER[0] = False
    if depth < MAX_ORDER_SPLITS:
        clear = clear_denominators(d, facts)
        if clear is not None and clear is not d:
            record_step("clear denominators")
            return is_zero(clear, facts, budget, depth + 1)
        if (
            facts.nonneg
            and is_order_implied(d, facts)
            and is_order_implied(normal.scale(d, -1), facts)
        ):
            return True
        element = split_element(d)
        if element is not None:
            record_step("order")
            element = drop_known_factor(element, facts)
            sides = (
                facts.with_order(element, False),
                facts.with_order(normal.scale(element, -1), True),
            )
            return all(
                is_order_contradictory(more) or is_zero(refine(d, more), more, budget, depth + 1)
                for more in sides
            )
    if facts.nonneg and is_order_implied(d, facts) and is_order_implied(normal.scale(d, -1), facts):
        return True
    out = unroll(d, facts) if budget.unrolled else d
    if out is not d:
        budget.unrolled -= 1
        return is_zero(refine(out, facts), facts, budget, depth)
    return _is_zero_for_each_value(d, facts, budget, depth)


def _drop_undefined(d: NF) -> NF:
    """Drop terms that are nonzero only where they divide by 0."""
    kept = [t for t in d.terms if not any(_divides_by_zero(f, t) for f, _ in t.powers)]
    return d if len(kept) == len(d.terms) else normal.from_terms(kept)


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
            return all(_is_zero_at(d, facts, v, const(k), (), budget, depth) for k in range(n))
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
    some = (*(substitute.guard_at(h, env) for h in facts.hypotheses), *extra)
    more = Facts(
        tuple(h for h in some if h.p.value is None or not Facts().holds(h)),
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


# --- again under more facts -----------------------------------------------------------------------


def refine(a: NF, facts: Facts) -> NF:
    """Return `a` with all its parts simplified again under more facts."""
    memo: dict[object, NF] = {}
    return _refine(a, facts, memo)


def _refine(a: NF, facts: Facts, memo: dict[object, NF]) -> NF:
    key = (a, facts.hypotheses)
    found = memo.get(key)
    if found is None:
        found = memo[key] = normal.add(*(_refine_term(t, facts, memo) for t in a.terms))
    return found


def _refine_term(t: Term, facts: Facts, memo: dict[object, NF]) -> NF:
    out: list[Term] = []
    for s in simplify_term(substitute.open_term(t), facts):
        if not any(_has_arguments(f) for f, _ in s.powers):
            out.append(s)
            continue
        u = substitute.open_term(s)
        inner = facts.with_guards(*u.guards)
        product = normal.constant(u.coefficient)
        for f, e in u.powers:
            product = multiply(product, _refine_power(f, e, inner, memo), inner)
        for p in product.terms:
            v = substitute.open_term(p)
            out += simplify_term(
                Term(v.coefficient, v.bound + u.bound, v.guards | u.guards, v.powers), facts
            )
    return normal.from_terms(out)


def _has_arguments(f: Factor) -> bool:
    return not isinstance(f, (normal.Read, normal.Num))


def _refine_power(f: Factor, e: Fraction, facts: Facts, memo: dict[object, NF]) -> NF:
    base: NF
    match f:
        case normal.Fn(name="sign" | "sign of integers") if facts.nonneg:
            of = _refine(f.args[0], facts, memo)
            above, below = (_is_less_than_zero(x, facts) for x in (normal.scale(of, -1), of))
            base = normal.subtract(above, below)
        case normal.Fn():
            base = apply_function(f.name, [_refine(x, facts, memo) for x in f.args], True, facts)
        case normal.Exp():
            return hoist_guards(
                [_refine(f.argument, facts, memo)],
                facts,
                lambda args, more: exponential(normal.scale(args[0], e), more),
            )
        case normal.Sum():
            of = _refine(f.argument, facts, memo)
            if of is f.argument:
                return power(f, e)
            base = reciprocal(of, facts)
            e = -e
        case normal.Truth():
            of = _refine(f.argument, facts, memo)
            if f.fn == "is":
                return power(f)
            known = _decide_comparison(f.fn, of, facts)
            if known is not None:
                return normal.constant(int(known))
            return less_than_zero(of, facts) if f.fn == "lt" else equals_zero(of, facts)
        case normal.Max():
            pieces = []
            for p in f.pieces:
                q = split_piece_indices(open_piece(p))
                value = _refine(q.value, facts.with_guards(*q.guards), memo)
                pieces.append(Piece(q.bound, q.guards, value))
            base = _max_under_order(pieces, facts)
        case normal.Prod():
            q = split_piece_indices(open_piece(f.piece))
            value = _refine(q.value, facts.with_guards(*q.guards), memo)
            base = product_over(value, q.bound, facts, q.guards)
        case _:
            return power(f, e)
    one = base.single_term
    if one is not None and len(base.terms) == 1:
        if e == 1:
            return base
        if one.coefficient == 1 or e.denominator == 1:
            scale = Fraction(one.coefficient) ** int(e) if e.denominator == 1 else Fraction(1)
            powers = tuple((g, x * e) for g, x in one.powers)
            return normal.from_terms((Term(scale, (), frozenset(), powers),))
    if e.denominator != 1:
        return power(f, e)
    out = normal.constant(1)
    for _ in range(abs(int(e))):
        out = multiply(out, base, facts)
    return reciprocal(out, facts) if e < 0 else out


def _is_less_than_zero(element: NF, facts: Facts) -> NF:
    """Return 1 where of < 0, else 0, using the order facts."""
    known = _decide_comparison("lt", element, facts)
    return less_than_zero(element, facts) if known is None else normal.constant(int(known))


def _decide_comparison(fn: str, element: NF, facts: Facts) -> bool | None:
    """Return what the order facts imply of "lt" (of < 0) or "eq" (of == 0)."""
    less = normal.scale(element, -1)
    if fn == "lt":
        return (
            False
            if is_order_implied(element, facts)
            else True
            if is_order_implied(less, facts, True)
            else None
        )
    if is_order_implied(element, facts, True) or is_order_implied(less, facts, True):
        return False
    return True if is_order_implied(element, facts) and is_order_implied(less, facts) else None


def _max_under_order(pieces: list[Piece], facts: Facts) -> NF:
    """Return the maximum of open pieces, without pieces that the order facts show to be smaller."""
    for p in pieces:
        g = outer_guard(p.value)
        if g is not None:
            out: list[NF] = []
            for side in (g, negate(g)):
                more = facts.with_guards(side)
                again = [Piece(q.bound, q.guards, refine(q.value, more)) for q in pieces]
                out.append(restrict(_max_under_order(again, more), side, facts))
            return normal.add(*out)
    if facts.nonneg:
        kept = list(pieces)
        n = 0
        while n < len(kept) and len(kept) > 1:
            p = kept[n]
            plain = [q for q in kept if q is not p and not q.bound and not q.guards]
            below = (
                not p.guards
                and not p.bound
                and (
                    any(is_order_implied(normal.subtract(q.value, p.value), facts) for q in plain)
                    or any(
                        _has_value_at_least(q, p.value, facts)
                        for q in kept
                        if q is not p and q.bound
                    )
                )
            )
            if below:
                del kept[n]
            else:
                n += 1
        pieces = kept
    return max_of_pieces(absorb_pieces(join_adjacent_pieces(pieces, facts), facts), facts)


def _has_value_at_least(q: Piece, low: NF, facts: Facts) -> bool:
    """True if an order fact shows that one value of an open piece is at least `low`."""
    for o in facts.nonneg:
        assert isinstance(o, NF)
        for equations in unify_forms(q.value, o):
            env = solve_equations(equations, q.bound)
            if env is None:
                continue
            wanted = [substitute.guard_at(g, env) for g in q.guards]
            for u in q.bound:
                wanted += [ge(env[u]), ge(substitute.poly_at(u.extent, env) - 1 - env[u])]
            inside = all(facts.holds(g) for g in wanted)
            if inside and is_order_implied(
                normal.subtract(substitute.form_at(q.value, env), low), facts
            ):
                return True
    return False


__all__ = ["Undefined", "are_equal", "are_equal_where_defined", "is_zero", "refine"]
