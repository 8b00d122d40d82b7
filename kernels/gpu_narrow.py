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

from superopt.kernels import contraction as co
from superopt.kernels.factor import put, scattered
from superopt.kernels.gpu_blocks import DOT, each, elements_of, side_by_side
from superopt.kernels.gpu_products import Made, Matrix, matrix_of, multiplied
from superopt.kernels.gpu_ranking import ranked
from superopt.kernels.nest import put_for
from superopt.kernels.option import Option
from superopt.kernels.problem import Choice, Problem
from superopt.kernels.transform import reduction
from superopt.te.expr import Tensor
from superopt.te.node import Apply, Axis, Expr, Load, Reduce

TRIED = 8  # blocks
ROWS, TERMS = 256, 128  # with fewer, one kernel that sums term by term is as fast as two


@dataclass(frozen=True, slots=True)
class Narrow:
    """The problem with padded columns; its buffer; the tensor computed from it; its constants."""

    problem: Problem
    matrix: Matrix
    buffer: Tensor
    root: Tensor
    made: Made


def narrow(p: Problem) -> Narrow | None:
    """Match a product of a constant with few columns; None otherwise."""
    c, found = co.contraction(p.tensor, p.constants, 1), reduction(p.tensor)
    if c is None or found is None or len(c.of_b) != 1 or not c.of_a:
        return None
    (column,) = c.of_b
    assert p.tensor.body is not None
    few = column.size <= DOT // 2 and c.b.tensor in p.constants
    if not few or c.b.index.count(column) != 1:
        return None
    t, at = p.tensor, c.b.index.index(column)
    wide = Axis("wide", DOT)
    shape = [n for n in c.b.tensor.shape if isinstance(n, int)]
    more = [(0, DOT - n if d == at else 0) for d, n in enumerate(shape)]
    b = Tensor(
        f"{c.b.tensor.name}_wide", c.b.tensor.dtype,
        tuple(DOT if d == at else n for d, n in enumerate(shape)),
    )  # fmt: skip
    read = Load(b, tuple(wide if d == at else i for d, i in enumerate(c.b.index)), c.b.dtype)

    def make(array: np.ndarray) -> np.ndarray:
        return np.pad(array.reshape(shape), more)

    order = side_by_side(p)
    axes = tuple(wide if a == column else a for a in order)
    sums = Reduce(found.fn, found.axes, _with(found.body, c.b, read), found.dtype)
    before = Tensor("columns", found.dtype, tuple(a.size for a in axes), axes, sums)
    buffer = Tensor("summed", found.dtype, before.shape)
    held = Tensor("held", found.dtype, t.shape)
    body = put(
        put_for(p.tensor.body, found, held, t.axes), held, Load(buffer, tuple(order), found.dtype)
    )
    root = Tensor(t.name, t.dtype, t.shape, t.axes, body)
    own = {x: y for x, y in p.layouts.items() if x != t}
    problem = replace(p, tensor=before, layouts=own, constants={*p.constants, b})
    matrix = matrix_of(problem)
    made = {b: (c.b.tensor, make)}
    if matrix is None or matrix.sizes[0] < ROWS or matrix.sizes[2] < TERMS:
        return None
    return Narrow(problem, matrix, buffer, root, made)


def narrowed(n: Narrow) -> Iterator[Option]:
    """Yield block options, best first."""
    yield from islice((o for o in ranked(n.matrix) if o.algorithm == "dot"), TRIED)


def widened(p: Problem, n: Narrow, o: Option) -> Choice:
    """Return the choice of an option for this problem."""
    how = multiplied(n.problem, n.matrix, o)
    t, lies = p.tensor, p.layouts.get(p.tensor)
    outer = replace(
        p, tensor=n.root, layouts={**n.problem.layouts, **({n.root: lies} if lies else {})}
    )
    schedules = {**how.schedules, n.root: each(outer, elements_of(t))}
    place = scattered(t, lies, t.axes, t.axes)
    first = ((how.root, n.buffer),)
    return Choice(o, n.root, schedules, how.packed, place, {}, first, {**n.made, **how.made})


def _with(e: Expr, old: Load, new: Load) -> Expr:
    match e:
        case Load() if e == old:
            return new
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_with(a, old, new) for a in args), dtype)
    return e
