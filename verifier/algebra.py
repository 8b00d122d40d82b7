"""Functions of normal forms: reciprocals, exponentials, powers, uninterpreted functions.

Guards are hoisted out of arguments first: f(x where g, else y) is f(x) where g, else f(y).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from superopt.verifier import normal as N
from superopt.verifier import poly as P
from superopt.verifier import substitute as S
from superopt.verifier.facts import Facts, negated
from superopt.verifier.normal import NF, Factor, Term
from superopt.verifier.poly import Var
from superopt.verifier.simplify import (
    outer_guard,
    summed,
    times,
    under,
    where,
)


class Undefined(Exception):
    """The value does not exist, as 1 / 0."""


@dataclass(slots=True)
class Steps:
    """Names of the proof steps used, which the float class depends on."""

    used: set[str] = field(default_factory=set)


STEPS = Steps()
INFINITY = "inf"


def used(what: str) -> None:
    STEPS.used.add(what)


def hoisted(args: Sequence[NF], facts: Facts, build: Callable[[list[NF], Facts], NF]) -> NF:
    """Return `build` of the arguments, by cases of their outer guards."""
    for a in args:
        g = outer_guard(a)
        if g is not None:
            out: list[NF] = []
            for side in (g, negated(g)):
                more = facts.plus(side)
                inner = hoisted([under(b, more) for b in args], more, build)
                out.append(where(inner, side, facts))
            return N.plus(*out)
    return build(list(args), facts)


def power(f: Factor, e: int | Fraction = 1) -> NF:
    return N.one_of(f, e)


# --- quotients ------------------------------------------------------------------------------------


def inverse(a: NF, facts: Facts) -> NF:
    """Return 1 / a, where it is defined."""
    return hoisted([a], facts, lambda args, more: _multiplied_out(_inverse(args[0]), more))


def _multiplied_out(a: NF, facts: Facts) -> NF:
    """Expand the sums that have positive powers in the only term of `a`."""
    one = a.single
    if one is None:
        return a
    sums = [(f, e) for f, e in one.powers if _expands(f, e)]
    if not sums:
        return a
    rest = tuple((f, e) for f, e in one.powers if not _expands(f, e))
    out = N.form((Term(one.coefficient, (), frozenset(), rest),))
    for f, e in sums:
        assert isinstance(f, N.Total)
        for _ in range(int(e)):
            out = times(out, f.of, facts)
    return out


def _expands(f: Factor, e: Fraction) -> bool:
    return isinstance(f, N.Total) and 0 < e <= 4 and e.denominator == 1


def _inverse(a: NF) -> NF:
    if not a.terms:
        raise Undefined("1 / 0")
    one = a.single
    if one is not None:
        if any(isinstance(f, N.Truth) for f, _ in one.powers):
            return power(N.total(a), -1)
        powers = tuple((f, -e) for f, e in one.powers)
        return N.form((Term(1 / one.coefficient, (), frozenset(), powers),))
    content, rest = factored(a)
    powers = tuple(sorted((*((f, -e) for f, e in content.powers), (N.total(rest), Fraction(-1)))))
    return N.form((Term(1 / content.coefficient, (), frozenset(), powers),))


def factored(a: NF) -> tuple[Term, NF]:
    """Return (content, rest) with a = content * rest; content has the factors common to all terms,
    without those inside sums."""
    common: dict[Factor, Fraction] | None = None
    for t in a.terms:
        own = frozenset(t.bound)
        here = {f: e for f, e in t.powers if f.free.isdisjoint(own) and not isinstance(f, N.Truth)}
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
        return content, N.scaled(a, 1 / scale)
    rest = over(a, tuple(common.items()))
    scale = rest.terms[0].coefficient
    content = Term(scale, (), frozenset(), tuple(sorted(common.items())))
    return content, N.scaled(rest, 1 / scale)


def over(a: NF, powers: Sequence[N.Power]) -> NF:
    """Return `a` divided by a product that does not depend on bound variables of `a`."""
    back = tuple((f, -e) for f, e in powers)
    out: list[Term] = []
    for t in a.terms:
        u = S.opened(t)
        left = N.merged(u.powers, back)
        assert left is not None
        out.append(S.close(Term(u.coefficient, u.bound, u.guards, left)))
    return N.form(out)


def shared_powers(forms: Sequence[NF], own: frozenset[Var]) -> list[N.Power]:
    """Return the factors that all terms of all forms share in the numerator, or in the denominator,
    outside their sums and independent of the variables `bound`."""
    shared: dict[Factor, Fraction] | None = None
    for t in (t for a in forms for t in a.terms):
        inside = own.union(t.bound)
        here = {
            f: e for f, e in t.powers if f.free.isdisjoint(inside) and not isinstance(f, N.Truth)
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
    return hoisted([a], facts, lambda args, more: _exponential(args[0], more))


def _exponential(a: NF, facts: Facts) -> NF:
    powers: dict[Factor, Fraction] = {}
    if len(a.terms) > 1:
        used("exp-sum")
    out = N.constant(1)
    for t in a.terms:
        log = t.powers[0][0] if len(t.powers) == 1 and not (t.bound or t.guards) else None
        whole = t.coefficient.denominator == 1 and abs(t.coefficient) <= 4
        if isinstance(log, N.Fn) and log.name == "log" and t.powers[0][1] == 1 and whole:
            out = times(out, raised(log.args[0], int(t.coefficient), facts), facts)
            continue
        f = N.exp(N.form((Term(Fraction(1), t.bound, t.guards, t.powers),)))
        powers[f] = powers.get(f, Fraction(0)) + t.coefficient
    first = N.form((Term(Fraction(1), (), frozenset(), tuple(sorted(powers.items()))),))
    return times(first, out, facts)


# --- the rest ---------------------------------------------------------------------


def unknown(name: str, args: Sequence[NF], facts: Facts) -> NF:
    """Return an uninterpreted function of the arguments."""
    return hoisted(args, facts, lambda given, more: power(N.fn(name, tuple(given))))


def raised(a: NF, n: int, facts: Facts) -> NF:
    """Return a ** n for an integer n."""
    if n < 0:
        return inverse(raised(a, -n, facts), facts)
    out = N.constant(1)
    for _ in range(n):
        out = times(out, a, facts)
    return unrooted(out, facts)


def unrooted(a: NF, facts: Facts) -> NF:
    """Return `a` with x for sqrt(x) ** 2, and likewise for other even powers of roots."""
    out: list[NF] = []
    for t in map(_without_powers_of_roots, a.terms):
        roots = [] if t.bound or t.guards else [(f, e) for f, e in t.powers if _squared(f, e)]
        rest = tuple(p for p in t.powers if p not in roots)
        one = N.form((Term(t.coefficient, t.bound, t.guards, rest),))
        for f, e in roots:
            assert isinstance(f, N.Fn)
            one = times(one, raised(f.args[0], int(e / 2), facts), facts)
        out.append(one)
    return N.plus(*out)


def _squared(f: Factor, e: Fraction) -> bool:
    half = e / 2
    return isinstance(f, N.Fn) and f.name == "sqrt" and half.denominator == 1 and abs(half) <= 4


def _without_powers_of_roots(t: Term) -> Term:
    """Reduce powers of roots of numbers: sqrt(2) / 2 for 1 / sqrt(2)."""
    c, powers = t.coefficient, []
    for f, e in t.powers:
        of = f.args[0].constant if isinstance(f, N.Fn) and f.name == "sqrt" else None
        if of and e.denominator == 1 and abs(e) <= 8:
            c *= of ** (int(e) // 2)
            e = Fraction(int(e) % 2)
        if e:
            powers.append((f, e))
    return t if tuple(powers) == t.powers else Term(c, t.bound, t.guards, tuple(powers))


def odd(name: str, a: NF) -> NF:
    """Return an odd function of `a`: f(-x) is -f(x), and f(0) is 0."""
    if not a.terms:
        return N.zero()
    if a.terms[0].coefficient < 0:
        return N.scaled(power(N.fn(name, (N.scaled(a, -1),))), -1)
    return power(N.fn(name, (a,)))


__all__ = ["P", "exponential", "inverse", "summed", "unknown"]
