"""Verdicts on the rules by which `compile` lowers programs."""

from __future__ import annotations

from superopt.report.data.report import RuleVerdict
from superopt.rules.library.load import CPU_LOWERING_FILES, LOWERING_FILES, load_file
from superopt.rules.te.rewrite import load_te_library
from superopt.verification.rule_verdict import judge_rule
from superopt.verifier.prove import Limits
from superopt.verifier.te_rules import prove_te_rule
from superopt.verifier.verdict import Proved


def judge_lowering_rules(proof_seconds: float) -> tuple[RuleVerdict, ...]:
    """Return the verdicts on the rules on graphs and on tensor expressions. proof_seconds: limit
    for the proof of each rule."""
    out = [
        judge_rule(rule, 0, proof_seconds)
        for name in (*LOWERING_FILES, *CPU_LOWERING_FILES)
        for rule in load_file(name)
    ]
    for rule in load_te_library():
        found = prove_te_rule(rule, Limits(seconds=proof_seconds))
        if isinstance(found, Proved):
            verdict = RuleVerdict(rule.name, rule.text, "proved", str(found.scope), rule.source)
        else:
            verdict = RuleVerdict(rule.name, rule.text, "passed", found.reason, rule.source)
        out.append(verdict)
    return tuple(out)
