"""Reports: the stored form, the text, and the page."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.errors import UsageError
from superopt.report.data import group
from superopt.report.data.codec import decode, dumps, from_json, to_json
from superopt.report.data.report import (
    REPORT_VERSION,
    BenchRow,
    CheckResult,
    Derivation,
    DerivedStep,
    OutputError,
    Report,
    RuleVerdict,
    Step,
    Verdict,
)
from superopt.report.formatting import phrases
from superopt.report.html.report_page import report_page
from superopt.report.text import report_text, rules_text
from tests.support.report.fake_api import GENERATION
from tests.support.report.page import Page, check_self_contained
from tests.support.report.sample_report import (
    AFTER,
    ALL,
    BEFORE,
    FASTER,
    HOSTILE,
    UNCHANGED,
    UNTIMED,
)

every_report = pytest.mark.parametrize("report", ALL.values(), ids=ALL)


@every_report
def test_a_report_comes_back_from_json(report: Report) -> None:
    assert from_json(to_json(report)) == report


@given(st.builds(Step), st.builds(OutputError))
def test_any_values_come_back_from_json(step: Step, error: OutputError) -> None:
    report = replace(FASTER, steps=(step,), check=CheckResult(True, 1, (error,), "", ()))
    again = from_json(to_json(report))
    assert repr(again) == repr(report)  # by repr, because NaN differs from itself


def test_json_has_no_numbers_that_json_cannot_say() -> None:
    report = replace(FASTER, cost_after_us=math.inf, cost_before_us=math.nan)

    def refuse(name: str) -> None:
        raise AssertionError(name)

    json.loads(to_json(report), parse_constant=refuse)
    assert from_json(to_json(report)).cost_after_us == math.inf


def damaged(change: Callable[[dict[str, Any]], object]) -> str:
    value = json.loads(to_json(FASTER))
    change(value)
    return json.dumps(value)


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        ("{", "it is not JSON"),
        ("[]", "it has no version number"),
        ("[" * 100_000, "it is not JSON"),
        (damaged(lambda v: v.update(version=True)), "it has no version number"),
        (
            damaged(lambda v: v.update(version=REPORT_VERSION + 1)),
            f"it has version {REPORT_VERSION + 1}",
        ),
        (
            damaged(lambda v: v.update(version=1)),
            f"it has version 1, this superopt reads {REPORT_VERSION}",
        ),
        (damaged(lambda v: v.pop("steps")), "Report must be the fields"),
        (damaged(lambda v: v.update(extra=1)), "Report must be the fields"),
        (damaged(lambda v: v.update(nodes_after="3")), "Report.nodes_after must be a value of int"),
        (
            damaged(lambda v: v.update(nodes_after=True)),
            "Report.nodes_after must be a value of int",
        ),
        (damaged(lambda v: v.update(speedup=[1, 2])), "Report.speedup must be a list of 3"),
        (
            damaged(lambda v: v["steps"][1].update(kind="magic")),
            "Report.steps[1].kind must be one of rule, tactic, fold, cse, dce, not 'magic'",
        ),
        (
            damaged(lambda v: v["latency_after"].update(us_low="fast")),
            "Report.latency_after.us_low must be a number, not 'fast'",
        ),
    ],
)
def test_a_damaged_report_is_refused(stored: str, why: str) -> None:
    with pytest.raises(UsageError, match="this is not a superopt report") as caught:
        from_json(stored)
    assert why in caught.value.why


def test_other_results_are_json_too() -> None:
    row = BenchRow("m", "ort", BEFORE, None)
    assert [decode(BenchRow, item) for item in json.loads(dumps([row]))] == [row]


@pytest.mark.parametrize(
    ("us", "said"),
    [
        (0, "0.00 us"),
        (0.123, "0.12 us"),
        (9.996, "10.0 us"),
        (842.4, "842 us"),
        (999.6, "1.00 ms"),
        (4210, "4.21 ms"),
        (999_600, "1.00 s"),
        (1.93e6, "1.93 s"),
        (-31.5, "-31.5 us"),
    ],
)
def test_times(us: float, said: str) -> None:
    assert phrases.time_text(us) == said


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 B"), (999, "999 B"), (16_800_000, "16.8 MB"), (2.25e12, "2250 GB")]
)
def test_sizes(count: float, said: str) -> None:
    assert phrases.size_text(int(count)) == said


@pytest.mark.parametrize(
    ("speedup", "changed", "said"),
    [
        ((2.05, 2.13, 2.2), True, "2.13x faster (2.05 to 2.20)"),
        ((0.97, 1.01, 1.04), True, "no difference beyond noise: 1.01x (0.97 to 1.04)"),
        ((0.8, 0.9, 0.95), True, "slower: 0.90x (0.80 to 0.95)"),
        (None, True, "changed; not timed"),
        (None, False, "unchanged: no faster graph was found"),
    ],
)
def test_the_headline_claims_no_more_than_was_measured(
    speedup: tuple[float, float, float] | None, changed: bool, said: str
) -> None:
    assert phrases.verdict_text(speedup, changed) == said


PREDICTED = "predicted for the kernels of a GPU: not measured here"


@pytest.mark.parametrize(
    ("changed", "source", "headline", "cost"),
    [
        (True, PREDICTED, "changed; predicted 2.17x as fast, not measured here", "of a GPU)"),
        (False, PREDICTED, "unchanged: no faster graph was found", "of a GPU)"),
        (True, "", "changed; not timed", "1.80 ms"),
    ],
)
def test_a_predicted_ratio_is_said_not_to_be_measured(
    changed: bool, source: str, headline: str, cost: str
) -> None:
    report = replace(UNTIMED, changed=changed, cost_source=source)
    lines = report_text.short_summary(report).splitlines()
    assert lines[0] == f"{UNTIMED.model_name}: {headline}"
    assert lines[2].strip() == "measured latency  not measured here" or not source
    assert lines[3].endswith(cost)


@every_report
def test_summary(
    report: Report, golden: Callable[[str, str], None], request: pytest.FixtureRequest
) -> None:
    golden(f"summary-{request.node.callspec.id}.txt", report_text.report_summary(report))


@every_report
def test_short_summary(
    report: Report, golden: Callable[[str, str], None], request: pytest.FixtureRequest
) -> None:
    text = report_text.short_summary(report)
    assert len(text.splitlines()) <= 13
    assert max(map(len, text.splitlines())) <= 132
    assert all(c.isprintable() or c == "\n" for c in text)
    golden(f"short-{request.node.callspec.id}.txt", text)


def test_summary_obeys_no_control_characters() -> None:
    assert all(c.isprintable() or c == "\n" for c in report_text.report_summary(HOSTILE))


def test_explanation(golden: Callable[[str, str], None]) -> None:
    steps, rejected = group.filter_by_names(FASTER, ["merge-matmul", "h4"])
    assert len(steps) == 2
    assert [r.rule for r in rejected] == ["bn-fold"]
    golden("explanation.txt", report_text.explanation_text("merge-matmul", steps, rejected))


def test_comparison(golden: Callable[[str, str], None]) -> None:
    bad = OutputError(
        "logits", 0.25, 0.01, 0.2, 2.9e-07, 3e-8, 2e-7, 1e-4, 1e-5, False, "NaN at [0, 3]"
    )
    steps = OutputError(
        "boxes", 0.1, 0.01, 0.05, 0.05, 3e-3, 0.05, 0, 0, True, "inputs: uniform", 2.0, 2, 1
    )
    unknown = OutputError(
        "n", *(3 * [math.inf]), 0, 0, 0, 0, 0, False, "shape (2,) instead of (3,)"
    )
    assert FASTER.check is not None
    check = replace(
        FASTER.check, passed=False, outputs=(*FASTER.check.outputs, bad, steps, unknown)
    )
    verdict = Verdict("differs", "output logits differs at [0, 3]", check)
    golden("comparison.txt", report_text.verdict_text(verdict))


def test_derivation(golden: Callable[[str, str], None]) -> None:
    steps = (
        DerivedStep("relu-concat", True, "Concat(Relu(x), Relu(y), axis=0)", "A", "E0"),
        DerivedStep("concat-swap", False, "Concat(Relu(y), Relu(x), axis=0)", "C", "E1"),
    )
    found = Derivation(True, "by 2 rewrites", steps, 40, 0.2)
    none = Derivation(False, "the limit of steps was reached, after 7 graphs", (), 7, 1.0)
    differ = Derivation(False, "output y has shapes (2,) and (3,)", (), 0, 0.1, differ=True)
    shown = "".join(
        rules_text.derivation_text(d, "a.onnx", "b.onnx") for d in (found, none, differ)
    )
    golden("derivation.txt", shown)


def test_rule_verdicts(golden: Callable[[str, str], None]) -> None:
    scope = "ranks 0 to 4; 1 way to fit; sizes from 1"
    rows = (
        RuleVerdict("relu-relu", "", "proved", scope, "my.rules:1", (), "E0", "E0"),
        RuleVerdict("relu-sum", "", "refuted", "output 0 at [1] is 1 on the left, 2", "my.rules:2"),
        RuleVerdict("add-add", "", "proved", scope, "my.rules:3", (), "E0", "E2"),
        RuleVerdict("tanh-tanh", "", "passed", "both sides agree on 16 instances", "my.rules:4"),
    )
    golden("rule-verdicts.txt", rules_text.rule_verdicts(rows))


def test_generation(golden: Callable[[str, str], None]) -> None:
    golden("generation.txt", rules_text.generation_text(GENERATION))


def test_latencies(golden: Callable[[str, str], None]) -> None:
    rows = (
        BenchRow("a.onnx", "onnxruntime 1.31.1", BEFORE, None),
        BenchRow("b.onnx", "onnxruntime 1.31.1", AFTER, (2.05, 2.13, 2.2)),
        BenchRow("b.onnx", "openvino", None, None, "not installed: pip install openvino"),
    )
    golden("latencies.txt", report_text.latency_table(rows))


def test_steps_are_gathered_by_rule() -> None:
    rows = group.group_steps(FASTER.steps)
    assert [(r.rule, len(r.steps), r.saves_us) for r in rows] == [
        ("merge-matmul", 2, 1922.0),
        ("fold-constant", 1, 210.0),
        ("split-add", 1, -31.5),
    ]


@every_report
def test_the_page_is_whole_and_loads_nothing(report: Report) -> None:
    read = check_self_contained(report_page(report))
    assert phrases.printable(report.model_name) in read.text


def test_the_page_says_what_the_report_says() -> None:
    said = " ".join(Page(report_page(FASTER)).text.split())
    for part in (
        "2.13x faster (2.05 to 2.20)",
        "4.21 ms → 1.98 ms",
        "320 → 215",
        "merge-matmul",
        "(MatMul(x, a), MatMul(x, b))",
        "constant(scale): scale is computed at run time",
        "sha256 " + "a1" * 32,
        "onnxruntime 1.31.1",
    ):
        assert part in said
    assert "not timed" in Page(report_page(UNTIMED)).text
    assert "the result is the original, byte for byte" in Page(report_page(UNCHANGED)).text


def test_the_bars_are_to_scale() -> None:
    original, optimized, merged, folded, cost = Page(report_page(FASTER)).bars
    assert original / optimized == pytest.approx(4210 / 1975, rel=1e-3)
    assert merged / folded == pytest.approx(1922 / 210, rel=1e-3)
    assert merged / cost == pytest.approx(1922 / 31.5, rel=1e-2)


def test_many_places_are_cut_short() -> None:
    many = replace(
        FASTER, steps=tuple(replace(FASTER.steps[0], where=(f"v{i}",)) for i in range(50))
    )
    assert "and 30 more places" in report_page(many)


def test_a_tuning_that_kept_nothing_says_why() -> None:
    from superopt.report.compilation.compile_report import TuningReport, tuning_text

    said = tuning_text(
        TuningReport((), 3.0, notes=("measurements are kept in memory only: no place",))
    )
    assert said == (
        "no kernel was measured in 3 s\nnote: measurements are kept in memory only: no place\n"
    )
