"""Rows with which most of a GPU would have nothing to do, where one is a program's."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from superopt.te.node import Dim

# Rows, and elements of each, with which most of a GPU has nothing to do: a program reads and writes
# 43 GB/s (64 rows of 2^19 halves, read three times: 98 us on an H100), and all of it 2900, but by
# several kernels, of 2 us each.
FEW = ((16, 1 << 16), (48, 1 << 18))


def few_and_long(sizes: Sequence[Dim], lead: int) -> bool:
    """Of a result of these sizes, the first `lead` of which say which row."""
    some = [n for n in sizes if isinstance(n, int)]
    rows, elements = prod(some[:lead]), prod(some[lead:])
    return any(rows <= few and elements >= long for few, long in FEW)
