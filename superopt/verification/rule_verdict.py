"""Verdicts on a user's rule: it is tried on random instances, then proved."""

from __future__ import annotations

from dataclasses import replace

from superopt.report.data.report import Decision, RuleVerdict
from superopt.rules.lang.rule import Rule
from superopt.rules.trial.counterexample import Counterexample, smallest_counterexample
from superopt.rules.trial.float_class import float_class, with_computed_class
from superopt.rules.trial.instances import Instance, instance_of_names, misfit_reason
from superopt.rules.trial.new_divisors import new_divisors
from superopt.rules.trial.try_rule import Refuted as Differs
from superopt.rules.trial.try_rule import try_rule
from superopt.verifier.instances.attributes import (
    FEW_BROADCAST_NOTE,
    NO_PADDING_WINDOWS_NOTE,
    SMALL_DILATIONS_NOTE,
)
from superopt.verifier.instances.element_types import SEPARATE_TYPES_NOTE
from superopt.verifier.prove import ASSUMPTIONS, Limits, prove
from superopt.verifier.prove_bounded import best_proof
from superopt.verifier.rounding.rule_steps import STEPS_NOTE
from superopt.verifier.verdict import Proved, Refuted

# Assumptions with which a rule still counts as proved; the verdict prints them. All others bound a
# count (steps, parts, operands), beyond which the proof does not hold.
HARMLESS_ASSUMPTIONS = frozenset(
    (
        *ASSUMPTIONS,
        FEW_BROADCAST_NOTE,
        NO_PADDING_WINDOWS_NOTE,
        SMALL_DILATIONS_NOTE,
        SEPARATE_TYPES_NOTE,
    )
)


COUNTEREXAMPLE_LIMITS = Limits(
    seconds=5, work=4_000, work_beyond=4_000
)  # limits for finding a smaller counterexample than that of a trial


def judge_rule(rule: Rule, seed: int, proof_seconds: float) -> RuleVerdict:
    """Return the verdict on `rule`: refuted by a trial or the prover, proved for all sizes, or
    neither. proof_seconds: limit for the prover."""
    tried = try_rule(rule, seed)
    if isinstance(tried, Differs):
        wrong = _refuted_verdict(rule, seed, tried)
        other = with_computed_class(rule)
        if other == rule or isinstance(try_rule(other, seed), Differs):
            return wrong
        return replace(wrong, detail=f"{wrong.detail}; float={other.float_class} passes")
    verdict = best_proof(rule, Limits(seconds=proof_seconds))
    if isinstance(verdict, Refuted):
        return _refuted_verdict(rule, seed, verdict)
    if not tried:  # no instance that matches was found
        return _rule_verdict(rule, "untestable", misfit_reason(rule, seed) or str(tried))
    if not isinstance(verdict, Proved):
        return _rule_verdict(rule, "passed", f"{tried}; not proved: {verdict.reason}")
    if not is_fully_proved(verdict):
        return _rule_verdict(rule, "passed", f"{tried}; only partly proved: {verdict.scope}")
    return _rule_verdict(rule, "proved", verdict.proof.summary)


def find_counterexample(
    rule: Rule, seed: int, refutation: Differs | Refuted
) -> Counterexample | None:
    """Return the smallest counterexample of a refuted rule; None if its values are not floats or
    integers, as in the prime field."""
    known: list[Instance | None] = []
    if isinstance(refutation, Differs):
        known.append(refutation.instance)
    verdict = prove(rule, COUNTEREXAMPLE_LIMITS) if isinstance(refutation, Differs) else refutation
    if isinstance(verdict, Refuted):
        known.append(instance_of_names(rule, verdict.names, seed))
    return smallest_counterexample(rule, seed, [one for one in known if one is not None])


def refutation_text(rule: Rule, seed: int, refutation: Differs | Refuted) -> str:
    """Return why a rule is wrong, in one line: its smallest counterexample if there is one."""
    return str(find_counterexample(rule, seed, refutation) or refutation)


def _refuted_verdict(rule: Rule, seed: int, refutation: Differs | Refuted) -> RuleVerdict:
    example = find_counterexample(rule, seed, refutation)
    if example is None:
        return _rule_verdict(rule, "refuted", str(refutation).removeprefix("refuted: "))
    lines = example.lines()
    return replace(
        _rule_verdict(rule, "refuted", ", ".join(lines[-2:])), counterexample=tuple(lines)
    )


def is_fully_proved(verdict: Proved) -> bool:
    """True if the rule is proved at all ranks and sizes, without bounds on counts."""
    return (
        verdict.is_complete
        and not verdict.bound
        and all(
            a in HARMLESS_ASSUMPTIONS or a.startswith(STEPS_NOTE) for a in verdict.scope.assumes
        )
    )


def _rule_verdict(rule: Rule, decision: Decision, detail: str) -> RuleVerdict:
    stands = decision in ("proved", "passed")
    if stands and (by := new_divisors(rule)):
        detail += f"; `optimize` does not use it: it divides by {by[0]}, which may be 0"
    computed = (float_class(rule) or "") if stands else ""
    return RuleVerdict(
        rule.name, rule.text, decision, detail, rule.source, (), rule.float_class, computed
    )
