"""The report of the rule library as one self-contained page: every rule drawn, with its proof."""

from collections import Counter

from superopt.report import words
from superopt.report.diagram import RuleDiagram
from superopt.report.library import (
    METHODS,
    RuleReport,
    assumptions,
    axiom_uses,
    by_file,
    by_method,
    slowest,
    summed,
    unproved,
    why_not,
)
from superopt.report.template import template

SLOW = 24  # of the slowest proofs that are listed


def page(report: RuleReport) -> str:
    """Return the report as an HTML document."""
    rules = report.rules
    files = by_file(rules)
    every = summed("all", rules)
    anchors = _anchors(rules)
    open_ = unproved(rules)
    return template("library.html.jinja").render(
        report=report,
        headline=words.library_verdict(len(rules), len(open_)),
        methods=METHODS,
        by_method=by_method(rules),
        every=every,
        sums=[*(summed(file, some) for file, some in files.items()), every],
        tier_columns=[n for n, (_, count) in enumerate(every.tiers) if count],
        files=[(f, [(r, anchors[r]) for r in some]) for f, some in files.items()],
        anchors={file: f"file-{n}" for n, file in enumerate(files)},
        open=[(r, anchors[r], why_not(r)) for r in open_],
        assumed=assumptions(rules),
        axioms=axiom_uses(rules),
        slow=[(r, ms, anchors[r]) for r, ms in slowest(rules, SLOW)],
    )


def _anchors(rules: tuple[RuleDiagram, ...]) -> dict[RuleDiagram, str]:
    """Return an anchor for each rule: its name, numbered where a user's rule has the same name."""
    taken: Counter[str] = Counter()
    out: dict[RuleDiagram, str] = {}
    for rule in rules:
        taken[rule.name] += 1
        number = taken[rule.name]
        out[rule] = words.plain(f"rule-{rule.name}") + (f":{number}" if number > 1 else "")
    return out
