"""Grouped convolutions whose groups are no whole vectors: vectors end where a group does.

    y[c, h] = sum(x[c // d * e + k, h + r] * b[c, k, r] for k, r)

is, with c = g * d + o, a product for each group g, with vectors along o. The computed tensor has
these two axes instead of c, and is stored in y's layout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from superopt.kernels.algorithms.algorithm import Algorithm, Prediction
from superopt.kernels.algorithms.contraction import Contraction, match_contraction
from superopt.kernels.algorithms.cpu.gemm import schedule_contraction
from superopt.kernels.algorithms.cpu.register_tiling import RegisterTiling, register_tiling
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.loops.layout import Layout, Part, ScatteredLayout
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.substitution import scatter_layout
from superopt.kernels.processor import ZEN5, Processor
from superopt.te.analysis.inline import substitute_axes
from superopt.te.expr import index as te_index
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load
from superopt.te.expr.tensor import Tensor


@dataclass(frozen=True, slots=True)
class GroupedProducts:
    """root: the result with an axis of groups and one within a group, stored as `layout`."""

    root: Tensor
    layout: ScatteredLayout
    contraction: Contraction
    tiling: RegisterTiling


def match_groups(
    t: Tensor,
    constants: Collection[Tensor],
    layouts: Mapping[Tensor, Layout | ScatteredLayout],
    lanes: int,
    processor: Processor = ZEN5,
) -> GroupedProducts | None:
    """Match the products of several groups; None if each group has one channel, or whole
    vectors."""
    whole = match_contraction(t, constants)
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
    c = match_contraction(root, constants)
    if c is None or c.b_axes != (o,):
        return None
    inner = [n for n in range(len(axes)) if n != at + 1]
    along = Layout(tuple(map(Part, (*inner, at + 1))))
    frame = register_tiling(root, c, {**layouts, root: along}, lanes, processor)
    if frame is None:
        return None
    index = tuple(channel if a == axis else a for a in t.axes)
    lies = scatter_layout(t, layouts.get(t), axes, index)
    return GroupedProducts(root, lies, c, frame)


def _find_group(c: Contraction) -> tuple[Axis, int] | None:
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


@remember_match
def recognise_groups(p: Problem) -> GroupedProducts | None:
    """Match the products of several groups."""
    return match_groups(p.tensor, p.constants, p.layouts, p.lanes, p.processor)


def groups_options(p: Problem, groups: GroupedProducts) -> Iterator[Option]:
    """Yield the options of all register tiles, best first."""
    for _, rows, vectors in sorted(groups.tiling.register_tiles()):
        yield Option.make("grouped_gemm", rows=rows, vectors=vectors)


def predict_groups(p: Problem, groups: GroupedProducts) -> Prediction | None:
    """Return the best tile; None if a vector holds at least four groups. With long vectors it is
    faster to run along all of them than within each (128 channels at 56 x 56 in groups of 4: 266 us
    instead of 589)."""
    size = groups.tiling.n.size
    if not p.processor.has_few_registers and p.lanes % size == 0 and p.lanes >= 4 * size:
        return None
    return Prediction(next(groups_options(p, groups)))


def schedule_groups(p: Problem, groups: GroupedProducts, option: Option) -> Choice:
    """Return the choice of an option."""
    c, tile = groups.contraction, (option["rows"], option["vectors"], 0)
    how = schedule_contraction(groups.root, c, p.layouts, groups.tiling, *tile, threads=p.threads)
    packed = (c.b.tensor,) if c.b.tensor in p.constants else ()
    return Choice(option, groups.root, {groups.root: how}, packed, groups.layout)


GROUPED_GEMM = Algorithm(
    ("grouped_gemm",), "grouped convolution: a GEMM for each group", recognise_groups,
    groups_options, schedule_groups, predict_groups,
)  # fmt: skip
