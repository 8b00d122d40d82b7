"""The number of a constant that a name stands for."""

import numpy as np
import pytest

from superopt.ir.graph import constant
from superopt.rules.lang.functions import NotKnown
from superopt.rules.match.leaf_steps import _constant_number


def test_only_a_uniform_constant_is_a_number() -> None:
    assert _constant_number(constant(np.full(3, 2.5, np.float32))) == 2.5
    with pytest.raises(NotKnown):
        _constant_number(constant(np.array([1.0, 2.0], np.float32)))
