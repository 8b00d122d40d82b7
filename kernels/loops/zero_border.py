"""A kernel that writes the zero border of an image again, after its memory was reused by another
buffer."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

from superopt.kernels.loops.tile import For, Kernel, Stmt, Store
from superopt.te.expr import index
from superopt.te.expr.dtype import DType
from superopt.te.expr.node import Axis, Const, Expr
from superopt.te.expr.symbolic_int import is_symbolic
from superopt.te.expr.tensor import Tensor

TILE_ELEMENTS = 64  # elements of one store


def clear_border_kernel(dtype: DType, shape: Sequence[int], borders: Sequence[int]) -> Kernel:
    """Return a kernel of one buffer of this shape that zeroes `borders[d]` elements on both sides
    of each dimension d.

    The dimensions before the first one with a border form one parallel loop.
    """
    size = prod(shape)
    buffer = Tensor("image", dtype, (size,))
    first = next(d for d, b in enumerate(borders) if b)
    whole = Axis("plane", prod(shape[:first]))
    body: list[Stmt] = []
    for d in range(first, len(shape)):
        if not borders[d]:
            continue
        # borders of the dimensions between are zeroed already, so only their interior is visited
        loops = [Axis(f"i{d}.{k}", shape[k] - 2 * borders[k]) for k in range(first, d)]
        at: Expr = index.as_index(whole * prod(shape[first:]))
        for k, axis in enumerate(loops, start=first):
            at = index.as_index(at + (axis + borders[k]) * prod(shape[k + 1 :]))
        inner = prod(shape[d + 1 :])
        run = borders[d] * inner
        stores: tuple[Stmt, ...] = (
            *_zero_run(buffer, at, run, f"before{d}"),
            *_zero_run(buffer, index.as_index(at + (shape[d] * inner - run)), run, f"after{d}"),
        )
        for axis in reversed(loops):
            stores = (For(axis, stores),)
        body += stores
    return Kernel("clear", (buffer,), (For(whole, tuple(body), "parallel"),))


def count_border_elements(shape: Sequence[int], borders: Sequence[int]) -> int:
    """Return the number of elements of the border."""
    return prod(shape) - prod(n - 2 * b for n, b in zip(shape, borders, strict=True))


def _zero_run(buffer: Tensor, offset: Expr, count: int, name: str) -> list[Stmt]:
    """Return stores of `count` zeros from `offset` on."""
    out: list[Stmt] = []
    zero = Const(0, buffer.dtype)
    tile = TILE_ELEMENTS
    if is_symbolic(count):  # a tile that fits whatever the sizes
        tile = gcd(tile, *index.polynomial(index.as_index(count)).values())
    full, rest = count // tile, count % tile
    if is_symbolic(full) or full:
        step, lane = Axis(f"{name}.step", full), Axis(f"{name}.lane", tile)
        place = index.as_index(offset + step * tile + lane)
        out.append(For(step, (Store(buffer, (place,), zero, (lane,)),)))
    if rest:
        lane = Axis(f"{name}.rest", rest)
        out.append(Store(buffer, (index.as_index(offset + (full * tile + lane)),), zero, (lane,)))
    return out
