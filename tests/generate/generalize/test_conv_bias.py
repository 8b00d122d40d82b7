"""Claims about convolutions with a bias."""

from functools import partial

import pytest

from superopt.generate.enumeration.find_equations import find_equations
from superopt.generate.enumeration.pattern import PatternCall, PatternVariable
from superopt.generate.families.registry import FAMILIES
from superopt.generate.generalize.candidates import RewriteCandidate, rewrite_candidates
from superopt.generate.generalize.closure import candidate_text
from superopt.generate.generalize.conv_bias import add_bias
from superopt.generate.generalize.select_rule import most_general_rule
from superopt.generate.generalize.term_graphs import rule_instance


@pytest.mark.one_in(0)
def test_claims_with_a_bias_are_rules_for_any_geometry() -> None:
    family = FAMILIES["groups"]()
    found = find_equations(family, 2, seed=0)
    every = [c for e in found.equations for c in rewrite_candidates(e, family)]
    some = [b for b in (add_bias(c, family) for c in every) if b is not None]
    assert 3 <= len(some) < len(every)
    assert len({candidate_text(b, family) for b in some}) == len(some)
    assert all(b.shapes[-1] == (2,) for b in some)
    texts = [
        str(most_general_rule(b, family, 0, partial(rule_instance, b, family))) for b in some[:3]
    ]
    assert ": Conv(Mul(x, y), z, w, **e) => Conv(x, Mul(z, y), w, **e)" in texts[0]
    assert ": Conv(x, Mul(z, y), w, **e) => Conv(Mul(x, y), z, w, **e)" in texts[1]
    assert ": Conv(Add(x, x), y, z, **e) => Conv(x, Add(y, y), z, **e)" in texts[2]


def test_joined_kernels_have_joined_biases() -> None:
    family = FAMILIES["groups"]()
    conv, join, out = (
        next(n for n, u in enumerate(family.uses) if str(u) == name)
        for name in (
            "Conv strides=(1, 1) group=1 pads=(1, 1, 1, 1)",
            "Concat axis=0",
            "Concat axis=1",
        )
    )
    x, v, w = map(PatternVariable, range(3))
    shapes = ((1, 2, 3, 3), (2, 2, 2, 2), (3, 2, 2, 2))
    left = PatternCall(out, (PatternCall(conv, (x, v)), PatternCall(conv, (x, w))))
    right = PatternCall(conv, (x, PatternCall(join, (v, w))))
    made = add_bias(RewriteCandidate((left,), right, shapes), family)
    assert made is not None
    assert made.shapes[3:] == ((2,), (3,))
    b, c = PatternVariable(3), PatternVariable(4)
    assert made.left == (
        PatternCall(out, (PatternCall(conv, (x, v, b)), PatternCall(conv, (x, w, c)))),
    )
    assert made.right == PatternCall(
        conv, (x, PatternCall(join, (v, w)), PatternCall(join, (b, c)))
    )
    assert add_bias(RewriteCandidate((PatternCall(join, (v, w)),), v, shapes), family) is None
