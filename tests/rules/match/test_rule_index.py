"""The index of rules that are matched together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from superopt.ops import OPS
from superopt.rules.lang.rule import parse_rules
from superopt.rules.lang.term import App
from superopt.rules.match import rule_index as index
from superopt.rules.match.rule_index import (
    CONSTANT,
    MAX_INDEXES,
    OTHER,
    Source,
    _can_start,
    shared_index,
)
from superopt.verification.derivation import without_const_conditions

TEXT = "r(x: f): Neg(Neg(x)) => x"


def test_the_same_rules_share_an_index() -> None:
    (rule,) = parse_rules(TEXT)
    first = shared_index([rule])
    assert shared_index(iter([rule])) is first
    assert shared_index([rule, rule]) is not first


def test_equal_rules_of_other_files_have_their_own() -> None:
    """What is reported of a rule is where it was written, which no comparison of rules sees."""
    (rule,) = parse_rules(TEXT)
    other = replace(rule, source="other.rules:1")
    assert other == rule
    assert shared_index([rule]).rules[0].source == rule.source
    assert shared_index([other]).rules[0].source == "other.rules:1"


def test_few_indexes_are_kept(monkeypatch) -> None:
    monkeypatch.setattr(index, "_INDEXES", {})
    rules = [parse_rules(TEXT) for _ in range(2 * MAX_INDEXES + 1)]
    for each in rules:
        shared_index(each)
        assert len(index._INDEXES) <= MAX_INDEXES
    assert shared_index(rules[-1]).rules == tuple(rules[-1])


def test_conditions_that_say_where_a_rule_pays_are_left_out_once() -> None:
    (plain,) = parse_rules(TEXT)
    (const,) = parse_rules("c(x: f, y: f): Add(x, y) => Add(y, x) where const(y)")
    first, second = (
        without_const_conditions([plain, const]),
        without_const_conditions([plain, const]),
    )
    assert first[0] is plain
    assert first[1].where == ()
    assert first[1] is second[1]
    elsewhere = replace(const, source="other.rules:1")
    assert without_const_conditions([elsewhere])[0].source == "other.rules:1"


RELU, NEG, ADD, SPLIT = (OPS[name] for name in ("Relu", "Neg", "Add", "Split"))


@pytest.mark.parametrize(
    ("left", "sources", "starts"),
    [
        ("Sub(Relu(x), y)", (RELU, OTHER), True),
        ("Sub(Relu(x), y)", (OTHER, RELU), False),
        ("Sub(Relu(x), y)", (RELU,), False),
        ("Add(Relu(x), y)", (OTHER, RELU), True),
        ("Add(Relu(x), Neg(y))", (NEG, NEG), False),
        ("Mul(x, 2)", (NEG, CONSTANT), True),
        ("Mul(x, 2)", (NEG, OTHER), False),
        ("Relu(Split(x, axis=0, split=(1, 2))[0])", (SPLIT,), True),
        ("Relu(Split(x, axis=0, split=(1, 2))[0])", ((SPLIT,),), True),
        ("Relu(Split(x, axis=0, split=(1, 2))[0])", ((ADD,),), False),
        # operands in a row are a part of more of them, but two are no part of two
        ("Concat(Relu(x), Neg(y), axis=0)", (OTHER, RELU, NEG), True),
        ("Concat(Relu(x), Neg(y), axis=0)", (OTHER, RELU, OTHER), False),
        ("Concat(Relu(x), Neg(y), axis=0)", (NEG, RELU), False),
        ("Concat(Relu(x), axis=0)", (OTHER, RELU), False),
        ("Concat(x, Concat(x, y, axis=1), axis=0)", (OTHER, OTHER, OTHER), True),
    ],
)
def test_what_the_operands_are_computed_by_selects_rules(
    left: str, sources: tuple[Source, ...], starts: bool
) -> None:
    params = ", ".join(f"{n}: f" for n in "xy" if f"{n}" in left.replace("axis", ""))
    (rule,) = parse_rules(f"r({params}): {left} => x")
    (root,) = rule.lhs
    assert isinstance(root, App)
    assert _can_start(root, sources) is starts
