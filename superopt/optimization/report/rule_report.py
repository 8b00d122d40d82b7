"""Rules as reports show them: both sides, proofs, counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from superopt.loading.package_versions import package_versions
from superopt.optimization.report.rule_diagram import rule_diagram
from superopt.report.data.codec import decode
from superopt.report.data.diagram import AxiomProof, Proof, RuleDiagram
from superopt.report.data.report import RuleCount
from superopt.report.text.library_counts import RULE_REPORT_VERSION, RuleReport
from superopt.rules.lang.rule import LIBRARY, Rule
from superopt.rules.library import records
from superopt.rules.library.records import (
    find_proof,
    library_float_classes,
    proof_key,
    rules_digest,
    tier,
    unproved_reasons,
)

AXIOM_PROOFS_FILE = "axiom_proofs.json"  # beside the library; optional


def describe_rule(rule: Rule, is_user_rule: bool = False) -> RuleDiagram:
    """Return a rule as a diagram, with its proofs, or why it has none. is_user_rule: it has no tier
    unless it is proved."""
    found = find_proof(rule)
    key = proof_key(rule)
    return rule_diagram(
        rule,
        "" if is_user_rule and found is None else tier(rule),
        None if found is None else _report_proof(found),
        axiom_proofs().get(key),
        "" if found else unproved_reasons().get(key, ""),
        library_float_classes().get(key, ("", None)),
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


def _report_proof(p: records.Proof) -> Proof:
    return Proof(
        p.scope, p.assumes, p.readable_conditions, p.obligations, p.queries, p.ms, p.mutants
    )


@lru_cache(maxsize=1)
def axiom_proofs() -> Mapping[str, AxiomProof]:
    """Return the axiom-level proofs by `proof_key`."""
    path = LIBRARY / AXIOM_PROOFS_FILE
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return MappingProxyType({key: decode(AxiomProof, entry) for key, entry in stored.items()})
