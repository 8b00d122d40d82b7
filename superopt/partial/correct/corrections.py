"""Corrections that turn a mutant into the program.

Recomputed: wrong boxes come from the program, restricted to what they need, the others from the
mutant, and all are concatenated. Widened: zeros are inserted between concatenated parts so that no
window crosses a seam, and are removed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, cast

from superopt.ir import graph
from superopt.ops import OPS
from superopt.partial.correct.restrict import restrict, slice_box, static_shape
from superopt.partial.regions.boxes import Box, Span, full_box
from superopt.partial.regions.find import Regions

# A box and whether the mutant is right there.
LabelledBox = tuple[Box, bool]


class NoCorrection(ValueError):
    """A mutant is equal nowhere, or its boxes cannot be concatenated."""


def recompute(program: graph.Value, mutant: graph.Value, r: Regions) -> graph.Value:
    """Return the mutant where it is equal, and the program elsewhere. Raises NoCorrection."""
    return assemble(r, lambda box, right: corrected_part(program, mutant, box, right))


def corrected_part(
    program: graph.Value, mutant: graph.Value, box: Box, is_equal: bool
) -> graph.Value:
    return slice_box(mutant, box) if is_equal else restrict(program, box)


def assemble(r: Regions, make_part: Callable[[Box, bool], graph.Value]) -> graph.Value:
    """Concatenate what `make_part(box, is_equal)` returns for each box. Raises NoCorrection."""
    if not r.equal:
        raise NoCorrection("the mutant is equal nowhere")
    told = [(b, True) for b in r.equal] + [(b, False) for b in r.different]
    return _assemble(full_box(r.shape), told, make_part)


def _assemble(
    within: Box, labelled: Sequence[LabelledBox], make_part: Callable[[Box, bool], graph.Value]
) -> graph.Value:
    """Return the result in a box that is partitioned by labelled boxes."""
    if len({right for _, right in labelled}) == 1:
        return make_part(within, labelled[0][1])
    for axis in _axes_by_cuts(within, labelled):
        cuts = _cuts(within[axis], axis, labelled)
        if not cuts:
            continue
        ends = [within[axis].begin, *cuts, within[axis].end]
        pieces = []
        for low, high in pairwise(ends):
            own = (*within[:axis], Span(low, high), *within[axis + 1 :])
            some = [
                (_clip_box(b, axis, low, high), t)
                for b, t in labelled
                if low <= b[axis].begin < high
            ]
            pieces.append(_assemble(own, some, make_part))
        return graph.node(OPS["Concat"], _flatten_concats(pieces, axis), axis=axis)
    raise NoCorrection("no axis has a place that no box goes across")


def _flatten_concats(some: Sequence[graph.Value], axis: int) -> list[graph.Value]:
    """Flatten nested Concats along the axis."""
    out: list[graph.Value] = []
    for v in some:
        n = graph.producer(v)
        if n is not None and n.op.name == "Concat" and n.attr("axis") == axis:
            out += _flatten_concats([x for x in n.inputs if x is not None], axis)
        else:
            out.append(v)
    return out


def _axes_by_cuts(within: Box, labelled: Sequence[LabelledBox]) -> list[int]:
    """Return the axes, those with the fewest cuts first."""
    return sorted(range(len(within)), key=lambda a: len(_cuts(within[a], a, labelled)))


def _cuts(own: Span, axis: int, labelled: Sequence[LabelledBox]) -> list[int]:
    """Return the places inside `own` at which boxes begin or end and which no box crosses."""
    if any(b[axis].step > 1 for b, _ in labelled):
        return []
    points = {p for b, _ in labelled for p in (b[axis].begin, b[axis].end)}
    return [
        p
        for p in sorted(points)
        if own.begin < p < own.end and not any(b[axis].begin < p < b[axis].end for b, _ in labelled)
    ]


def _clip_box(b: Box, axis: int, low: int, high: int) -> Box:
    s = b[axis]
    return (*b[:axis], Span(max(s.begin, low), min(s.end, high)), *b[axis + 1 :])


def widen(program: graph.Value, mutant: graph.Value) -> graph.Value:
    """Return the mutant with zeros between the concatenated inputs of its window. Raises
    NoCorrection."""
    n = graph.producer(mutant)
    x = n.inputs[0] if n is not None and n.op.name in ("Conv", "AveragePool") else None
    joined = None if x is None else graph.producer(x)
    if n is None or joined is None or joined.op.name != "Concat":
        raise NoCorrection("the mutant is not a window over the joined tensors")
    means = n.op.name == "AveragePool"
    if means and (n.attr("ceil_mode") or not n.attr("count_include_pad")):
        raise NoCorrection("its means are of fewer places at the edges, which zeros are not")
    axis = cast(int, joined.attr("axis"))
    if axis < 2:
        raise NoCorrection("what is joined are images or channels, which do not meet")
    rank = len(static_shape(x)) if x is not None else 0
    pads, strides = (cast(Any, n.attr(k)) for k in ("pads", "strides"))
    d, spatial = axis - 2, rank - 2
    gap = max(pads[d], pads[d + spatial])
    pieces, begins, at = [], [], 0
    for k, v in enumerate(joined.inputs):
        assert v is not None
        size = static_shape(v)[axis]
        begins.append(at)
        last = k == len(joined.inputs) - 1
        more = 0 if last else gap + -(size + gap) % strides[d]
        ends = [0] * (2 * rank)
        ends[rank + axis] = more
        pieces.append(v if not more else graph.node(OPS["Pad"], [v], pads=tuple(ends)))
        at += size + more
    wide = graph.node(
        n.op, [graph.node(joined.op, pieces, axis=axis), *n.inputs[1:]], **dict(n.attrs)
    )
    out = []
    counts = [-(-static_shape(cast(graph.Value, v))[axis] // strides[d]) for v in joined.inputs]
    if sum(counts) != static_shape(program)[axis]:
        raise NoCorrection("images have other sizes than their results")
    for begin, count in zip(begins, counts, strict=True):
        box = list(full_box(static_shape(wide)))
        box[axis] = Span(begin // strides[d], begin // strides[d] + count)
        out.append(slice_box(wide, tuple(box)))
    return graph.node(OPS["Concat"], out, axis=axis)
