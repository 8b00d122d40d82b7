"""Sums of products as matrix products, for a GPU's tensor cores: rows, columns and terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from superopt.kernels.algorithms import contraction as kernels_contraction
from superopt.kernels.algorithms.gpu.blocks import best_divisor, memory_order_axes, memory_stride
from superopt.kernels.algorithms.problem import Problem, remember_match
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.triton.dot_limits import (
    MIN_BYTE_DOT_TERMS,
    MIN_DOT_COLUMNS,
    MIN_DOT_EXTENT,
)
from superopt.te.analysis.walk import index_axes
from superopt.te.expr.dtype import I8, I32
from superopt.te.expr.node import Apply, Axis, Expr, Load
from superopt.te.expr.symbolic_int import is_symbolic

MAX_BLOCK_TERMS = 128  # of a block
# costs of epilogue functions, in erf
FUNCTION_COSTS = {"erf": 1.0, "tanh": 1.0, "sigmoid": 0.5, "exp": 0.5}


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A sum of products as a matrix product: rows, columns and reduction_axes, each a group of
    fused axes, outermost first; batch: axes of both operands. operand_bytes: of an element that
    tensor cores multiply. epilogue_cost: of the epilogue, in erf per element; reads_each_row: the
    epilogue reads more for each row. is_swapped: the rows are those of the second operand, which
    has more."""

    contraction: kernels_contraction.Contraction
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    reduction_axes: tuple[Axis, ...]
    operand_bytes: int
    epilogue_cost: float = 0.0
    is_swapped: bool = False
    reads_each_row: bool = False

    @property
    def sizes(self) -> tuple[int, int, int]:
        m, n, k = (prod(a.size for a in x) for x in (self.rows, self.columns, self.reduction_axes))
        return m, n, k

    @property
    def is_narrow(self) -> bool:
        """True if elements that tensor cores multiply have 16 or 8 bits."""
        return self.operand_bytes <= 2

    @property
    def min_dot_terms(self) -> int:
        """The least terms of a block for tensor cores."""
        return MIN_BYTE_DOT_TERMS if self.operand_bytes == 1 else MIN_DOT_EXTENT

    @property
    def window_size(self) -> int:
        """The number of times each row element is read, in sums over image windows."""
        return self.sizes[2] // self.reduction_axes[-1].size


def match_matrix_product(p: Problem, swapped: bool = False) -> MatrixProduct | None:
    """Match a matrix product; None if there are too few rows, columns or terms for tensor cores.
    swapped: the few rows become columns, of which tensor cores need fewer."""
    found = reduction(p.tensor)
    of_bytes = found is not None and _multiplies_bytes(found.body)
    c = kernels_contraction.match_contraction(p.tensor, p.constants, 1, of_bytes)
    if c is None or found is None or not c.a_axes or not c.b_axes:
        return None
    read = set[Axis]().union(*map(index_axes, c.a.index))
    if read & set(c.b_axes):  # each group of columns reads rows of its own (grouped_gemm.py)
        return None
    order = memory_order_axes(p)
    # rows in groups that each read their own matrix (heads that share keys) are not fused with
    # others
    own = set[Axis]().union(*map(index_axes, c.b.index))
    rows = tuple(a for a in order if a in c.a_axes and a not in own)
    columns = tuple(a for a in order if a in c.b_axes)
    if swapped:
        rows, columns = columns, rows
    both = tuple(a for a in order if a not in (*rows, *columns))  # or of neither
    # channels innermost in channels-last images; axes of extent 1 do not matter
    over = sorted(
        found.axes, key=lambda a: (a.extent not in (0, 1), memory_stride(c.a, a, p.layouts) == 1)
    )
    size = 1 if of_bytes else 2 if c.a.dtype.bits == 16 else 4
    assert p.tensor.body is not None
    ends, beside = _function_cost(p.tensor.body), _reads_each_row(p.tensor.body, rows)
    m = MatrixProduct(c, both, rows, columns, tuple(over), size, ends, swapped, beside)
    if swapped:
        few = MIN_DOT_COLUMNS // 2 < m.sizes[1] <= MIN_DOT_COLUMNS and c.b.tensor in p.constants
        return (
            m
            if few
            and len(over) == 1
            and m.sizes[0] >= MIN_DOT_EXTENT
            and block_terms(m) >= m.min_dot_terms
            else None
        )
    least = MIN_DOT_EXTENT // 2
    has_terms = block_terms(m) > m.min_dot_terms // 2
    return m if has_terms and all(n > least for n in m.sizes[:2]) else None


def _multiplies_bytes(e: Expr) -> bool:
    """True for a product of two int8, widened to int32."""
    match e:
        case Apply("mul", (Apply("cast", (x,)), Apply("cast", (y,)))):
            return e.dtype == I32 and x.dtype == y.dtype == I8
    return False


def _function_cost(e: Expr) -> float:
    """Return the cost of the epilogue's functions, in erf; common subexpressions count once."""
    known: dict[int, float] = {}

    def visit(x: Expr) -> None:
        if isinstance(x, Apply) and id(x) not in known:
            known[id(x)] = FUNCTION_COSTS.get(x.fn, 0.0)
            for a in x.args:
                visit(a)

    visit(e)
    return sum(known.values())


def _reads_each_row(e: Expr, rows: Sequence[Axis]) -> bool:
    """True if something is read for each row, outside of the sum."""
    match e:
        case Load(_, index):
            return any(set(rows) & index_axes(i) for i in index)
        case Apply(_, args):
            return any(_reads_each_row(x, rows) for x in args)
    return False


def block_terms(m: MatrixProduct, max_terms: int = 64) -> int:
    """Return the terms of a block of the sum: along its last axis, or all axes if that is short. If
    no divisor fits, max_terms, with a masked last block; 0 if the sum is too short."""
    last, least = m.reduction_axes[-1].size, m.min_dot_terms
    n = last if last >= least else m.sizes[2]
    if is_symbolic(n):
        return max_terms if n > MIN_DOT_EXTENT // 2 else 0
    if n < least:
        few = n if n > least // 2 else least  # blocks have powers of two
        return few if n > MIN_DOT_EXTENT // 2 else 0
    tried = (
        best_divisor(n, x, least)
        for x in (max_terms, 2 * max_terms, 4 * max_terms)
        if x <= MAX_BLOCK_TERMS
    )
    return next(filter(None, tried), max_terms)


@remember_match
def recognise_gemm(p: Problem) -> MatrixProduct | None:
    """Match a matrix product with enough rows, columns and terms for tensor cores."""
    return match_matrix_product(p)
