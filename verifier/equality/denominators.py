"""Clearing denominators: multiply by the sums that terms divide by."""

from __future__ import annotations

from fractions import Fraction

from superopt.verifier.elements import normal, substitute
from superopt.verifier.elements.normal import NF, Term
from superopt.verifier.elements.simplify import multiply
from superopt.verifier.poly.facts import Facts


def clear_denominators(d: NF, facts: Facts) -> NF | None:
    """Return `d` times a sum that its terms divide by, if that sum is independent of their bound
    variables."""
    for t in d.terms:
        own = frozenset(t.bound)
        for f, e in t.powers:
            if isinstance(f, normal.Sum) and e < 0 and f.free_vars.isdisjoint(own):
                n = -min((x for s in d.terms for g, x in s.powers if g is f), default=Fraction(0))
                if n.denominator != 1 or n > 3:
                    continue
                return _multiply_by_sum(d, f, int(n), facts)
    return None


def _multiply_by_sum(d: NF, f: normal.Sum, n: int, facts: Facts) -> NF:
    out: list[NF] = []
    for t in d.terms:
        have = sum((e for g, e in t.powers if g is f), Fraction(0))
        rest = Term(
            t.coefficient, t.bound, t.guards, tuple((g, e) for g, e in t.powers if g is not f)
        )
        product = normal.from_terms(facts.context, (substitute.close(substitute.open_term(rest)),))
        for _ in range(int(have + n)):
            product = multiply(product, f.argument, facts)
        out.append(product)
    return normal.add_all(facts.context, out)
