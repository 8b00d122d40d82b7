"""The primitives that change a tensor's loops: legality, and loops before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

from superopt.kernels.loops.schedule import IllegalSchedule
from superopt.te.analysis.walk import reductions
from superopt.te.expr import index
from superopt.te.expr.node import Axis, Expr, Reduce
from superopt.te.expr.symbolic_int import (
    ceil_power_of_two,
    fitting_factor,
    is_symbolic,
    keep_level,
    masks_tiles,
)
from superopt.te.expr.tensor import Tensor

SERIAL, PARALLEL, UNROLL, VECTORIZE = "serial", "parallel", "unroll", "vectorize"


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop. reduced: it runs over a reduction axis."""

    axis: Axis
    reduced: bool
    kind: str = SERIAL

    @property
    def extent(self) -> int:
        return self.axis.size


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A tensor, its loops, outermost first, and the value of each of its own axes over loop axes.

    prefix: of its loops' names, omitted in schedules.
    """

    tensor: Tensor
    loops: tuple[Loop, ...]
    axis_values: tuple[tuple[Axis, Expr], ...]
    prefix: str = ""

    @property
    def env(self) -> dict[Expr, Expr]:
        return {a: e for a, e in self.axis_values}  # noqa: C416

    def __str__(self) -> str:
        lines = []
        for depth, loop in enumerate(self.loops):
            words = [] if loop.kind == SERIAL else [loop.kind]
            words += ["reduced"] if loop.reduced else []
            head = f"{'  ' * depth}for {loop.axis.name} < {loop.extent}"
            lines.append(" ".join([head, *words]))
        where = ", ".join(f"{a.name} = {e}" for a, e in self.axis_values)
        return "\n".join([*lines, f"{'  ' * len(self.loops)}{where}"])


Region = tuple[tuple[Expr, int], ...]  # of each axis the begin and the extent


def initial_loops(t: Tensor, prefix: str = "", region: Region | None = None) -> Scheduled:
    """Return the tensor's own loops: over its elements, or a region, then over its reduction axes
    if it has one reduction."""
    region = region or tuple((index.as_index(0), a.size) for a in t.axes)
    own = [Axis(prefix + a.name, n) for a, (_, n) in zip(t.axes, region, strict=True)]
    found = reduction(t)
    over = () if found is None else found.axes
    summed = [Axis(prefix + a.name, a.extent) for a in over]
    loops = (*(Loop(a, False) for a in own), *(Loop(a, True) for a in summed))
    places = [index.as_index(begin + a) for a, (begin, _) in zip(own, region, strict=True)]
    return Scheduled(
        t, loops, (*zip(t.axes, places, strict=True), *zip(over, summed, strict=True)), prefix
    )


def reduction(t: Tensor) -> Reduce | None:
    """Return the only reduction in the tensor's expression; None if there is none, or several."""
    found = reductions(t.body)
    return found[0] if len(found) == 1 else None


