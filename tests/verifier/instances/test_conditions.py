"""Nested minima and maxima in conditions."""

from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Const
from superopt.verifier.instances.conditions import flatten_extreme

A, B, C = (Const(n, INDEX) for n in (1, 2, 3))


def test_only_extremes_of_the_same_kind_are_flattened() -> None:
    least, greatest = Apply("min", (A, B), INDEX), Apply("max", (A, B), INDEX)
    assert flatten_extreme(A) is None
    assert flatten_extreme(least) == ("min", [A, B])
    assert flatten_extreme(Apply("min", (least, C), INDEX)) == ("min", [A, B, C])
    assert flatten_extreme(Apply("max", (C, greatest), INDEX)) == ("max", [C, A, B])
    assert flatten_extreme(Apply("min", (greatest, C), INDEX)) == ("min", [greatest, C])
