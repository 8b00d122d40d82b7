"""Bars of charts on HTML pages."""

from dataclasses import dataclass

CHART_WIDTH_PERCENT = 100.0  # charts are drawn in percent of the page's width


@dataclass(frozen=True, slots=True)
class ChartBar:
    """A horizontal bar from `start` to `end`, with the bounds of its interval, in percent."""

    label: str
    text: str
    kind: str  # CSS classes: before, after, saves or costs; predicted
    start: float
    end: float
    low: float | None = None
    high: float | None = None
