"""Grouped convolutions whose groups are no whole vectors: vectors end where a group does.

    y[c, h] = sum(x[c // d * e + k, h + r] * b[c, k, r] for k, r)

is, with c = g * d + o, a product for each group g, with vectors along o. The computed tensor has
these two axes instead of c, and is stored in y's layout.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import cast

from superopt.kernels.algorithms import contraction as kernels_contraction
from superopt.kernels.llvm.register_tiles import VECTOR_REGISTERS
from superopt.kernels.loops.layout import Layout, Part, ScatteredLayout
from superopt.kernels.loops.substitution import scatter_layout
from superopt.te.analysis.inline import substitute_axes
from superopt.te.expr import index as te_index
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load
from superopt.te.expr.tensor import Tensor


@dataclass(frozen=True, slots=True)
class GroupedProducts:
    """root: the result with an axis of groups and one within a group, stored as `layout`."""

    root: Tensor
    layout: ScatteredLayout
    contraction: kernels_contraction.Contraction
    tiling: kernels_contraction.RegisterTiling


def match_groups(
    t: Tensor,
    constants: Collection[Tensor],
    layouts: Mapping[Tensor, Layout | ScatteredLayout],
    lanes: int,
    registers: int = VECTOR_REGISTERS,
) -> GroupedProducts | None:
    """Match the products of several groups; None if each group has one channel, or whole
    vectors."""
    whole = kernels_contraction.match_contraction(t, constants)
    found = None if whole is None or whole.b_axes else _find_group(whole)
    if found is None:
        return None
    axis, size = found
    count, at = axis.size // size, t.axes.index(axis)
    names = [x for x in ("g", "o", "g_", "o_") if x not in {a.name for a in t.axes}]
    g, o = Axis(names[0], count), Axis(names[1], size)
    channel = te_index.as_index(g * size + o)
    axes = (*t.axes[:at], g, o, *t.axes[at + 1 :])
    assert t.body is not None
    body = substitute_axes(t.body, {axis: channel})
    root = Tensor("y", t.dtype, tuple(a.extent for a in axes), axes, body)
    c = kernels_contraction.match_contraction(root, constants)
    if c is None or c.b_axes != (o,):
        return None
    inner = [n for n in range(len(axes)) if n != at + 1]
    along = Layout(tuple(map(Part, (*inner, at + 1))))
    frame = kernels_contraction.register_tiling(root, c, {**layouts, root: along}, lanes, registers)
    if frame is None:
        return None
    index = tuple(channel if a == axis else a for a in t.axes)
    lies = scatter_layout(t, layouts.get(t), axes, index)
    return GroupedProducts(root, lies, c, frame)


def _find_group(c: kernels_contraction.Contraction) -> tuple[Axis, int] | None:
    """Return the axis of channels, and the channels of a group."""
    for i in c.a.index:
        for axis, size in _quotients(i):
            if axis in c.batch_axes and size > 1 and axis.size % size == 0:
                return axis, size
    return None


def _quotients(e: Expr) -> list[tuple[Axis, int]]:
    match e:
        case Apply("floordiv", (Axis() as a, Const(n))):
            return [(a, int(cast(int, n)))]
        case Apply(_, args) | Load(_, args):
            return [x for a in args for x in _quotients(a)]
    return []
