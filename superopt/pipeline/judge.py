"""What can be said of a rule of the user's: tried on random instances, then proved."""

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

# Notes of a proof with which a rule is still called proved; the verdict prints them. All others
# count something (steps, parts, operands) up to a number, above which a formula may give another.
HARMLESS = frozenset(
    (*ASSUMPTIONS, FEW_BROADCAST_NOTE, NO_PADDING_WINDOWS_NOTE, SMALL_DILATIONS_NOTE)
)


BRIEF = Limits(
    seconds=5, work=4_000, work_beyond=4_000
)  # for a smaller counterexample than a trial's


def judged(rule: Rule, seed: int, seconds: float) -> RuleVerdict:
    """The verdict on `rule`: refuted by a trial or the prover, proved for all sizes, or neither.
    seconds: for the prover."""
    tried = try_rule(rule, seed)
    if isinstance(tried, Differs):
        wrong = _refuted(rule, seed, tried)
        other = with_computed_class(rule)
        if other == rule or isinstance(try_rule(other, seed), Differs):
            return wrong
        return replace(wrong, detail=f"{wrong.detail}; with float={other.float_class} it is not")
    verdict = best_proof(rule, Limits(seconds=seconds))
    if isinstance(verdict, Refuted):
        return _refuted(rule, seed, verdict)
    if not tried:  # nothing that a match could be was found
        return _verdict(rule, "untestable", misfit_reason(rule, seed) or str(tried))
    if not isinstance(verdict, Proved):
        return _verdict(rule, "passed", f"{tried}; not proved: {verdict.reason}")
    if not entirely(verdict):
        return _verdict(rule, "passed", f"{tried}; proved in part only: {verdict.scope}")
    return _verdict(rule, "proved", verdict.proof.summary)


def counterexample(rule: Rule, seed: int, found: Differs | Refuted) -> Counterexample | None:
    """The smallest counterexample of a rule that was refuted by `found`; None where the values are
    no floats or integers, as in the prime field."""
    known: list[Instance | None] = []
    if isinstance(found, Differs):
        known.append(found.instance)
    verdict = prove(rule, BRIEF) if isinstance(found, Differs) else found
    if isinstance(verdict, Refuted):
        known.append(instance_of_names(rule, verdict.names, seed))
    return smallest_counterexample(rule, seed, [one for one in known if one is not None])


def told(rule: Rule, seed: int, found: Differs | Refuted) -> str:
    """Why a rule is wrong, in a line: its smallest counterexample, where there is one."""
    return str(counterexample(rule, seed, found) or found)


def _refuted(rule: Rule, seed: int, found: Differs | Refuted) -> RuleVerdict:
    example = counterexample(rule, seed, found)
    if example is None:
        return _verdict(rule, "refuted", str(found).removeprefix("refuted: "))
    lines = example.lines()
    return replace(_verdict(rule, "refuted", ", ".join(lines[-2:])), counterexample=tuple(lines))


def entirely(verdict: Proved) -> bool:
    """Is the rule proved at all ranks and sizes, and whatever is counted in it?"""
    return verdict.is_complete and not verdict.bound and HARMLESS.issuperset(verdict.scope.assumes)


def _verdict(rule: Rule, decision: Decision, detail: str) -> RuleVerdict:
    stands = decision in ("proved", "passed")
    if stands and (by := new_divisors(rule)):
        detail += f"; `optimize` does not use it: it divides by {by[0]}, which may be 0"
    computed = (float_class(rule) or "") if stands else ""
    return RuleVerdict(
        rule.name, rule.text, decision, detail, rule.source, (), rule.float_class, computed
    )
