"""Grouped convolutions whose groups are no whole vectors: vectors end where a group does.

    y[c, h] = sum(x[c // d * e + k, h + r] * b[c, k, r] for k, r)

is, with c = g * d + o, a product for each group g, with vectors along o. The computed tensor has
these two axes instead of c, and is stored in y's layout.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import cast

from superopt.kernels import contraction as co
from superopt.kernels.factor import scattered
from superopt.kernels.layout import Layout, Part, Scatter
from superopt.te import index as ix
from superopt.te.expr import Tensor
from superopt.te.inline import placed
from superopt.te.node import Apply, Axis, Const, Expr, Load


@dataclass(frozen=True, slots=True)
class Groups:
    """root: the result with an axis of groups and one within a group, stored as `layout`."""

    root: Tensor
    lies: Scatter
    c: co.Contraction
    frame: co.Frame


def groups(
    t: Tensor,
    constants: Collection[Tensor],
    layouts: Mapping[Tensor, Layout | Scatter],
    lanes: int,
    registers: int = co.REGISTERS,
) -> Groups | None:
    """Match the products of several groups; None if each group has one channel, or whole
    vectors."""
    whole = co.contraction(t, constants)
    found = None if whole is None or whole.of_b else _group(whole)
    if found is None:
        return None
    axis, size = found
    count, at = axis.size // size, t.axes.index(axis)
    names = [x for x in ("g", "o", "g_", "o_") if x not in {a.name for a in t.axes}]
    g, o = Axis(names[0], count), Axis(names[1], size)
    channel = ix.as_index(g * size + o)
    axes = (*t.axes[:at], g, o, *t.axes[at + 1 :])
    assert t.body is not None
    body = placed(t.body, {axis: channel})
    root = Tensor("y", t.dtype, tuple(a.extent for a in axes), axes, body)
    c = co.contraction(root, constants)
    if c is None or c.of_b != (o,):
        return None
    inner = [n for n in range(len(axes)) if n != at + 1]
    along = Layout(tuple(map(Part, (*inner, at + 1))))
    frame = co.frame(root, c, {**layouts, root: along}, lanes, registers)
    if frame is None:
        return None
    index = tuple(channel if a == axis else a for a in t.axes)
    lies = scattered(t, layouts.get(t), axes, index)
    return Groups(root, lies, c, frame)


def _group(c: co.Contraction) -> tuple[Axis, int] | None:
    """Return the axis of channels, and the channels of a group."""
    for i in c.a.index:
        for axis, size in _quotients(i):
            if axis in c.both and size > 1 and axis.size % size == 0:
                return axis, size
    return None


def _quotients(e: Expr) -> list[tuple[Axis, int]]:
    match e:
        case Apply("floordiv", (Axis() as a, Const(n))):
            return [(a, int(cast(int, n)))]
        case Apply(_, args) | Load(_, args):
            return [x for a in args for x in _quotients(a)]
    return []
