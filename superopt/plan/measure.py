"""Measure an option of a problem on the CPU: its kernels alone, on random inputs."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np

from superopt.kernels.built import Built, buffers, built
from superopt.kernels.cpu import Machine
from superopt.kernels.cpu_run import Call, Ref
from superopt.kernels.cpu_text import chunks, workspace
from superopt.kernels.layout import Layout, Scatter
from superopt.kernels.option import Option
from superopt.kernels.problem import Problem
from superopt.kernels.space import chosen
from superopt.plan.build import Program
from superopt.plan.execute import code
from superopt.plan.image import Code, aligned
from superopt.te.dtype import to_numpy
from superopt.te.expr import Tensor

STALE = 1 << 18  # bytes of constants from which on runs rotate through copies, read from memory
OTHERS = 1 << 26  # bytes of all copies, more than a cache holds
COPIES = 16
RUNS, SECONDS = 5, 0.02  # of a measurement, at least


def runnable(
    p: Problem, option: Option, machine: Machine, threads: int, folder: Path | None = None
) -> Callable[[], None]:
    """Return a function that runs the kernels of this option. Each call takes the time that they
    take within a model, where large constants come from memory.

    Raises ValueError or KeyError if it is not an option of this problem.
    """
    how = chosen(p, option)
    made = built(p, how)
    given = buffers(made)
    fixed = {t for t in given if t in p.constants or t in how.made}
    number = {t: n for n, t in enumerate(given)}
    shapes = {t: _shape(p, made, t, given[t]) for t in given}
    ready = _code(made, number, machine, threads, folder)
    rng = np.random.default_rng(0)
    size = sum(prod(shapes[t]) * max(t.dtype.bits // 8, 1) for t in fixed)
    copies = 1 if size < STALE else max(1, min(COPIES, OTHERS // size))
    shared = {t: _drawn(rng, shapes[t], t) for t in given if t not in fixed}
    sets = [
        [shared[t] if t in shared else _drawn(rng, shapes[t], t) for t in given]
        for _ in range(copies)
    ]
    turn = 0

    def run() -> None:
        nonlocal turn
        ready(sets[turn], ())
        turn = (turn + 1) % copies

    return run


def seconds(run: Callable[[], object], limit: float = SECONDS) -> tuple[float, float, float, int]:
    """Return (median, 10th percentile, 90th percentile, number) of timed runs."""
    run()
    times: list[float] = []
    end = time.perf_counter() + limit
    while len(times) < RUNS or time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    low, middle, high = np.percentile(times, [10, 50, 90])
    return float(middle), float(low), float(high), len(times)


def _code(
    made: list[Built], number: dict[Tensor, int], machine: Machine, threads: int,
    folder: Path | None,
) -> Code:  # fmt: skip
    calls = tuple(
        Call(
            x.kernel.name,
            tuple(Ref("argument", number[t]) for t in (*x.reads, x.writes)),
            chunks(x.kernel),
        )
        for x in made
    )
    kernels = {x.kernel.name: x.kernel for x in made}
    most = max(workspace(x.kernel) for x in made)
    program = Program(kernels, calls, (), 0, 0, 0, most, {}, {}, ())
    return code(program, machine, threads, folder)


def _shape(p: Problem, made: list[Built], t: Tensor, buffer: Tensor) -> tuple[int, ...]:
    """Return the shape of a tensor's memory."""
    layout = p.layouts.get(t)
    own = tuple(n for n in t.shape if isinstance(n, int))
    if isinstance(layout, Scatter):
        return layout.layout.shape(layout.shape)
    if isinstance(layout, Layout):
        return layout.shape(own)
    packs = [k for x in made for k in x.kernel.packs if k.buffer is buffer]
    return tuple(n for n in packs[0].buffer.shape if isinstance(n, int)) if packs else own


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], t: Tensor) -> np.ndarray:
    """Return random numbers of ordinary magnitude, aligned to 64 bytes."""
    kind = np.dtype(to_numpy(t.dtype))
    count = prod(shape)
    out = aligned(max(count, 1) * kind.itemsize)[: count * kind.itemsize].view(kind).reshape(shape)
    if t.dtype.is_float:
        out[...] = rng.standard_normal(shape, np.float32)
    return out
