"""The report of the rule library as one self-contained page: every rule drawn, with its proof.

The details of all rules are 9 MB of HTML. The page has those of each file compressed, and its
script unpacks them when a rule is opened.
"""

import json
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable

from superopt.report.data.diagram import RuleDiagram
from superopt.report.formatting import phrases
from superopt.report.html.template import load_script, load_template
from superopt.report.text.library_counts import (
    PROOF_METHODS,
    RuleReport,
    count_assumptions,
    count_axiom_uses,
    count_by_method,
    group_by_file,
    slowest_proofs,
    summarize_rules,
    unproved_reason,
    unproved_rules,
)

MAX_SLOW_PROOFS = 24  # of the slowest proofs that are listed


def library_page(report: RuleReport) -> str:
    """Return the report as an HTML document."""
    rules = report.rules
    files = group_by_file(rules)
    every = summarize_rules("all", rules)
    anchors = _anchors(rules)
    open_ = unproved_rules(rules)
    return load_template("library.html.jinja").render(
        report=report,
        script=load_script("library.js"),
        packed=_packed_cards,
        operators=_operators,
        headline=phrases.library_verdict_text(len(rules), len(open_)),
        methods=PROOF_METHODS,
        by_method=count_by_method(rules),
        every=every,
        sums=[*(summarize_rules(file, some) for file, some in files.items()), every],
        tier_columns=[n for n, (_, count) in enumerate(every.tiers) if count],
        files=[(f, [(r, anchors[r]) for r in some]) for f, some in files.items()],
        anchors={file: f"file-{n}" for n, file in enumerate(files)},
        open=[(r, anchors[r], unproved_reason(r)) for r in open_],
        assumed=count_assumptions(rules),
        axioms=count_axiom_uses(rules),
        slow=[(r, ms, anchors[r]) for r, ms in slowest_proofs(rules, MAX_SLOW_PROOFS)],
    )


def _packed_cards(rows: Iterable[tuple[RuleDiagram, str]]) -> str:
    """Return the details of the rules as HTML: a list in JSON, compressed, in base64."""
    card = load_template("rule.html.jinja").module.card  # type: ignore[attr-defined]
    text = json.dumps([str(card(rule)).strip() for rule, _ in rows], ensure_ascii=False)
    return b64encode(zlib.compress(text.encode(), 9)).decode()


def _operators(rule: RuleDiagram) -> str:
    """Return the operators of both sides, separated by spaces."""
    boxes = (*rule.left.boxes, *rule.right.boxes)
    names = {box.label for box in boxes if box.kind == "operator"}
    return phrases.printable(" ".join(sorted(name.replace(" ", "") for name in names)))


def _anchors(rules: tuple[RuleDiagram, ...]) -> dict[RuleDiagram, str]:
    """Return an anchor for each rule: its name, numbered where a user's rule has the same name."""
    taken: Counter[str] = Counter()
    out: dict[RuleDiagram, str] = {}
    for rule in rules:
        taken[rule.name] += 1
        number = taken[rule.name]
        out[rule] = phrases.printable(f"rule-{rule.name}") + (f":{number}" if number > 1 else "")
    return out
