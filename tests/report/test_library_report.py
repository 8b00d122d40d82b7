"""The report of the rule library: its stored form, its text, and its page."""

import json
import zlib
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from superopt.api import functions
from superopt.errors import UsageError
from superopt.optimization.report import rule_report
from superopt.report.data.codec import decode, dumps
from superopt.report.data.diagram import AxiomProof
from superopt.report.formatting import phrases
from superopt.report.formatting.rule_facts import rule_facts
from superopt.report.html.library_page import library_page
from superopt.report.text import library_counts
from superopt.report.text.library_counts import RuleReport
from superopt.report.text.library_text import library_summary
from superopt.rules.library.load import load_library
from superopt.rules.library.records import library_records, proof_key, tier
from tests.support.report.page import Page, check_self_contained
from tests.support.report.sample_rules import (
    HOSTILE_NAME,
    HOSTILE_RULES,
    ONCE,
    OPEN,
    OWN,
    RULES,
    TWICE,
)

Run = Callable[..., SimpleNamespace]
FEW = replace(RULES, part="merge", rules=(ONCE,))
ALL = {"all": RULES, "few": FEW, "hostile": HOSTILE_RULES}
every_report = pytest.mark.parametrize("report", ALL.values(), ids=ALL)


@every_report
def test_it_comes_back_from_json(report: RuleReport) -> None:
    assert decode(RuleReport, json.loads(dumps(report))) == report


@every_report
def test_summary(
    report: RuleReport, golden: Callable[[str, str], None], request: pytest.FixtureRequest
) -> None:
    golden(f"rules-{request.node.callspec.id}.txt", library_summary(report))


def test_summary_obeys_no_control_characters() -> None:
    assert all(c.isprintable() or c == "\n" for c in library_summary(HOSTILE_RULES))


def test_what_is_counted() -> None:
    rules = RULES.rules
    wanted = (("elements and axioms", 1), ("elements", 1), ("trials", 1), ("nothing", 1))
    assert library_counts.count_by_method(rules) == wanted
    assert library_counts.unproved_rules(rules) == (OPEN, OWN)
    assert library_counts.slowest_proofs(rules, 1) == ((ONCE, 2100.0),)
    assert library_counts.count_axiom_uses(rules) == (("identity", 1), ("relu-idempotent", 1))
    assert library_counts.count_assumptions(rules)[0] == ("sizes from 1", 2)
    total = library_counts.summarize_rules("all", rules)
    assert dict(total.tiers) == {"A": 2, "B": 0, "C": 1, "": 1}
    assert (total.obligations, total.queries, total.ms) == (1207, 3, 2149.1)
    assert total.mutants == (11, 12)


def cards(source: str) -> list[str]:
    """The details of all rules as HTML, as the page's script unpacks them."""
    packed = (text for about, text in Page(source).scripts if about.get("type") == "text/plain")
    return [
        card for text in packed for card in json.loads(zlib.decompress(b64decode(text)).decode())
    ]


@every_report
def test_the_page_is_whole_and_loads_nothing(report: RuleReport) -> None:
    source = library_page(report)
    read = check_self_contained(source)
    assert [v for n, v in read.attributes if n == "href"]
    assert "prefers-color-scheme: dark" in source
    assert "@media print" in source
    for card in cards(source):
        part = Page(card)
        assert {"script", "link", "iframe", "img", "object", "use", "a"}.isdisjoint(part.tags)
        assert not [n for n, _ in part.attributes if n in ("id", "src") or n.startswith("on")]


def test_names_are_escaped() -> None:
    source = library_page(HOSTILE_RULES)
    assert phrases.printable(HOSTILE_NAME) in Page(source).text
    assert any(phrases.printable(HOSTILE_NAME) in Page(card).text for card in cards(source))
    assert "\x1b" not in source + "".join(cards(source))


def test_rows_have_what_the_filter_reads() -> None:
    rows = Page(library_page(RULES)).attributes
    assert [v for n, v in rows if n == "data-float"] == [r.float_class for r in RULES.rules]
    assert [v for n, v in rows if n == "data-tier"] == [r.tier or "unchecked" for r in RULES.rules]
    assert {v for n, v in rows if n == "data-operators"} == {"Relu"}


