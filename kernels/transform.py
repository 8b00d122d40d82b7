"""What the primitives of a schedule do to the loops of one tensor: legality, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from superopt.kernels.schedule import (
    ComputeAt,
    Fuse,
    IllegalSchedule,
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from superopt.kernels.walk import reductions
from superopt.te import index as ix
from superopt.te.expr import Tensor
from superopt.te.node import Axis, Expr, Reduce

SERIAL, PARALLEL, UNROLL, VECTORIZE = "serial", "parallel", "unroll", "vectorize"


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that is left when all is split. reduced: it goes over what is summed."""

    axis: Axis
    reduced: bool
    kind: str = SERIAL

    @property
    def extent(self) -> int:
        assert isinstance(self.axis.extent, int)
        return self.axis.extent


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A tensor, its loops from the outermost on, and each of its own axes by those of the loops.

    prefix: what the names of its loops begin with; a schedule leaves it out.
    """

    tensor: Tensor
    loops: tuple[Loop, ...]
    origin: tuple[tuple[Axis, Expr], ...]
    prefix: str = ""

    @property
    def env(self) -> dict[Expr, Expr]:
        return {a: e for a, e in self.origin}  # noqa: C416

    def __str__(self) -> str:
        lines = []
        for depth, loop in enumerate(self.loops):
            kind = "" if loop.kind == SERIAL else f" {loop.kind}"
            over = " reduced" if loop.reduced else ""
            lines.append(f"{'  ' * depth}for {loop.axis.name} < {loop.extent}{kind}{over}")
        where = ", ".join(f"{a.name} = {e}" for a, e in self.origin)
        return "\n".join([*lines, f"{'  ' * len(self.loops)}{where}"])


Region = tuple[tuple[Expr, int], ...]  # of each axis where it begins, and how far it goes


def unscheduled(t: Tensor, prefix: str = "", region: Region | None = None) -> Scheduled:
    """The tensor's own loops: over its elements, or those of a region, then over what is summed for
    each where there is one reduction."""
    region = region or tuple((ix.as_index(0), _extent(a)) for a in t.axes)
    own = [Axis(prefix + a.name, n) for a, (_, n) in zip(t.axes, region, strict=True)]
    found = reduction(t)
    over = () if found is None else found.axes
    summed = [Axis(prefix + a.name, a.extent) for a in over]
    loops = (*(Loop(a, False) for a in own), *(Loop(a, True) for a in summed))
    at = [ix.as_index(begin + a) for a, (begin, _) in zip(own, region, strict=True)]
    return Scheduled(
        t, loops, (*zip(t.axes, at, strict=True), *zip(over, summed, strict=True)), prefix
    )


def _extent(a: Axis) -> int:
    assert isinstance(a.extent, int)
    return a.extent


def reduction(t: Tensor) -> Reduce | None:
    """The one reduction in the tensor's expression; None where there are none, or more."""
    found = reductions(t.body)
    return found[0] if len(found) == 1 else None


def transformed(s: Scheduled, schedule: Schedule) -> Scheduled:
    """All of a schedule, one primitive after the other. Raises IllegalSchedule."""
    for primitive in schedule:
        s = applied(s, primitive)
    return s


def applied(s: Scheduled, primitive: Primitive) -> Scheduled:
    match primitive:
        case Split(axis, factor):
            return split(s, axis, factor)
        case Fuse(outer, inner):
            return fuse(s, outer, inner)
        case Reorder(axes):
            return reorder(s, axes)
        case Unroll(axis):
            return marked(s, axis, UNROLL)
        case Vectorize(axis):
            return vectorize(s, axis)
        case Parallel(axis):
            return parallel(s, axis)
        case ComputeAt():
            return s  # what it says of the tensor that reads this one, `lower.py` does


