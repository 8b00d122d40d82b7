"""Waterfalls and ablations as text and on pages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from superopt.report.compilation.compile_report import TunedKernel, TuningReport
from superopt.report.data.attribution import AblatedPart, Ablation, WaterfallStage
from superopt.report.html.compilation_page import compilation_page
from superopt.report.html.report_page import report_page
from superopt.report.html.waterfall_chart import waterfall_rows
from superopt.report.text.ablation_text import MAX_LINES, ablation_text
from tests.support.report.fake_api import COMPILATION
from tests.support.report.page import Page, check_self_contained
from tests.support.report.sample_report import ABLATED, FASTER, HOSTILE, PREDICTED


def text_of(page: str) -> str:
    return " ".join(Page(page).text.split())


def test_bars_reach_from_the_time_before_to_the_time_after() -> None:
    rows = waterfall_rows(ABLATED.waterfall)
    assert [(r.bar.start, r.bar.end) for r in rows] == [
        (0.0, 100.0), (100.0, 100.0), (pytest.approx(47.5), 100.0),
        (pytest.approx(47.5), pytest.approx(49.375)), (0.0, pytest.approx(49.375)),
    ]  # fmt: skip
    assert [r.bar.kind for r in rows] == ["before", "saves", "saves", "costs", "after"]
    assert [r.change for r in rows] == ["", "0 %", "−2.10 ms (−52.5 %)", "+75.0 µs (+1.9 %)", ""]
    assert rows[0].interval == "3.90 ms to 4.10 ms"
    assert [r.is_rule for r in rows] == [False, False, True, True, False]


def test_stages_without_a_time_make_no_chart() -> None:
    assert waterfall_rows(()) == ()
    assert waterfall_rows((WaterfallStage("original", "original", 0.0, False),)) == ()


def test_what_is_predicted_is_marked() -> None:
    rows = waterfall_rows(PREDICTED.waterfall)
    assert all("predicted" in r.bar.kind.split() for r in rows)
    said = text_of(report_page(PREDICTED))
    assert "Stages are predicted by the costs of plans" in said
    assert "1.50x predicted" in said
    assert "“Kernels alone”" in said
    assert "kernels alone 9.00 µs predicted" in said


def test_the_page_has_the_stages_and_the_table() -> None:
    said = text_of(report_page(ABLATED))
    for part in (
        "Where the time went", "2x merge-matmul −2.10 ms (−52.5 %) 1.90 ms", "measured",
        "below a time is its confidence interval", "The result without one part",
        "2.00x (1.90 to 2.10)", "with 1 dependent step", "no difference beyond noise",
        "not timed: no time left", "at least 75 rounds in 3 sessions",
        "Left in: onnxruntime's own optimizations are in all of them.",
    ):  # fmt: skip
        assert part in said
    assert "Where the time went" not in text_of(report_page(FASTER))


def test_names_from_models_are_escaped() -> None:
    name = HOSTILE.steps[0].rule
    stages = tuple(replace(s, name=name) for s in ABLATED.waterfall)
    assert ABLATED.ablation is not None
    parts = tuple(replace(p, name=name, note=name) for p in ABLATED.ablation.parts)
    check_self_contained(
        report_page(
            replace(ABLATED, waterfall=stages, ablation=replace(ABLATED.ablation, parts=parts))
        )
    )


def test_the_table_as_text() -> None:
    assert ABLATED.ablation is not None
    assert ablation_text(ABLATED.ablation) == (
        "time without each part, over that of the result (timed in turns, at least 75 rounds in 3"
        " sessions)\n"
        "  without 2x merge-matmul   2.00x (1.90 to 2.10)  with 1 dependent step\n"
        "  without 1x split-add      0.96x (0.90 to 1.01)  no difference beyond noise\n"
        "  without constant folding  -                     not timed: no time left\n"
        "  note: onnxruntime's own optimizations are in all of them\n"
    )


def test_the_table_has_at_most_fifteen_lines() -> None:
    parts = tuple(AblatedPart(f"rule-{n}", "rule", n, 0, (1.0, 1.1, 1.2)) for n in range(40))
    text = ablation_text(Ablation(parts, 9, 1, ("a", "b")))
    assert len(text.splitlines()) == MAX_LINES
    assert "and 29 more, in the report" in text


KERNEL = TunedKernel("f32[4, 8]", 2, 3e-6, 2e-6, "gemm rows=1", "gemm rows=2", 4, 9)


def test_the_page_of_a_search_for_a_compiled_model() -> None:
    search = TuningReport((KERNEL,), 60.0, 3, 1.25, ("a note",), waterfall=PREDICTED.waterfall)
    page = compilation_page(COMPILATION, search)
    check_self_contained(page)
    said = text_of(page)
    for part in ("3 rewrites of the graph, 1.25x faster", "fusion of operators into kernels",
                 "predicted", "gemm rows=2", "2.00 µs", "a note"):  # fmt: skip
        assert part in said
    none = text_of(compilation_page(COMPILATION, TuningReport((), 5.0)))
    assert "No faster graph was found" in none
    assert "Not known: the graph was not searched" in none
