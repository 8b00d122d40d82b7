"""Operators of mutants that read weights only. They are evaluated before run time and cost nothing
there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod

from superopt.ir import graph
from superopt.ops import OPS
from superopt.partial.correct.restrict import static_shape
from superopt.partial.enumerate.axis_moves import AxisMove
from superopt.partial.enumerate.hints import ProgramHints
from superopt.partial.enumerate.nodes import apply_moves, pad, reshape, slice_axis

MAX_MERGED_GROUPS = 4  # that are made one
NamedCandidates = Iterator[tuple[str, Callable[[], graph.Value]]]


def pad_kernel(s: ProgramHints, w: graph.Value) -> NamedCandidates:
    """Pad a kernel with zeros so that its sides are multiples of a stride."""
    sides = static_shape(w)[2:]
    for f in sorted({t[0] for t, _, _ in s.windows} - {1}):
        more = [-n % f for n in sides]
        if any(more):
            none = [0] * len(more)
            yield f"to {f} in front", partial(pad, w, (0, 0, *more, 0, 0, *none))
            yield f"to {f} behind", partial(pad, w, (0, 0, *none, 0, 0, *more))


def fold_kernel(s: ProgramHints, w: graph.Value) -> NamedCandidates:
    """Move every f-th place of a kernel's sides to channels."""
    shape = static_shape(w)
    for f in sorted({t[0] for t, _, _ in s.windows} - {1}):
        if len(shape) == 4 and all(n % f == 0 for n in shape[2:]):
            moves = AxisMove(2, 1, f, True), AxisMove(3, 1, f, True)
            yield f"{f} phases to channels", partial(apply_moves, w, *moves)


def dense_kernel(s: ProgramHints, w: graph.Value) -> NamedCandidates:
    """Expand grouped kernels to a dense kernel with zeros."""
    if len(static_shape(w)) < 3:
        return
    o, c = static_shape(w)[:2]
    for count in range(2, MAX_MERGED_GROUPS + 1):
        if o % count == 0:
            some = [slice_axis(w, 0, k * (o // count), o // count) for k in range(count)]
            yield f"{count} groups", partial(_block_diagonal, some, [c] * count)


def block_diagonal(s: ProgramHints, *some: graph.Value) -> NamedCandidates:
    """Combine kernels of several images block-diagonally into one over all their channels."""
    if len({static_shape(v)[2:] for v in some}) == 1 and len(static_shape(some[0])) > 2:
        yield "", partial(_block_diagonal, some, [static_shape(v)[1] for v in some])


def _block_diagonal(some: Sequence[graph.Value], widths: Sequence[int]) -> graph.Value:
    out, begin = [], 0
    for v, c in zip(some, widths, strict=True):
        ends = [0] * (2 * len(static_shape(v)))
        ends[1], ends[len(static_shape(v)) + 1] = begin, sum(widths) - begin - c
        out.append(graph.node(OPS["Pad"], [v], pads=tuple(ends)))
        begin += c
    return graph.node(OPS["Concat"], out, axis=0)


def compose_kernels(s: ProgramHints, after: graph.Value, before: graph.Value) -> NamedCandidates:
    """Compose the kernels of two consecutive windows, or the matrices of two products."""
    w, k = static_shape(after), static_shape(before)
    if len(w) == len(k) == 2:
        yield from _multiply_matrices(s, after, before)
    if len(w) != len(k) or len(k) < 3 or w[1] != k[0]:
        return
    sides = range(2, len(k))
    turned = graph.node(OPS["Transpose"], [before], perm=(1, 0, *sides))
    if any(k[d] > 1 for d in sides):
        turned = graph.node(
            OPS["Slice"], [turned], axes=tuple(sides), starts=(-1,) * len(sides),
            ends=(-(1 << 31),) * len(sides), steps=(-1,) * len(sides),
        )  # fmt: skip
    pads = tuple(k[d] - 1 for d in sides) * 2
    yield "", partial(graph.node, OPS["Conv"], [after, turned], pads=pads)


def _multiply_matrices(s: ProgramHints, after: graph.Value, before: graph.Value) -> NamedCandidates:
    if static_shape(before)[1] == static_shape(after)[0]:
        yield "", partial(graph.node, OPS["MatMul"], [before, after])
    if s.has_transposed_weight and static_shape(after)[1] == static_shape(before)[0]:
        yield "transposed", partial(graph.node, OPS["MatMul"], [after, before])


def carry_bias(s: ProgramHints, w: graph.Value, b: graph.Value) -> NamedCandidates:
    """Apply a kernel or matrix to a bias of its input channels."""
    shape = static_shape(w)
    n = vector_length(b)
    if len(shape) > 2 and shape[1] == n:
        sides = tuple(range(2, len(shape)))
        summed = graph.node(OPS["ReduceSum"], [w], axes=sides, keepdims=0)
        yield "", partial(graph.node, OPS["MatMul"], [summed, reshape(b, (n,))])
    if len(shape) == 2 and shape[0] == n:
        yield "", partial(graph.node, OPS["MatMul"], [reshape(b, (n,)), w])
    if len(shape) == 2 and shape[1] == n and s.has_transposed_weight:
        yield "transposed", partial(graph.node, OPS["MatMul"], [w, reshape(b, (n,))])


def vector_length(b: graph.Value) -> int | None:
    """Return the length of a vector, which may have further axes of 1; None for other tensors."""
    shape = static_shape(b)
    return max(shape, default=1) if sum(n > 1 for n in shape) == 1 else None


def scale_kernel(s: ProgramHints, w: graph.Value, by: graph.Value) -> NamedCandidates:
    """Scale the output or input channels of a kernel."""
    shape, n = static_shape(w), prod(static_shape(by))
    if len(shape) < 3 or any(d > 1 for d in static_shape(by)[1:]):
        return
    for axis in (0, 1):
        if shape[axis] == n > 1:
            around = [1] * len(shape)
            around[axis] = n
            vector = reshape(by, tuple(around))
            yield f"along {axis}", partial(graph.node, OPS["Mul"], [w, vector])
