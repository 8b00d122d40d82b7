"""Schedules drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st

from superopt.kernels.loops import schedule
from superopt.kernels.loops.apply import apply_schedule
from superopt.kernels.loops.loop_transforms import Scheduled, initial_loops
from superopt.kernels.loops.schedule import IllegalSchedule, Primitive, Schedule
from superopt.te.expr.tensor import Tensor

Draw = tuple[int, int, int]  # which primitive, of which loop, and a number for it
KINDS = 10


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
            steps = (_primitive(s, draw, sources),)
            after = apply_schedule(s, steps)
        except IllegalSchedule:
            continue
        if legal((*done, *steps)):
            s, done = after, (*done, *steps)
    return done


def _primitive(s: Scheduled, draw: Draw, sources: Sequence[str]) -> Primitive:
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
        case _:
            return schedule.CacheRead(sources[number % len(sources)], axis)
