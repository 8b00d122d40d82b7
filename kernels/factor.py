"""Substitution in expressions, and the result type of algorithms that replace a contraction
(Winograd, Strassen)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from superopt.kernels.layout import Layout, Scatter, row_major
from superopt.kernels.schedule import Schedule
from superopt.te import index as ix
from superopt.te.affine import rebuild
from superopt.te.expr import Tensor, select
from superopt.te.node import Apply, Axis, Const, Expr, Load


@dataclass(frozen=True, slots=True)
class Form:
    """A contraction computed by another algorithm: the tensor to compute, its layout, schedules and
    tables.

    transformed_constant: the constant operand, transformed ahead of time. producers: tensors
    computed by kernels of their own before, with the buffers they are read from.
    """

    root: Tensor
    first: tuple[tuple[Tensor, Tensor], ...]
    lies: Scatter
    schedules: Mapping[Tensor, Schedule]
    tables: Mapping[Tensor, np.ndarray]
    kernel: Tensor


def scattered(
    t: Tensor, layout: Layout | Scatter | None, axes: tuple[Axis, ...], index: tuple[Expr, ...]
) -> Scatter:
    """Return the layout of a tensor over `axes`, whose element belongs at `index` of `t`."""
    if isinstance(layout, Scatter):  # it is a part of another tensor itself
        env: dict[Expr, Expr] = dict(zip(layout.axes, index, strict=True))
        there = tuple(ix.substitute(i, env) for i in layout.index)
        return Scatter(layout.shape, layout.layout, axes, there)
    shape = tuple(a.extent for a in t.axes if isinstance(a.extent, int))
    return Scatter(shape, layout or row_major(t.rank), axes, index)


def placed(e: Expr, env: Mapping[Expr, Expr]) -> Expr:
    """Return `e` with axes replaced; selects whose guard becomes constant are folded."""
    match e:
        case Axis():
            return env.get(e, e)
        case Load(t, index, dtype):
            return Load(t, tuple(ix.as_index(placed(i, env)) for i in index), dtype)
        case Apply("select", (guard, yes, no)):
            g = placed(guard, env)
            if isinstance(g, Const):
                return placed(yes if g.value else no, env)
            return select(g, placed(yes, env), placed(no, env))
        case Apply(fn, args, dtype):
            return rebuild(fn, tuple(placed(a, env) for a in args), dtype)
    return e


def put(e: Expr, held: Tensor, total: Expr) -> Expr:
    """Return `e` with loads of `tensor` replaced by `replacement`."""
    match e:
        case Load(t) if t is held:
            return total
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(put(a, held, total) for a in args), dtype)
    return e
