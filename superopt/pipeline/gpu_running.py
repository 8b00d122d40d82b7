"""A plan's kernels, compiled for a GPU and with memory of their own; and other ways to compute what
Triton's compiler makes nothing of."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from superopt.errors import OutOfMemory, UsageError
from superopt.kernels.algorithms.gpu import gpu_space
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.gpu_program import GpuProgram, KernelCall, TensorSpec, build_program
from superopt.kernels.triton.compiler import TritonCompileError
from superopt.plan.program.program import Program

LONGEST = 300  # letters of what a compiler says
WAYS = 4  # to compute a problem, of which a compiler may make nothing
# What torch says where it has no memory for that, or no number of its bytes.
NO_MEMORY = ("out of memory", "ALLOC_FAILED", "Storage size calculation", "can't allocate memory")


def started(
    label: str,
    made: Program,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    device: str,
    dots: str,
) -> GpuProgram:
    """label: of the model; device, dots: see gpu_program.running.

    Raises Uncompiled where Triton makes nothing of a kernel that runs here, OutOfMemory where there
    is too little on the device."""
    constants = np.zeros(made.constant_bytes, np.uint8)
    for c in made.constants:
        c.write(constants[c.offset : c.offset + c.bytes])
    lanes = [(0, ())] * len(made.calls) if made.stream_order is None else made.stream_order.steps
    calls = [
        KernelCall(
            made.kernels[c.function],
            c.arguments,
            *gpu_space.launch_parameters(made.options[key]),
            *lane,
        )
        for c, key, lane in zip(made.kernel_calls(), made.call_problems, lanes, strict=True)
    ]
    how = made.memory_bytes, inputs, outputs, device, dots
    try:
        return build_program(calls, constants, *how, zeroed_bytes=made.border_bytes)
    except TritonCompileError:
        raise
    except RuntimeError as e:
        if not any(x in str(e) for x in NO_MEMORY):
            raise
        raise OutOfMemory(
            f"{label}: out of memory on the device",
            f"its kernels need {made.constant_bytes + made.memory_bytes} bytes",
            "give smaller inputs, or free memory there",
        ) from None


def another(
    label: str,
    made: Program,
    e: TritonCompileError,
    options: Callable[[Problem], Iterator[Option]],
    tried: dict[str, set[Option]],
) -> dict[str, Option]:
    """Another way to compute the problem whose kernel was not compiled, by its key. options: all
    ways; tried: those that were, to which this one is added, so that none is given twice.

    Raises UsageError where WAYS were tried, where there is no other, and where `e` is of no kernel
    of the plan."""
    for c, key in zip(made.kernel_calls(), made.call_problems, strict=True):
        name = made.kernels[c.function].name
        if not re.fullmatch(rf"{re.escape(name)}(_\d+)?", e.function):
            continue
        before = tried.setdefault(key, set())
        before.add(made.options[key])
        some = (o for o in options(made.problems[key]) if o not in before)
        if len(before) < WAYS and (other := next(some, None)) is not None:
            before.add(other)
            return {key: other}
    raise UsageError(
        f"{label}: a kernel cannot be compiled for this GPU",
        textwrap.shorten(str(e), LONGEST),
        'use another version of Triton, or another GPU, or target="cpu"',
    ) from e
