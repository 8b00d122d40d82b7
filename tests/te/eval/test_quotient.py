"""Fractions of sizes, as float32 computes them."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.te.eval.quotient import Quotient, float_function
from superopt.te.expr import index
from superopt.te.expr.dtype import F32, I64
from superopt.te.expr.node import Expr, Size

N = Size("n")
SIZES = np.unique(np.concatenate([np.arange(1, 3000), 2**24 - np.arange(1, 3000)]))


def values(e: object) -> np.ndarray:
    assert isinstance(e, Expr)
    return np.array([index.evaluate(e, {"n": int(n)}) for n in SIZES])


@pytest.mark.parametrize("divisor", [2, 3, 5, 7, 8, 10, 49, 1000])
@pytest.mark.parametrize(("fn", "rounded"), [("floor", np.floor), ("ceil", np.ceil)])
def test_a_quotient_rounds_as_in_float32(divisor: int, fn: str, rounded: np.ufunc) -> None:
    made = float_function("div", (N, float(divisor)), F32)
    assert isinstance(made, Quotient)
    wanted = rounded(SIZES.astype(np.float32) / np.float32(divisor))
    np.testing.assert_array_equal(values(float_function(fn, (made,), F32)), wanted)


@pytest.mark.parametrize("factor", [0.5, 0.125])
def test_a_product_is_truncated_as_in_float32(factor: float) -> None:
    made = float_function("mul", (N, factor), F32)
    assert isinstance(made, Quotient)
    wanted = (SIZES.astype(np.float32) * np.float32(factor)).astype(np.int64)
    np.testing.assert_array_equal(values(float_function("cast", (made,), I64)), wanted)


@pytest.mark.parametrize("factor", [0.1, 0.75, 1 / 3, -0.5])
def test_other_products_are_unknown(factor: float) -> None:
    """Their rounding errors may reach the next integer, or the sign is not known."""
    assert float_function("mul", (N, factor), F32) is None


def test_a_divisor_of_all_sizes_gives_an_integer() -> None:
    assert float_function("div", (index.as_index(N * 6), 3.0), F32) == index.as_index(N * 2)