def split(s: Scheduled, axis: str, factor: int) -> Scheduled:
    """A loop becomes two, the inner one of `factor` steps.

        for i < 12          for i.o < 3
                        =>    for i.i < 4
                                i = i.o * 4 + i.i

    Where the factor does not divide the extent, the last block begins where it just fits, and
    computes some elements once more: i = min(i.o * 4, 10 - 4) + i.i. What is summed would be summed
    twice: there the factor must divide the extent.
    """
    n = _at(s, axis)
    loop = s.loops[n]
    _plain(loop)
    if factor < 1:
        raise IllegalSchedule(f"split({axis}, {factor}): the factor is below 1")
    factor = min(factor, max(loop.extent, 1))
    if loop.reduced and loop.extent % factor:
        raise IllegalSchedule(
            f"split({axis}, {factor}): {loop.extent} steps of a sum are no multiple of {factor}"
        )
    blocks = -(-loop.extent // factor)
    name = loop.axis.name
    outer, inner = Axis(f"{name}.o", blocks), Axis(f"{name}.i", factor)
    begin = ix.as_index(outer * factor)
    if loop.extent % factor:
        begin = ix.apply("min", (begin, ix.as_index(loop.extent - factor)), begin.dtype)
    new = tuple(Loop(a, loop.reduced) for a in (outer, inner))
    return _with(s, n, n + 1, new, {loop.axis: ix.as_index(begin + inner)})


def fuse(s: Scheduled, outer: str, inner: str) -> Scheduled:
    """Two loops, one directly in the other, become one.

    for i < 3           for i_j < 12
      for j < 4     =>    i = i_j // 4, j = i_j % 4
    """
    n = _at(s, outer)
    if _at(s, inner) != n + 1:
        raise IllegalSchedule(f"fuse({outer}, {inner}): {inner} is not directly inside {outer}")
    a, b = s.loops[n : n + 2]
    _plain(a)
    _plain(b)
    if a.reduced != b.reduced:
        raise IllegalSchedule(f"fuse({outer}, {inner}): one of them is of the sum, the other not")
    both = Axis(f"{s.prefix}{outer}_{inner}", a.extent * b.extent)
    env: dict[Expr, Expr] = {
        a.axis: ix.as_index(both // b.extent),
        b.axis: ix.as_index(both % b.extent),
    }
    return _with(s, n, n + 2, (Loop(both, a.reduced),), env)


def reorder(s: Scheduled, axes: Sequence[str]) -> Scheduled:
    """Some loops take each other's places, in this order.

        for i < 3           for j < 4
          for j < 4     =>    for i < 3

    Sums of floats are of other roundings where loops of the sum change places.
    """
    places = [_at(s, a) for a in axes]
    if len(set(places)) < len(places):
        raise IllegalSchedule(f"reorder({', '.join(axes)}): an axis stands there twice")
    loops = list(s.loops)
    for place, was in zip(sorted(places), places, strict=True):
        loops[place] = s.loops[was]
    return replace(s, loops=tuple(loops))


def vectorize(s: Scheduled, axis: str) -> Scheduled:
    """A loop's steps are done at once, as lanes of vectors: the innermost one.

    Where it is of the sum, the lanes are added to each other in the end.
    """
    n = _at(s, axis)
    if n != len(s.loops) - 1:
        raise IllegalSchedule(f"vectorize({axis}): {s.loops[-1].axis.name} is inside it")
    return marked(s, axis, VECTORIZE)


def parallel(s: Scheduled, axis: str) -> Scheduled:
    """A loop's steps are done by several threads: the outermost one, and of no sum; and then the
    next one's, too."""
    n = _at(s, axis)
    if s.loops[n].reduced:
        raise IllegalSchedule(f"parallel({axis}): it is an axis of the sum")
    alone = next((x for x in s.loops[:n] if x.kind != PARALLEL), None)
    if alone is not None:
        raise IllegalSchedule(f"parallel({axis}): it is inside {alone.axis.name}")
    return marked(s, axis, PARALLEL)


def marked(s: Scheduled, axis: str, kind: str) -> Scheduled:
    """The loop runs otherwise; unrolled, each of its steps is written out."""
    n = _at(s, axis)
    _plain(s.loops[n])
    loops = (*s.loops[:n], replace(s.loops[n], kind=kind), *s.loops[n + 1 :])
    return replace(s, loops=loops)


def _at(s: Scheduled, axis: str) -> int:
    names = [x.axis.name.removeprefix(s.prefix) for x in s.loops]
    if axis not in names:
        raise IllegalSchedule(f"there is no loop {axis}; there are {', '.join(names)}")
    return names.index(axis)


def _plain(loop: Loop) -> None:
    if loop.kind != SERIAL:
        raise IllegalSchedule(f"{loop.axis.name} is said to be {loop.kind} already")


def _with(
    s: Scheduled, begin: int, end: int, new: tuple[Loop, ...], env: dict[Expr, Expr]
) -> Scheduled:
    """Other loops in the place of some, whose axes are now `env`."""
    origin = tuple((a, ix.substitute(e, env)) for a, e in s.origin)
    return replace(s, loops=(*s.loops[:begin], *new, *s.loops[end:]), origin=origin)
