"""Forms that put another computation in the place of a sum of products (Winograd's, Strassen's):
what one consists of, and what stands in a computation at other indices."""

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
    """A sum of products by another computation: what computes it, where that lies, and what is
    known of it.

    kernel: the constant, transformed. first: what kernels of their own compute before, and the
    buffers from which that is read then; as the other operand, transformed.
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
    """Where elements lie that are said by other axes than those of `t`, at `index` of which they
    are."""
    if isinstance(layout, Scatter):  # it is a part of another tensor itself
        env: dict[Expr, Expr] = dict(zip(layout.axes, index, strict=True))
        there = tuple(ix.substitute(i, env) for i in layout.index)
        return Scatter(layout.shape, layout.layout, axes, there)
    shape = tuple(a.extent for a in t.axes if isinstance(a.extent, int))
    return Scatter(shape, layout or row_major(t.rank), axes, index)


def placed(e: Expr, env: Mapping[Expr, Expr]) -> Expr:
    """`e` with axes replaced; conditions that are known then are decided."""
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
    """`e` with `total` for its loads of `held`."""
    match e:
        case Load(t) if t is held:
            return total
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(put(a, held, total) for a in args), dtype)
    return e
