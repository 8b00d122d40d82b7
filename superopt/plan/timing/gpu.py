"""Measure options of a problem on a GPU: their kernels alone, on random inputs. If constants are
large, successive runs read different copies, which come from memory, as in a model whose constants
exceed the cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from superopt.kernels.algorithms.build import build_kernels, kernel_buffers
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import build_choice, launch_parameters
from superopt.kernels.llvm.program import Ref
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.gpu_device import (
    current_gpu_number,
    fill_random,
    synchronize,
    use_gpu,
)
from superopt.kernels.runtime.gpu_program import GpuProgram, KernelCall, build_program
from superopt.kernels.runtime.gpu_timer import RUNS_PER_GRAPH, graph_timer, warm_up

TimedOption = tuple[
    float, Callable[[], float]
]  # seconds, and a function that measures again, in ms
COMPILE_THREADS = 8
RUNS_PER_OPTION = 5  # of each option; their median counts
MAX_FINALISTS, FINALIST_TIME_RATIO = (
    6,
    1.1,
)  # the best options, within this ratio of the best one, are measured again
MAX_ROUNDS, MAX_ROUND_SECONDS = 20, 0.5  # interleaved rounds, for at most so many seconds
MIN_ROTATED_BYTES = 1 << 20  # bytes of constants from which on runs rotate through copies
# bytes of all copies, more than the L2 cache holds; their number, at most
ROTATED_BYTES, MAX_COPIES = 1 << 26, 64


def measure_options(
    p: Problem, options: Sequence[Option], dot_precision: str, timers: dict[Option, TimedOption],
    failed: list[str],
) -> Mapping[Option, float]:  # fmt: skip
    """Return the seconds of each option that the device can run. Compilation is parallel. The best
    options are measured interleaved with those in `timers`, from earlier calls, which they replace.
    failed: receives a message for each option that cannot run."""

    def make(o: Option) -> tuple[Option, tuple[GpuProgram, list[int]] | None]:
        try:
            with use_gpu(where):  # the current GPU is a property of the thread
                r, fixed = build_running(p, o, dot_precision)
                r.compile(1)
        except Exception as e:  # too many registers or too little memory: skip the option
            failed.append(f"{o}: {type(e).__name__}: {e}")
            return o, None
        return o, (r, fixed)

    where = current_gpu_number("cuda")

    with ThreadPoolExecutor(COMPILE_THREADS) as pool:
        ready = {o: x for o, x in pool.map(make, options) if x is not None}
    out: dict[Option, float] = {}
    for o, (r, fixed) in ready.items():
        try:
            others = rotated_copies(r, fixed)
            tick = graph_timer(r, max(RUNS_PER_GRAPH, 1 + len(others)), others)
            if not out:
                warm_up(tick)
            out[o] = float(np.median([tick() for _ in range(RUNS_PER_OPTION)])) * 1e-3
            timers[o] = out[o], tick
        except Exception as e:
            failed.append(f"{o}: {type(e).__name__}: {e}")
            synchronize("cuda")  # raises errors that the device does not recover from
    some = {o: timers[o] for o in finalists({o: time for o, (time, _) in timers.items()})}
    out |= measure_interleaved({o: tick for o, (_, tick) in some.items()})
    timers.clear()
    timers |= {o: (out.get(o, before), tick) for o, (before, tick) in some.items()}
    return out


def finalists(times: Mapping[Option, float]) -> list[Option]:
    """Return the best options that are so close that another run may order them differently."""
    best = sorted(times, key=lambda o: times[o])[:MAX_FINALISTS]
    return [o for o in best if times[o] <= FINALIST_TIME_RATIO * times[best[0]]]


def measure_interleaved(clocks: Mapping[Option, Callable[[], float]]) -> dict[Option, float]:
    """Return the seconds of each option, measured in interleaved rounds, so that clock changes
    affect all of them alike. A single option is not measured."""
    begin = time.monotonic()
    found: dict[Option, list[float]] = {o: [] for o in clocks}
    for n in range(MAX_ROUNDS if len(clocks) > 1 else 0):
        if n and time.monotonic() - begin > MAX_ROUND_SECONDS:
            break
        for o, tick in clocks.items():
            found[o].append(tick() * 1e-3)
    return {o: float(np.median(x)) for o, x in found.items() if x}


def build_running(
    p: Problem, o: Option, dot_precision: str, device: str = "cuda"
) -> tuple[GpuProgram, list[int]]:
    """Return the kernels of an option with random inputs, and the indices of inputs that are
    constants."""
    how = build_choice(p, o, "cuda")
    made = build_kernels(p, how)
    given = kernel_buffers(made)
    number = {t: n for n, t in enumerate(given)}
    calls = [
        KernelCall(
            x.kernel,
            tuple(Ref("argument", number[t]) for t in (*x.reads, x.writes)),
            *launch_parameters(o),
        )
        for x in made
    ]
    specs = [(tuple(n for n in b.shape if isinstance(n, int)), b.dtype) for b in given.values()]
    r = build_program(
        calls, np.zeros(0, np.uint8), 0, specs, [], device, dot_precision, capture=False
    )
    _fill_random(r)
    return r, [n for t, n in number.items() if t in p.constants or t in how.derived_constants]


def rotated_copies(r: GpuProgram, fixed: Sequence[int]) -> list[GpuProgram]:
    """Return copies of the kernels that share memory except for the constants."""
    own = [r.inputs[n] for n in fixed]
    size = sum(x.numel() * x.element_size() for x in own)
    if size < MIN_ROTATED_BYTES:
        return []
    out = []
    for _ in range(min(MAX_COPIES, ROTATED_BYTES // size)):
        new = {id(x): x.clone() for x in own}
        launches = [(name, f, programs, [new.get(id(x), x) for x in given], how)
                    for name, f, programs, given, how in r.launches]  # fmt: skip
        out.append(r.with_launches(*launches))
    return out


def _fill_random(r: GpuProgram) -> None:
    for x in r.inputs:
        if x.is_floating_point():
            fill_random(x)
