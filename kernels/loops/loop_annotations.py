"""The primitives that say how loops run: legality, and loops before and after."""

from __future__ import annotations

from dataclasses import replace

from superopt.kernels.loops.loop_transforms import (
    PARALLEL,
    UNROLL,
    VECTORIZE,
    Scheduled,
    check_legality,
    cover,
    loop_index,
    require_serial,
    split,
)
from superopt.kernels.loops.schedule import IllegalSchedule
from superopt.te.expr.symbolic_int import (
    floor_power_of_two,
    is_symbolic,
    keep_level,
    masks_tiles,
)

MAX_FIXED_STEPS = 64  # steps of the inner loop where a loop of symbolic extent is unrolled


def unroll(s: Scheduled, axis: str) -> Scheduled:
    """Unroll a loop. The innermost unrolled loops over elements are a tile, in registers.

    for i < 3                    y[0] = a[0]
      y[i] = a[i]           =>   y[1] = a[1]
                                 y[2] = a[2]
    """
    if is_symbolic(s.loops[loop_index(s, axis)].extent) and not masks_tiles():
        return _set_kind(*_split_fixed(s, axis), UNROLL)
    return _set_kind(s, axis, UNROLL)


def vectorize(s: Scheduled, axis: str) -> Scheduled:
    """Run the steps of a loop as lanes of vectors: of the innermost one but for unrolled reductions
    that are added to each vector.

        for i < 16
          y[i] = a[i] + 1       =>   y[0:16] = a[0:16] + 1

    In a reduction loop the lanes are combined at the end.
    """
    n = loop_index(s, axis)
    own = s.loops[n]
    for x in reversed(s.loops[n + 1 :]):
        if own.reduced or not x.reduced or x.kind != UNROLL:
            raise IllegalSchedule(f"vectorize({axis}): {x.axis.name} is inside it")
    if is_symbolic(own.extent) and not masks_tiles():
        return _set_kind(*_split_fixed(s, axis), VECTORIZE)
    return _set_kind(s, axis, VECTORIZE)


def _split_fixed(s: Scheduled, axis: str) -> tuple[Scheduled, str]:
    """Split a fixed number of steps off a loop of symbolic extent; return the inner loop's name."""
    loop = s.loops[loop_index(s, axis)]
    factor = min(floor_power_of_two(loop.extent), MAX_FIXED_STEPS)
    if factor < MAX_FIXED_STEPS:
        keep_level(loop.extent)
    return (cover if loop.reduced else split)(s, axis, factor), f"{axis}.i"


def parallel(s: Scheduled, axis: str) -> Scheduled:
    """Share a loop's steps among threads: the outermost loop, then the next one too, and no
    reduction.

        for i < 3               for i < 3 parallel
          for j < 4     =>        for j < 4
    """
    return check_legality(_set_kind(s, axis, PARALLEL), f"parallel({axis})")


def _set_kind(s: Scheduled, axis: str, kind: str) -> Scheduled:
    """Set the kind of a serial loop."""
    n = loop_index(s, axis)
    require_serial(s.loops[n])
    loops = (*s.loops[:n], replace(s.loops[n], kind=kind), *s.loops[n + 1 :])
    return replace(s, loops=loops)
