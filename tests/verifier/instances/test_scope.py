"""The ranks at which a rule is proved keep axes from the front and from the end apart."""

import pytest

from superopt.rules.lang.rule import parse_rules
from superopt.rules.lang.term import App, walk
from superopt.verifier.instances.scope import _separating_rank


@pytest.mark.parametrize(
    ("left", "expected"),
    [
        ("Concat(MatMul(x, y), z, axis=0)", 1 + 2 + 1),
        ("Concat(MatMul(x, y), z, axis=1)", 2 + 2 + 1),
        ("Concat(Concat(x, y, axis=0), z, axis=-1)", 1 + 1 + 1),
        ("MatMul(x, y)", 0),
        ("Concat(x, y, axis=-4)", 4 + 1),
        ("Concat(x, y, axis=-3)", 0),
    ],
)
def test_one_axis_lies_between_those_named_from_both_ends(left: str, expected: int) -> None:
    params = ", ".join(f"{n}: f" for n in "xyz" if f"{n}," in left or f"{n})" in left)
    (rule,) = parse_rules(f"r({params}): {left} => {left}")
    apps = [t for t in walk(rule.lhs[0]) if isinstance(t, App)]
    assert _separating_rank(rule, apps) == expected
