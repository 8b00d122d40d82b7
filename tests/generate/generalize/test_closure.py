"""Rules until all that is equal follows: no fewer, and no more."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from superopt.generate.engine.journal import Journal
from superopt.generate.engine.run import GenerationRequest, run_generation
from superopt.generate.enumeration.custom_family import custom_family
from superopt.generate.enumeration.equal_pairs import equal_pairs
from superopt.generate.enumeration.find_equations import find_equations
from superopt.generate.enumeration.pattern import (
    Equation,
    PatternCall,
    PatternVariable,
    call_count,
    is_embedded,
)
from superopt.generate.enumeration.serialize import enumerate_family, read_enumeration
from superopt.generate.families.family import Family, operator_use
from superopt.generate.generalize.candidates import (
    RewriteCandidate,
    as_candidate,
    rewrite_candidates,
)
from superopt.generate.generalize.closure import FamilyRules, derive_family_rules, group_mirrored
from superopt.generate.generalize.completeness import DERIVE_LIMITS
from superopt.generate.generalize.generalizations import rules_at_own_sizes
from superopt.generate.generalize.rule_names import statement_checksum
from superopt.generate.generalize.select_rule import mirror_rule
from superopt.generate.generalize.soundness import SoundRule
from superopt.generate.generalize.term_graphs import derive_candidate
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.match.rule_index import RuleIndex

SCALED = Family(
    "scaled",
    {**dict.fromkeys("xy", (3, 3)), "s": ()},
    {},
    (operator_use("MatMul", 2), operator_use("Mul", 2)),
    9,
)


@pytest.mark.one_in(0)
def test_a_law_of_scalars_is_none_of_matrices() -> None:
    """(x s) y = x (y s) for a scalar s; for a matrix it is false, and no rule says it."""
    made = run_generation(GenerationRequest(((SCALED, 2),)), Journal())
    index = RuleIndex(made.rules["scaled"])
    x, y, z = PatternVariable(0), PatternVariable(1), PatternVariable(2)
    left, right = (
        PatternCall(0, (PatternCall(1, (x, y)), z)),
        PatternCall(0, (x, PatternCall(1, (z, y)))),
    )
    scalar, matrix = (Equation(left, right, ("x", i, "y")) for i in "sy")
    assert derive_candidate(as_candidate(scalar, SCALED), SCALED, index, DERIVE_LIMITS) is not None
    assert derive_candidate(as_candidate(matrix, SCALED), SCALED, index, DERIVE_LIMITS) is None


def test_all_laws_follow_and_none_is_said_twice() -> None:
    made = run_generation(GenerationRequest(((SCALED, 3),)), Journal())
    rules = made.rules["scaled"]
    (account,) = made.accounts
    pairs = equal_pairs(find_equations(SCALED, 3, seed=0))
    assert len(pairs) > 100 > 20 > len(rules)
    assert account.laws >= account.followed + 3
    index = RuleIndex(rules)
    for e in pairs:
        assert (
            derive_candidate(as_candidate(e, SCALED), SCALED, index, DERIVE_LIMITS) is not None
        ), e
    for rule in rules:  # without it and the way back, something does not follow
        law = {rule.lhs, rule.rhs}
        others = RuleIndex([r for r in rules if {r.lhs, r.rhs} != law])
        assert any(
            derive_candidate(as_candidate(e, SCALED), SCALED, others, DERIVE_LIMITS) is None
            for e in pairs
        ), rule


def test_a_law_whose_chain_remains_is_not_derived_again() -> None:
    found = read_enumeration(enumerate_family((SCALED, 2, 0)))
    asked: list[str] = []

    def noted(do: Callable[[Any], str], tasks: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for key, task in tasks.items():
            if do.__name__ == "derive_laws":
                asked.extend(str(c) for queue in task[1] for c in queue)
            yield key, do(task)

    def again(before: Sequence[Rule], last: FamilyRules) -> FamilyRules:
        asked.clear()
        return derive_family_rules(SCALED, found, before, last, 0, noted, lambda text: None)

    first = again((), FamilyRules())
    assert first.rules
    assert len(asked) >= first.law_count
    second = again(first.rules, first)
    assert not second.rules
    assert len(asked) == first.law_count - len(first.derivations)  # those of which rules were made
    assert second.derivations.items() > first.derivations.items()
    again(first.rules, second)
    assert not asked
    rule = next(
        r
        for r in first.rules
        if any(statement_checksum(r) in c for c in second.derivations.values())
    )
    third = again([r for r in first.rules if r is not rule], second)
    assert len(asked) >= sum(statement_checksum(rule) in c for c in second.derivations.values())
    assert all(statement_checksum(rule) not in c for c in third.derivations.values())
    assert len(third.derivations) + len(third.rules) >= first.law_count - len(first.rules)


def test_claims_that_turn_each_other_around_are_tried_together() -> None:
    x, y = PatternVariable(0), PatternVariable(1)
    sides = PatternCall(0, (x, y)), PatternCall(1, (y, x)), PatternCall(1, (x, x))
    forth = RewriteCandidate(sides[:1], sides[1], ((3, 3), (3, 3)))
    back = RewriteCandidate(sides[1:2], sides[0], ((3, 3), (3, 3)))
    other = RewriteCandidate(sides[2:], sides[0], ((3, 3), (3, 3)))
    assert group_mirrored([forth, other, back]) == [[forth, back], [other]]


@pytest.mark.ci
def test_what_is_true_of_three_rows_is_no_rule() -> None:
    """The mean of three times x is its sum, for three rows."""
    along = "(axes=(0,),keepdims=1)"
    family = custom_family(f"ReduceMean{along},ReduceSum{along},Add", "x=3x2,y=3x2")
    made = run_generation(GenerationRequest(((family, 3),)), Journal())
    (account,) = made.accounts
    assert any(": f[3, 2]" in text and "ReduceSum" in text for text in account.refuted)
    for text in account.refuted:
        parse_rules(text)
    assert not any(" 2]" in str(r) for r in made.rules["custom"])


def test_a_law_without_a_rule_is_one_of_its_sizes() -> None:
    x = PatternVariable(0)
    claim = RewriteCandidate((PatternCall(0, (x, x)),), PatternCall(1, (x, x)), ((3, 3),))
    texts = [str(r).split(" ; ")[0] for r in rules_at_own_sizes(claim, SCALED)]
    assert texts == [
        "matmul--mul(x: f[3, 3]): MatMul(x, x) => Mul(x, x)",
        "mul--matmul(x: f[3, 3]): Mul(x, x) => MatMul(x, x)",
    ]


@pytest.mark.parametrize(
    ("text", "back"),
    [
        (
            "there(x: num, y: num[]):"
            " Neg(Mul(x, y)) => Mul(y, Neg(x)) where rank(x) > 1 ; float=E0",
            "back(x: num, y: num[]): Mul(y, Neg(x)) => Neg(Mul(x, y)) where rank(x) > 1 ; float=E0",
        ),
        ("there(x: f): Mul(x, 0) => zeros(shape(x)) ; float=E1", None),
        ("there(x: f, y: f): Min(x, Max(x, y)) => x ; float=E1", None),
    ],
)
def test_rules_from_right_to_left(text: str, back: str | None) -> None:
    (rule,) = parse_rules(text)
    made = mirror_rule(SoundRule(rule, is_proved=False), "back", seed=0)
    assert (made and str(made.rule).split(" ; origin")[0]) == back


def test_what_grows_without_end_is_not_claimed() -> None:
    x, y = PatternVariable(0), PatternVariable(1)

    def mul(*operands: PatternVariable | PatternCall) -> PatternCall:
        return PatternCall(1, operands)

    assert is_embedded(mul(x, y), mul(x, mul(y, y)))
    assert not is_embedded(mul(x, mul(y, y)), mul(x, y))
    assert not is_embedded(mul(x, y), mul(y, mul(y, x)))
    e = Equation(mul(x, y), PatternCall(0, (x, mul(y, y))), ("x", "y"))
    assert [call_count(c.right) for c in rewrite_candidates(e, SCALED)] == [1]
