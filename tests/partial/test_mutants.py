"""`rules generate --partial` and `rules show` of a pair."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from superopt.api import generate_mutants, partial_rule
from superopt.errors import UsageError
from superopt.generate.partial import Partial
from superopt.generate.pattern import Equation, Hole, Made, Pattern
from superopt.pipeline.mutant_candidates import (
    ALIKE,
    CORRECTED,
    FAMILIES,
    GAIN,
    PRICED,
    Candidate,
    Dropped,
    candidate,
    estimates,
    otherwise,
)
from superopt.pipeline.mutants import LIMITS
from superopt.report.codec import dumps
from superopt.report.partial import text
from superopt.report.rules_text import mutation
from superopt.rules.rule import parse_rules
from superopt.search.book import book
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mutants")
    made = generate_mutants(out, max_ops=3)
    least = {"borders": (400, 1), "strided": (160, 0)}
    assert [f.family for f in made.families] == list(least)
    for f in made.families:
        assert f.operators == 3
        assert f.enumerated > least[f.family][0]
        assert f.corrected >= least[f.family][1]
        assert f.proved + sum(f.dropped.values()) == f.enumerated
        assert f"{f.family}: " in mutation(made)
    assert "of programs of up to 3 operators" in mutation(made)
    assert json.loads(dumps(made))
    return out


@pytest.mark.slow
def test_corrected_mutants_are_rules_that_are_proved(folder: Path) -> None:
    rules = parse_rules((folder / "borders.corrected.rules").read_text())
    assert rules
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
    generate_mutants(folder, max_ops=3)
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


OWN = FAMILIES["borders"].make()
CONV = "Conv strides=(1, 1) dilations={} group=1 pads={}"
SMALL = CONV.format("(1, 1)", "(0, 0, 0, 0)")
TALL = CONV.format("(1, 1)", "(1, 0, 1, 0)")
PAD = "Pad pads=(0, 0, 1, 0, 0, 0, 1, 0)"
X, Y, Z = map(Hole, range(3))


def term(text: str, size: tuple[int, int], *operands: Pattern) -> Made:
    """A use of the family that is written so, of kernels of this size, if of any."""
    for n, u in enumerate(OWN.uses):
        kernel = u.fits[1][-2:] if u.name == "Conv" else size
        if str(u) == text and kernel == size:
            return Made(n, operands)
    raise AssertionError(text)


def pair(left: Pattern, right: Pattern, *inputs: str) -> Partial:
    return Partial(Equation(left, right, inputs), (), (), 0.5)


# A 1x1 kernel with zeros above and below: dear, but for a row at either end.
ENLARGED = pair(
    term(TALL, (3, 1), term(SMALL, (3, 1), X, term(PAD, (0, 0), Y)), Z),
    term(SMALL, (3, 1), term(SMALL, (1, 1), X, Y), Z),
    "x", "p", "v",
)  # fmt: skip
# Zeros between both pictures do not make this right: the first one's rows have none around them.
UNEVEN = pair(
    term(
        "Concat axis=3", (0, 0),
        term(PAD, (0, 0), term(SMALL, (3, 1), X, Z)),
        term(TALL, (3, 1), Y, Z),
    ),
    term(TALL, (3, 1), term("Concat axis=3", (0, 0), X, Y), Z),
    "x", "y", "v",
)  # fmt: skip


def of(p: Partial) -> Candidate:
    return candidate("pair", p, FAMILIES["borders"], estimates())


def test_what_is_proved_is_cheaper_with_its_correction() -> None:
    found = of(ENLARGED)
    assert found.how == "recomputed"
    assert found.ratio < GAIN
    assert len(found.us) == len(PRICED)
    assert isinstance(prove(found.rule, LIMITS), Proved)


def test_channels_and_images_have_names_of_their_own() -> None:
    shapes = {str(p) for p in of(ENLARGED).pair.params}
    assert shapes == {"x: f[n, c, h, w]", "p: f[o, c, 1, 1]", "v: f[q, o, 3, 1]"}


def test_zeros_in_between_may_not_be_enough() -> None:
    with pytest.raises(Dropped, match=CORRECTED):  # they would be cheaper
        of(UNEVEN)


def test_the_program_is_what_costs_more() -> None:
    sides = ENLARGED.sides
    turned = of(pair(sides.right, sides.left, *sides.inputs))
    assert turned.rule == of(ENLARGED).rule
    assert turned.operators == 3
    with pytest.raises(Dropped, match=ALIKE):
        of(pair(sides.left, sides.left, *sides.inputs))


def test_what_known_rules_do_as_well_is_not_proved() -> None:
    found, costs = of(ENLARGED), estimates()
    assert not otherwise(found, book([]), costs)
    assert otherwise(found, book([found.rule]), costs)
