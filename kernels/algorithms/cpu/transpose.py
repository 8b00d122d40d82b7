"""Transposes on the CPU: square tiles, whose loads and stores both use whole vectors."""

from __future__ import annotations

from superopt.kernels.algorithms.algorithm import Algorithm
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.loops.elementwise_schedule import transpose_schedule
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.schedule import Schedule

MAX_TRANSPOSE_SIDE = 16  # elements of a side of a transposed tile


def transpose_side(p: Problem) -> int:
    """Return the side of a transposed tile: so many vectors must be in registers."""
    return min(p.lanes, MAX_TRANSPOSE_SIDE)


def recognise_transpose(p: Problem) -> Schedule | None:
    """Return the schedule of a problem with a transposed operand."""
    return transpose_schedule(p.tensor, p.layouts, transpose_side(p))


def transpose_options(p: Problem, schedule: Schedule) -> list[Option]:
    """Return the only option."""
    return [Option.make("transpose", lanes=transpose_side(p))]


def schedule_transpose(p: Problem, schedule: Schedule, option: Option) -> Choice:
    """Return the choice of an option."""
    if option["lanes"] != transpose_side(p):
        raise ValueError(f"{option}: tiles of {p.tensor.name} are {transpose_side(p)} wide")
    return Choice(option, p.tensor, {p.tensor: schedule})


TRANSPOSE = Algorithm(
    ("transpose",), "Transpose: square tiles in registers", recognise_transpose, transpose_options,
    schedule_transpose,
)  # fmt: skip
