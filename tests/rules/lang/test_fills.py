"""Constants that are read as fills."""

import numpy as np
import pytest

from superopt.ir.graph import constant
from superopt.rules.lang.fills import _is_array_fill


@pytest.mark.parametrize(
    ("array", "is_eye"),
    [
        (np.eye(3, dtype=np.float32), True),
        (np.eye(3, dtype=np.int64), True),
        (np.eye(3, dtype=np.bool_), False),
        (np.eye(2, 3, dtype=np.float32), False),
        (np.ones((2, 2), np.float32), False),
        (np.ones(1, np.float32), False),
    ],
)
def test_an_identity_matrix_is_square_and_of_numbers(array: np.ndarray, is_eye: bool) -> None:
    assert _is_array_fill("eye", constant(array)) is is_eye
