"""N padding: products with few columns on a GPU, such as a convolution with three output channels.
The constant is padded with columns of zeros for tensor cores, and another kernel takes the real
columns.

    y[p, c] = f(sum(a[p, k] * b[k, c] for k))        c < 3
=>  s[p, w] = sum(a[p, k] * b'[k, w] for k)          w < 16
    y[p, c] = f(s[p, c])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from superopt.kernels.algorithms import contraction
from superopt.kernels.algorithms.algorithm import Algorithm
from superopt.kernels.algorithms.gpu.blocks import (
    elements_per_program,
    elementwise_schedule,
    memory_order_axes,
)
from superopt.kernels.algorithms.gpu.gemm import DerivedConstants, product_choice
from superopt.kernels.algorithms.gpu.gemm_cost_model import rank_options
from superopt.kernels.algorithms.gpu.matrix_product import MatrixProduct, match_matrix_product
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.loops.loop_nest import replace_reduction
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.substitution import replace_loads, scatter_layout
from superopt.kernels.triton.dot_limits import MIN_DOT_EXTENT
from superopt.te.expr.node import Apply, Axis, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor

MAX_BLOCKS_TRIED = 8  # blocks
MIN_ROWS, MIN_TERMS = 256, 128  # with fewer, one kernel that sums term by term is as fast as two


@dataclass(frozen=True, slots=True)
class PaddedProduct:
    """The problem with padded columns; its buffer; the tensor computed from it; its constants."""

    problem: Problem
    matrix: MatrixProduct
    buffer: Tensor
    root: Tensor
    derived_constants: DerivedConstants


@remember_match
def match_narrow_product(p: Problem) -> PaddedProduct | None:
    """Match a product of a constant with few columns; None otherwise."""
    c, found = contraction.match_contraction(p.tensor, p.constants, 1), reduction(p.tensor)
    if c is None or found is None or len(c.b_axes) != 1 or not c.a_axes:
        return None
    (column,) = c.b_axes
    assert p.tensor.body is not None
    few = column.size <= MIN_DOT_EXTENT // 2 and c.b.tensor in p.constants
    if not few or c.b.index.count(column) != 1:
        return None
    t, at = p.tensor, c.b.index.index(column)
    wide = Axis("wide", MIN_DOT_EXTENT)
    shape = [n for n in c.b.tensor.shape if isinstance(n, int)]
    more = [(0, MIN_DOT_EXTENT - n if d == at else 0) for d, n in enumerate(shape)]
    b = Tensor(
        f"{c.b.tensor.name}_wide", c.b.tensor.dtype,
        tuple(MIN_DOT_EXTENT if d == at else n for d, n in enumerate(shape)),
    )  # fmt: skip
    read = Load(b, tuple(wide if d == at else i for d, i in enumerate(c.b.index)), c.b.dtype)

    def make(array: np.ndarray) -> np.ndarray:
        return np.pad(array.reshape(shape), more)

    order = memory_order_axes(p)
    axes = tuple(wide if a == column else a for a in order)
    sums = Reduce(found.fn, found.axes, _replace_load(found.body, c.b, read), found.dtype)
    before = Tensor("columns", found.dtype, tuple(a.size for a in axes), axes, sums)
    buffer = Tensor("summed", found.dtype, before.shape)
    held = Tensor("held", found.dtype, t.shape)
    body = replace_loads(
        replace_reduction(p.tensor.body, found, held, t.axes),
        held,
        Load(buffer, tuple(order), found.dtype),
    )
    root = Tensor(t.name, t.dtype, t.shape, t.axes, body)
    own = {x: y for x, y in p.layouts.items() if x != t}
    problem = replace(p, tensor=before, layouts=own, constants={*p.constants, b})
    matrix = match_matrix_product(problem)
    made = {b: (c.b.tensor, make)}
    if matrix is None or matrix.sizes[0] < MIN_ROWS or matrix.sizes[2] < MIN_TERMS:
        return None
    return PaddedProduct(problem, matrix, buffer, root, made)


def padded_options(p: Problem, n: PaddedProduct) -> Iterator[Option]:
    """Yield block options, best first."""
    some = (o for o in rank_options(n.matrix) if o.algorithm == "gemm")
    yield from islice(some, MAX_BLOCKS_TRIED)


def padded_choice(p: Problem, n: PaddedProduct, o: Option) -> Choice:
    """Return the choice of an option for this problem."""
    how = product_choice(n.problem, n.matrix, o)
    t, lies = p.tensor, p.layouts.get(p.tensor)
    outer = replace(
        p, tensor=n.root, layouts={**n.problem.layouts, **({n.root: lies} if lies else {})}
    )
    schedules = {**how.schedules, n.root: elementwise_schedule(outer, elements_per_program(t))}
    place = scatter_layout(t, lies, t.axes, t.axes)
    first = ((how.root, n.buffer),)
    return Choice(
        o,
        n.root,
        schedules,
        how.packed,
        place,
        {},
        first,
        {**n.derived_constants, **how.derived_constants},
    )


def _replace_load(e: Expr, old: Load, new: Load) -> Expr:
    match e:
        case Load() if e == old:
            return new
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_replace_load(a, old, new) for a in args), dtype)
    return e


PADDED_N_GEMM = Algorithm(
    ("gemm",), "GEMM and convolution with few columns: padded for tensor cores",
    match_narrow_product, padded_options, padded_choice,
)  # fmt: skip
