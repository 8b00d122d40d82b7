"""The largest and the smallest of windows that have columns in common."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from superopt.kernels.algorithms.cpu import reduction_schedules
from superopt.kernels.llvm.codegen import kernel_text
from superopt.kernels.loops.layout import parse_layout
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.cpu import load_kernel
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import (
    Tensor,
    compute,
    conjunction,
    const,
    in_range,
    reduce_max,
    reduce_min,
    select,
)

BLOCKS = parse_layout("i0//16 i1 i2 i0%16")
# Window, stride, dilation, border before, of each of two axes.
SHAPES = [
    ((3, 3), (1, 1), (1, 1), (1, 1)),
    ((3, 3), (2, 2), (1, 1), (1, 1)),
    ((2, 2), (2, 2), (1, 1), (0, 0)),
    ((5, 5), (1, 1), (1, 1), (2, 2)),
    ((5, 3), (1, 2), (1, 2), (2, 0)),
    ((13, 13), (1, 1), (1, 1), (6, 6)),
    ((7, 9), (3, 1), (1, 1), (3, 4)),
    ((1, 4), (1, 1), (1, 1), (0, 3)),
    ((4, 1), (1, 1), (2, 1), (0, 0)),
    ((3, 3), (1, 1), (3, 3), (3, 3)),
]


def pooled(x: np.ndarray, fn: str, shape: tuple[tuple[int, int], ...]) -> np.ndarray:
    """By definition: NaN where one is."""
    window, stride, dilation, border = shape
    rest = -np.inf if fn == "max" else np.inf
    wide = np.pad(x, [(0, 0), *((b, b) for b in border)], constant_values=rest)
    reach = [(k - 1) * d + 1 for k, d in zip(window, dilation, strict=True)]
    seen = sliding_window_view(wide, reach, axis=(1, 2))
    seen = seen[:, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
    return seen.max((3, 4)) if fn == "max" else seen.min((3, 4))


@pytest.mark.one_in(20)
@pytest.mark.parametrize(("lies", "fn"), [("rows", "max"), ("blocks", "min")])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_windows(shape: tuple[tuple[int, int], ...], fn: str, lies: str) -> None:
    window, stride, dilation, border = shape
    rng = np.random.default_rng(0)
    x = rng.standard_normal((19, 23, 21)).astype(np.float32)
    for value in (np.nan, np.inf, -np.inf):
        x[rng.random(x.shape) < 0.01] = value
    x[3, :, :] = np.nan
    wanted = pooled(x, fn, shape)
    assert 0.02 < np.isnan(wanted).mean() < 0.98
    a = Tensor("x", F32, x.shape)
    rest = const(-np.inf if fn == "max" else np.inf, F32)

    def element(c: Expr, i: Expr, j: Expr) -> Expr:
        def one(p: Expr, q: Expr) -> Expr:
            h = i * stride[0] + p * dilation[0] - border[0]
            w = j * stride[1] + q * dilation[1] - border[1]
            return select(conjunction(in_range(h, 23), in_range(w, 21)), a[c, h, w], rest)

        return (reduce_max if fn == "max" else reduce_min)(window, one)

    y = compute(wanted.shape, element)
    how = {a: BLOCKS, y: BLOCKS} if lies == "blocks" else {}
    for _, option in sorted(
        reduction_schedules.reduction_options(y, how, 16, 32), key=lambda x: x[0]
    )[:2]:
        schedule, _ = reduction_schedules.schedule_reduction(y, how, (), option)
        k = lower_kernel("k", [a], [y], {y: schedule}, how)
        given, out = (laid(v, lies == "blocks") for v in (x, np.zeros_like(wanted)))
        load_kernel(k)(given, out)
        np.testing.assert_array_equal(out, laid(wanted, lies == "blocks"))


def laid(x: np.ndarray, blocks: bool) -> np.ndarray:
    """Row by row, or in blocks of 16 channels, of which the last one ends in zeros."""
    if not blocks:
        return x.copy()
    c, h, w = x.shape
    wide = np.zeros((-(-c // 16) * 16, h, w), x.dtype)
    wide[:c] = x
    return np.ascontiguousarray(wide.reshape(-1, 16, h, w).transpose(0, 2, 3, 1))


def test_shared_columns_are_reduced_once() -> None:
    """Eight windows of 5 x 5 have 10 columns in common with others, and the outer two one of their
    own: 88 comparisons instead of 8 * 25."""
    a = Tensor("x", F32, (16, 12, 12))
    y = compute((16, 8, 8), lambda c, i, j: reduce_max((5, 5), lambda p, q: a[c, i + p, j + q]))
    how = {a: BLOCKS, y: BLOCKS}
    schedule, _ = reduction_schedules.schedule_reduction(
        y, how, (), Option.make("vertical_reduction", width=16, rows=8)
    )
    text = kernel_text(lower_kernel("k", [a], [y], {y: schedule}, how), 64)
    assert text.count("fcmp ogt") == 10 * 4 + 6 * 5 + 2 * (4 + 5)
