"""Constants of the right side of a rule."""

import numpy as np
import pytest

from superopt.ir.graph import Constant
from superopt.rules.lang.term import Fill
from superopt.rules.trial.sample.right_side import fill_constant
from superopt.te.expr.dtype import F32, I64


@pytest.mark.parametrize(
    ("kind", "args", "expected"),
    [
        ("eye", (3,), np.eye(3)),
        ("ones", ((2, 3),), np.ones((2, 3))),
        ("zeros", ((2,),), np.zeros(2)),
        ("full", ((2,), 7), np.full(2, 7)),
        ("table", (((1, 2), (3, 4)),), np.array([[1, 2], [3, 4]])),
        ("dirac", ((1, 1, 3),), np.array([[[0, 1, 0]]])),
    ],
)
def test_fills(kind: str, args: tuple[object, ...], expected: np.ndarray) -> None:
    for given, dtype in ((args, F32), ((*args, I64), I64)):
        made = fill_constant(Fill(kind, ()), given, F32)  # type: ignore[arg-type]
        assert isinstance(made, Constant)
        assert made.type.dtype == dtype
        np.testing.assert_array_equal(made.load(), expected)