def split(s: Scheduled, axis: str, factor: int) -> Scheduled:
    """Split a loop in two, the inner one of `factor` steps.

        for i < 12          for i.o < 3
                        =>    for i.i < 4
                                i = i.o * 4 + i.i

    If the factor does not divide the extent, the last block overlaps the one before and recomputes
    some elements: i = min(i.o * 4, 10 - 4) + i.i. Reductions would count them twice: there the
    factor must divide the extent.
    """
    n = loop_index(s, axis)
    loop = s.loops[n]
    require_serial(loop)
    if factor < 1:
        raise IllegalSchedule(f"split({axis}, {factor}): the factor is below 1")
    if is_symbolic(loop.extent) and masks_tiles():
        return _split_masked(s, n, factor)
    if is_symbolic(loop.extent):
        # it is not known which factors divide it
        factor = loop.extent if loop.reduced else fitting_factor(factor, loop.extent)
    else:
        factor = min(factor, max(loop.extent, 1))
    if loop.reduced and loop.extent % factor:
        raise IllegalSchedule(
            f"split({axis}, {factor}): {loop.extent} reduction steps are not a multiple of {factor}"
        )
    blocks = -(-loop.extent // factor)
    name = loop.axis.name
    outer, inner = Axis(f"{name}.o", blocks), Axis(f"{name}.i", factor)
    begin = index.as_index(outer * factor)
    if is_symbolic(loop.extent):
        if not loop.reduced:
            end = index.as_index(loop.extent - factor)
            begin = index.apply("min", (begin, end), begin.dtype)
    elif loop.extent % factor:
        last = loop.extent - factor
        # factored out, so that the block an index falls into can be simplified
        step = gcd(factor, last)
        begin = index.as_index(begin // step)
        begin = index.apply("min", (begin, index.as_index(last // step)), begin.dtype)
        begin = index.as_index(begin * step)
    new = tuple(Loop(a, loop.reduced) for a in (outer, inner))
    return _replace_loops(s, n, n + 1, new, {loop.axis: index.as_index(begin + inner)})


def cover(s: Scheduled, axis: str, factor: int) -> Scheduled:
    """Split a reduction loop in two, with masked last steps beyond its extent (loop_nest.py).

    for k < 10          for k.o < 3
                  =>      for k.i < 4
                            k = k.o * 4 + k.i, if that is below 10
    """
    n = loop_index(s, axis)
    loop = s.loops[n]
    require_serial(loop)
    why = "" if loop.reduced else "it is not a reduction axis"
    why = "the factor is below 1" if factor < 1 else why
    if is_symbolic(loop.extent) and masks_tiles():
        return _split_masked(s, n, factor)
    if "." in axis and not is_symbolic(loop.extent):  # beyond a part is another part
        why = "it is a part of an axis; only whole axes can be covered"
    if why:
        raise IllegalSchedule(f"cover({axis}, {factor}): {why}")
    name = loop.axis.name
    outer, inner = Axis(f"{name}.o", -(-loop.extent // factor)), Axis(f"{name}.i", factor)
    new = tuple(Loop(a, True) for a in (outer, inner))
    return _replace_loops(s, n, n + 1, new, {loop.axis: index.as_index(outer * factor + inner)})


def _split_masked(s: Scheduled, n: int, factor: int) -> Scheduled:
    """Split a loop of symbolic extent in two, with masked last steps beyond it (loop_nest.py). The
    blocks of a split loop repeat the last one instead, so that each has elements.

        for i < n           for i.o < (n + 3) // 4
                      =>      for i.i < 4
                                i = i.o * 4 + i.i, if that is below n
    """
    loop = s.loops[n]
    name = loop.axis.name
    factor = _block_factor(factor)
    keep_level(loop.extent)
    blocks = (loop.extent + factor - 1) // factor
    outer, inner = Axis(f"{name}.o", blocks), Axis(f"{name}.i", factor)
    place = index.as_index(outer * factor + inner)
    if name.removeprefix(s.prefix).count(".") and not loop.reduced:
        place = index.apply("min", (place, index.as_index(loop.extent - 1)), place.dtype)
    new = tuple(Loop(a, loop.reduced) for a in (outer, inner))
    return _replace_loops(s, n, n + 1, new, {loop.axis: place})


def _block_factor(factor: int) -> int:
    """Return the factor of blocks, which are powers of two, or three of them: the extent of the
    example sizes may have limited it."""
    if factor % 3 == 0 and factor // 3 >= 16 and (factor // 3).bit_count() == 1:
        return factor
    return ceil_power_of_two(factor)


def fuse(s: Scheduled, outer: str, inner: str) -> Scheduled:
    """Fuse two directly nested loops into one.

    for i < 3           for i_j < 12
      for j < 4     =>    i = i_j // 4, j = i_j % 4
    """
    n = loop_index(s, outer)
    if loop_index(s, inner) != n + 1:
        raise IllegalSchedule(f"fuse({outer}, {inner}): {inner} is not directly inside {outer}")
    a, b = s.loops[n : n + 2]
    require_serial(a)
    require_serial(b)
    if a.reduced != b.reduced:
        raise IllegalSchedule(f"fuse({outer}, {inner}): only one of them is a reduction loop")
    both = Axis(f"{s.prefix}{outer}_{inner}", a.extent * b.extent)
    size = b.extent or 1  # of an empty loop any index will do
    env: dict[Expr, Expr] = {
        a.axis: index.as_index(both // size),
        b.axis: index.as_index(both % size),
    }
    return _replace_loops(s, n, n + 2, (Loop(both, a.reduced),), env)


def reorder(s: Scheduled, axes: Sequence[str]) -> Scheduled:
    """Permute loops.

        for i < 3           for j < 4
          for j < 4     =>    for i < 3

    Permuting reduction loops changes the rounding of float sums.
    """
    what = f"reorder({', '.join(axes)})"
    places = [loop_index(s, a) for a in axes]
    if len(set(places)) < len(places):
        raise IllegalSchedule(f"{what}: an axis is repeated")
    loops = list(s.loops)
    for place, was in zip(sorted(places), places, strict=True):
        loops[place] = s.loops[was]
    return check_legality(replace(s, loops=tuple(loops)), what)


def check_legality(s: Scheduled, primitive: str) -> Scheduled:
    """Return `s`. Raises IllegalSchedule unless parallel loops are outside the others."""
    for n, x in enumerate(s.loops):
        if x.kind != PARALLEL:
            continue
        if x.reduced:
            raise IllegalSchedule(f"{primitive}: it is a reduction axis")
        other = next((o for o in s.loops[:n] if o.kind != PARALLEL), None)
        if other is not None:
            name = other.axis.name
            raise IllegalSchedule(f"{primitive}: {x.axis.name} is {x.kind}, but inside {name}")
    return s


def tile(s: Scheduled, rows: str, columns: str, row_factor: int, column_factor: int) -> Scheduled:
    """Tile two loops, `row_factor` by `column_factor`: two splits and a reorder.

    for i < 8           for i.o < 4
      for j < 32    =>    for j.o < 2
                            for i.i < 2
                              for j.i < 16
                                i = i.o * 2 + i.i, j = j.o * 16 + j.i
    """
    s = split(split(s, rows, row_factor), columns, column_factor)
    return reorder(s, (f"{rows}.o", f"{columns}.o", f"{rows}.i", f"{columns}.i"))


def loop_index(s: Scheduled, axis: str) -> int:
    """Return the position of a loop. Raises IllegalSchedule if there is none."""
    names = [x.axis.name.removeprefix(s.prefix) for x in s.loops]
    if axis not in names:
        raise IllegalSchedule(f"there is no loop {axis}; there are {', '.join(names)}")
    return names.index(axis)


def require_serial(loop: Loop) -> None:
    """Raise IllegalSchedule if the loop is already marked."""
    if loop.kind != SERIAL:
        raise IllegalSchedule(f"{loop.axis.name} is already marked {loop.kind}")


def _replace_loops(
    s: Scheduled, begin: int, end: int, new: tuple[Loop, ...], env: dict[Expr, Expr]
) -> Scheduled:
    """Replace loops, whose axes become `env`."""
    origin = tuple((a, index.substitute(e, env)) for a, e in s.axis_values)
    return replace(s, loops=(*s.loops[:begin], *new, *s.loops[end:]), axis_values=origin)
