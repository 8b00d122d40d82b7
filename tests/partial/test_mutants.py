"""`rules generate --partial` and `rules show` of a pair."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from superopt.api import generate_mutants, partial_rule
from superopt.errors import UsageError
from superopt.generate.enumerated import enumerated, read
from superopt.generate.partial import instances
from superopt.pipeline import mutants
from superopt.pipeline.generate import operators
from superopt.pipeline.mutants import FAMILIES
from superopt.report.codec import dumps
from superopt.report.partial import text
from superopt.report.rules_text import mutation
from superopt.rules.rule import parse_rules
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mutants")
    made = generate_mutants(out, max_ops=2)
    least = {"borders": (20, 8), "strided": (9, 2)}
    assert [f.family for f in made.families] == list(least)
    for f in made.families:
        assert f.operators == 2
        assert f.enumerated > least[f.family][0]
        assert f.corrected > least[f.family][1]
        assert f.proved + sum(f.dropped.values()) == f.enumerated
        assert f"{f.family}: " in mutation(made)
    assert "of programs of up to 2 operators" in mutation(made)
    assert json.loads(dumps(made))
    return out


@pytest.mark.slow
def test_corrected_mutants_are_rules_that_are_proved(folder: Path) -> None:
    rules = parse_rules((folder / "borders.corrected.rules").read_text())
    assert len(rules) > 8
    for rule in rules[:5]:
        assert isinstance(prove(rule, Limits(seconds=10)), Proved), rule.name


@pytest.mark.slow
def test_pairs_can_be_shown(folder: Path) -> None:
    file = folder / "borders.pairs"
    name = file.read_text().partition("(")[0]
    page = partial_rule(name, [file])
    assert page is not None
    assert page.different
    assert all(p.proved for p in page.equal)


@pytest.mark.slow
def test_a_run_goes_on_where_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (folder / "borders.corrected.rules").read_bytes()
    monkeypatch.setattr("superopt.pipeline.mutants.of_some", None)  # nothing is found anew
    generate_mutants(folder, max_ops=2)
    assert (folder / "borders.corrected.rules").read_bytes() == before


def test_how_many_operators() -> None:
    """A default run enumerates three; with more for all families, these have more, too."""
    for sizes in FAMILIES.values():
        assert [operators(sizes.make(), n) for n in (2, 4, 5)] == [2, 3, 4]


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no family of mutants 'sums'"):
        generate_mutants(tmp_path, families=["sums"])
    with pytest.raises(UsageError, match="max_ops 0"):
        generate_mutants(tmp_path, max_ops=0)
    assert partial_rule("nosuch") is None
    pairs = tmp_path / "own.pairs"
    pairs.write_text("loose(x: f): Relu(Relu(x)) => Relu(x)\n")
    with pytest.raises(UsageError, match="nothing is known of loose"):
        partial_rule("loose", [pairs])


def test_the_page(golden: Callable[[str, str], None]) -> None:
    page = partial_rule("product-with-the-first")
    assert page is not None
    golden("partial.txt", text(page))


def test_pairs_that_may_save_something_come_first() -> None:
    for sizes in FAMILIES.values():
        family = sizes.make()
        found = read(enumerated((family, 2, 0))).partial
        dropped, chosen = mutants._chosen(found, sizes)
        assert len(dropped) + len(chosen) == len(found)
        assert len(set(chosen)) == len(chosen)
        assert mutants._chosen(found, sizes)[1] == chosen
        of_others = instances(found)
        assert not of_others & set(chosen)


def test_no_more_than_some_are_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = FAMILIES["borders"]
    found = read(enumerated((sizes.make(), 2, 0))).partial
    _, every = mutants._chosen(found, sizes)
    monkeypatch.setattr(mutants, "MOST", 3)
    dropped, chosen = mutants._chosen(found, sizes)
    assert chosen == every[:3]
    assert len(dropped) == len(found) - 3
