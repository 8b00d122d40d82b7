"""Numbers on which float arithmetic differs from real numbers."""

import ml_dtypes
import numpy as np
import pytest

from superopt.check.special_values import _special_values

KINDS = (np.float16, np.float32, np.float64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn)


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_of_both_signs_and_opposite_numbers_occur(kind: type) -> None:
    values = _special_values(np.dtype(kind))
    assert set(np.signbit(values[values == 0])) == {False, True}
    assert {0.5, 1.0, -1.0, 2.0} <= set(values.astype(kind).astype(np.float64))
