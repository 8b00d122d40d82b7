"""The user's rules that a rewritten model uses: they are tried before the model is written."""

from __future__ import annotations

from superopt.errors import CheckFailed
from superopt.loading.request import Request
from superopt.report.data.report import Event
from superopt.rules.trial.try_rule import Passed, Refuted, Untestable, try_rule
from superopt.search.improve import Variant
from superopt.verification.rule_verdict import refutation_text


def used_user_rules(request: Request, variant: Variant) -> frozenset[str]:
    """Return the names of the user's rules that `variant` used."""
    return request.untried_rules.intersection(s.rule for s in variant.steps)


def try_user_rules(request: Request, variant: Variant, label: str) -> str:
    """Try the user's rules that `variant` used: other shapes and values may show what the check of
    one model does not.

    label: of the model, for messages. Return why the variant cannot be used, if a rule generated
    from a mutant cannot be tried; else "". Raises CheckFailed for a rule that is wrong, or for one
    of the user that cannot be tried.
    """
    used = used_user_rules(request, variant)
    for rule in request.rules:
        if rule.name not in used:
            continue
        request.progress(Event("check", f"trying rule {rule.name}"))
        verdict = try_rule(rule, request.seed)
        if isinstance(verdict, Untestable) and rule.name in request.partial_pairs:
            return f"rule {rule.name} cannot be tried: {verdict}"
        if not isinstance(verdict, Passed):
            wrong, why = "cannot be tried", str(verdict)
            if isinstance(verdict, Refuted):
                wrong, why = "is wrong", refutation_text(rule, request.seed, verdict)
            raise CheckFailed(
                f"{label}: rule {rule.name} {wrong}; nothing was written",
                why,
                f"correct or remove this rule ({rule.source})",
            )
    return ""
