"""A waterfall as rows with bars: from the original to the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.report.data.attribution import AblatedPart, Ablation, PartKind, WaterfallStage
from superopt.report.html.chart_bar import CHART_WIDTH_PERCENT, ChartBar
from superopt.report.html.template import time_text
from superopt.report.text.ablation_text import part_note, ratio_text

MIN_SHOWN_PART = 0.0005  # of the original's time; smaller changes are shown as 0 %


@dataclass(frozen=True, slots=True)
class WaterfallRow:
    """A stage; change: what it adds to the one before, as text; interval: of the time, if it was
    timed in turns with others. is_end: the original or the result."""

    name: str
    steps: int
    is_rule: bool
    is_end: bool
    is_measured: bool
    change: str
    us: float
    interval: str
    bar: ChartBar


@dataclass(frozen=True, slots=True)
class AblationRow:
    name: str
    is_rule: bool
    steps: int
    ratio: str
    note: str


def waterfall_rows(stages: Sequence[WaterfallStage]) -> tuple[WaterfallRow, ...]:
    """Return the rows. Bars of stages reach from the time before to the time after them."""
    longest = max((s.us for s in stages), default=0.0)
    if longest <= 0:
        return ()
    scale = CHART_WIDTH_PERCENT / longest
    rows, before = [], 0.0
    for s in stages:
        is_end = s.kind in ("original", "result")
        change = "" if is_end else _change_text(before, s.us, stages[0].us)
        start, end = (0.0, s.us) if is_end else sorted((before, s.us))
        kind = {"original": "before", "result": "after"}.get(s.kind)
        kind = kind or ("saves" if s.us <= before else "costs")
        marked = kind if s.is_measured else f"{kind} predicted"
        interval = "" if s.interval_us is None else " to ".join(map(time_text, s.interval_us))
        bar = ChartBar(s.name, change or time_text(s.us), marked, start * scale, end * scale)
        about = (s.name, s.steps, _is_rule(s.name, s.kind), is_end, s.is_measured)
        rows.append(WaterfallRow(*about, change, s.us, interval, bar))
        before = s.us
    return tuple(rows)


def _is_rule(name: str, kind: PartKind) -> bool:
    """True for the name of a rule, False for several rules together."""
    return kind == "rule" and " " not in name


def _change_text(before: float, after: float, whole: float) -> str:
    """Return a change of the time, and in percent of that of the original."""
    us = after - before
    if abs(us) < MIN_SHOWN_PART * whole:
        return "0 %"
    sign = "−" if us < 0 else "+"
    return f"{sign}{time_text(abs(us))} ({sign}{100 * abs(us) / whole:.1f} %)"


def ablation_rows(ablation: Ablation | None) -> tuple[AblationRow, ...]:
    """Return the rows of the table of an ablation."""
    return tuple(map(_ablation_row, ablation.parts)) if ablation is not None else ()


def _ablation_row(p: AblatedPart) -> AblationRow:
    return AblationRow(p.name, _is_rule(p.name, p.kind), p.steps, ratio_text(p), part_note(p))
