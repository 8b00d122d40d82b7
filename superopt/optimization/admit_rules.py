"""Which rules a model may be rewritten by."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from superopt import guard
from superopt.errors import CheckFailed
from superopt.loading.request import Request
from superopt.onnx_io.export.exporter import is_expressible
from superopt.report.data.report import Event, UnusedReason, UnusedRules
from superopt.rules.lang.rule import FLOAT_CLASSES, Rule
from superopt.rules.lang.term import App, walk
from superopt.rules.library.records import (
    is_proved_for_one_shape,
    library_records,
    proof_key,
    record_proof,
    tier,
)
from superopt.rules.trial.float_class import with_computed_class
from superopt.rules.trial.new_divisors import new_divisors
from superopt.verification.rule_verdict import is_fully_proved, refutation_text
from superopt.verifier.prove import Limits
from superopt.verifier.prove_bounded import best_proof
from superopt.verifier.verdict import Proved, Refuted

TIERS = ("A", "B", "C")
MIN_PROOF_SECONDS = 5.0  # minimum time for proving the user's rules
PROOF_LIMITS = Limits(
    seconds=60, work=60_000, work_beyond=100_000
)  # for one rule; the result depends on work, not on a clock
MAX_PROOFS_PART = 0.1  # of the budget, for all of them; at least MIN_PROOF_SECONDS


@dataclass(frozen=True, slots=True)
class AdmittedRules:
    """Rules that may be applied, and those that may not, by the reason."""

    rules: tuple[Rule, ...]
    left_out: tuple[UnusedRules, ...]


def admit_rules(request: Request, opset: int, add_note: Callable[[str], None]) -> AdmittedRules:
    """Return the rules of the request whose results can be written in this opset, which add no
    divisor, and which have the requested tier and float class.

    The user's rules are proved here if proofs are required. add_note: called with each rule that is
    left out, and why.

    Raises CheckFailed if one of them is refuted.
    """
    end = time.monotonic() + max(MIN_PROOF_SECONDS, MAX_PROOFS_PART * request.budget)
    found: list[Rule] = []
    out: dict[UnusedReason, list[str]] = {}
    for rule in (_with_float_class(r, request) for r in request.rules):
        guard.check_time("choosing rules")
        if not _is_expressible_in(rule, opset):
            out.setdefault("opset", []).append(rule.name)
            continue
        bar: UnusedReason = "tier"
        why = ""
        if (
            not _is_sufficiently_proved(rule, request) and rule.name in request.untried_rules
        ):  # it may be wrong
            request.progress(Event("load", f"proving rule {rule.name}", 0.04))
            left = end - time.monotonic()
            why = (
                prove_user_rule(rule, min(MIN_PROOF_SECONDS, left))
                if left > 0
                else "no time was left to prove it"
            )
            why = why and f"{why}; --tier C uses rules that are only tested"
            if not why and not _is_sufficiently_proved(rule, request):
                why = "it is proved up to a bound only; --tier B uses it"
        if not why:
            bar, why = _permanent_bar(rule, request) or (bar, "")
        if not why and _is_sufficiently_proved(rule, request):
            found.append(rule)
            continue
        out.setdefault(bar, []).append(rule.name)
        if rule.name in request.untried_rules:
            add_note(f"rule {rule.name} was not used: {why}")
    return AdmittedRules(
        tuple(found), tuple(UnusedRules(b, tuple(names)) for b, names in out.items())
    )


@lru_cache(maxsize=1 << 14)  # the library's 2,292 rules in a few opsets
def _is_expressible_in(rule: Rule, opset: int) -> bool:
    """True if all operators of the right side exist in the opset."""
    written = {p.op for t in rule.rhs for p in walk(t) if isinstance(p, App)}
    return all(is_expressible(op, opset) for op in written)


def _with_float_class(rule: Rule, request: Request) -> Rule:
    """Return the rule; for a library rule whose text was changed, so that its float class is
    unknown, with the class computed now if it may be applied."""
    own = rule.name in request.untried_rules
    if (
        own
        or proof_key(rule) in library_records().float_class
        or not _is_sufficiently_proved(rule, request)
    ):
        return rule
    return with_computed_class(rule)


def _permanent_bar(rule: Rule, request: Request) -> tuple[UnusedReason, str] | None:
    """Return why the rule may not be used even if it is proved; None if it may."""
    if by := new_divisors(rule):
        return "divides", f"it divides by {by[0]}, which may be 0"
    own = rule.float_class
    if FLOAT_CLASSES.index(own) > FLOAT_CLASSES.index(request.float_class):
        return "float", f"its float class is {own}; --float-class {own} uses it"
    return None


def _is_sufficiently_proved(rule: Rule, request: Request) -> bool:
    """True if the rule is proved as far as requested."""
    return TIERS.index(tier(rule)) <= TIERS.index(request.tier) or is_proved_for_one_shape(rule)


def prove_user_rule(rule: Rule, seconds: float = PROOF_LIMITS.seconds) -> str:
    """Prove a user's rule, which then has tier A or B; return why it could not be proved, or "".

    Raises CheckFailed if it is refuted.
    """
    verdict = best_proof(rule, replace(PROOF_LIMITS, seconds=seconds))
    if isinstance(verdict, Refuted):
        raise CheckFailed(
            f"rule {rule.name} is wrong; nothing was written",
            refutation_text(rule, 0, verdict),
            f"correct or remove this rule ({rule.source})",
        )
    if not isinstance(verdict, Proved):
        return f"it is not proved: {verdict.reason}"
    if not is_fully_proved(replace(verdict, bound=None)):
        return f"it is only partly proved: {verdict.scope}"
    record_proof(rule, verdict.proof)
    return ""
