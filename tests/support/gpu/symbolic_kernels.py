"""Kernels whose extents are symbolic, with what they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.schedule import parse_schedule
from superopt.kernels.loops.tile import Kernel
from superopt.te.analysis.walk import loads
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Axis, Reduce, Size
from superopt.te.expr.tensor import Tensor

N = Size("n")


def product() -> Tensor:
    x, w = Tensor("x", F32, (N, 40)), Tensor("w", F32, (40, 48))
    i, j, k = Axis("i0", N), Axis("i1", 48), Axis("k0", 40)
    return Tensor("y", F32, (N, 48), (i, j), Reduce("sum", (k,), x[i, k] * w[k, j], F32))


def symbolic_product() -> Tensor:
    """All three extents of x[n, n] * w[n, n]."""
    x, w = Tensor("x", F32, (N, N)), Tensor("w", F32, (N, N))
    i, j, k = (Axis(name, N) for name in ("i0", "i1", "k0"))
    return Tensor("y", F32, (N, N), (i, j), Reduce("sum", (k,), x[i, k] * w[k, j], F32))


def biased() -> Tensor:
    x, b = Tensor("x", F32, (N, 48)), Tensor("b", F32, (48,))
    i, j = Axis("i0", N), Axis("i1", 48)
    return Tensor("y", F32, (N, 48), (i, j), x[i, j] + b[j])


def row_sums() -> Tensor:
    x = Tensor("x", F32, (12, N))
    i, k = Axis("i0", 12), Axis("k0", N)
    return Tensor("y", F32, (12,), (i,), Reduce("sum", (k,), x[i, k], F32))


def column_maxima() -> Tensor:
    x = Tensor("x", F32, (N, 20))
    j, k = Axis("i0", 20), Axis("k0", N)
    return Tensor("y", F32, (20,), (j,), Reduce("max", (k,), x[k, j], F32))


TILED = (
    "split(i0, 64); split(i1, 16); split(k0, 16); "
    "reorder(i0.o, i1.o, k0.o, k0.i, i0.i, i1.i); parallel(i0.o); parallel(i1.o); unroll(k0.i); "
    "unroll(i0.i); vectorize(i1.i)"
)
GROUPED = (
    "split(i0, 16); split(i1, 16); cover(k0, 16); split(i0.o, 4); "
    "reorder(i0.o.o, i1.o, i0.o.i, k0.o, k0.i, i0.i, i1.i); parallel(i0.o.o); parallel(i1.o); "
    "parallel(i0.o.i); unroll(k0.i); unroll(i0.i); vectorize(i1.i)"
)
CASES: Mapping[str, tuple[Callable[[], Tensor], str, Callable[..., np.ndarray]]] = {
    "rows of a product": (product, GROUPED.replace("cover", "split").replace("k0, 16", "k0, 8"),
                          lambda x, w: x @ w),
    "blocks in groups": (symbolic_product, GROUPED, lambda x, w: x @ w),
    "all extents": (symbolic_product, TILED, lambda x, w: x @ w),
    "fused axes": (biased, "fuse(i0, i1); split(i0_i1, 64); parallel(i0_i1.o); vectorize(i0_i1.i)",
                   lambda x, b: x + b),
    "whole rows": (row_sums, "parallel(i0); vectorize(k0)", lambda x: x.sum(1)),
    "parts of rows": (row_sums, "split(i0, 4); cover(k0, 16); reorder(i0.o, k0.o, k0.i, i0.i); "
                      "parallel(i0.o); unroll(k0.i); vectorize(i0.i)", lambda x: x.sum(1)),
    "columns": (column_maxima, "split(i0, 16); cover(k0, 8); reorder(i0.o, k0.o, k0.i, i0.i); "
                "parallel(i0.o); unroll(k0.i); vectorize(i0.i)", lambda x: x.max(0)),
}  # fmt: skip


def lower_symbolic(t: Tensor, schedule: str) -> Kernel:
    assert t.body is not None
    inputs = [*dict.fromkeys(x.tensor for x in loads(t.body))]
    kernel = lower_kernel("kernel", inputs, [t], {t: parse_schedule(schedule)})
    return Kernel(kernel.name, kernel.params, kernel.body, kernel.scratch, sizes=("n",))
