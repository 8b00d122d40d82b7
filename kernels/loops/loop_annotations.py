"""The primitives that say how loops run: legality, and loops before and after."""

from __future__ import annotations

from dataclasses import replace

from superopt.kernels.loops.intrinsic import check_intrinsic
from superopt.kernels.loops.loop_transforms import (
    BLOCK,
    PARALLEL,
    PIPELINE,
    TENSORIZE,
    THREAD,
    UNROLL,
    VECTORIZE,
    VTHREAD,
    Scheduled,
    check_legality,
    loop_index,
    require_serial,
)
from superopt.kernels.loops.schedule import IllegalSchedule


def unroll(s: Scheduled, axis: str) -> Scheduled:
    """Unroll a loop. The innermost unrolled loops over elements are a tile, in registers.

    for i < 3                    y[0] = a[0]
      y[i] = a[i]           =>   y[1] = a[1]
                                 y[2] = a[2]
    """
    return _set_kind(s, axis, UNROLL)


def vectorize(s: Scheduled, axis: str) -> Scheduled:
    """Run the steps of the innermost loop as lanes of vectors.

        for i < 16
          y[i] = a[i] + 1       =>   y[0:16] = a[0:16] + 1

    In a reduction loop the lanes are combined at the end.
    """
    n = loop_index(s, axis)
    if n != len(s.loops) - 1:
        raise IllegalSchedule(f"vectorize({axis}): {s.loops[-1].axis.name} is inside it")
    return _set_kind(s, axis, VECTORIZE)


def parallel(s: Scheduled, axis: str) -> Scheduled:
    """Share a loop's steps among threads: the outermost loop, then the next one too, and no
    reduction.

        for i < 3               for i < 3 parallel
          for j < 4     =>        for j < 4
    """
    return check_legality(_set_kind(s, axis, PARALLEL), f"parallel({axis})")


def bind(s: Scheduled, axis: str, kind: str) -> Scheduled:
    """Bind a loop to the blocks of a GPU's grid, or to the threads of a block: the outermost loops,
    blocks outside threads, and no reduction.

        for i < 64              for i < 64 block
          for j < 128     =>      for j < 128 thread
    """
    if kind not in (BLOCK, THREAD):
        raise IllegalSchedule(f"bind({axis}, {kind}): a loop can be bound to block or thread only")
    return check_legality(_set_kind(s, axis, kind), f"bind({axis}, {kind})")


def vthread(s: Scheduled, axis: str) -> Scheduled:
    """Interleave a loop's steps in each statement inside it (virtual threads: Chen and others, TVM,
    2018, section 4.4). No reduction. Stages computed at a loop inside it serve all of them.

        for v < 2               for i < 4
          for i < 4       =>      y[0, i] = a[0, i]
            y[v, i] = a[v, i]     y[1, i] = a[1, i]
    """
    if s.loops[loop_index(s, axis)].reduced:
        raise IllegalSchedule(f"vthread({axis}): it is a reduction axis")
    return _set_kind(s, axis, VTHREAD)


def pipeline(s: Scheduled, axis: str, stages: int) -> Scheduled:
    """Compute stages at a loop (cache_read or compute_at) `stages` - 1 steps ahead, into as many
    buffers as there are stages: double buffering.

        for k < 8                    b[0] = copy of a's part 0
          b = copy of a's part k =>  for k < 8
          use b                        b[min(k + 1, 7) % 2] = copy of a's part min(k + 1, 7)
                                       use b[k % 2]

    The last steps have nothing ahead, and copy the last part once more, over itself.
    """
    if stages < 2:
        raise IllegalSchedule(f"pipeline({axis}, {stages}): {stages} stages are fewer than 2")
    s = _set_kind(s, axis, PIPELINE)
    n = loop_index(s, axis)
    loops = (*s.loops[:n], replace(s.loops[n], stages=stages), *s.loops[n + 1 :])
    return replace(s, loops=loops)


def tensorize(s: Scheduled, axis: str, intrinsic: str) -> Scheduled:
    """Replace the loops from `axis` inward by one statement that a target has an instruction for.

        for k.o < 8                         for k.o < 8
          for k.i < 4                   =>    sum += a[k.o*4 + k] * b[k.o*4 + k] for k < 4 by dot4
            sum += a[k.o*4 + k.i] * b[..]

    They must be the loops of the intrinsic's expression (intrinsic.py), and the sum its term.
    Targets without the instruction, or without it for these types, compute its expression.
    """
    n = loop_index(s, axis)
    for loop in s.loops[n:]:
        require_serial(loop)
    check_intrinsic(s, n, intrinsic)
    inner = tuple(replace(x, kind=TENSORIZE) for x in s.loops[n:])
    return replace(s, loops=(*s.loops[:n], *inner), intrinsic=intrinsic)


def cache_write(s: Scheduled, axis: str) -> Scheduled:
    """Collect the results of the loops inside `axis` in a local buffer, in loop order, and copy
    them out at the end. Not inside a reduction.

        for i < 4               for i < 4
          for j < 8       =>      for j < 8
            y[j, i] = ..            t[j] = ..
                                  for j < 8
                                    y[j, i] = t[j]
    """
    n = loop_index(s, axis)
    if s.cache_write_axis is not None:
        raise IllegalSchedule(f"cache_write({axis}): there is one at {s.cache_write_axis} already")
    if s.loops[n].kind == TENSORIZE:
        raise IllegalSchedule(f"cache_write({axis}): {axis} is already marked {TENSORIZE}")
    return check_legality(replace(s, cache_write_axis=s.loops[n].axis), f"cache_write({axis})")


def _set_kind(s: Scheduled, axis: str, kind: str) -> Scheduled:
    """Set the kind of a serial loop."""
    n = loop_index(s, axis)
    require_serial(s.loops[n])
    loops = (*s.loops[:n], replace(s.loops[n], kind=kind), *s.loops[n + 1 :])
    return replace(s, loops=loops)