def test_the_page_says_what_the_report_says() -> None:
    source = library_page(RULES)
    read = Page(source)
    details = [Page(card) for card in cards(source)]
    said = " ".join(" ".join((read.text, *(d.text for d in details))).split())
    for part in (
        "4 rules, 2 proved for all sizes, 2 not",
        "Relu(x) → x",
        "rank(x) == 2",
        "tier A: proved for all sizes",
        "ranks 0 to 4; 6 ways to fit",
        "sizes from 1; floats as real numbers, sizes without overflow",
        "refused unless",
        "n == m",
        "1,200 obligations, 3 Z3 calls, 49.1 ms; 11 of 12 mutated rules refused",
        "relu-idempotent, identity in 1.80 ms",
        "Relu(Identity(x)) by identity",
        "a cast in a rule for several types",
        "not checked; `superopt rules check FILE` tests and proves it",
        "E3: may change overflow, inf or NaN",
        "activation.rules:6, hand",
        "a caveat",
        "sha256 " + "3f" * 32,
    ):
        assert part in said, part
    assert [d.tags.count("svg") for d in details] == [2] * len(RULES.rules)
    assert read.tags.count("details") == len(RULES.rules)
    assert "svg" not in read.tags  # drawings are unpacked when a rule is opened


def test_many_conditions_are_folded() -> None:
    assert TWICE.proof is not None
    many = tuple(f"n{k} == m" for k in range(20))
    rule = replace(TWICE, proof=replace(TWICE.proof, conditions=many))
    (source,) = cards(library_page(replace(RULES, rules=(rule,))))
    assert "20 conditions, each for some bindings" in source
    assert all(c in source for c in many)
    lines = [line for heading, line in rule_facts(rule, 200) if heading == "needs"]
    assert lines == [", ".join((*many[:8], "and 12 more"))]


# --- of the library itself ------------------------------------------------------------------------


def test_a_part_of_the_library() -> None:
    report = functions.rule_report(name_filter="pool.rules")
    some = [r for r in load_library() if "pool.rules" in r.source]
    assert [r.name for r in report.rules] == [r.name for r in some]
    assert report.of == len(load_library())
    source = library_page(report)
    assert [card.count('<svg class="side"') for card in cards(source)] == [2] * len(some)
    for rule, told in zip(some, report.rules, strict=True):
        assert told.tier == tier(rule)
        assert (told.proof is not None) == (tier(rule) == "A")
        assert bool(told.unproved) == (tier(rule) != "A")
        assert f'id="rule-{rule.name}"' in source


def test_own_rules_are_of_the_tier_that_the_library_says_if_any(tmp_path: Path) -> None:
    file = tmp_path / "my.rules"
    file.write_text(
        "new(x: f): Sub(x, x) => Sub(Exp(x), Exp(x)) ; float=E3\n"
        "relu-relu(x: f): Relu(Relu(x)) => Relu(x) ; float=E0\n"
    )
    report = functions.rule_report([file], "my.rules")
    assert [(r.name, r.tier, r.proof is not None) for r in report.rules] == [
        ("new", "", False),
        ("relu-relu", "A", True),
    ]


def test_axiom_proofs_are_reported_where_they_are_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule = load_library()[0]
    chain = [["Relu(Relu(x))", ""], ["Relu(x)", "relu"]]
    for entry, wanted in (
        (None, None),
        ({"names": ["itself"]}, AxiomProof(("itself",), (), 0.0)),
        (
            {"names": ["relu"], "steps": chain, "ms": 1.5},
            AxiomProof(("relu",), (("Relu(Relu(x))", ""), ("Relu(x)", "relu")), 1.5),
        ),
    ):
        axioms = {} if entry is None else {proof_key(rule): entry}
        known = replace(library_records(), axioms=axioms)
        monkeypatch.setattr(rule_report, "library_records", lambda known=known: known)
        assert rule_report.describe_rule(rule).axioms == wanted


@pytest.mark.slow
def test_the_page_of_the_whole_library_is_of_a_size_that_opens() -> None:
    source = library_page(functions.rule_report())
    assert len(cards(source)) == len(load_library())
    assert len(source.encode()) < 3e6
    assert len(Page(source).tags) < 30_000


# --- the command ----------------------------------------------------------------------------------


def test_the_command(superopt: Run, tmp_path: Path) -> None:
    assert superopt("rules", "report").out == library_summary(RULES)
    assert decode(RuleReport, json.loads(superopt("rules", "report", "--json").out)) == RULES
    html = tmp_path / "rules.html"
    done = superopt("rules", "report", "relu", "--html", html)
    assert done.code == 0
    assert f"wrote {html}" in done.out
    wanted = (TWICE, OWN)
    assert html.read_text() == library_page(replace(RULES, part="relu", rules=wanted))


def test_no_rule_of_that_name(superopt: Run) -> None:
    done = superopt("rules", "report", "no such rule")
    assert done.code == UsageError("", "", "").code
    assert "no rule has 'no such rule' in its name or its file's" in done.err
    assert "the library holds 4 rules" in done.err
