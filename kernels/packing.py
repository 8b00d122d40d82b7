"""Packing of panels of a non-constant b operand: constants are packed ahead of time; of another
matrix, each panel's columns are copied together before use.

(Goto and van de Geijn, Anatomy of high-performance matrix multiplication, 2008, section 4.)
"""

from __future__ import annotations

from math import prod

from superopt.kernels import contraction as co
from superopt.kernels.problem import Problem
from superopt.te.expr import Tensor

# Rows that read a matrix, and its elements, from which packing pays; by 20 products of 8 to 1,024
# rows.
READERS, OUTSIDE = 12, 8192
PANELS, SHARED = 16, 96  # with fewer panels, each is copied again for so many rows


def possible(p: Problem, c: co.Contraction, f: co.Frame) -> bool:
    """True if b is contiguous along vectors, not constant, and not also a, which would be copied
    with it."""
    known = c.b.tensor in p.constants or c.b.tensor in p.layouts or c.b.tensor is c.a.tensor
    return not known and f.m is not None and co.strides(c.b, f.n) == 1


def pays(p: Problem, c: co.Contraction, f: co.Frame) -> bool:
    """True if enough rows read b, and it does not fit in L1; with many registers only if vectors
    are unaligned (other cases are not measured)."""
    if f.m is None or f.m.size < READERS or f.terms * f.n.size < OUTSIDE:
        return False
    return p.registers == co.FEWER or f.n.size % f.lanes != 0


def block(t: Tensor, f: co.Frame, rows: int, vectors: int) -> int:
    """Return the row tiles that share one copy of a panel; 0 for all, if there are panels enough
    for many threads."""
    high = 1 if f.m is None else f.m.size
    others = prod(a.size for a in t.axes) // (high * f.n.size)
    panels = others * -(-f.n.size // (f.lanes * vectors))
    tiles = -(-high // rows)
    count = max(tiles * rows // SHARED, 1)
    return -(-tiles // count) if panels < PANELS and count > 1 else 0
