"""Measure an option of a problem on the CPU: its kernels alone, on random inputs."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np

from superopt.kernels.algorithms.build import BuiltKernel, build_kernels, kernel_buffers
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import build_choice
from superopt.kernels.llvm.codegen import chunk_count, workspace_bytes
from superopt.kernels.llvm.program import Call, Ref
from superopt.kernels.loops.layout import Layout, ScatteredLayout
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.cpu import Machine
from superopt.plan.program.call_context import aligned_zeros
from superopt.plan.program.execute import load_program
from superopt.plan.program.image import LoadedProgram
from superopt.plan.program.program import Program
from superopt.te.expr.dtype import to_numpy
from superopt.te.expr.tensor import Tensor

MIN_ROTATED_BYTES = (
    1 << 18
)  # bytes of constants from which on runs rotate through copies, read from memory
ROTATED_BYTES = 1 << 26  # bytes of all copies, more than a cache holds
MAX_COPIES = 16
MAX_DRAWN = 1 << 16  # random numbers of an array; larger ones repeat them
MIN_RUNS, MIN_SECONDS = 5, 0.02  # of a measurement, at least


def build_runnable(
    p: Problem, option: Option, machine: Machine, threads: int, folder: Path | None = None
) -> Callable[[], None]:
    """Return a function that runs the kernels of this option. Each call takes the time that they
    take within a model, where large constants come from memory.

    Raises ValueError or KeyError if it is not an option of this problem.
    """
    how = build_choice(p, option)
    made = build_kernels(p, how)
    given = kernel_buffers(made)
    fixed = {t for t in given if t in p.constants or t in how.derived_constants}
    number = {t: n for n, t in enumerate(given)}
    shapes = {t: _memory_shape(p, made, t, given[t]) for t in given}
    ready = _load_kernels(made, number, machine, threads, folder)
    rng = np.random.default_rng(0)
    size = sum(prod(shapes[t]) * max(t.dtype.bits // 8, 1) for t in fixed)
    copies = 1 if size < MIN_ROTATED_BYTES else max(1, min(MAX_COPIES, ROTATED_BYTES // size))
    shared = {t: _random_array(rng, shapes[t], t) for t in given if t not in fixed}
    sets = [
        [shared[t] if t in shared else _random_array(rng, shapes[t], t) for t in given]
        for _ in range(copies)
    ]
    turn = 0

    def run() -> None:
        nonlocal turn
        ready(sets[turn], ())
        turn = (turn + 1) % copies

    return run


def measure_seconds(
    run: Callable[[], object], limit: float = MIN_SECONDS
) -> tuple[float, float, float, int]:
    """Return (median, 10th percentile, 90th percentile, number) of timed runs."""
    run()
    times: list[float] = []
    end = time.perf_counter() + limit
    while len(times) < MIN_RUNS or time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    low, middle, high = np.percentile(times, [10, 50, 90])
    return float(middle), float(low), float(high), len(times)


def _load_kernels(
    kernels_built: list[BuiltKernel], number: dict[Tensor, int], machine: Machine, threads: int,
    folder: Path | None,
) -> LoadedProgram:  # fmt: skip
    calls = tuple(
        Call(
            x.kernel.name,
            tuple(Ref("argument", number[t]) for t in (*x.reads, x.writes)),
            chunk_count(x.kernel),
        )
        for x in kernels_built
    )
    kernels = {x.kernel.name: x.kernel for x in kernels_built}
    most = max(workspace_bytes(x.kernel) for x in kernels_built)
    program = Program(kernels, calls, (), 0, 0, 0, most, {}, {}, ())
    return load_program(program, machine, threads, folder)


def _memory_shape(
    p: Problem, kernels_built: list[BuiltKernel], t: Tensor, buffer: Tensor
) -> tuple[int, ...]:
    """Return the shape of a tensor's memory."""
    layout = p.layouts.get(t)
    own = tuple(n for n in t.shape if isinstance(n, int))
    if isinstance(layout, ScatteredLayout):
        return layout.layout.shape(layout.shape)
    if isinstance(layout, Layout):
        return layout.shape(own)
    packs = [k for x in kernels_built for k in x.kernel.packs if k.buffer is buffer]
    return tuple(n for n in packs[0].buffer.shape if isinstance(n, int)) if packs else own


def _random_array(rng: np.random.Generator, shape: tuple[int, ...], t: Tensor) -> np.ndarray:
    """Return random numbers of ordinary magnitude, aligned to 64 bytes."""
    kind = np.dtype(to_numpy(t.dtype))
    count = prod(shape)
    out = (
        aligned_zeros(max(count, 1) * kind.itemsize)[: count * kind.itemsize]
        .view(kind)
        .reshape(shape)
    )
    if t.dtype.is_float:
        some = rng.standard_normal(min(count, MAX_DRAWN), np.float32).astype(kind)
        out.reshape(-1)[...] = np.resize(some, count)
    return out
