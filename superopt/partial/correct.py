"""Corrections that turn a mutant into the program.

Recomputed: wrong boxes come from the program, restricted to what they need, the others from the
mutant, and all are concatenated. Widened: zeros are inserted between concatenated parts so that no
window crosses a seam, and are removed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

from superopt.ir import graph as g
from superopt.ops import OPS
from superopt.partial.boxes import Box, Span, whole
from superopt.partial.regions import Regions
from superopt.partial.restrict import restricted, shape_of, sliced

# A box and whether the mutant is right there.
Told = tuple[Box, bool]


class NoCorrection(ValueError):
    """A mutant is equal nowhere, or its boxes cannot be concatenated."""


def recomputed(program: g.Value, mutant: g.Value, r: Regions) -> g.Value:
    """Return the mutant where it is equal, and the program elsewhere. Raises NoCorrection."""
    return assembled(r, lambda box, right: part(program, mutant, box, right))


def part(program: g.Value, mutant: g.Value, box: Box, right: bool) -> g.Value:
    return sliced(mutant, box) if right else restricted(program, box)


def assembled(r: Regions, make: Callable[[Box, bool], g.Value]) -> g.Value:
    """Concatenate what `make_part(box, is_equal)` returns for each box. Raises NoCorrection."""
    if not r.equal:
        raise NoCorrection("the mutant is right nowhere")
    told = [(b, True) for b in r.equal] + [(b, False) for b in r.different]
    return _joined(whole(r.shape), told, make)


def _joined(within: Box, told: Sequence[Told], make: Callable[[Box, bool], g.Value]) -> g.Value:
    """Return the result in a box that is partitioned by labelled boxes."""
    if len({right for _, right in told}) == 1:
        return make(within, told[0][1])
    for axis in _by_share(within, told):
        cuts = _cuts(within[axis], axis, told)
        if not cuts:
            continue
        ends = [within[axis].begin, *cuts, within[axis].end]
        pieces = []
        for low, high in pairwise(ends):
            own = (*within[:axis], Span(low, high), *within[axis + 1 :])
            some = [(_cut(b, axis, low, high), t) for b, t in told if low <= b[axis].begin < high]
            pieces.append(_joined(own, some, make))
        return g.node(OPS["Concat"], _flat(pieces, axis), axis=axis)
    raise NoCorrection("no axis has a place that no box goes across")


def _flat(some: Sequence[g.Value], axis: int) -> list[g.Value]:
    """Flatten nested Concats along the axis."""
    out: list[g.Value] = []
    for v in some:
        n = g.producer(v)
        if n is not None and n.op.name == "Concat" and n.attr("axis") == axis:
            out += _flat([x for x in n.inputs if x is not None], axis)
        else:
            out.append(v)
    return out


def _by_share(within: Box, told: Sequence[Told]) -> list[int]:
    """Return the axes, those with the fewest cuts first."""
    return sorted(range(len(within)), key=lambda a: len(_cuts(within[a], a, told)))


def _cuts(own: Span, axis: int, told: Sequence[Told]) -> list[int]:
    """Return the places inside `own` at which boxes begin or end and which no box crosses."""
    if any(b[axis].step > 1 for b, _ in told):
        return []
    points = {p for b, _ in told for p in (b[axis].begin, b[axis].end)}
    return [
        p
        for p in sorted(points)
        if own.begin < p < own.end and not any(b[axis].begin < p < b[axis].end for b, _ in told)
    ]


def _cut(b: Box, axis: int, low: int, high: int) -> Box:
    s = b[axis]
    return (*b[:axis], Span(max(s.begin, low), min(s.end, high)), *b[axis + 1 :])


def widened(program: g.Value, mutant: g.Value) -> g.Value:
    """Return the mutant with zeros between the concatenated inputs of its window. Raises
    NoCorrection."""
    n = g.producer(mutant)
    x = n.inputs[0] if n is not None and n.op.name in ("Conv", "AveragePool") else None
    joined = None if x is None else g.producer(x)
    if n is None or joined is None or joined.op.name != "Concat":
        raise NoCorrection("the mutant is no window over what is joined")
    means = n.op.name == "AveragePool"
    if means and (n.attr("ceil_mode") or not n.attr("count_include_pad")):
        raise NoCorrection("its means are of fewer places at the edges, which zeros are not")
    axis = cast(int, joined.attr("axis"))
    if axis < 2:
        raise NoCorrection("what is joined are images or channels, which do not meet")
    rank = len(shape_of(x)) if x is not None else 0
    pads, strides = (cast(Any, n.attr(k)) for k in ("pads", "strides"))
    d, spatial = axis - 2, rank - 2
    gap = max(pads[d], pads[d + spatial])
    pieces, begins, at = [], [], 0
    for k, v in enumerate(joined.inputs):
        assert v is not None
        size = shape_of(v)[axis]
        begins.append(at)
        last = k == len(joined.inputs) - 1
        more = 0 if last else gap + -(size + gap) % strides[d]
        ends = [0] * (2 * rank)
        ends[rank + axis] = more
        pieces.append(v if not more else g.node(OPS["Pad"], [v], pads=tuple(ends)))
        at += size + more
    wide = g.node(n.op, [g.node(joined.op, pieces, axis=axis), *n.inputs[1:]], **dict(n.attrs))
    out = []
    counts = [-(-shape_of(cast(g.Value, v))[axis] // strides[d]) for v in joined.inputs]
    if sum(counts) != shape_of(program)[axis]:
        raise NoCorrection("images have other sizes than their results")
    for begin, count in zip(begins, counts, strict=True):
        box = list(whole(shape_of(wide)))
        box[axis] = Span(begin // strides[d], begin // strides[d] + count)
        out.append(sliced(wide, tuple(box)))
    return g.node(OPS["Concat"], out, axis=axis)
