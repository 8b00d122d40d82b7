"""The optimization report as one self-contained HTML page: no script, no network, light and dark.

jinja2 escapes everything that comes from a model; the page's content security policy forbids
scripts and requests as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.report import words
from superopt.report.data import Latency, Report
from superopt.report.group import Applied, applied, refused
from superopt.report.template import template, time

# Places shown in full for each rule; the JSON report has all.
PLACES = 20
WIDTH = 100.0  # charts are drawn in percent of the page's width


@dataclass(frozen=True, slots=True)
class Bar:
    """A horizontal bar from `start` to `end`, with the bounds of its interval, in percent."""

    label: str
    text: str
    kind: str  # a CSS class: before, after, saves, costs
    start: float
    end: float
    low: float | None = None
    high: float | None = None


def page(report: Report) -> str:
    """Return the report as an HTML document."""
    rules = applied(report.steps)
    known = {rule.name: rule for rule in report.rules}
    return template("report.html.jinja").render(
        report=report,
        headline=words.verdict(report.speedup, report.changed),
        latency=_latency_bars(report.latency_before, report.latency_after),
        rules=[
            (rule, bar, known.get(rule.rule))
            for rule, bar in zip(rules, _saving_bars(rules), strict=True)
        ],
        same=[(kind, after) for kind, before, after in report.operators if before == after],
        worst_step=report.worst_step and words.worst_step(report.worst_step),
        steps_of=words.by_class(step.float_class for step in report.steps),
        bars=words.LEFT_OUT,
        refused=refused(report.rejected),
        places=PLACES,
        tiers_here={t: words.TIERS[t] for t in sorted({r.tier for r in rules} & set(words.TIERS))},
        classes_here={
            c: words.FLOAT_CLASSES[c]
            for c in sorted({r.float_class for r in rules} & set(words.FLOAT_CLASSES))
        },
        reasons=words.REASONS,
        kinds=words.KINDS,
    )


def _latency_bars(before: Latency | None, after: Latency | None) -> tuple[Bar, ...]:
    both = [
        (label, kind, t)
        for label, kind, t in (("original", "before", before), ("optimized", "after", after))
        if t is not None
    ]
    longest = max((t.us_high for _, _, t in both), default=0.0)
    if longest <= 0:
        return ()
    scale = WIDTH / longest
    return tuple(
        Bar(
            label=label,
            text=time(t.us_median),
            kind=kind,
            start=0.0,
            end=t.us_median * scale,
            low=t.us_low * scale,
            high=t.us_high * scale,
        )
        for label, kind, t in both
    )


def _saving_bars(rules: Sequence[Applied]) -> tuple[Bar, ...]:
    """Return savings to the right of a common zero, costs to the left."""
    highest = max((r.saves_us for r in rules), default=0.0)
    lowest = min((r.saves_us for r in rules), default=0.0)
    high, low = max(highest, 0.0), min(lowest, 0.0)
    scale = WIDTH / (high - low) if high > low else 0.0
    zero = -low * scale
    bars = []
    for rule in rules:
        tip = zero + rule.saves_us * scale
        kind = "saves" if rule.saves_us >= 0 else "costs"
        text = time(rule.saves_us)
        bars.append(Bar(rule.rule, text, kind, min(zero, tip), max(zero, tip)))
    return tuple(bars)
