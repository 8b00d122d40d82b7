"""The schedule of what nothing better is known for: loops as the result lies in memory, and along
its last dimension vectors, within which sums are taken one term after the other.

Indices that are quotients and rests of the last dimension's (Tile, Resize) begin anew after some
elements. A tile of these, or of some times as many, reads at places that its lanes alone say, which
are known when the kernel is written: what lies side by side is a vector, else one is picked from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd, lcm, prod

from superopt.kernels.apply import transformed
from superopt.kernels.layout import Layout, Part, Scatter, lying
from superopt.kernels.schedule import (
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from superopt.kernels.transform import Scheduled
from superopt.te.affine import affine
from superopt.te.expr import Tensor
from superopt.te.node import Apply, Axis, Const, Load
from superopt.te.walk import axes_of, loads, parts, reductions

LANES = 64  # elements of a tile
WHOLE = 512  # elements of a tile that is a whole row, where parts of it begin anywhere
SHARED = 2  # outer loops whose steps several threads do
LEAST = 4  # rows of a tile that is turned
GRAIN = 4096  # elements, or terms of sums, of such a step, which is a call


def default(s: Scheduled, layout: Layout, most: int = LANES) -> Schedule:
    """Of the loops of `s`, not split yet. most: elements of a tile."""
    steps: list[Primitive] = []
    names = [x.axis.name.removeprefix(s.prefix) for x in s.loops if not x.reduced]
    sizes = [x.extent for x in s.loops if not x.reduced]
    summed = [x.axis.name.removeprefix(s.prefix) for x in s.loops if x.reduced]
    if not names:
        return ()
    order: list[str] = []
    last, extent = "", 0
    own = {x.axis.name.removeprefix(s.prefix): x.axis for x in s.loops}
    for p in _longest_last(layout.parts, sizes):
        last, extent = names[p.axis], sizes[p.axis]
        if p.block > 1 and not p.within:
            steps.append(Split(last, p.block))
        if p.block > 1:
            last, extent = (f"{last}.i", min(p.block, extent)) if p.within else (f"{last}.o", 0)
        order.append(last)
    period = _period(s.tensor, own[last]) if extent > most and last in own else 1
    whole = most if period == 1 or summed else WHOLE  # sums are in registers
    block = max(period, most // period * period)
    if period > 1 and extent % period == 0 and block < extent and (block <= most or extent > whole):
        steps.append(Split(last, block))
        order[-1:] = [f"{last}.o", f"{last}.i"]
        last, extent = f"{last}.i", block
    if extent > whole:
        steps.append(Split(last, most))
        order[-1:] = [f"{last}.o", f"{last}.i"]
    lanes = order.pop()
    if s.prefix:
        return (*steps, Reorder((*order, *summed, lanes)), Vectorize(lanes))
    reorder = Reorder((*order, *summed, lanes))
    loops = transformed(s, (*steps, reorder)).loops
    within = prod(x.extent for x in loops[len(order) :])
    split, outer = _shared(order, [x.extent for x in loops[: len(order)]], within)
    return (*steps, reorder, *split, Vectorize(lanes), *map(Parallel, outer[:SHARED]))


def _longest_last(parts: Sequence[Part], sizes: Sequence[int]) -> list[Part]:
    """The dimensions as they lie, but that of the vectors is one of several elements: what has one
    is anywhere."""
    out = list(parts)
    many = [n for n, p in enumerate(out) if p.block > 1 or sizes[p.axis] != 1]
    if many and many[-1] != len(out) - 1:
        out.append(out.pop(many[-1]))
    return out


def _period(t: Tensor, a: Axis) -> int:
    """After how many elements along an axis quotients and rests in indices begin anew."""
    out = 1
    for e in parts(t.body) if t.body is not None else ():
        if isinstance(e, Apply) and e.fn in ("floordiv", "mod"):
            x, by = e.args
            form = affine(x)
            if form is not None and isinstance(by, Const) and (c := form.coefficient(a)):
                out = lcm(out, int(by.value) // gcd(c, int(by.value)))
    return out


def _shared(
    order: Sequence[str], sizes: Sequence[int], inside: int
) -> tuple[list[Primitive], list[str]]:
    """The loops whose steps threads share, and the last one of them split so that a step is not too
    little. inside: how much there is inside these loops."""
    for n in reversed(range(len(order))):
        part = GRAIN // max(inside, 1)
        if part < sizes[n]:
            if part < 2:
                return [], list(order[: n + 1])
            return [Split(order[n], part)], [*order[:n], f"{order[n]}.o"]
        inside *= sizes[n]
    return [], list(order)


def turning(t: Tensor, layouts: Mapping[Tensor, Layout | Scatter], lanes: int) -> Schedule | None:
    """In tiles of `lanes` by `lanes`, for what reads an operand along another axis than it writes
    the result: both whole vectors at a time. None where there is no such operand."""
    out = lying(layouts.get(t), t.rank)
    if t.body is None or not out.parts or reductions(t.body):
        return None
    last = out.parts[-1]
    n = t.axes[last.axis]
    found = next(filter(None, (_along(t, x, n, layouts) for x in loads(t.body))), None)
    if found is None or n.size < 2 or found[0].size < LEAST:
        return None
    other, block = found
    high = min(lanes, 1 << (other.size.bit_length() - 1))
    tile = f"{other.name}.i"
    steps: list[Primitive] = [Split(other.name, high)]
    whole: list[str] = []
    if high < block and block % high == 0 and other.size % block == 0:
        # A block's parts one after the other: whole lines of a cache are read.
        steps, whole, tile = (
            [Split(other.name, block), Split(tile, high)],
            [f"{tile}.o"],
            f"{tile}.i",
        )
    order: list[str] = []
    for p in out.parts:
        a = t.axes[p.axis]
        name = a.name if a != other else f"{a.name}.o"
        if p.block > 1 and a == other:
            return None
        if p.block > 1 and not p.within:
            steps.append(Split(a.name, p.block))
        order.append(f"{name}.{'i' if p.within else 'o'}" if p.block > 1 else name)
    inner = order.pop()
    if n.size > lanes and last.block == 1:
        steps.append(Split(inner, lanes))
        order.append(f"{inner}.o")
        inner = f"{inner}.i"
    shared = [Parallel(x) for x in order[:3]]
    return (*steps, Reorder((*order, *whole, tile, inner)), Unroll(tile), Vectorize(inner), *shared)


def _along(
    t: Tensor, x: Load, n: Axis, layouts: Mapping[Tensor, Layout | Scatter]
) -> tuple[Axis, int] | None:
    """The axis of the result along which the operand's neighbours lie, if that is another one; and
    how many of them lie side by side (1: all)."""
    layout = layouts.get(x.tensor)
    if not x.index or isinstance(layout, Scatter):
        return None
    part = lying(layout, x.tensor.rank).parts[-1]
    place = x.index[part.axis]
    form = affine(place)
    found = [] if form is None else [a for a, c in form.terms if c == 1 and a in t.axes]
    moves = any(n in axes_of(i) for i in x.index)
    return (found[0], part.block) if len(found) == 1 and found[0] != n and moves else None
