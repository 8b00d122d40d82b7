"""Symmetries of a left side."""

import pytest

from superopt.rules.lang.rule import parse_rules
from superopt.rules.lang.term import App, Name, Var
from superopt.rules.match.symmetry import exchange_renaming


def test_only_names_of_one_sort_are_exchanged() -> None:
    (rule,) = parse_rules("t(x: f, y: f, b: bool): Where(b, x, y) => Where(b, x, y)")
    assert exchange_renaming(Var("x"), Var("y"), rule) == {"x": "y", "y": "x"}
    assert exchange_renaming(Name("k"), Name("l"), rule) == {"k": "l", "l": "k"}
    assert exchange_renaming(Var("x"), Var("b"), rule) is None
    assert exchange_renaming(Name("x"), Name("k"), rule) is None


OPERANDS = {"x": "y", "y": "x"}


@pytest.mark.parametrize(
    ("left", "renaming"),
    [
        ("Add(Softmax(x, **a), Softmax(y, **a))", OPERANDS | {"a": "a"}),
        ("Add(Softmax(x, **a), Softmax(y, **b))", OPERANDS | {"a": "b", "b": "a"}),
        ("Add(Softmax(Relu(x), **a), Softmax(y, **a))", None),
        ("Add(Softmax(LogSoftmax(x, **a), **a), Softmax(LogSoftmax(y, **b), **c))", None),
    ],
)
def test_attributes_are_renamed_with_the_operands(
    left: str, renaming: dict[str, str] | None
) -> None:
    (rule,) = parse_rules(f"r(x: f, y: f): {left} => {left}")
    (root,) = rule.lhs
    assert isinstance(root, App)
    a, b = root.operands
    assert exchange_renaming(a, b, rule) == renaming
