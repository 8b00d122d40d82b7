"""What the readings refuse, and how they say it."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.te.eval.domain import Reals
from superopt.te.eval.interpret import bind, evaluate
from superopt.te.expr import index
from superopt.te.expr.dtype import F32, F64, I64
from superopt.te.expr.node import Expr, Size
from superopt.te.expr.tensor import (
    Tensor,
    TensorType,
    compare,
    compute,
    gather,
    in_range,
    placeholder,
    reduce_sum,
    select,
)
from tests.support.te.readings import one_by_one

X = placeholder("x", TensorType(F64, (4, 5)))
AT = placeholder("at", TensorType(I64, (3,)))
VALUES = np.arange(20.0).reshape(4, 5)


@pytest.mark.parametrize(
    "t",
    [
        pytest.param(compute((5,), lambda i: X[i, 0]), id="beyond the end"),
        pytest.param(compute((4,), lambda i: X[i - 1, 0]), id="before the start"),
        pytest.param(compute((4, 4), lambda i, j: X[i, i + j]), id="a sum of axes"),
        pytest.param(compute((4,), lambda i: reduce_sum(6, lambda k: X[i, k])), id="reduced"),
        pytest.param(
            compute((5,), lambda i: select(in_range(i, 5), X[i, 0], 0)), id="a wide guard"
        ),
        pytest.param(
            compute((5, 5), lambda i, j: select(compare("le", j, i), X[i, j], 0)),
            id="a guard about something else",
        ),
    ],
)
def test_a_load_out_of_range_is_an_error(t: Tensor) -> None:
    with pytest.raises(IndexError):
        evaluate(t, {"x": VALUES})
    with pytest.raises(IndexError):
        one_by_one(t, {"x": VALUES})


def test_a_load_that_a_guard_keeps_from_is_none() -> None:
    """Which elements a guard lets through need not be a box."""

    def element(i: Expr, j: Expr) -> Expr:
        return select(compare("lt", index.as_index(i + j), index.as_index(4)), X[i + j, 2 * j], -1)

    t = compute((5, 5), element)
    with pytest.raises(IndexError):  # (i, j) = (0, 3) passes, and 2 j is 6
        evaluate(t, {"x": VALUES})
    t = compute((5, 3), element)
    out = evaluate(t, {"x": VALUES})
    expected = [[VALUES[i + j, 2 * j] if i + j < 4 else -1 for j in range(3)] for i in range(5)]
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize(
    ("at", "fits"), [((0, -4, 3), True), ((0, 4, 1), False), ((-5, 0, 0), False)]
)
def test_an_index_of_the_data_must_be_in_range(at: tuple[int, ...], fits: bool) -> None:
    t = compute((3, 5), lambda i, j: X[gather(AT[i], 4), j])
    inputs = {"x": VALUES, "at": np.array(at)}
    if fits:
        np.testing.assert_array_equal(evaluate(t, inputs), VALUES[list(at)])
        return
    with pytest.raises(IndexError, match=r"not in \[-4, 4\)"):
        evaluate(t, inputs)


def test_nothing_is_loaded_for_a_tensor_of_no_elements() -> None:
    t = compute((0, 3), lambda i, j: X[9, j])
    assert evaluate(t, {"x": VALUES}).shape == (0, 3)
    none = compute((3,), lambda i: reduce_sum(0, lambda k: X[k, i]))
    np.testing.assert_array_equal(evaluate(none, {"x": VALUES}), np.zeros(3))


def test_inputs_must_be_there_and_fit() -> None:
    t = compute((4,), lambda i: X[i, 0])
    with pytest.raises(KeyError, match="missing input x; given: y"):
        evaluate(t, {"y": VALUES})
    with pytest.raises(ValueError, match=r"input x is \(4, 4\), expected \(4, 5\)"):
        evaluate(t, {"x": VALUES[:, :4]})
    with pytest.raises(TypeError, match=r"got int64 elements for f64\[4, 5\]"):
        evaluate(t, {"x": VALUES.astype(np.int64)})


def test_sizes_must_be_bound() -> None:
    n = Size("n")
    x = placeholder("x", TensorType(F32, (n, 3)))
    t = compute((n, 3), lambda i, j: x[i, j] + reduce_sum(n, lambda k: x[k, j]))
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    with pytest.raises(TypeError, match="symbolic size n: bind it first"):
        evaluate(t, {"x": given})
    bound = bind(t, {"n": 2})
    assert bound.shape == (2, 3)
    np.testing.assert_array_equal(evaluate(bound, {"x": given}), given + given.sum(0))


def test_warnings_stay_inside() -> None:
    t = compute((4, 5), lambda i, j: X[i, j] / 0)
    out = evaluate(t, {"x": VALUES}, Reals())  # numpy's warnings are errors in these tests
    assert np.isnan(out[0, 0])
    assert np.isinf(out[0, 1])
