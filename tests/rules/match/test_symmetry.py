"""Symmetries of a left side."""

from superopt.rules.lang.rule import parse_rules
from superopt.rules.lang.term import Name, Var
from superopt.rules.match.symmetry import exchange_renaming


def test_only_names_of_one_sort_are_exchanged() -> None:
    (rule,) = parse_rules("t(x: f, y: f, b: bool): Where(b, x, y) => Where(b, x, y)")
    assert exchange_renaming(Var("x"), Var("y"), rule) == {"x": "y", "y": "x"}
    assert exchange_renaming(Name("k"), Name("l"), rule) == {"k": "l", "l": "k"}
    assert exchange_renaming(Var("x"), Var("b"), rule) is None
    assert exchange_renaming(Name("x"), Name("k"), rule) is None
