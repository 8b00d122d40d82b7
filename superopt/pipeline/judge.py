"""What can be said of a rule of the user's: tried on random instances, then proved."""

from __future__ import annotations

from superopt.report.data import Decision, RuleVerdict
from superopt.rules.divisors import new_divisors
from superopt.rules.instances import unfit
from superopt.rules.rule import Rule
from superopt.rules.trial import Refuted as Differs
from superopt.rules.trial import try_rule
from superopt.verifier.attributes import FEW_STRETCHED, NO_BLANKS, SHORT_STEPS
from superopt.verifier.prove import ASSUMES, Limits, prove
from superopt.verifier.verdict import Proved, Refuted

# Notes of a proof with which a rule is still called proved; the verdict prints them. All others
# count something (steps, parts, operands) up to a number, above which a formula may give another.
HARMLESS = frozenset((*ASSUMES, FEW_STRETCHED, NO_BLANKS, SHORT_STEPS))


def judged(rule: Rule, seed: int, seconds: float) -> RuleVerdict:
    """The verdict on `rule`: refuted by a trial or the prover, proved for all sizes, or neither.
    seconds: for the prover."""
    tried = try_rule(rule, seed)
    if isinstance(tried, Differs):
        return _verdict(rule, "refuted", str(tried))
    verdict = prove(rule, Limits(seconds=seconds))
    if isinstance(verdict, Refuted):
        return _verdict(rule, "refuted", str(verdict).removeprefix("refuted: "))
    if not tried:  # nothing that a match could be was found
        return _verdict(rule, "untestable", unfit(rule, seed) or str(tried))
    if not isinstance(verdict, Proved):
        return _verdict(rule, "passed", f"{tried}; not proved: {verdict.reason}")
    if not entirely(verdict):
        return _verdict(rule, "passed", f"{tried}; proved in part only: {verdict.scope}")
    return _verdict(rule, "proved", verdict.proof.said)


def entirely(verdict: Proved) -> bool:
    """Is the rule proved at all ranks, and whatever is counted in it?"""
    return verdict.whole and HARMLESS.issuperset(verdict.scope.assumes)


def _verdict(rule: Rule, decision: Decision, detail: str) -> RuleVerdict:
    if decision in ("proved", "passed") and (by := new_divisors(rule)):
        detail += f"; `optimize` does not use it: it divides by {by[0]}, which may be 0"
    return RuleVerdict(rule.name, rule.text, decision, detail, rule.source)
