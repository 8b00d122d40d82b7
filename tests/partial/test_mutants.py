"""`rules generate --partial` and `rules show` of a pair."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from superopt.api import generate_mutants, partial_rule
from superopt.errors import UsageError
from superopt.generate.enumerated import enumerated, read
from superopt.generate.partial import Partial
from superopt.pipeline.mutant_candidates import (
    CORRECTED,
    DEARER,
    FAMILIES,
    GAIN,
    PRICED,
    Candidate,
    Dropped,
    candidate,
    estimates,
    otherwise,
)
from superopt.report.codec import dumps
from superopt.report.partial import text
from superopt.report.rules_text import mutation
from superopt.rules.rule import parse_rules
from superopt.rules.syntax import Param
from superopt.search.book import book
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
    monkeypatch.setattr("superopt.pipeline.mutants.candidate", None)  # nothing is found anew
    generate_mutants(folder, max_ops=2)
    assert (folder / "borders.corrected.rules").read_bytes() == before


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


def enumerated_pairs(name: str) -> list[Partial]:
    return read(enumerated((FAMILIES[name].make(), 2, 0))).partial


def tried(name: str) -> tuple[list[Candidate], Counter[str]]:
    """What is worth a proof of the pairs of two operators, and why others are not."""
    costs, why = estimates(), Counter[str]()
    out = []
    for n, p in enumerate(enumerated_pairs(name)):
        try:
            out.append(candidate(f"pair-{n}", p, FAMILIES[name], costs))
        except Dropped as e:
            why[str(e)] += 1
    return out, why


@pytest.fixture(scope="module")
def of_borders() -> tuple[list[Candidate], Counter[str]]:
    return tried("borders")


def test_what_is_proved_is_cheaper_with_its_correction(
    of_borders: tuple[list[Candidate], Counter[str]],
) -> None:
    some, why = of_borders
    assert some
    assert {DEARER, CORRECTED} <= set(why)
    for c in some:
        assert c.ratio < GAIN
        assert len(c.us) == len(PRICED)
        assert c.found.equal


def test_channels_and_images_have_names_of_their_own(
    of_borders: tuple[list[Candidate], Counter[str]],
) -> None:
    kernels = [p for c in of_borders[0] for p in c.pair.params if isinstance(p, Param)]
    shapes = [p.shape for p in kernels if p.name in "kvp" and p.shape is not None]
    assert shapes
    assert any(s[0] != s[1] for s in shapes)


def test_what_known_rules_do_as_well_is_not_proved(
    of_borders: tuple[list[Candidate], Counter[str]],
) -> None:
    costs = estimates()
    for c in of_borders[0][:3]:
        assert not otherwise(c, book([]), costs)
        assert otherwise(c, book([c.rule]), costs)
