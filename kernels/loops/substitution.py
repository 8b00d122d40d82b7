"""Substitution in expressions, and the result type of algorithms that replace a contraction
(Winograd, Strassen)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from superopt.kernels.loops.layout import Layout, ScatteredLayout, row_major
from superopt.kernels.loops.schedule import Schedule
from superopt.te.analysis.affine import rebuild
from superopt.te.expr import index as te_index
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load
from superopt.te.expr.tensor import Tensor, select


@dataclass(frozen=True, slots=True)
class AlgorithmForm:
    """A contraction computed by another algorithm: the tensor to compute, its layout, schedules and
    tables.

    transformed_constant: the constant operand, transformed ahead of time. producers: tensors
    computed by kernels of their own before, with the buffers they are read from.
    """

    root: Tensor
    producers: tuple[tuple[Tensor, Tensor], ...]
    layout: ScatteredLayout
    schedules: Mapping[Tensor, Schedule]
    tables: Mapping[Tensor, np.ndarray]
    transformed_constant: Tensor


def scatter_layout(
    t: Tensor,
    layout: Layout | ScatteredLayout | None,
    axes: tuple[Axis, ...],
    index: tuple[Expr, ...],
) -> ScatteredLayout:
    """Return the layout of a tensor over `axes`, whose element belongs at `index` of `t`."""
    if isinstance(layout, ScatteredLayout):  # it is a part of another tensor itself
        env: dict[Expr, Expr] = dict(zip(layout.axes, index, strict=True))
        there = tuple(te_index.substitute(i, env) for i in layout.index)
        return ScatteredLayout(layout.shape, layout.layout, axes, there)
    shape = tuple(a.size for a in t.axes)
    return ScatteredLayout(shape, layout or row_major(t.rank), axes, index)


def substitute_and_fold(e: Expr, env: Mapping[Expr, Expr]) -> Expr:
    """Return `e` with axes replaced; selects whose guard becomes constant are folded."""
    match e:
        case Axis():
            return env.get(e, e)
        case Load(t, index, dtype):
            return Load(
                t, tuple(te_index.as_index(substitute_and_fold(i, env)) for i in index), dtype
            )
        case Apply("select", (guard, yes, no)):
            g = substitute_and_fold(guard, env)
            if isinstance(g, Const):
                return substitute_and_fold(yes if g.value else no, env)
            return select(g, substitute_and_fold(yes, env), substitute_and_fold(no, env))
        case Apply(fn, args, dtype):
            return rebuild(fn, tuple(substitute_and_fold(a, env) for a in args), dtype)
    return e


def replace_loads(e: Expr, tensor: Tensor, replacement: Expr) -> Expr:
    """Return `e` with loads of `tensor` replaced by `replacement`."""
    match e:
        case Load(t) if t is tensor:
            return replacement
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(replace_loads(a, tensor, replacement) for a in args), dtype)
    return e
