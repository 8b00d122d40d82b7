"""`rules generate --partial` and `rules show` of a pair."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from superopt.api.functions import generate_mutants, partial_rule
from superopt.cli.main import run
from superopt.cost.graph_cost import GraphCosts
from superopt.errors import UsageError
from superopt.generate.engine.journal import Journal
from superopt.generate.enumeration.partial_equality import PartialEquality, instance_positions
from superopt.generate.enumeration.serialize import Enumeration, enumerate_family, read_enumeration
from superopt.generate.families.family import Family
from superopt.partial.correct.partial_rules import PartialRule, partial_rule_at
from superopt.partial.correct.sized_pairs import SizedPair, sample_sizes
from superopt.partial.correct.symbolic_boxes import SymbolicRegions
from superopt.report.data.codec import dumps
from superopt.report.text.partial_rule import partial_page_text
from superopt.report.text.rules_text import mutation_text
from superopt.rulegen import family_mutants
from superopt.rulegen.family_candidates import (
    DEARER_REASON,
    FREE_REASON,
    MAX_PRICE_RATIO,
    MUTANT_FAMILIES,
    Candidate,
    RejectedPair,
    _pair_conditions,
    all_candidates,
    cheapest_candidate,
    estimated_costs,
    uncorrected_price_ratio,
)
from superopt.rulegen.family_journal import drop_unreadable_entries
from superopt.rulegen.generate_rules import operators_to_enumerate
from superopt.rules.lang.printer import show
from superopt.rules.lang.rule import Rule, parse_rules
from superopt.rules.trial.try_rule import try_rule
from superopt.verifier.prove import Limits, prove
from superopt.verifier.verdict import Proved


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mutants")
    made = generate_mutants(out, max_ops=2)
    least = {"borders": (20, 8), "strided": (9, 2)}
    exactly = {"borders": (22, 13, 12), "strided": (10, 3, 3)}
    assert [f.family for f in made.families] == list(least)
    for f in made.families:
        assert f.operators == 2
        assert f.enumerated > least[f.family][0]
        assert f.corrected > least[f.family][1]
        assert (f.enumerated, f.proved, f.corrected) == exactly[f.family]
        assert f.proved + sum(f.dropped.values()) == f.enumerated
        assert f"{f.family}: " in mutation_text(made)
    assert "of programs of up to 2 operators" in mutation_text(made)
    assert json.loads(dumps(made))
    return out


@pytest.mark.slow
def test_corrected_mutants_are_rules_that_are_proved(folder: Path) -> None:
    """All in one piece, but one: a MaxPool of a padded image follows from its parts."""
    rules = parse_rules((folder / "borders.corrected.rules").read_text())
    limits = family_mutants.PROOF_LIMITS
    (rest,) = (r for r in rules if not isinstance(prove(r, limits), Proved))
    assert try_rule(rest)
    pairs = {p.name: p for p in parse_rules((folder / "borders.pairs").read_text())}
    pair = pairs[rest.name.removesuffix("-recomputed")]
    made = partial_rule_at(pair, sample_sizes(pair), limits)
    (found,) = (c for c in made.corrections if str(c.rule) == str(rest))
    assert found.is_proved
    assert len(found.lemmas) == 4


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
    """What is kept is proved anew, and nothing else is done again."""
    before = {f: f.read_bytes() for f in folder.iterdir()}
    proved = []

    def again(pair: Rule, some: Sequence[SizedPair], limits: Limits) -> PartialRule:
        proved.append(pair.name)
        return partial_rule_at(pair, some, limits)

    monkeypatch.setattr(family_mutants, "partial_rule_at", again)
    for name in ("enumerate_family", "uncorrected_price_ratio"):
        monkeypatch.setattr(family_mutants, name, None)
    made = generate_mutants(folder, max_ops=2)
    assert len(proved) == len(set(proved)) == sum(f.proved for f in made.families)
    assert {f: f.read_bytes() for f in folder.iterdir()} == before


@pytest.mark.slow
def test_what_is_priced_and_proved_is_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def counted(name: str, *given: Any) -> Candidate:
        made.append(name)
        return cheapest_candidate(name, *given)

    monkeypatch.setattr(family_mutants, "cheapest_candidate", counted)
    (found,) = generate_mutants(tmp_path, families=["strided"], max_ops=2).families
    assert found.proved
    assert len(made) == len(set(made))
    told = json.loads((tmp_path / "strided.regions.json").read_text())
    assert [x["exact"] for x in told] == [True] * found.proved


EVIL = "evil(x: f[n]): Relu(x) => Neg(x)"


TAMPERED = {
    "borders 6": {"pair": "p"},
    "borders 1 price": None,
    "borders 2 corrected": {},
    "borders 1": {"pair": EVIL, "corrected": [EVIL], "saves": True, "us": []},
    "strided pairs": {},
    "strided 1": "[" * 100_000,
    "nosuch 1": {},
}


@pytest.mark.slow
def test_no_proof_is_taken_from_a_file(folder: Path, tmp_path: Path) -> None:
    """Nor is anything of another form; its sums are right."""
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / family_mutants.JOURNAL_FILE
    journal = Journal.open(path, json.loads(path.read_text().partition("\n")[0])["run"])
    for key, value in TAMPERED.items():
        journal.add(key, value if isinstance(value, str) else json.dumps(value))
    journal.close()
    made = generate_mutants(tmp_path, max_ops=2)
    assert made.lost >= len(TAMPERED) - 1
    assert f"{path}: {made.lost} lines could not be read; their" in mutation_text(made)
    for name in {f.name for f in folder.iterdir()} - {family_mutants.JOURNAL_FILE}:
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize(
    ("change", "fine"),
    [
        ({}, True),
        ({"levels": []}, False),
        ({"partial": [[[0, 1, ["x"]], [2], [], 0.5]]}, False),
        ({"partial": [[["nosuch", 0, ["x"]], [2], [], 0.5]]}, False),
        ({"partial": [[[[10_000, 0], 0, ["x"]], [2], [], 0.5]]}, False),
        ({"partial": [[[[0], 0, ["x"]], [2], [], 0.5]]}, False),
        ({"partial": [[[0, 0, ["nosuch"]], [2], [], 0.5]]}, False),
        ({"partial": [[0, [2], [], 0.5]]}, False),
        ({"more": 1}, False),
    ],
)
def test_pairs_of_another_family_are_not_read(change: dict[str, object], fine: bool) -> None:
    family = MUTANT_FAMILIES["borders"].make_family()
    plain = json.loads(enumerate_family((family, 1, 0))) | change
    text = json.dumps(json.dumps(plain))
    journal = Journal(known={"borders pairs": text, "nosuch 1": "1"})
    known = drop_unreadable_entries(journal, {"borders": family}).known
    assert list(known) == (["borders pairs"] if fine else [])


def test_how_many_operators() -> None:
    """A default run enumerates three; with more for all families, these have more, too."""
    for sizes in MUTANT_FAMILIES.values():
        assert [operators_to_enumerate(sizes.make_family(), n) for n in (2, 4, 5)] == [2, 3, 4]


def test_the_requested_number_of_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def small(what: tuple[Family, int, int], room: int) -> str:
        family, most, seed = what
        assert family.complete_ops >= most  # else nothing of the last level is compared
        asked.append(most)
        return enumerate_family((family, 1, seed), room)

    monkeypatch.setattr(family_mutants, "enumerate_family", small)
    for most in (3, 4, 5):
        made = generate_mutants(tmp_path / str(most), max_ops=most)
        assert [f.operators for f in made.families] == [most] * len(MUTANT_FAMILIES)
    assert asked == [n for n in (3, 4, 5) for _ in MUTANT_FAMILIES]


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no family of mutants 'sums'"):
        generate_mutants(tmp_path, families=["sums"])
    with pytest.raises(UsageError, match="max_ops 0"):
        generate_mutants(tmp_path, max_ops=0)
    assert partial_rule("nosuch") is None
    pairs = tmp_path / "own.pairs"
    pairs.write_text("loose(x: f): Relu(Relu(x)) => Relu(x)\n")
    with pytest.raises(UsageError, match="no regions are known for loose"):
        partial_rule("loose", [pairs])
    pairs.write_text("deep(x: f[n, h]): Relu(x) => Relu(Reshape(x, shape=(1, n, h)))\n")
    with pytest.raises(UsageError, match="no regions are known for deep") as told:
        partial_rule("deep", [pairs])
    assert "its sides have different types" in told.value.why
    pairs.write_text("two(x: f[n, n]): (Relu(x), Neg(x)) => (x, Neg(x))\n")
    with pytest.raises(UsageError, match="no regions are known for two") as told:
        partial_rule("two", [pairs])
    assert told.value.why == "two has 2 results, and boxes are of one"


def test_of_what_is_right_everywhere_nothing_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = partial_rule("side-by-side-with-a-gap")
    assert page is not None
    assert page.picture
    assert "100.0 % equal" not in partial_page_text(page)

    pairs = tmp_path / "own.pairs"
    pairs.write_text("side-by-side-with-a-gap(x: f[n, m]): Relu(Relu(x)) => Relu(x)\n")
    run(["rules", "show", "--rules", str(pairs), page.name])
    assert "Relu(Relu(x))" in capsys.readouterr().out  # not the library's rule of this name


def test_the_page(golden: Callable[[str, str], None]) -> None:
    page = partial_rule("product-with-the-first")
    assert page is not None
    golden("partial.txt", partial_page_text(page))


@pytest.mark.slow
def test_pairs_that_may_save_something_come_first() -> None:
    for sizes in MUTANT_FAMILIES.values():
        family = sizes.make_family()
        found = read_enumeration(enumerate_family((family, 2, 0))).partial
        dropped, chosen = family_mutants._choose_pairs(found, sizes)
        assert len(dropped) + len(chosen) == len(found)
        assert len(set(chosen)) == len(chosen)
        assert family_mutants._choose_pairs(found, sizes)[1] == chosen
        of_others = instance_positions(found)
        assert not of_others & set(chosen)


@pytest.mark.ci
def test_no_more_than_some_are_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = MUTANT_FAMILIES["borders"]
    found = pairs_of("borders", 2).partial
    _, every = family_mutants._choose_pairs(found, sizes)
    monkeypatch.setattr(family_mutants, "MAX_PROVED_PAIRS", 3)
    dropped, chosen = family_mutants._choose_pairs(found, sizes)
    assert chosen == every[:3]
    assert len(dropped) == len(found) - 3


@lru_cache(maxsize=4)
def pairs_of(name: str, operators: int) -> Enumeration:
    return read_enumeration(enumerate_family((MUTANT_FAMILIES[name].make_family(), operators, 0)))


# What becomes of all pairs of two operators: of how many graphs, and why they are dropped.
ACCOUNTS = {
    "borders": (
        (53, 899),
        22,
        0,
        {"equal nowhere at other sizes": 4, "no formula fits the sizes": 3, FREE_REASON: 2},
    ),
    "strided": ((28, 288), 10, 0, {"equal nowhere at other sizes": 4, FREE_REASON: 3}),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", MUTANT_FAMILIES)
def test_the_account_of_two_operators(name: str) -> None:
    graphs, pairs, of_others, why = ACCOUNTS[name]
    made = pairs_of(name, 2)
    assert tuple(v.candidates for v in made.levels) == graphs
    assert len(made.partial) == pairs
    assert len(instance_positions(made.partial)) == of_others
    dropped, chosen = family_mutants._choose_pairs(made.partial, MUTANT_FAMILIES[name])
    assert Counter(line["dropped"] for line in dropped) == why
    assert len(chosen) == pairs - sum(why.values())


def left_out(found: list[PartialEquality], name: str) -> dict[int, str]:
    """The pairs that prices drop, and what is said of them."""
    costs, out = estimated_costs(), {}
    for n in sorted(set(range(len(found))) - instance_positions(found)):
        try:
            uncorrected_price_ratio(found[n], MUTANT_FAMILIES[name], costs)
            cheapest_candidate("pair", found[n], MUTANT_FAMILIES[name], costs)
        except RejectedPair as e:
            if str(e) in (DEARER_REASON, FREE_REASON):
                out[n] = str(e)
    return out


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "operators", [2, pytest.param(3, marks=pytest.mark.slow)], ids=lambda n: f"{n}-operators"
)
@pytest.mark.parametrize("name", MUTANT_FAMILIES)
def test_what_is_dropped_is_never_cheaper(name: str, operators: int) -> None:
    """With each correction, either way, at each of the sizes that are priced."""
    found = pairs_of(name, operators).partial
    dropped = left_out(found, name)
    assert dropped
    for n, why in dropped.items():
        try:
            every = all_candidates("pair", found[n], MUTANT_FAMILIES[name], estimated_costs())
        except RejectedPair:
            continue
        assert all(after > before for c in every for before, after in c.prices_us), n
        assert not every or why == DEARER_REASON


@pytest.mark.parametrize(
    ("pair", "halves"),
    [
        ("Relu(x) => MaxPool(x, kernel_shape=(3, 3), pads=(1, 1, 1, 1))", False),
        ("Relu(x) => Slice(x, starts=(0,), ends=(h,), axes=(2,), steps=(1,))", False),
        ("Relu(x) => MaxPool(x, kernel_shape=(3, 3), strides=(1, 1))", False),
        ("Relu(x) => MaxPool(x, kernel_shape=(3, 3), strides=(1, 3))", True),
        ("Relu(x) => MaxPool(x, kernel_shape=(3, 3), strides=(3, 3))", True),
        ("Relu(x) => Slice(x, starts=(0,), ends=(h,), axes=(2,), steps=(2,))", True),
        ("Relu(x) => Slice(x, starts=(0,), ends=(h // 2,), axes=(2,))", True),
    ],
)
def test_divided_sizes_have_the_family_s_condition(pair: str, halves: bool) -> None:
    (rule,) = parse_rules(f"r(x: f[n, c, h, w]): {pair}")
    whole = SymbolicRegions(("n", "c", "h", "w"), (), (), ())
    sizes = MUTANT_FAMILIES["borders"]
    assert [*map(show, _pair_conditions(rule, whole, sizes))] == [*sizes.common_conditions] * halves
    cut = SymbolicRegions(("n", "c", "h//2", "w"), (), (), ())
    assert len(_pair_conditions(rule, cut, sizes)) == len(sizes.common_conditions)


def test_only_what_does_not_fit_is_dropped_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else goes wrong is seen."""
    (p, *_) = read_enumeration(
        enumerate_family((MUTANT_FAMILIES["borders"].make_family(), 2, 0))
    ).partial

    def wrong(*given: object) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr("superopt.rulegen.family_candidates.symbolic_regions", wrong)
    with pytest.raises(ValueError, match="a fault"):
        cheapest_candidate("pair", p, MUTANT_FAMILIES["borders"], estimated_costs())


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANT_FAMILIES)
def test_the_better_way_is_kept(name: str) -> None:
    costs, sizes = estimated_costs(), MUTANT_FAMILIES[name]
    for p in pairs_of(name, 2).partial:
        try:
            best = cheapest_candidate("pair", p, sizes, costs)
        except RejectedPair:
            continue
        every = all_candidates("pair", p, sizes, costs)
        assert best.sort_key == min(c.sort_key for c in every)
        assert best.price_ratio <= MAX_PRICE_RATIO


def test_a_dilated_convolution_is_dearer_than_the_dense_one() -> None:
    """Which by the roofline it is not."""
    found = pairs_of("borders", 2).partial
    costs = estimated_costs()
    least = min(found, key=lambda p: _alone(p, costs))
    assert uncorrected_price_ratio(least, MUTANT_FAMILIES["borders"], costs) < 0.5
    made = cheapest_candidate("pair", least, MUTANT_FAMILIES["borders"], costs)
    assert "dilations=(2, 1)" in str(made.pair).partition("=>")[0]
    assert "dilations" not in str(made.pair).partition("=>")[2]


def _alone(p: PartialEquality, costs: GraphCosts) -> float:
    try:
        return uncorrected_price_ratio(p, MUTANT_FAMILIES["borders"], costs)
    except RejectedPair:
        return 1.0
