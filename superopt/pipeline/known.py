"""Rules as reports show them: both sides, proofs, counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from superopt.pipeline.diagram import rule_diagram
from superopt.pipeline.versions import versions
from superopt.report.codec import decode
from superopt.report.data import RuleCount
from superopt.report.diagram import AxiomProof, Proof, RuleDiagram
from superopt.report.library import RULES_FORMAT, RuleReport
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

AXIOM_PROOFS = "axiom_proofs.json"  # beside the library; optional


def described(rule: Rule, own: bool = False) -> RuleDiagram:
    """Return a rule as a diagram, with its proofs, or why it has none. is_user_rule: it has no tier
    unless it is proved."""
    found = find_proof(rule)
    key = proof_key(rule)
    return rule_diagram(
        rule,
        "" if own and found is None else tier(rule),
        None if found is None else _proof(found),
        axiom_proofs().get(key),
        "" if found else unproved_reasons().get(key, ""),
        library_float_classes().get(key, ("", None)),
    )


def report(library: Sequence[Rule], own: Sequence[Rule], part: str) -> RuleReport:
    """Return the report of all rules with `name_part` in their name or in the name of their
    file."""
    every = (*library, *own)
    some = [
        described(r, n >= len(library))
        for n, r in enumerate(every)
        if part in r.name or part in _file(r)
    ]
    return RuleReport(RULES_FORMAT, part, len(every), rules_digest(every), versions(), tuple(some))


def counted(rules: Iterable[Rule]) -> tuple[RuleCount, ...]:
    """Return the number of rules in each file."""
    by_file: dict[str, list[Rule]] = {}
    for rule in rules:
        by_file.setdefault(_file(rule), []).append(rule)
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


def _file(rule: Rule) -> str:
    return rule.source.rpartition(":")[0]


def _proof(p: records.Proof) -> Proof:
    return Proof(
        p.scope, p.assumes, p.readable_conditions, p.obligations, p.queries, p.ms, p.mutants
    )


@lru_cache(maxsize=1)
def axiom_proofs() -> Mapping[str, AxiomProof]:
    """Return the axiom-level proofs by `proof_key`."""
    path = LIBRARY / AXIOM_PROOFS
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return MappingProxyType({key: decode(AxiomProof, entry) for key, entry in stored.items()})
