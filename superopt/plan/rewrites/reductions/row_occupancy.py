"""Rows that are too few to occupy a GPU when each is computed by one program."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from superopt.te.expr.node import Dim

# (rows, elements of a row) that leave most of a GPU idle: one program reads and writes 43 GB/s (64
# rows of 2^19 fp16 elements, read three times: 98 us on an H100), the whole GPU 2900 GB/s, but with
# several kernels of 2 us each.
MAX_ROWS_MIN_ELEMENTS = ((16, 1 << 16), (48, 1 << 18))


def has_few_long_rows(sizes: Sequence[Dim], batch_rank: int) -> bool:
    """True for a result of these sizes, whose first `batch_rank` axes select a row, if its rows are
    few and long."""
    some = [n for n in sizes if isinstance(n, int)]
    rows, elements = prod(some[:batch_rank]), prod(some[batch_rank:])
    return any(rows <= few and elements >= long for few, long in MAX_ROWS_MIN_ELEMENTS)
