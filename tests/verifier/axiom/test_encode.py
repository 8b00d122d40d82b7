"""Rules as first-order clauses."""

import pytest

from superopt.rules.lang.rule import parse_rules
from superopt.verifier.axiom.encode import INTEGER_SORT, MAIN_SORT, encode_rule


@pytest.mark.parametrize(
    ("params", "sorts"),
    [
        ("x: f, y: i", (MAIN_SORT, INTEGER_SORT)),
        ("y: i, x: f", (MAIN_SORT, INTEGER_SORT)),
        ("y: bool, x: f", (MAIN_SORT, "boolean")),
        ("x: bool, y: i", ("boolean", MAIN_SORT)),
    ],
)
def test_the_main_sort_is_that_of_floats_if_there_are_any(
    params: str, sorts: tuple[str, str]
) -> None:
    (rule,) = parse_rules(f"r({params}): (Identity(x), Identity(y)) => (x, y)")
    assert tuple(right.sort for _, right in encode_rule(rule).sides) == sorts
