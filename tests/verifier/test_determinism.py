"""A proof takes the same steps whatever was proved before it, in whichever process."""

import os
import subprocess
import sys
from dataclasses import fields

import pytest

from superopt.verifier.elements import quotients
from superopt.verifier.poly.facts import Facts
from tests.support.verifier.steps import steps

STEPS = """
from tests.support.verifier.steps import steps
print(steps())
"""


def test_nothing_is_kept_of_a_proof() -> None:
    steps()
    quotients.NO_FACTS.models()  # drawn as proofs draw them
    quotients.forget()
    new = Facts()
    for f in fields(Facts):
        assert getattr(quotients.NO_FACTS, f.name) == getattr(new, f.name), f.name


@pytest.mark.one_in(0)
def test_proofs_do_not_hang_on_those_before() -> None:
    mine = steps()
    assert steps() == mine
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        found = subprocess.run(
            [sys.executable, "-c", STEPS], env=env, capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == str(mine)
