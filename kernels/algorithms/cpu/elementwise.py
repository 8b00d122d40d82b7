"""Elementwise kernels on the CPU, and all that no other algorithm computes.

elementwise  loops in memory order, vectors along the last dimension, reductions one term after the
             other
transpose    square tiles, whose loads and stores both use whole vectors
"""

from __future__ import annotations

from collections.abc import Iterator

from superopt.kernels.algorithms.algorithm import Algorithm, Prediction
from superopt.kernels.algorithms.cpu.gemm import match_product
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.loops.elementwise_schedule import (
    TILE_ELEMENT_OPTIONS,
    TILE_ELEMENTS,
    default_schedule,
    transpose_schedule,
)
from superopt.kernels.loops.layout import effective_layout
from superopt.kernels.loops.loop_transforms import initial_loops
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.schedule import Schedule
from superopt.te.expr.tensor import Tensor

MAX_TRANSPOSE_SIDE = 16  # elements of a side of a transposed tile


def recognise_elementwise(p: Problem) -> Tensor | None:
    """Return the tensor if it is no contraction."""
    return p.tensor if match_product(p) is None else None


def elementwise_options(p: Problem, t: Tensor) -> Iterator[Option]:
    """Yield the options: elements of a tile."""
    yield from (Option.make("elementwise", lanes=n) for n in TILE_ELEMENT_OPTIONS)


def predict_elementwise(p: Problem, t: Tensor) -> Prediction:
    """Return the option of the default tile."""
    return Prediction(Option.make("elementwise", lanes=TILE_ELEMENTS))


def schedule_elementwise(p: Problem, t: Tensor, option: Option) -> Choice:
    """Return the choice of an option; lowering schedules tiles of the default size."""
    if option["lanes"] == TILE_ELEMENTS:
        return Choice(option, t)
    layout = effective_layout(p.layouts.get(t), t.rank)
    return Choice(option, t, {t: default_schedule(initial_loops(t), layout, option["lanes"])})


ELEMENTWISE = Algorithm(
    ("elementwise",), "elementwise, copies, gathers, and all else", recognise_elementwise,
    elementwise_options, schedule_elementwise, predict_elementwise,
)  # fmt: skip


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
