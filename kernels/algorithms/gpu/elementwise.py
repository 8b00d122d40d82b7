"""Elementwise kernels on a GPU, and all that no other algorithm computes: a program for each block
of elements of the result, reductions term by term."""

from __future__ import annotations

from collections.abc import Iterator

from superopt.kernels.algorithms.algorithm import Algorithm
from superopt.kernels.algorithms.gpu.blocks import (
    MULTIPROCESSORS,
    elementwise_schedule,
    result_elements,
)
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.option import Option
from superopt.te.expr.tensor import Tensor

MAX_ELEMENTS = 1024  # of a result at a time
MAX_SUM_ELEMENTS = 256  # of a result at a time, if each is a sum


def recognise_elementwise(p: Problem) -> Tensor:
    """Return the tensor: every problem has this algorithm."""
    return p.tensor


def elementwise_options(p: Problem, t: Tensor) -> Iterator[Option]:
    """Yield options, best first."""
    most = max(result_elements(t) // (2 * MULTIPROCESSORS), 64)
    largest = MAX_ELEMENTS if reduction(t) is None else MAX_SUM_ELEMENTS
    elements = 1 << min(largest, most).bit_length() - 1
    for n in dict.fromkeys((elements, 256, 512, 1024)):
        yield Option.make("elementwise", elements=n, warps=max(1, min(4, n // 64)))


def schedule_elementwise(p: Problem, t: Tensor, option: Option) -> Choice:
    """Return the choice of an option."""
    return Choice(option, t, {t: elementwise_schedule(p, option["elements"])})


ELEMENTWISE = Algorithm(
    ("elementwise",), "elementwise, copies, gathers, and all else", recognise_elementwise,
    elementwise_options, schedule_elementwise,
)  # fmt: skip
