"""Rules as reports show them: both sides, proofs, counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from superopt.loading.package_versions import package_versions
from superopt.optimization.report.rule_diagram import rule_diagram
from superopt.report.data.diagram import AxiomProof, Proof, RuleDiagram
from superopt.report.data.report import RuleCount
from superopt.report.text.library_counts import RULE_REPORT_VERSION, RuleReport
from superopt.rules.lang.rule import Rule
from superopt.rules.library import records
from superopt.rules.library.records import (
    find_proof,
    library_records,
    proof_key,
    rules_digest,
    tier,
)


def describe_rule(rule: Rule, is_user_rule: bool = False) -> RuleDiagram:
    """Return a rule as a diagram, with its proofs, or why it has none. is_user_rule: it has no tier
    unless it is proved."""
    found = find_proof(rule)
    key, known = proof_key(rule), library_records()
    axioms = known.axioms.get(key)
    return rule_diagram(
        rule,
        "" if is_user_rule and found is None else tier(rule),
        None if found is None else _report_proof(found, known.mutants.get(key)),
        None if axioms is None else _report_axioms(axioms),
        "" if found else known.unproved.get(key, ""),
        (known.float_class.get(key) or "", known.error_growth.get(key)),
    )


def report_rules(library: Sequence[Rule], user_rules: Sequence[Rule], name_part: str) -> RuleReport:
    """Return the report of all rules with `name_part` in their name or in the name of their
    file."""
    every = (*library, *user_rules)
    some = [
        describe_rule(r, n >= len(library))
        for n, r in enumerate(every)
        if name_part in r.name or name_part in _source_file(r)
    ]
    return RuleReport(
        RULE_REPORT_VERSION,
        name_part,
        len(every),
        rules_digest(every),
        package_versions(),
        tuple(some),
    )


def count_rules(rules: Iterable[Rule]) -> tuple[RuleCount, ...]:
    """Return the number of rules in each file."""
    by_file: dict[str, list[Rule]] = {}
    for rule in rules:
        by_file.setdefault(_source_file(rule), []).append(rule)
    return tuple(
        RuleCount(
            file,
            len(some),
            sum(len(r.lhs) > 1 for r in some),
            tuple(sorted(Counter(r.float_class for r in some).items())),
            tuple(sorted(Counter(r.origin for r in some).items())),
        )
        for file, some in by_file.items()
    )


def _source_file(rule: Rule) -> str:
    return rule.source.rpartition(":")[0]


def _report_proof(p: records.Proof, mutants: Sequence[int] | None) -> Proof:
    return Proof(
        p.scope.summary,
        p.scope.assumes,
        p.readable_conditions,
        p.obligations,
        p.queries,
        p.ms,
        None if mutants is None else (mutants[0], mutants[1]),
    )


def _report_axioms(entry: Mapping[str, Any]) -> AxiomProof:
    steps = tuple((term, axiom) for term, axiom in entry.get("steps", ()))
    return AxiomProof(tuple(entry["names"]), steps, entry.get("ms", 0.0))
