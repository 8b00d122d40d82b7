"""Scatter kernels: a copy of the data, then the updates in order.

    y = x
    for k: y[i, indices[i, k], j] = f(y[i, indices[i, k], j], updates[i, k, j])

The last of several updates of an element wins, and sums are added in order. Threads share leading
axes, and blocks of the elements of a row, where updates never conflict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from superopt.kernels.algorithms.digests import kernel_digest
from superopt.kernels.loops.tile import For, Kernel, Stmt, Store
from superopt.te.expr import index
from superopt.te.expr.dtype import DType
from superopt.te.expr.node import Axis, Const, Expr
from superopt.te.expr.tensor import Tensor, apply, gather, ravel

MAX_BLOCK_ELEMENTS = 128  # of a row, for a chunk; half of short rows
MAX_TILE_ELEMENTS = 512  # of a row without a suitable divisor


@dataclass(frozen=True, slots=True)
class ScatterProblem:
    """A scatter.

    dtype: of data and updates. index_dtype: of indices. outer, rows, row: the data's shape [outer,
    rows, row]; updates are [outer, count, row]. indexed_sizes: the sizes whose product is `rows`,
    with indices [count, len(indexed_sizes)]; or none, if each element of the updates has an index.
    reduction: none, add, mul, max or min. fill: the constant that the data consists of, or None.
    """

    dtype: DType
    index_dtype: DType
    outer: int
    rows: int
    row: int
    count: int
    indexed_sizes: tuple[int, ...]
    reduction: str
    fill: int | float | None = None


def block_elements(row: int) -> int:
    """Return the elements of a row in a tile; 0 if no tile is small enough."""
    most = min(MAX_BLOCK_ELEMENTS, max(row // 2, 1))
    found = next((n for n in range(most, 15, -1) if row % n == 0), row)
    return found if found <= MAX_TILE_ELEMENTS else 0


def scatter_kernel(s: ScatterProblem) -> Kernel:
    """Return a kernel of data (unless constant), indices, updates, and the result."""
    shape = (s.outer, s.rows, s.row)
    x, y = Tensor("x", s.dtype, shape), Tensor("y", s.dtype, shape)
    updates = Tensor("updates", s.dtype, (s.outer, s.count, s.row))
    places = (s.count, len(s.indexed_sizes)) if s.indexed_sizes else updates.shape
    indices = Tensor("indices", s.index_dtype, places)
    size = block_elements(s.row)
    i, step, lane = Axis("i", s.outer), Axis("step", s.row // size), Axis("lane", size)
    k = Axis("k", s.count)
    j = index.as_index(step * size + lane) if size > 1 else index.as_index(step)
    tile = (lane,) if size > 1 else ()
    copy = _copy_statements(s, x, y, i, j, tile)
    if s.indexed_sizes:
        numbers = [gather(indices[k, d], size_) for d, size_ in enumerate(s.indexed_sizes)]
        at = ravel(numbers, s.indexed_sizes)
    else:
        at = index.as_index(gather(indices[i, k, j], s.rows))
    new: Expr = updates[i, k, j]
    if s.reduction != "none":
        new = apply(s.reduction, y[i, at, j], new)
    update = For(k, (Store(y, (i, at, j), new, tile),))
    body: tuple[Stmt, ...] = (For(i, (For(step, (*copy, update), "parallel"),), "parallel"),)
    params = ((x,) if s.fill is None else ()) + (indices, updates, y)
    kernel = Kernel("scatter", params, body)
    return replace(kernel, name=f"k{kernel_digest(kernel)}")


def _copy_statements(
    s: ScatterProblem, x: Tensor, y: Tensor, i: Axis, j: Expr, tile: tuple[Axis, ...]
) -> tuple[Stmt, ...]:
    """Return a copy of elements j of all rows; of many rows at once if a row is one element."""

    def own(n: Expr) -> Expr:
        return Const(s.fill, s.dtype) if s.fill is not None else x[i, n, j]

    if tile:
        n = Axis("n", s.rows)
        return (For(n, (Store(y, (i, n, j), own(n), tile),)),)
    out: list[Stmt] = []
    full, rest = divmod(s.rows, MAX_BLOCK_ELEMENTS)
    for first, steps, width in (
        (0, full, MAX_BLOCK_ELEMENTS),
        (full * MAX_BLOCK_ELEMENTS, 1, rest),
    ):
        if steps and width:
            step, lane = Axis(f"step{width}", steps), Axis(f"lane{width}", width)
            at = index.as_index(step * width + lane + first)
            out.append(For(step, (Store(y, (i, at, j), own(at), (lane,)),)))
    return tuple(out)
