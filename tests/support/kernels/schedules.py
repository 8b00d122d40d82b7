"""Schedules drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st

from superopt.kernels.loops import schedule
from superopt.kernels.loops.apply import apply_schedule
from superopt.kernels.loops.intrinsic import INTRINSICS
from superopt.kernels.loops.loop_transforms import Scheduled, initial_loops
from superopt.kernels.loops.schedule import IllegalSchedule, Primitive, Schedule
from superopt.te.expr.tensor import Tensor

Draw = tuple[int, int, int]  # which primitive, of which loop, and a number for it
KINDS = 16


def draws(most: int) -> st.SearchStrategy[list[Draw]]:
    one = st.tuples(st.integers(0, KINDS - 1), st.integers(0, 99), st.integers(1, 9))
    return st.lists(one, max_size=most)


def grown(
    t: Tensor, numbers: Sequence[Draw], sources: Sequence[str], legal: Callable[[Schedule], bool]
) -> Schedule:
    """A schedule of `t`, of those primitives that are legal where they come."""
    s, done = initial_loops(t), tuple[Primitive, ...]()
    for draw in numbers:
        try:
            steps = _tensorized(s, draw) or (_primitive(s, done, draw, sources),)
            after = apply_schedule(s, steps)
        except IllegalSchedule:
            continue
        if legal((*done, *steps)):
            s, done = after, (*done, *steps)
    return done


def _tensorized(s: Scheduled, draw: Draw) -> Schedule:
    """The tiles of an intrinsic: of some primitives, as no single one makes them."""
    kind, which, number = draw
    if kind < KINDS - 1:
        return ()
    name = list(INTRINSICS)[number % 2]
    summed = [x.axis.name for x in s.loops if x.reduced]
    own = [x.axis.name for x in s.loops if not x.reduced]
    if not summed or len(own) < 2:
        raise IllegalSchedule("no product")
    i, j, k = own[-2], own[-1], summed[which % len(summed)]
    tiles = (
        (schedule.Split(k, 4), schedule.Tile(i, j, 4, 4))
        if name != "dot4"
        else (schedule.Split(k, 4),)
    )
    inner = (f"{i}.i", f"{j}.i", f"{k}.i") if name != "dot4" else (f"{k}.i",)
    after = [x.axis.name for x in apply_schedule(s, tiles).loops]
    outer = [a for a in after if a not in inner]
    return (*tiles, schedule.Reorder((*outer, *inner)), schedule.Tensorize(inner[0], name))


def _primitive(s: Scheduled, done: Schedule, draw: Draw, sources: Sequence[str]) -> Primitive:
    kind, which, number = draw
    names = [x.axis.name for x in s.loops]
    if not names:
        raise IllegalSchedule("no loops")
    axis, other = names[which % len(names)], names[(which + number) % len(names)]
    match kind:
        case 1 if s.loops[which % len(names)].reduced:
            return schedule.Cover(axis, number)
        case 0 | 1:
            return schedule.Split(axis, number)
        case 2:
            return schedule.Fuse(axis, names[(which + 1) % len(names)])
        case 3:
            turned = np.random.default_rng(which).permutation(len(names))
            return schedule.Reorder(tuple(names[k] for k in turned))
        case 4:
            return schedule.Unroll(axis)
        case 5:
            return schedule.Vectorize(names[-1])
        case 6:
            return schedule.Tile(axis, other, number, 1 + which % 5)
        case 7:
            return schedule.Parallel(axis)
        case 8:
            return schedule.Bind(axis, ("block", "thread")[number % 2])
        case 9:
            return schedule.Vthread(axis)
        case 10 | 11:
            return schedule.CacheRead(sources[number % len(sources)], axis)
        case 12:
            return schedule.CacheWrite(axis)
        case _:
            copied = [p.axis for p in done if isinstance(p, schedule.CacheRead)] or [axis]
            return schedule.Pipeline(copied[which % len(copied)], 2 + number % 2)
