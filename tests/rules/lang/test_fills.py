"""Constants that are read as fills."""

from fractions import Fraction

import numpy as np
import pytest

from superopt.ir.graph import constant
from superopt.rules.lang.fills import Content, _is_array_fill, fill_array, table_array
from superopt.rules.lang.functions import NotKnown
from superopt.te.expr.dtype import F32, I64, U8, DType


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


def test_a_table_has_its_numbers_in_its_type() -> None:
    found = table_array(((1, 0), (Fraction(1, 2), -1)), F32)
    assert found.dtype == np.float32
    assert found.tolist() == [[1, 0], [0.5, -1]]


@pytest.mark.parametrize(
    ("rows", "dtype"), [((1, Fraction(1, 2)), I64), ((0, 256), U8), ((float("nan"), 1), I64)]
)
def test_a_table_of_numbers_that_its_type_lacks_is_not_known(rows: Content, dtype: DType) -> None:
    with pytest.raises(NotKnown, match="is no"):
        table_array(rows, dtype)


@pytest.mark.parametrize(
    ("kind", "shape", "expected"),
    [
        ("eye", (2, 2), [[1, 0], [0, 1]]),
        ("dirac", (2, 1, 3), [[[0, 1, 0]], [[0, 0, 0]]]),
        ("dirac", (1, 1, 2, 3), [[[[0, 0, 0], [0, 1, 0]]]]),
        ("means", (1, 2, 4), [[[0.25] * 4, [0] * 4]]),
        ("means", (1, 1, 2, 2), [[[[0.25] * 2] * 2]]),
    ],
)
def test_array_fills(kind: str, shape: tuple[int, ...], expected: list[object]) -> None:
    found = fill_array(kind, shape, F32)
    assert found.dtype == np.float32
    assert found.tolist() == expected
    assert _is_array_fill(kind, constant(found))
    assert not _is_array_fill(kind, constant(found + 1))
