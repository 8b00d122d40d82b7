"""A proof takes the same steps whatever was proved before it, in whichever process."""

import os
import subprocess
import sys
from dataclasses import fields

from superopt.partial.correct.partial_rules import load_pairs, partial_rule
from superopt.rules.library.load import load_library
from superopt.verifier.elements import quotients
from superopt.verifier.poly import guards
from superopt.verifier.poly.facts import Facts
from superopt.verifier.prove import Limits, prove

SOME = 12  # rules of the library, from its first to its last
STEPS = """
from tests.verifier.test_same import steps
print(steps())
"""


def steps() -> list[tuple[str, int, int]]:
    """Of some rules and one partial rule: polynomials that were made, questions to the solver."""
    rules = load_library()
    pair = next(p for p in load_pairs() if p.name == "side-by-side-with-a-gap")
    some = [*rules[:: len(rules) // SOME], partial_rule(pair).corrections[0].rule]
    out = []
    for rule in some:
        prove(rule, Limits(seconds=60, work=2_000, work_beyond=500))
        out.append((rule.name, guards.BUDGET.work_done(), guards.BUDGET.queries))
    return out


def test_nothing_is_kept_of_a_proof() -> None:
    steps()
    quotients.NO_FACTS.models()  # drawn as proofs draw them
    quotients.forget()
    new = Facts()
    for f in fields(Facts):
        assert getattr(quotients.NO_FACTS, f.name) == getattr(new, f.name), f.name


def test_proofs_do_not_hang_on_those_before() -> None:
    mine = steps()
    assert steps() == mine
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        found = subprocess.run(
            [sys.executable, "-c", STEPS], env=env, capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == str(mine)
