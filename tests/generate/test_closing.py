"""Rules until all that is equal follows: no fewer, and no more."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from superopt.generate.build import derived
from superopt.generate.choice import mirrored
from superopt.generate.claims import Claim, claims, stated
from superopt.generate.closing import Closed, close, together
from superopt.generate.complete import BOUNDS
from superopt.generate.custom import custom
from superopt.generate.enumerated import enumerated, read
from superopt.generate.family import Family, use
from superopt.generate.find import find
from superopt.generate.generalise import only_there
from superopt.generate.journal import Journal
from superopt.generate.naming import said_of
from superopt.generate.pairs import equal_pairs
from superopt.generate.pattern import Equation, Hole, Made, embedded, size
from superopt.generate.run import Wanted, generate
from superopt.generate.sound import Held
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.match.rule_index import RuleIndex

SCALED = Family(
    "scaled",
    {**dict.fromkeys("xy", (3, 3)), "s": ()},
    {},
    (use("MatMul", 2), use("Mul", 2)),
    9,
)


def test_a_law_of_scalars_is_none_of_matrices() -> None:
    """(x s) y = x (y s) for a scalar s; for a matrix it is false, and no rule says it."""
    made = generate(Wanted(((SCALED, 2),)), Journal())
    index = RuleIndex(made.rules["scaled"])
    x, y, z = Hole(0), Hole(1), Hole(2)
    left, right = Made(0, (Made(1, (x, y)), z)), Made(0, (x, Made(1, (z, y))))
    scalar, matrix = (Equation(left, right, ("x", i, "y")) for i in "sy")
    assert derived(stated(scalar, SCALED), SCALED, index, BOUNDS) is not None
    assert derived(stated(matrix, SCALED), SCALED, index, BOUNDS) is None


def test_all_laws_follow_and_none_is_said_twice() -> None:
    made = generate(Wanted(((SCALED, 3),)), Journal())
    rules = made.rules["scaled"]
    (account,) = made.accounts
    pairs = equal_pairs(find(SCALED, 3, seed=0))
    assert len(pairs) > 100 > 20 > len(rules)
    assert account.laws >= account.followed + 3
    index = RuleIndex(rules)
    for e in pairs:
        assert derived(stated(e, SCALED), SCALED, index, BOUNDS) is not None, e
    for rule in rules:  # without it and the way back, something does not follow
        law = {rule.lhs, rule.rhs}
        others = RuleIndex([r for r in rules if {r.lhs, r.rhs} != law])
        assert any(derived(stated(e, SCALED), SCALED, others, BOUNDS) is None for e in pairs), rule


def test_a_law_whose_chain_is_still_there_is_not_asked_again() -> None:
    found = read(enumerated((SCALED, 2, 0)))
    asked: list[str] = []

    def noted(do: Callable[[Any], str], tasks: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        for key, task in tasks.items():
            if do.__name__ == "followed":
                asked.extend(str(c) for queue in task[1] for c in queue)
            yield key, do(task)

    def again(before: Sequence[Rule], last: Closed) -> Closed:
        asked.clear()
        return close(SCALED, found, before, last, 0, noted, lambda text: None)

    first = again((), Closed())
    assert first.rules
    assert len(asked) >= first.laws
    second = again(first.rules, first)
    assert not second.rules
    assert len(asked) == first.laws - len(first.stands)  # those of which rules were made
    assert second.stands.items() > first.stands.items()
    again(first.rules, second)
    assert not asked
    rule = next(r for r in first.rules if any(said_of(r) in c for c in second.stands.values()))
    third = again([r for r in first.rules if r is not rule], second)
    assert len(asked) >= sum(said_of(rule) in c for c in second.stands.values())
    assert all(said_of(rule) not in c for c in third.stands.values())
    assert len(third.stands) + len(third.rules) >= first.laws - len(first.rules)


def test_claims_that_turn_each_other_around_are_tried_together() -> None:
    x, y = Hole(0), Hole(1)
    sides = Made(0, (x, y)), Made(1, (y, x)), Made(1, (x, x))
    forth = Claim(sides[:1], sides[1], ((3, 3), (3, 3)))
    back = Claim(sides[1:2], sides[0], ((3, 3), (3, 3)))
    other = Claim(sides[2:], sides[0], ((3, 3), (3, 3)))
    assert together([forth, other, back]) == [[forth, back], [other]]


def test_what_is_true_of_three_rows_is_no_rule() -> None:
    """The mean of three times x is its sum, for three rows."""
    along = "(axes=(0,),keepdims=1)"
    family = custom(f"ReduceMean{along},ReduceSum{along},Add", "x=3x2,y=3x2")
    made = generate(Wanted(((family, 3),)), Journal())
    (account,) = made.accounts
    assert any(": f[3, 2]" in text and "ReduceSum" in text for text in account.refuted)
    for text in account.refuted:
        parse_rules(text)
    assert not any(" 2]" in str(r) for r in made.rules["custom"])


def test_a_law_without_a_rule_is_one_of_its_sizes() -> None:
    x = Hole(0)
    claim = Claim((Made(0, (x, x)),), Made(1, (x, x)), ((3, 3),))
    texts = [str(r).split(" ; ")[0] for r in only_there(claim, SCALED)]
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
    made = mirrored(Held(rule, proved=False), "back", seed=0)
    assert (made and str(made.rule).split(" ; origin")[0]) == back


def test_what_grows_without_end_is_not_claimed() -> None:
    x, y = Hole(0), Hole(1)

    def mul(*operands: Hole | Made) -> Made:
        return Made(1, operands)

    assert embedded(mul(x, y), mul(x, mul(y, y)))
    assert not embedded(mul(x, mul(y, y)), mul(x, y))
    assert not embedded(mul(x, y), mul(y, mul(y, x)))
    e = Equation(mul(x, y), Made(0, (x, mul(y, y))), ("x", "y"))
    assert [size(c.right) for c in claims(e, SCALED)] == [1]
