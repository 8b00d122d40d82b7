"""Elementwise kernels on the CPU, and all that no other algorithm computes: loops in memory order,
vectors along the last dimension, reductions one term after the other."""

from __future__ import annotations

from collections.abc import Iterator

from superopt.kernels.algorithms.algorithm import Algorithm, Prediction
from superopt.kernels.algorithms.cpu.gemm import match_product
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.loops.elementwise_schedule import (
    TILE_ELEMENT_OPTIONS,
    TILE_ELEMENTS,
    default_schedule,
)
from superopt.kernels.loops.layout import effective_layout
from superopt.kernels.loops.loop_transforms import initial_loops
from superopt.kernels.loops.option import Option
from superopt.te.expr.tensor import Tensor


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
