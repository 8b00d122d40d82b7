"""Collapse the two spatial axes of a convolution into one, if the image width is no multiple of a
register tile's height.

    y[h, w, n] = sum(x[h * s + i, w * s + j, k] * b[i, j, k, n] for i, j, k)

is, with r = h * W + w, a product whose rows are all pixels of the image. 7 x 7 pixels in tiles of 4
take 13 tiles instead of two per image row. If windows are adjacent, the elements of a at a tile's
rows are contiguous; otherwise each row has its own address.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from superopt.kernels import contraction as co
from superopt.kernels.element import ranged_read
from superopt.kernels.factor import scattered
from superopt.kernels.layout import Layout, Part, Scatter, lying
from superopt.kernels.schedule import Schedule
from superopt.te import index as ix
from superopt.te.affine import interval
from superopt.te.expr import Tensor
from superopt.te.inline import placed
from superopt.te.node import Apply, Axis, Expr, Load, Reduce
from superopt.te.walk import axes_of

PLACES = 6  # rows of a tile with an address each: registers for addresses are few
# Relative to the time row by row, below which collapsing pays, by registers: for contiguous rows,
# and for rows with an address each; measured on four models.
PAYS = {32: {True: 0.94, False: 0.88}, 16: {True: 0.97, False: 0.88}}
ABOUT = {True: 1.03, False: 1.02}  # if the sum is in short blocks (contraction.L1_PANEL_TERMS)
NEAR = {32: 600_000, 16: 250_000}  # of a's rows that stay in L2, by registers


@dataclass(frozen=True, slots=True)
class Flat:
    """root: the result, with one axis for two, stored as `layout`. is_contiguous: a's elements at
    neighbouring rows follow each other in memory."""

    root: Tensor
    lies: Scatter
    c: co.Contraction
    frame: co.Frame
    touch: bool


def flat(
    t: Tensor,
    c: co.Contraction,
    frame: co.Frame,
    constants: Collection[Tensor],
    layouts: Mapping[Tensor, Layout | Scatter],
) -> Flat | None:
    """Return the product with two adjacent axes of `t` collapsed into rows; None if there are
    none."""
    parts, w = lying(layouts.get(t), t.rank).parts, frame.m
    order = [t.axes[p.axis] for p in parts]
    if w is None or w not in order[1:] or t.body is None:
        return None
    h = order[order.index(w) - 1]
    if order.count(h) + order.count(w) > 2 or h not in c.of_a or min(h.size, w.size) < 2:
        return None
    if any(axes_of(e) & {h, w} for e in _guarded(t.body, layouts)):
        return None
    name = next(x for x in (f"r{n}" for n in count()) if x not in {a.name for a in t.axes})
    r, wide = Axis(name, h.size * w.size), w.size
    env: dict[Axis, Expr] = {h: ix.as_index(r // wide), w: ix.as_index(r % wide)}
    axes = tuple(r if a == h else a for a in t.axes if a != w)
    root = Tensor("y", t.dtype, tuple(a.extent for a in axes), axes, placed(t.body, env))
    new = co.contraction(root, constants)
    if new is None or new.of_b != c.of_b or r not in new.of_a:
        return None
    along = Layout(tuple(_renamed(p, t, axes, r) for p in parts if t.axes[p.axis] != w))
    within = {**layouts, root: along}
    of = co.frame(root, new, within, frame.lanes, frame.registers, frame.halves)
    if of is None or of.m != r:
        return None
    touch = _touch(c, h, w, layouts)
    most = frame.most if touch else min(frame.most, PLACES)
    lies = scattered(t, layouts.get(t), axes, tuple(env.get(a, a) for a in t.axes))
    return Flat(root, lies, new, replace(of, most=most, each=frame.each, places=not touch), touch)


def _renamed(p: Part, t: Tensor, axes: tuple[Axis, ...], r: Axis) -> Part:
    """Return the layout part over the new axes: r, which has no border, replaces h."""
    own = t.axes[p.axis]
    return replace(p, axis=axes.index(own)) if own in axes else Part(axes.index(r))


def pays(f: Flat, by_rows: co.Frame, short: bool = False) -> bool:
    """True if this is estimated to be faster than row by row. short_blocks: see
    contraction.register_tiles."""
    assert f.frame.m is not None
    assert by_rows.m is not None
    times = f.frame.m.size // by_rows.m.size
    part = (ABOUT if short else PAYS[f.frame.registers])[f.touch]
    one, other = (min(x.tiles(short))[0] for x in (f.frame, by_rows))
    return one < part * times * other


def scheduled(
    f: Flat, layouts: Mapping[Tensor, Layout | Scatter], rows: int, vectors: int, deep: int
) -> Schedule:
    """Return the schedule with tiles of `rows` times `vectors`; see
    contraction.schedule_contraction. Row blocks are as large as a's rows stay in L2; among those,
    the last block overlaps the fewest tiles."""
    assert f.frame.m is not None
    high = f.frame.m.size
    tiles, every = -(-high // rows), max(math.prod(a.size for a in f.c.of_a), 1)
    each = 4 * co.elements(f.c.a.tensor) * rows // every
    least = min(-(-tiles * each // NEAR[f.frame.registers]), tiles)
    if least < 2:
        return co.scheduled(f.root, f.c, layouts, f.frame, rows, vectors, deep)
    parts = min(range(least, min(2 * least, tiles) + 1), key=lambda n: -(-tiles // n) * n)
    block = -(-tiles // parts)
    return co.scheduled(f.root, f.c, layouts, f.frame, rows, vectors, deep, block)


def _touch(c: co.Contraction, h: Axis, w: Axis, layouts: Mapping[Tensor, Layout | Scatter]) -> bool:
    """True if a's elements at neighbouring rows follow each other in memory."""
    if isinstance(layouts.get(c.a.tensor), Scatter):
        return False
    read = co.in_memory(c.a, layouts)
    steps = []
    for own in (h, w):
        others: dict[Expr, Expr] = {
            a: ix.as_index(0) for i in read.index for a in axes_of(i) if a != own
        }
        place = tuple(ix.substitute(i, others) for i in read.index)
        steps.append(co.strides(Load(read.tensor, place, read.dtype), own))
    return steps[1] is not None and steps[0] == w.size * steps[1]


def _guarded(e: Expr, layouts: Mapping[Tensor, Layout | Scatter]) -> Iterator[Expr]:
    """Yield guards, except those of reads past an edge that a zero border covers."""
    match e:
        case Apply("select", (guard, Load() as load, zero)) if ranged_read(guard, load, zero):
            lies = layouts.get(load.tensor)
            for d, (i, n) in enumerate(zip(load.index, load.tensor.shape, strict=True)):
                border = lies.border(d) if isinstance(lies, Layout) else 0
                where = interval(i)
                assert isinstance(n, int)
                if where is None or where[0] < -border or where[1] >= n + border:
                    yield guard
        case Apply(fn, args):
            yield from args[:1] if fn == "select" else ()
            for a in args:
                yield from _guarded(a, layouts)
        case Reduce(_, _, body):
            yield from _guarded(body, layouts)
