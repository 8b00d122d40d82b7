"""How many steps proofs take."""

from __future__ import annotations

from unittest.mock import patch

from superopt.partial.correct.partial_rules import load_pairs, partial_rule
from superopt.rules.library.load import load_library
from superopt.verifier.context import ProofContext
from superopt.verifier.prove import Limits, prove

SOME = 12  # rules of the library, from its first to its last


def steps() -> list[tuple[str, int, int]]:
    """Of some rules and one partial rule: polynomials that were made, questions to the solver."""
    rules = load_library()
    pair = next(p for p in load_pairs() if p.name == "side-by-side-with-a-gap")
    some = [*rules[:: len(rules) // SOME], partial_rule(pair).corrections[0].rule]
    out = []
    for rule in some:
        context = ProofContext(max_work=2_000)
        with patch.object(ProofContext, "with_limits", lambda *_, context=context: context):
            prove(rule, Limits(seconds=60, work=2_000, work_beyond=500))
        out.append((rule.name, context.work_done(), context.queries))
    assert all(work for _, work, _ in out)
    return out
