"""A proof takes the same steps whatever was proved before it, in whichever process."""

import os
import subprocess
import sys

import pytest

from tests.support.verifier.steps import steps

STEPS = """
from tests.support.verifier.steps import steps
print(steps())
"""


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
