"""Normal forms of scalar functions."""

from superopt.verifier.context import ProofContext
from superopt.verifier.elements import normal
from superopt.verifier.elements.algebra import power, reciprocal
from superopt.verifier.elements.scalars import apply_function
from superopt.verifier.poly.facts import without_hypotheses


def test_the_root_of_a_reciprocal_is_the_reciprocal_of_the_root() -> None:
    context = ProofContext()
    facts = without_hypotheses(context)
    x, y = (power(normal.read(context, name, ())) for name in "xy")
    for base in (x, normal.add(x, y)):
        root = apply_function("sqrt", [base], True, facts)
        inverse = apply_function("sqrt", [reciprocal(base, facts)], True, facts)
        assert inverse is reciprocal(root, facts)
