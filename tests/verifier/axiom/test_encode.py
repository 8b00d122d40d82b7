"""Sorts of encoded operands: the rule's main element type, booleans, integers."""

import pytest

from superopt.rules.lang.rule import parse_rules
from superopt.verifier.axiom.encode import BOOLEAN_SORT, INTEGER_SORT, MAIN_SORT, encode_rule


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ("c: bool, x: f, y: f", (BOOLEAN_SORT, MAIN_SORT, MAIN_SORT)),
        ("c: bool, x: i64, y: i64", (BOOLEAN_SORT, MAIN_SORT, MAIN_SORT)),
        ("c: bool, x: bool, y: bool", (BOOLEAN_SORT,) * 3),
    ],
)
def test_the_main_sort_is_that_of_the_numbers(params: str, expected: tuple[str, ...]) -> None:
    (rule,) = parse_rules(f"r({params}): Where(c, x, y) => Where(Not(c), y, x)")
    ((left, _),) = encode_rule(rule).sides
    assert tuple(a.sort for a in left.args) == expected


def test_integers_beside_floats_have_a_sort_of_their_own() -> None:
    gather = "Gather(Relu(x), k, axis=0) => Relu(Gather(x, k, axis=0))"
    (rule,) = parse_rules(f"r(x: f, k: i64): {gather}")
    ((left, _),) = encode_rule(rule).sides
    assert [a.sort for a in left.args[:2]] == [MAIN_SORT, INTEGER_SORT]
