"""The optimization report as one self-contained HTML page: no network, light and dark.

jinja2 escapes everything that comes from a model; the page's content security policy forbids
requests and all scripts but its own, which the page does without.
"""

from collections.abc import Sequence

from markupsafe import Markup

from superopt.report.data.group import AppliedRule, group_rejections, group_steps
from superopt.report.data.report import Latency, Report
from superopt.report.formatting import phrases
from superopt.report.html.chart_bar import CHART_WIDTH_PERCENT, ChartBar
from superopt.report.html.template import load_script, load_template, time_text
from superopt.report.html.waterfall_chart import ablation_rows, waterfall_rows
from superopt.report.svg.model_svg import DrawnGraph, draw_graph_change

# Places shown in full for each rule; the JSON report has all.
MAX_PLACES = 20


def report_page(report: Report) -> str:
    """Return the report as an HTML document."""
    rules = group_steps(report.steps)
    known = {rule.name: rule for rule in report.rules}
    graphs = draw_graph_change(report.graph) if report.graph else ()
    return load_template("report.html.jinja").render(
        report=report,
        script=load_script("report.js"),
        graphs=[(graph, Markup(graph.svg)) for graph in graphs],
        links=_step_links(report, graphs),
        headline=phrases.report_verdict_text(report),
        latency=_latency_bars(report.latency_before, report.latency_after),
        stages=waterfall_rows(report.waterfall),
        ablated=ablation_rows(report.ablation),
        rules=[
            (rule, bar, known.get(rule.rule))
            for rule, bar in zip(rules, _saving_bars(rules), strict=True)
        ],
        same=[(kind, after) for kind, before, after in report.operators if before == after],
        worst_step=report.worst_step and phrases.worst_step_text(report.worst_step),
        steps_of=phrases.class_counts_text(step.float_class for step in report.steps),
        bars=phrases.UNUSED_REASON_TEXTS,
        refused=group_rejections(report.rejected),
        places=MAX_PLACES,
        tiers_here={
            t: phrases.TIER_TEXTS[t]
            for t in sorted({r.tier for r in rules} & set(phrases.TIER_TEXTS))
        },
        classes_here={
            c: phrases.FLOAT_CLASS_TEXTS[c]
            for c in sorted({r.float_class for r in rules} & set(phrases.FLOAT_CLASS_TEXTS))
        },
        reasons=phrases.REJECTION_TEXTS,
        kinds=phrases.STEP_KIND_TEXTS,
    )


def _step_links(
    report: Report, graphs: Sequence[DrawnGraph]
) -> dict[int, tuple[tuple[str, str], ...]]:
    """Return for each step, by its number, a name for each drawing and the first box in it that the
    step touched."""
    if report.graph is None or not all(graph.svg for graph in graphs):
        return {}
    out = {}
    for number, step in enumerate(report.graph.steps, 1):
        rows = zip(("before", "after"), graphs, (step.before, step.after), strict=True)
        out[number] = tuple((name, graph.anchors[some[0]]) for name, graph, some in rows if some)
    return out


def _latency_bars(before: Latency | None, after: Latency | None) -> tuple[ChartBar, ...]:
    both = [
        (label, kind, t)
        for label, kind, t in (("original", "before", before), ("optimized", "after", after))
        if t is not None
    ]
    longest = max((t.us_high for _, _, t in both), default=0.0)
    if longest <= 0:
        return ()
    scale = CHART_WIDTH_PERCENT / longest
    return tuple(
        ChartBar(
            label=label,
            text=time_text(t.us_median),
            kind=kind,
            start=0.0,
            end=t.us_median * scale,
            low=t.us_low * scale,
            high=t.us_high * scale,
        )
        for label, kind, t in both
    )


def _saving_bars(rules: Sequence[AppliedRule]) -> tuple[ChartBar, ...]:
    """Return savings to the right of a common zero, costs to the left."""
    highest = max((r.saves_us for r in rules), default=0.0)
    lowest = min((r.saves_us for r in rules), default=0.0)
    high, low = max(highest, 0.0), min(lowest, 0.0)
    scale = CHART_WIDTH_PERCENT / (high - low) if high > low else 0.0
    zero = -low * scale
    bars = []
    for rule in rules:
        tip = zero + rule.saves_us * scale
        kind = "saves" if rule.saves_us >= 0 else "costs"
        text = time_text(rule.saves_us)
        bars.append(ChartBar(rule.rule, text, kind, min(zero, tip), max(zero, tip)))
    return tuple(bars)
