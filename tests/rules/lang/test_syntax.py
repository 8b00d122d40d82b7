"""Types of parameters as written."""

import pytest

from superopt.rules.lang.rule import parse_rules
from superopt.rules.lang.syntax import Param
from superopt.rules.lang.term import Formula, Lit, Name


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("f", None),
        ("f[...]", None),
        ("f[4]", (Lit(4),)),
        ("f[n]", (Name("n"),)),
        ("f[n, 4]", (Name("n"), Lit(4))),
    ],
)
def test_the_shape_of_a_parameter(kind: str, shape: tuple[Formula, ...] | None) -> None:
    (rule,) = parse_rules(f"t(x: {kind}): Relu(x) => Relu(x)")
    assert [p for p in rule.params if isinstance(p, Param)] == [Param("x", "f", shape, False)]
