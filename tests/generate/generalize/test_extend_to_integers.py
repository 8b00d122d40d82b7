"""A law of floats is one of all numbers where it is polynomial, or of the order alone."""

import pytest

from superopt.generate.generalize.extend_to_integers import extend_to_integers
from superopt.generate.generalize.soundness import prove_rule
from superopt.rules.lang.rule import parse_rules
from superopt.verifier.verdict import Proved, Refuted

WIDER = """
distribute(x: f[n, k], y: f[k, m], z: f[k, m]):
    MatMul(x, Add(y, z)) => Add(MatMul(x, y), MatMul(x, z))
zero(x: f): Mul(x, 0) => zeros(shape(Mul(x, 0)))
lattice(x: f, y: f, z: f): Max(x, Min(y, z)) => Min(Max(x, y), Max(x, z))
"""

AS_THEY_ARE = """
quotient(x: f, y: f, z: f): Div(Div(x, y), z) => Div(x, Mul(y, z))
wraps(x: f, y: f, z: f): Max(Add(x, z), Add(y, z)) => Add(Max(x, y), z)
halves(x: f): Add(Mul(x, 0.5), Mul(x, 0.5)) => x
mean(x: f, y: f): Mean(x, y) => Mean(y, x)
moved(x: any): Transpose(Transpose(x, perm=(1, 0)), perm=(1, 0)) => x
"""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("rule", parse_rules(WIDER), ids=lambda r: r.name)
def test_a_polynomial_law_is_one_of_integers(rule):
    found, verdict = prove_rule(rule, 0)
    assert isinstance(verdict, Proved)
    assert {p.kind for p in found.params} == {"num"}


@pytest.mark.parametrize("rule", parse_rules(AS_THEY_ARE), ids=lambda r: r.name)
def test_other_laws_stay_what_they_are(rule):
    assert extend_to_integers(rule) is None
    assert prove_rule(rule, 0)[0] is rule


def test_what_is_false_is_not_widened():
    (rule,) = parse_rules("false(x: f, y: f): Sub(x, y) => Sub(y, x)")
    found, verdict = prove_rule(rule, 0)
    assert found is rule
    assert isinstance(verdict, Refuted)
