"""Rows with which most of a GPU would have nothing to do, where one is a program's."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from superopt.te.node import Dim

# Rows, and elements of each, with which most of a GPU has nothing to do: by what a multiprocessor
# may read (100 GB/s, which was not measured), one kernel of these takes longer than several.
FEW, LONG = 16, 1 << 18


def few_and_long(sizes: Sequence[Dim], lead: int) -> bool:
    """Of a result of these sizes, the first `lead` of which say which row."""
    some = [n for n in sizes if isinstance(n, int)]
    return prod(some[:lead]) <= FEW and prod(some[lead:]) >= LONG
