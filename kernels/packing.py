"""Panels of a matrix that is no constant, copied before they are read: a constant lies in the order
in which it is read; of another matrix a panel's columns are brought together where it is used.

(Goto and van de Geijn, Anatomy of high-performance matrix multiplication, 2008, section 4.)
"""

from __future__ import annotations

from math import prod

from superopt.kernels import contraction as co
from superopt.kernels.problem import Problem
from superopt.te.expr import Tensor

# Rows that read a matrix, and elements of it, from which on it pays; by 20 products of 8 to 1,024
# rows.
READERS, OUTSIDE = 12, 8192
PANELS, SHARED = 16, 96  # fewer panels than so many are copied anew for so many rows


def possible(p: Problem, c: co.Contraction, f: co.Frame) -> bool:
    """b lies along vectors, and is no constant, and not a, too, which would be copied with it."""
    known = c.b.tensor in p.constants or c.b.tensor in p.layouts or c.b.tensor is c.a.tensor
    return not known and f.m is not None and co.strides(c.b, f.n) == 1


def pays(p: Problem, c: co.Contraction, f: co.Frame) -> bool:
    """Rows are enough to read it, and it is not in the first cache as it is; with many registers
    only where vectors begin anywhere (not measured else)."""
    if f.m is None or f.m.size < READERS or f.terms * f.n.size < OUTSIDE:
        return False
    return p.registers == co.FEWER or f.n.size % f.lanes != 0


def block(t: Tensor, f: co.Frame, rows: int, vectors: int) -> int:
    """Tiles of rows for which a panel is copied once; 0 for all, where there are panels enough for
    many threads."""
    high = 1 if f.m is None else f.m.size
    others = prod(a.size for a in t.axes) // (high * f.n.size)
    panels = others * -(-f.n.size // (f.lanes * vectors))
    tiles = -(-high // rows)
    count = max(tiles * rows // SHARED, 1)
    return -(-tiles // count) if panels < PANELS and count > 1 else 0
