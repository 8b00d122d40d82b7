"""Exponentials that a softmax shares between its sum and its quotient."""

import pytest

from superopt.plan.rewrites.reductions.shared_values import share_exponentials
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import (
    Tensor,
    apply,
    compare,
    compute,
    const,
    reduce_sum,
    select,
)

X = Tensor("x", F32, (8, 7))
TOTAL = compute((8,), lambda i: reduce_sum(7, lambda k: apply("exp", X[i, k])), name="total")


@pytest.mark.parametrize(("columns", "is_shared"), [(8, True), (10, False)])
def test_only_those_that_the_sum_reads_are_stored(columns: int, is_shared: bool) -> None:
    """Beyond them, in the pad of a transposed softmax, there are no elements of x."""

    def quotient(j, i):  # type: ignore[no-untyped-def]
        one = apply("div", apply("exp", X[i, j]), TOTAL[i])
        return one if columns == 8 else select(compare("lt", i, 8), one, const(0, F32))

    result = compute((7, columns), quotient, name="result")
    found = share_exponentials({TOTAL: TOTAL, result: result})
    held = [t for t in found if t not in (TOTAL, result)]
    assert [t.shape for t in held] == ([(7, 8)] if is_shared else [])
