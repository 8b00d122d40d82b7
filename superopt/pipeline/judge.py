"""Verdicts on a user's rule: it is tried on random instances, then proved."""

from __future__ import annotations

from dataclasses import replace

from superopt.report.data import Decision, RuleVerdict
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
from superopt.verifier.prove import ASSUMPTIONS, Limits, prove
from superopt.verifier.prove_bounded import best_proof
from superopt.verifier.verdict import Proved, Refuted

# Assumptions with which a rule still counts as proved; the verdict prints them. All others bound a
# count (steps, parts, operands), beyond which the proof does not hold.
HARMLESS = frozenset(
    (*ASSUMPTIONS, FEW_BROADCAST_NOTE, NO_PADDING_WINDOWS_NOTE, SMALL_DILATIONS_NOTE)
)


BRIEF = Limits(
    seconds=5, work=4_000, work_beyond=4_000
)  # limits for finding a smaller counterexample than that of a trial


def judged(rule: Rule, seed: int, seconds: float) -> RuleVerdict:
    """Return the verdict on `rule`: refuted by a trial or the prover, proved for all sizes, or
    neither. proof_seconds: limit for the prover."""
    tried = try_rule(rule, seed)
    if isinstance(tried, Differs):
        wrong = _refuted(rule, seed, tried)
        other = with_computed_class(rule)
        if other == rule or isinstance(try_rule(other, seed), Differs):
            return wrong
        return replace(wrong, detail=f"{wrong.detail}; float={other.float_class} passes")
    verdict = best_proof(rule, Limits(seconds=seconds))
    if isinstance(verdict, Refuted):
        return _refuted(rule, seed, verdict)
    if not tried:  # no instance that matches was found
        return _verdict(rule, "untestable", misfit_reason(rule, seed) or str(tried))
    if not isinstance(verdict, Proved):
        return _verdict(rule, "passed", f"{tried}; not proved: {verdict.reason}")
    if not entirely(verdict):
        return _verdict(rule, "passed", f"{tried}; only partly proved: {verdict.scope}")
    return _verdict(rule, "proved", verdict.proof.summary)


def counterexample(rule: Rule, seed: int, found: Differs | Refuted) -> Counterexample | None:
    """Return the smallest counterexample of a refuted rule; None if its values are not floats or
    integers, as in the prime field."""
    known: list[Instance | None] = []
    if isinstance(found, Differs):
        known.append(found.instance)
    verdict = prove(rule, BRIEF) if isinstance(found, Differs) else found
    if isinstance(verdict, Refuted):
        known.append(instance_of_names(rule, verdict.names, seed))
    return smallest_counterexample(rule, seed, [one for one in known if one is not None])


def told(rule: Rule, seed: int, found: Differs | Refuted) -> str:
    """Return why a rule is wrong, in one line: its smallest counterexample if there is one."""
    return str(counterexample(rule, seed, found) or found)


def _refuted(rule: Rule, seed: int, found: Differs | Refuted) -> RuleVerdict:
    example = counterexample(rule, seed, found)
    if example is None:
        return _verdict(rule, "refuted", str(found).removeprefix("refuted: "))
    lines = example.lines()
    return replace(_verdict(rule, "refuted", ", ".join(lines[-2:])), counterexample=tuple(lines))


def entirely(verdict: Proved) -> bool:
    """True if the rule is proved at all ranks and sizes, without bounds on counts."""
    return verdict.is_complete and not verdict.bound and HARMLESS.issuperset(verdict.scope.assumes)


def _verdict(rule: Rule, decision: Decision, detail: str) -> RuleVerdict:
    stands = decision in ("proved", "passed")
    if stands and (by := new_divisors(rule)):
        detail += f"; `optimize` does not use it: it divides by {by[0]}, which may be 0"
    computed = (float_class(rule) or "") if stands else ""
    return RuleVerdict(
        rule.name, rule.text, decision, detail, rule.source, (), rule.float_class, computed
    )
