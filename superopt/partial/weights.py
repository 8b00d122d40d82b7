"""Operators of mutants that read weights only. They are evaluated before run time and cost nothing
there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod

from superopt.ir import graph as g
from superopt.ops import OPS
from superopt.partial.moves import Move
from superopt.partial.nodes import both, cut_out, padded, shaped_as
from superopt.partial.restrict import shape_of
from superopt.partial.scene import Scene

MOST_GROUPS = 4  # that are made one
Named = Iterator[tuple[str, Callable[[], g.Value]]]


def enlarged(s: Scene, w: g.Value) -> Named:
    """Pad a kernel with zeros so that its sides are multiples of a stride."""
    sides = shape_of(w)[2:]
    for f in sorted({t[0] for t, _, _ in s.windows} - {1}):
        more = [-n % f for n in sides]
        if any(more):
            none = [0] * len(more)
            yield f"to {f} in front", partial(padded, w, (0, 0, *more, 0, 0, *none))
            yield f"to {f} behind", partial(padded, w, (0, 0, *none, 0, 0, *more))


def folded(s: Scene, w: g.Value) -> Named:
    """Move every f-th place of a kernel's sides to channels."""
    shape = shape_of(w)
    for f in sorted({t[0] for t, _, _ in s.windows} - {1}):
        if len(shape) == 4 and all(n % f == 0 for n in shape[2:]):
            moves = Move(2, 1, f, True), Move(3, 1, f, True)
            yield f"{f} phases to channels", partial(both, w, *moves)


def dense(s: Scene, w: g.Value) -> Named:
    """Expand grouped kernels to a dense kernel with zeros."""
    if len(shape_of(w)) < 3:
        return
    o, c = shape_of(w)[:2]
    for count in range(2, MOST_GROUPS + 1):
        if o % count == 0:
            some = [cut_out(w, 0, k * (o // count), o // count) for k in range(count)]
            yield f"{count} groups", partial(_diagonal, some, [c] * count)


def diagonal(s: Scene, *some: g.Value) -> Named:
    """Combine kernels of several images block-diagonally into one over all their channels."""
    if len({shape_of(v)[2:] for v in some}) == 1 and len(shape_of(some[0])) > 2:
        yield "", partial(_diagonal, some, [shape_of(v)[1] for v in some])


def _diagonal(some: Sequence[g.Value], widths: Sequence[int]) -> g.Value:
    out, begin = [], 0
    for v, c in zip(some, widths, strict=True):
        ends = [0] * (2 * len(shape_of(v)))
        ends[1], ends[len(shape_of(v)) + 1] = begin, sum(widths) - begin - c
        out.append(g.node(OPS["Pad"], [v], pads=tuple(ends)))
        begin += c
    return g.node(OPS["Concat"], out, axis=0)


def composed(s: Scene, after: g.Value, before: g.Value) -> Named:
    """Compose the kernels of two consecutive windows, or the matrices of two products."""
    w, k = shape_of(after), shape_of(before)
    if len(w) == len(k) == 2:
        yield from _multiplied(s, after, before)
    if len(w) != len(k) or len(k) < 3 or w[1] != k[0]:
        return
    sides = range(2, len(k))
    turned = g.node(OPS["Transpose"], [before], perm=(1, 0, *sides))
    if any(k[d] > 1 for d in sides):
        turned = g.node(
            OPS["Slice"], [turned], axes=tuple(sides), starts=(-1,) * len(sides),
            ends=(-(1 << 31),) * len(sides), steps=(-1,) * len(sides),
        )  # fmt: skip
    pads = tuple(k[d] - 1 for d in sides) * 2
    yield "", partial(g.node, OPS["Conv"], [after, turned], pads=pads)


def _multiplied(s: Scene, after: g.Value, before: g.Value) -> Named:
    if shape_of(before)[1] == shape_of(after)[0]:
        yield "", partial(g.node, OPS["MatMul"], [before, after])
    if s.transposed and shape_of(after)[1] == shape_of(before)[0]:
        yield "transposed", partial(g.node, OPS["MatMul"], [after, before])


def carried(s: Scene, w: g.Value, b: g.Value) -> Named:
    """Apply a kernel or matrix to a bias of its input channels."""
    shape = shape_of(w)
    n = length(b)
    if len(shape) > 2 and shape[1] == n:
        sides = tuple(range(2, len(shape)))
        summed = g.node(OPS["ReduceSum"], [w], axes=sides, keepdims=0)
        yield "", partial(g.node, OPS["MatMul"], [summed, shaped_as(b, (n,))])
    if len(shape) == 2 and shape[0] == n:
        yield "", partial(g.node, OPS["MatMul"], [shaped_as(b, (n,)), w])
    if len(shape) == 2 and shape[1] == n and s.transposed:
        yield "transposed", partial(g.node, OPS["MatMul"], [w, shaped_as(b, (n,))])


def length(b: g.Value) -> int | None:
    """Return the length of a vector, which may have further axes of 1; None for other tensors."""
    shape = shape_of(b)
    return max(shape, default=1) if sum(n > 1 for n in shape) == 1 else None


def scaled(s: Scene, w: g.Value, by: g.Value) -> Named:
    """Scale the output or input channels of a kernel."""
    shape, n = shape_of(w), prod(shape_of(by))
    if len(shape) < 3 or any(d > 1 for d in shape_of(by)[1:]):
        return
    for axis in (0, 1):
        if shape[axis] == n > 1:
            around = [1] * len(shape)
            around[axis] = n
            vector = shaped_as(by, tuple(around))
            yield f"along {axis}", partial(g.node, OPS["Mul"], [w, vector])
