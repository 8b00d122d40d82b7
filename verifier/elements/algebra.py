"""Functions of normal forms: reciprocals, exponentials, powers, uninterpreted functions.

Guards are hoisted out of arguments first: f(x where g, else y) is f(x) where g, else f(y).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from superopt.verifier.elements import normal, substitute
from superopt.verifier.elements.normal import NF, Factor, Term
from superopt.verifier.elements.simplify import (
    multiply,
    outer_guard,
    restrict,
    simplify_under,
    sum_over,
)
from superopt.verifier.poly.facts import Facts, Guard, negate
from superopt.verifier.poly.polynomial import Var


class Undefined(Exception):
    """The value does not exist, as 1 / 0."""


INFINITY = "inf"


def hoist_guards(args: Sequence[NF], facts: Facts, build: Callable[[list[NF], Facts], NF]) -> NF:
    """Return `build` of the arguments, by cases of their outer guards."""
    for a in args:
        g = outer_guard(a)
        if g is not None:
            out: list[NF] = []
            for side in (g, negate(g)):
                more = facts.with_guards(side)
                inner = hoist_guards([simplify_under(b, more) for b in args], more, build)
                out.append(restrict(inner, side, facts))
            return normal.add_all(facts.context, out)
    return build(list(args), facts)


def split_by_guard(a: NF, g: Guard, facts: Facts, build: Callable[[NF, Facts], NF]) -> NF:
    """Return `build(a)` by the cases of one guard. Other guards of `a` stay inside: they may depend
    on variables that `build` binds."""
    out: list[NF] = []
    for side in (g, negate(g)):
        more = facts.with_guards(side)
        out.append(restrict(build(simplify_under(a, more), more), side, facts))
    return normal.add_all(facts.context, out)


def power(f: Factor, e: int | Fraction = 1) -> NF:
    return normal.factor_power(f, e)


# --- quotients ------------------------------------------------------------------------------------


def reciprocal(a: NF, facts: Facts) -> NF:
    """Return 1 / a, where it is defined."""
    return hoist_guards([a], facts, lambda args, more: _expand_sums(_reciprocal(args[0]), more))


def _expand_sums(a: NF, facts: Facts) -> NF:
    """Expand the sums that have positive powers in the only term of `a`."""
    one = a.single_term
    if one is None:
        return a
    sums = [(f, e) for f, e in one.powers if _is_expandable(f, e)]
    if not sums:
        return a
    rest = tuple((f, e) for f, e in one.powers if not _is_expandable(f, e))
    out = normal.from_terms(facts.context, (Term(one.coefficient, (), frozenset(), rest),))
    for f, e in sums:
        assert isinstance(f, normal.Sum)
        for _ in range(int(e)):
            out = multiply(out, f.argument, facts)
    return out


def _is_expandable(f: Factor, e: Fraction) -> bool:
    return isinstance(f, normal.Sum) and 0 < e <= 4 and e.denominator == 1


def _reciprocal(a: NF) -> NF:
    if not a.terms:
        raise Undefined("1 / 0")
    one = a.single_term
    if one is not None:
        if any(isinstance(f, normal.Truth) for f, _ in one.powers):
            return power(normal.sum_factor(a), -1)
        powers = tuple((f, -e) for f, e in one.powers)
        return normal.from_terms(a.context, (Term(1 / one.coefficient, (), frozenset(), powers),))
    content, rest = factor_out(a)
    powers = tuple(
        sorted((*((f, -e) for f, e in content.powers), (normal.sum_factor(rest), Fraction(-1))))
    )
    return normal.from_terms(a.context, (Term(1 / content.coefficient, (), frozenset(), powers),))


def factor_out(a: NF) -> tuple[Term, NF]:
    """Return (content, rest) with a = content * rest; content has the factors common to all terms,
    without those inside sums."""
    common: dict[Factor, Fraction] | None = None
    for t in a.terms:
        own = frozenset(t.bound)
        here = {
            f: e
            for f, e in t.powers
            if f.free_vars.isdisjoint(own) and not isinstance(f, normal.Truth)
        }
        if common is None:
            common = here
        else:
            both = common.keys() | here.keys()
            low = {f: min(common.get(f, Fraction(0)), here.get(f, Fraction(0))) for f in both}
            # a factor in the denominator of a single term is factored out of all terms
            common = {f: e for f, e in low.items() if e}
    common = common or {}
    scale = a.terms[0].coefficient
    if not common:
        content = Term(scale, (), frozenset(), ())
        return content, normal.scale(a, 1 / scale)
    rest = divide_by_powers(a, tuple(common.items()))
    scale = rest.terms[0].coefficient
    content = Term(scale, (), frozenset(), tuple(sorted(common.items())))
    return content, normal.scale(rest, 1 / scale)


def divide_by_powers(a: NF, powers: Sequence[normal.Power]) -> NF:
    """Return `a` divided by a product that does not depend on bound variables of `a`."""
    back = tuple((f, -e) for f, e in powers)
    out: list[Term] = []
    for t in a.terms:
        u = substitute.open_term(t)
        left = normal.merge_powers(u.powers, back)
        assert left is not None
        out.append(substitute.close(Term(u.coefficient, u.bound, u.guards, left)))
    return normal.from_terms(a.context, out)


def common_powers(forms: Sequence[NF], bound: frozenset[Var]) -> list[normal.Power]:
    """Return the factors that all terms of all forms share in the numerator, or in the denominator,
    outside their sums and independent of the variables `bound`."""
    shared: dict[Factor, Fraction] | None = None
    for t in (t for a in forms for t in a.terms):
        inside = bound.union(t.bound)
        here = {
            f: e
            for f, e in t.powers
            if f.free_vars.isdisjoint(inside) and not isinstance(f, normal.Truth)
        }
        if shared is None:
            shared = here
        else:
            both = {f: (e, here[f]) for f, e in shared.items() if f in here}
            shared = {
                f: min(e, x) if e > 0 else max(e, x)
                for f, (e, x) in both.items()
                if (e > 0) == (x > 0)
            }
    return sorted((shared or {}).items())


# --- exponentials ---------------------------------------------------------------------------------


def exponential(a: NF, facts: Facts) -> NF:
    return hoist_guards([a], facts, lambda args, more: _exponential(args[0], more))


def _exponential(a: NF, facts: Facts) -> NF:
    powers: dict[Factor, Fraction] = {}
    if len(a.terms) > 1:
        facts.context.steps.add("exp-sum")
    out = normal.constant(facts.context, 1)
    for t in a.terms:
        log = t.powers[0][0] if len(t.powers) == 1 and not (t.bound or t.guards) else None
        whole = t.coefficient.denominator == 1 and abs(t.coefficient) <= 4
        if isinstance(log, normal.Fn) and log.name == "log" and t.powers[0][1] == 1 and whole:
            out = multiply(out, integer_power(log.args[0], int(t.coefficient), facts), facts)
            continue
        f = normal.exp(
            normal.from_terms(facts.context, (Term(Fraction(1), t.bound, t.guards, t.powers),))
        )
        powers[f] = powers.get(f, Fraction(0)) + t.coefficient
    first = normal.from_terms(
        facts.context, (Term(Fraction(1), (), frozenset(), tuple(sorted(powers.items()))),)
    )
    return multiply(first, out, facts)


# --- the rest ---------------------------------------------------------------------


def uninterpreted_function(name: str, args: Sequence[NF], facts: Facts) -> NF:
    """Return an uninterpreted function of the arguments."""
    return hoist_guards(args, facts, lambda given, more: power(normal.fn(name, tuple(given))))


def integer_power(a: NF, n: int, facts: Facts) -> NF:
    """Return a ** n for an integer n."""
    if n < 0:
        return reciprocal(integer_power(a, -n, facts), facts)
    out = normal.constant(facts.context, 1)
    for _ in range(n):
        out = multiply(out, a, facts)
    return simplify_roots(out, facts)


def simplify_roots(a: NF, facts: Facts) -> NF:
    """Return `a` with x for sqrt(x) ** 2, and likewise for other even powers of roots."""
    out: list[NF] = []
    for t in map(_reduce_root_powers, a.terms):
        roots = (
            []
            if t.bound or t.guards
            else [(f, e) for f, e in t.powers if _is_even_root_power(f, e)]
        )
        rest = tuple(p for p in t.powers if p not in roots)
        one = normal.from_terms(facts.context, (Term(t.coefficient, t.bound, t.guards, rest),))
        for f, e in roots:
            assert isinstance(f, normal.Fn)
            one = multiply(one, integer_power(f.args[0], int(e / 2), facts), facts)
        out.append(one)
    return normal.add_all(facts.context, out)


def _is_even_root_power(f: Factor, e: Fraction) -> bool:
    half = e / 2
    return (
        isinstance(f, normal.Fn) and f.name == "sqrt" and half.denominator == 1 and abs(half) <= 4
    )


def _reduce_root_powers(t: Term) -> Term:
    """Reduce powers of roots of numbers: sqrt(2) / 2 for 1 / sqrt(2)."""
    c, powers = t.coefficient, []
    for f, e in t.powers:
        radicand = f.args[0].constant if isinstance(f, normal.Fn) and f.name == "sqrt" else None
        if radicand and e.denominator == 1 and abs(e) <= 8:
            c *= radicand ** (int(e) // 2)
            e = Fraction(int(e) % 2)
        if e:
            powers.append((f, e))
    return t if tuple(powers) == t.powers else Term(c, t.bound, t.guards, tuple(powers))


def odd_function(name: str, a: NF) -> NF:
    """Return an odd function of `a`: f(-x) is -f(x), and f(0) is 0."""
    if not a.terms:
        return normal.zero(a.context)
    if a.terms[0].coefficient < 0:
        return normal.scale(power(normal.fn(name, (normal.scale(a, -1),))), -1)
    return power(normal.fn(name, (a,)))


__all__ = ["exponential", "reciprocal", "sum_over", "uninterpreted_function"]
