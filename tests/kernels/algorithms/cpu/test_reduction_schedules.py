"""How sums that are no products are cut into tiles."""

from __future__ import annotations

import pytest

from superopt.kernels.algorithms.cpu import reduction_schedules
from superopt.kernels.loops.option import Option
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import Tensor, TensorType, compute, placeholder, reduce_sum


def middle(rows: int, terms: int, columns: int) -> Tensor:
    x = placeholder("x", TensorType(F32, (rows, terms, columns)))
    return compute((rows, columns), lambda i, j: reduce_sum(terms, lambda k: x[i, k, j]))


@pytest.mark.parametrize(
    ("columns", "how"),
    [
        (
            53,
            Option.make("vertical_reduction", width=64, rows=1),
        ),  # a row of results after the other
        (300, Option.make("vertical_reduction", width=16, rows=4)),
    ],
)
def test_short_rows_are_summed_one_at_a_time(columns: int, how: Option) -> None:
    """Several at a time would be read in pieces of 64 bytes, from as many places."""
    best = min(
        reduction_schedules.reduction_options(middle(8, 101, columns), {}, 8, 16),
        key=lambda x: x[0],
    )
    assert best == (0.0, how)
