"""What the primitives that say how loops run do to them: legality, before and after."""

from __future__ import annotations

from dataclasses import replace

from superopt.kernels.intrinsic import matched
from superopt.kernels.schedule import IllegalSchedule
from superopt.kernels.transform import (
    BLOCK,
    PARALLEL,
    PIPELINE,
    TENSORIZE,
    THREAD,
    UNROLL,
    VECTORIZE,
    VTHREAD,
    Scheduled,
    at,
    lawful,
    plain,
)


def unroll(s: Scheduled, axis: str) -> Scheduled:
    """A loop's steps are written out. The innermost loops over elements are a tile, in registers.

    for i < 3                    y[0] = a[0]
      y[i] = a[i]           =>   y[1] = a[1]
                                 y[2] = a[2]
    """
    return _marked(s, axis, UNROLL)


def vectorize(s: Scheduled, axis: str) -> Scheduled:
    """A loop's steps are done at once, as lanes of vectors: the innermost one.

    for i < 16
      y[i] = a[i] + 1       =>   y[0:16] = a[0:16] + 1

    Where it is of the sum, the lanes are added to each other in the end.
    """
    n = at(s, axis)
    if n != len(s.loops) - 1:
        raise IllegalSchedule(f"vectorize({axis}): {s.loops[-1].axis.name} is inside it")
    return _marked(s, axis, VECTORIZE)


def parallel(s: Scheduled, axis: str) -> Scheduled:
    """A loop's steps are done by several threads: the outermost one, and of no sum; and then the
    next one's, too.

    for i < 3               for i < 3 parallel
      for j < 4     =>        for j < 4
    """
    return lawful(_marked(s, axis, PARALLEL), f"parallel({axis})")


def bind(s: Scheduled, axis: str, to: str) -> Scheduled:
    """A loop's steps go to the blocks of a GPU's grid, or to the threads of a block: the outermost
    loops, blocks outside threads, and none of a sum.

    for i < 64              for i < 64 block
      for j < 128     =>      for j < 128 thread
    """
    if to not in (BLOCK, THREAD):
        raise IllegalSchedule(f"bind({axis}, {to}): a loop is bound to a block or a thread")
    return lawful(_marked(s, axis, to), f"bind({axis}, {to})")


def vthread(s: Scheduled, axis: str) -> Scheduled:
    """A loop's steps take turns in each statement inside it (virtual threads: Chen and others, TVM,
    2018, section 4.4). Not of a sum. What is computed at a loop inside it is so for all of them.

    for v < 2               for i < 4
      for i < 4       =>      y[0, i] = a[0, i]
        y[v, i] = a[v, i]     y[1, i] = a[1, i]
    """
    if s.loops[at(s, axis)].reduced:
        raise IllegalSchedule(f"vthread({axis}): it is an axis of the sum")
    return _marked(s, axis, VTHREAD)


def pipeline(s: Scheduled, axis: str, stages: int) -> Scheduled:
    """What is computed at a loop (by cache_read or compute_at) is so `stages` - 1 steps ahead, into
    as many buffers as there are stages: double buffering.

    for k < 8                    b[0] = copy of a's part 0
      b = copy of a's part k =>  for k < 8
      use b                        b[min(k + 1, 7) % 2] = copy of a's part min(k + 1, 7)
                                   use b[k % 2]

    In the last steps there is nothing ahead, and the last part is copied once more, over itself.
    """
    if stages < 2:
        raise IllegalSchedule(f"pipeline({axis}, {stages}): {stages} stages are fewer than 2")
    s = _marked(s, axis, PIPELINE)
    n = at(s, axis)
    loops = (*s.loops[:n], replace(s.loops[n], stages=stages), *s.loops[n + 1 :])
    return replace(s, loops=loops)


def tensorize(s: Scheduled, axis: str, intrinsic: str) -> Scheduled:
    """The loops from `axis` inward become one statement, that a target has an instruction for.

    for k.o < 8                            for k.o < 8
      for k.i < 4                      =>    sum += a[k.o*4 + k] * b[k.o*4 + k] for k < 4 by dot4
        sum += a[k.o*4 + k.i] * b[..]

    They must be the loops of the intrinsic's expression (intrinsic.py), and the sum its term; what
    target has it for which types is the target's matter: others compute its expression.
    """
    n = at(s, axis)
    for loop in s.loops[n:]:
        plain(loop)
    matched(s, n, intrinsic)
    inner = tuple(replace(x, kind=TENSORIZE) for x in s.loops[n:])
    return replace(s, loops=(*s.loops[:n], *inner), intrinsic=intrinsic)


def cache_write(s: Scheduled, axis: str) -> Scheduled:
    """Results of the loops inside `axis` wait in a local buffer, in the order of these loops, and
    are copied out in the end. Not inside a sum.

    for i < 4               for i < 4
      for j < 8       =>      for j < 8
        y[j, i] = ..            t[j] = ..
                              for j < 8
                                y[j, i] = t[j]
    """
    n = at(s, axis)
    if s.waits is not None:
        raise IllegalSchedule(f"cache_write({axis}): results wait inside {s.waits} already")
    if s.loops[n].kind == TENSORIZE:
        raise IllegalSchedule(f"cache_write({axis}): {axis} is said to be {TENSORIZE} already")
    return lawful(replace(s, waits=s.loops[n].axis), f"cache_write({axis})")


def _marked(s: Scheduled, axis: str, kind: str) -> Scheduled:
    n = at(s, axis)
    plain(s.loops[n])
    loops = (*s.loops[:n], replace(s.loops[n], kind=kind), *s.loops[n + 1 :])
    return replace(s, loops=loops)
