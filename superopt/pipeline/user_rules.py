"""Rules of the user's that a rewritten model owes something to: tried before it is written."""

from __future__ import annotations

from superopt.errors import CheckFailed
from superopt.pipeline.judge import told
from superopt.pipeline.request import Request
from superopt.report.data import Event
from superopt.rules.trial.try_rule import Passed, Refuted, Untestable, try_rule
from superopt.search.improve import Variant


def user_rules(request: Request, variant: Variant) -> frozenset[str]:
    """The names of the user's own rules that `variant` used."""
    return request.untried.intersection(s.rule for s in variant.steps)


def try_user_rules(request: Request, variant: Variant, label: str) -> str:
    """Try the user's rules that `variant` used: what one model's check does not see, other shapes
    and values may show.

    label: of the model, for messages. Returns why the variant cannot be used, where a rule that
    was generated of a mutant cannot be tried; empty where it can. Raises CheckFailed for a rule
    that is wrong, or that the user wrote and cannot be tried.
    """
    used = user_rules(request, variant)
    for rule in request.rules:
        if rule.name not in used:
            continue
        request.progress(Event("check", f"trying rule {rule.name}"))
        verdict = try_rule(rule, request.seed)
        if isinstance(verdict, Untestable) and rule.name in request.pairs:
            return f"rule {rule.name} cannot be tried: {verdict}"
        if not isinstance(verdict, Passed):
            wrong, why = "cannot be tried", str(verdict)
            if isinstance(verdict, Refuted):
                wrong, why = "is wrong", told(rule, request.seed, verdict)
            raise CheckFailed(
                f"{label}: rule {rule.name} {wrong}; nothing was written",
                why,
                f"correct or leave out this rule ({rule.source})",
            )
    return ""
