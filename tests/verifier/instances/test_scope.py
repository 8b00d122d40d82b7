"""The ranks at which a rule is proved keep axes from the front and from the end apart."""

import pytest

from superopt.rules.lang.rule import parse_rules
from superopt.rules.lang.term import App, walk
from superopt.verifier.instances.scope import _separating_rank, broadcast_only_operands


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


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("(x: f, y: f): Sub(x, y) => Neg(Sub(y, x))", {"x", "y"}),
        ("(x: f, y: f): Sub(x, y) => Neg(Sub(y, x)) where const(y)", {"x", "y"}),
        ("(x: f, y: f): Sub(x, y) => Neg(Sub(y, x)) where rank(y) == 1", {"x"}),
        ("(x: f, y: f[n]): Sub(x, y) => Neg(Sub(y, x))", {"x"}),
        ("(x: f, y: f): Sub(x, y) => Neg(Sub(y, Abs(x)))", set()),
        ("(x: f, y: f, z: f): Sub(x, Add(y, z)) => Sub(x, Add(z, y))", {"y", "z"}),
        ("(x: f, y: f): Sub(x, y) => Sub(Add(x, y), y)", {"x"}),
        ("(x: f, y: f): MatMul(x, y) => Neg(MatMul(Neg(x), y))", set()),
        ("(x: f, y: f): Sub(x, y) => Add(Sub(x, y), zeros(shape(x)))", set()),
        ("(x: f, y: f): Sub(x, y) => Reshape(Sub(x, y), shape=shape(x))", {"y"}),
        ("(x: f, y: f): Sub(x, y) => x", {"y"}),
    ],
)
def test_operands_that_are_read_only_where_terms_broadcast_them(text: str, names: set[str]) -> None:
    (rule,) = parse_rules(f"r{text}")
    assert set(broadcast_only_operands(rule)) == names
