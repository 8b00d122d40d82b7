"""Loading a plan's kernels onto a GPU, and the choice of another option if Triton cannot compile
one."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from superopt.errors import OutOfMemory, UsageError
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import launch_parameters
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.gpu_program import GpuProgram, KernelCall, TensorSpec, build_program
from superopt.kernels.runtime.sized_module_image import (
    Port,
    SizedModuleImage,
    export_sized_image,
)
from superopt.kernels.triton.compiler import TritonCompileError
from superopt.plan.program.program import Program, SymbolicSizes
from superopt.plan.program.symbolic_buffers import Words
from superopt.te.expr.index import evaluate
from superopt.te.expr.symbolic_int import example_sizes

MAX_ERROR_CHARS = 300  # characters of a compiler's error
MAX_TRIED_OPTIONS = 4  # options of a problem that are tried when its kernel does not compile
# torch's messages about too little memory, or about sizes that overflow.
OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "ALLOC_FAILED",
    "Storage size calculation",
    "can't allocate memory",
)


def load_gpu_program(
    label: str,
    program: Program,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    device: str,
    dot_precision: str,
) -> GpuProgram:
    """Compile and load a program. label: of the model; device, dot_precision: see
    gpu_program.build_program.

    Raises TritonCompileError if Triton cannot compile a kernel, OutOfMemory if device memory is too
    small.
    """
    constants = np.zeros(program.constant_bytes, np.uint8)
    for c in program.constants:
        c.write(constants[c.offset : c.offset + c.bytes])
    calls = _kernel_calls(program)
    how = program.memory_bytes, inputs, outputs, device, dot_precision
    try:
        return build_program(calls, constants, *how, zeroed_bytes=program.border_bytes)
    except TritonCompileError:
        raise
    except RuntimeError as e:
        if not any(x in str(e) for x in OUT_OF_MEMORY_TEXTS):
            raise
        raise OutOfMemory(
            f"{label}: out of memory on the device",
            f"its kernels need {program.constant_bytes + program.memory_bytes} bytes",
            "pass smaller inputs, or free device memory",
        ) from None


def _kernel_calls(program: Program) -> list[KernelCall]:
    lanes = (
        [(0, ())] * len(program.calls)
        if program.stream_order is None
        else program.stream_order.steps
    )
    out = []
    for c, key, lane in zip(program.kernel_calls(), program.call_problems, lanes, strict=True):
        kernel = program.kernels[c.function]
        arguments = c.arguments[: len(kernel.params)]  # without the words of a program for a class
        out.append(KernelCall(kernel, arguments, *launch_parameters(program.options[key]), *lane))
    return out


def build_sized_image(
    program: Program, ports: Sequence[Port], input_count: int, device: str, dot_precision: str
) -> tuple[SizedModuleImage, SymbolicSizes]:
    """Compile a program for a class of sizes, in the context of these, for tensors at the example
    sizes; return its image, and what that needs before a run. ports: the inputs, then the outputs.

    Raises NotImplementedError for what Triton text cannot express, and if Triton cannot compile a
    kernel.
    """
    assert program.symbolic is not None
    needs, sizes = program.symbolic, {**example_sizes()}
    words = Words([*needs.words], {e: n for n, e in enumerate(needs.words)})
    at_example = [evaluate(e, sizes) for e in words.values]
    specs = [(tuple(evaluate(n, sizes) for n in shape), dtype) for shape, dtype in ports]
    constants = np.zeros(program.constant_bytes, np.uint8)  # of which no timing depends
    made = build_program(
        _kernel_calls(program), constants, evaluate(needs.memory_bytes, sizes),
        specs[:input_count], specs[input_count:], device, dot_precision, capture=False,
        sizes=sizes, words=at_example,
    )  # fmt: skip
    image = export_sized_image(
        made, ports, needs.memory_bytes, program.constant_bytes, words.number, device, dot_precision
    )
    return image, replace(needs, words=tuple(words.values), memory_bytes=image.memory_bytes)


def next_option(
    label: str,
    program: Program,
    error: TritonCompileError,
    options: Callable[[Problem], Iterator[Option]],
    tried_options: dict[str, set[Option]],
) -> dict[str, Option]:
    """Return another option, by key, for the problem whose kernel did not compile. options: yields
    all options; tried_options: earlier ones, to which this one is added, so that none is returned
    twice.

    Raises UsageError if MAX_TRIED_OPTIONS were tried, if there is no other option, or if `error` is
    of no kernel of the plan.
    """
    for c, key in zip(program.kernel_calls(), program.call_problems, strict=True):
        name = program.kernels[c.function].name
        if not re.fullmatch(rf"{re.escape(name)}(_\d+)?", error.function):
            continue
        before = tried_options.setdefault(key, set())
        before.add(program.options[key])
        some = (o for o in options(program.problems[key]) if o not in before)
        if len(before) < MAX_TRIED_OPTIONS and (other := next(some, None)) is not None:
            before.add(other)
            return {key: other}
    raise UsageError(
        f"{label}: a kernel cannot be compiled for this GPU",
        textwrap.shorten(str(error), MAX_ERROR_CHARS),
        'use another version of Triton, or another GPU, or target="cpu"',
    ) from error
