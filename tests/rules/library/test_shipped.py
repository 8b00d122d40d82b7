"""Of a text of the library no more is believed than was computed of what it says."""

from dataclasses import replace

import pytest

from superopt.errors import UsageError
from superopt.loading.request import Request
from superopt.optimization.admit_rules import admit_rules
from superopt.plan.graph.simplify import ALWAYS_APPLIED_RULES
from superopt.report.data.report import UnusedRules
from superopt.rules.lang import rule as rule_module
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.library.load import (
    load_file,
    load_library,
    load_rules,
    parse_file,
    with_recorded_class,
)
from superopt.rules.library.records import tier

FILE = "partial/corrected.rules"


def edited(name: str, float_class: str) -> Rule:
    """A rule of the library, its class changed in its text."""
    (rule,) = (r for r in parse_file(FILE) if r.name == name)
    text = rule.text.replace(f"float={rule.float_class}", f"float={float_class}")
    (other,) = parse_rules(text)
    assert other.float_class == float_class
    return other


def test_a_lower_class_than_was_computed_is_not_believed() -> None:
    rule = with_recorded_class(edited("side-by-side-recomputed", "E0"))
    assert tier(rule) == "A"
    assert rule.float_class == "E1"
    assert rule.caveat == "its text says float=E0 and its operations are E1"
    assert parse_rules(str(rule)) == [rule]


def test_a_caveat_keeps_the_author_s_text() -> None:
    rule = with_recorded_class(
        replace(edited("side-by-side-recomputed", "E0"), caveat="mind the gap")
    )
    assert rule.caveat.startswith("mind the gap, its text says float=E0")


@pytest.mark.parametrize("file", ALWAYS_APPLIED_RULES)
def test_rules_by_name_are_those_of_the_file(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ALWAYS_APPLIED_RULES[file]
    parsed: list[str] = []
    check = rule_module._check_rule
    monkeypatch.setattr(
        rule_module, "_check_rule", lambda rule: (parsed.append(rule.name), check(rule))
    )
    found = load_rules.__wrapped__(file, wanted)
    assert found == tuple(r for r in load_file.__wrapped__(file) if r.name in wanted)
    assert {r.name for r in found} == {*wanted}
    assert {*parsed[: len(found)]} == {*wanted}  # no other one is read


def test_both_directions_are_found_by_either_name() -> None:
    both = next(r for r in load_library() if r.name.endswith("~"))
    file = both.source.rpartition(":")[0]
    for names in ((both.name,), (both.name[:-1],), (both.name, both.name[:-1])):
        assert {r.name for r in load_rules(file, names)} == {*names}


def test_a_rule_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"no rule no-such-rule in conv\.rules"):
        load_rules("conv.rules", ("no-such-rule", "pad-conv"))


def test_a_higher_class_is_its_authors() -> None:
    rule = edited("side-by-side-recomputed", "E3")
    assert with_recorded_class(rule) is rule


def test_the_librarys_files_are_loaded_so(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = edited("side-by-side-recomputed", "E0")
    monkeypatch.setattr("superopt.rules.library.load.parse_file", lambda name: (rule,))
    load_file.cache_clear()
    try:
        assert [r.float_class for r in load_file(FILE)] == ["E1"]
    finally:
        load_file.cache_clear()


def test_nothing_that_ships_is_changed() -> None:
    assert all(with_recorded_class(r) is r for r in load_library())


def test_the_class_of_a_changed_text_is_computed() -> None:
    """Of tier C, since no proof is known of it."""
    sides = "Mul(Add(x, y), Sin(z)) => Add(Mul(x, Sin(z)), Mul(y, Sin(z)))"
    (rule,) = parse_rules(f"r(x: f, y: f, z: f): {sides} ; float=E0")
    assert tier(rule) == "C"
    found = admit_rules(Request(budget=1.0, rules=(rule,), tier="C", float_class="E0"), 17, print)
    assert found.rules == ()
    assert found.left_out == (UnusedRules("float", ("r",)),)
    (used,) = admit_rules(Request(budget=1.0, rules=(rule,), tier="C"), 17, print).rules
    assert used.float_class == "E2"
