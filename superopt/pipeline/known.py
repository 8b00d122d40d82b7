"""What is known of rules: their proofs, as reports have them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from superopt.pipeline.diagram import rule_diagram
from superopt.report.codec import decode
from superopt.report.diagram import AxiomProof, Proof, RuleDiagram
from superopt.rules import stated
from superopt.rules.rule import LIBRARY, Rule
from superopt.rules.stated import proof, proof_key, tier, unproved

AXIOM_PROOFS = "axiom_proofs.json"  # beside the library; without it there are none


def described(rule: Rule, own: bool = False) -> RuleDiagram:
    """The rule drawn, with its proofs, or why it has none. own: of the user's, which is of no tier
    where no proof is known."""
    found = proof(rule)
    key = proof_key(rule)
    return rule_diagram(
        rule,
        "" if own and found is None else tier(rule),
        None if found is None else _proof(found),
        axiom_proofs().get(key),
        "" if found else unproved().get(key, ""),
    )


def _proof(p: stated.Proof) -> Proof:
    return Proof(p.scope, p.assumes, p.conditions, p.obligations, p.queries, p.ms, p.mutants)


@lru_cache(maxsize=1)
def axiom_proofs() -> Mapping[str, AxiomProof]:
    """The axiom-level proof of each rule that has one, by `proof_key`."""
    path = LIBRARY / AXIOM_PROOFS
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return MappingProxyType({key: decode(AxiomProof, entry) for key, entry in stored.items()})
