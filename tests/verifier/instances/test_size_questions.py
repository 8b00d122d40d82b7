"""Questions about sizes: the state answers, or the attempt forks."""

import pytest

from superopt.te.expr.node import Size
from superopt.verifier.context import ProofContext
from superopt.verifier.instances.size_questions import SizeQuestions
from superopt.verifier.instances.sizes import Fork, State


def test_a_comparison_forks_only_if_the_state_does_not_decide_it() -> None:
    known = State({}, {}, not_one=frozenset({"n"}))
    assert SizeQuestions(ProofContext(), known).compare("eq", Size("n"), 1) is False
    with pytest.raises(Fork):
        SizeQuestions(ProofContext(), State({}, {})).compare("eq", Size("n"), 1)
