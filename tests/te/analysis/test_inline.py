"""Other indices for an expression's axes."""

from superopt.te.analysis.inline import substitute_axes
from superopt.te.expr.dtype import I32
from superopt.te.expr.node import Axis
from superopt.te.expr.tensor import Tensor, compute, reduce_sum

A = Tensor("a", I32, (4, 4))
ROW, J, K = Axis("i0", 4), Axis("j", 4), Axis("k0", 4)
SUM = compute((4,), lambda i: reduce_sum(4, lambda k: A[i, k])).body


def test_a_bound_axis_stays_its_own() -> None:
    assert SUM is not None
    assert str(substitute_axes(SUM, {ROW: J})) == "sum(a[j, k0] for k0 < 4)"
    assert str(substitute_axes(SUM, {ROW: K})) == "sum(a[k0, k0_1] for k0_1 < 4)"
    assert (
        str(substitute_axes(A[K, ROW] * SUM, {K: J}))
        == "(a[j, i0] * sum(a[i0, k0_1] for k0_1 < 4))"
    )
