"""A product over a guarded value is the product of both sides, each where its guard holds."""

from superopt.verifier.context import ProofContext
from superopt.verifier.elements import normal
from superopt.verifier.elements.products import product_over
from superopt.verifier.elements.simplify import multiply, restrict
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.facts import ge, negate, without_hypotheses


def test_a_guard_splits_the_range() -> None:
    context = ProofContext()
    facts = without_hypotheses(context)
    m, n = (polynomial.symbol(context, name) for name in "mn")
    k = polynomial.fresh_var(n)
    here = ge(m - 1 - polynomial.atom_poly(k))
    x, y = (
        normal.factor_power(normal.read(context, name, (polynomial.atom_poly(k),))) for name in "xy"
    )
    guarded = normal.add(restrict(x, here, facts), restrict(y, negate(here), facts))
    first = product_over(x, (k,), facts, frozenset((here,)))
    second = product_over(y, (k,), facts, frozenset((negate(here),)))
    assert product_over(guarded, (k,), facts) == multiply(first, second, facts)
    assert first != product_over(x, (k,), facts)
