"""Packing of panels of a non-constant b operand: constants are packed ahead of time; of another
matrix, each panel's columns are copied together before use.

(Goto and van de Geijn, Anatomy of high-performance matrix multiplication, 2008, section 4.)
"""

from __future__ import annotations

from math import prod

from superopt.kernels.algorithms import contraction
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.llvm.register_tiles import SMALL_REGISTER_FILE
from superopt.te.expr.tensor import Tensor

# Rows that read a matrix, and its elements, from which packing pays; by 20 products of 8 to 1,024
# rows.
MIN_READER_ROWS, MIN_MATRIX_ELEMENTS = 12, 8192
MIN_PANELS, ROWS_PER_COPY = 16, 96  # with fewer panels, each is copied again for so many rows


def can_pack(p: Problem, c: contraction.Contraction, f: contraction.RegisterTiling) -> bool:
    """True if b is contiguous along vectors, not constant, and not also a, which would be copied
    with it."""
    known = c.b.tensor in p.constants or c.b.tensor in p.layouts or c.b.tensor is c.a.tensor
    return not known and f.m is not None and contraction.axis_stride(c.b, f.n) == 1


def is_profitable(p: Problem, c: contraction.Contraction, f: contraction.RegisterTiling) -> bool:
    """True if enough rows read b, and it does not fit in L1; with many registers only if vectors
    are unaligned (other cases are not measured)."""
    if f.m is None or f.m.size < MIN_READER_ROWS or f.terms * f.n.size < MIN_MATRIX_ELEMENTS:
        return False
    return p.registers == SMALL_REGISTER_FILE or f.n.size % f.lanes != 0


def row_block(t: Tensor, f: contraction.RegisterTiling, rows: int, vectors: int) -> int:
    """Return the row tiles that share one copy of a panel; 0 for all, if there are panels enough
    for many threads."""
    high = 1 if f.m is None else f.m.size
    others = prod(a.size for a in t.axes) // (high * f.n.size)
    panels = others * -(-f.n.size // (f.lanes * vectors))
    tiles = -(-high // rows)
    count = max(tiles * rows // ROWS_PER_COPY, 1)
    return -(-tiles // count) if panels < MIN_PANELS and count > 1 else 0
