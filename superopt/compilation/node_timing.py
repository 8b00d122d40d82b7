"""Timing of compiled models: single nodes, and whole models, interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from superopt.compilation.cpu.load_compiler import compile_model
from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
from superopt.compilation.model.executable import Executable
from superopt.cost import tuning_records
from superopt.cost.cache_folders import objects_folder
from superopt.cost.store import Store
from superopt.errors import ModelError
from superopt.kernels.runtime.cpu import host
from superopt.loading.request import CompiledTimers
from superopt.onnx_io.read.source import read_model
from superopt.ort import Failure, Timing
from superopt.plan.decisions import (
    CPU_DECISIONS,
    KernelDecision,
    decision_titles,
    leave_out,
)
from superopt.plan.program.plan import Settings
from superopt.plan.timing.cpu import measure_seconds as seconds_of
from superopt.plan.timing.kernel_times import CpuKernelTimes
from superopt.plan.timing.plan_kernels import PlanKernels
from superopt.plan.timing.turns import TurnTimer
from superopt.te.expr.dtype import to_numpy

TIMING_KIND = "compiled-node-v1"  # part of store keys: change it when the timed work changes


def time_nodes(
    models: Sequence[bytes],
    /,
    *,
    threads: int,
    seconds: float | None,
    stop: Callable[[], bool],
) -> list[Timing | Failure]:
    """Compile each model and time it on random inputs, as `superopt.ort.time_single` does in ONNX
    Runtime."""
    end = float("inf") if seconds is None else time.monotonic() + seconds
    out: list[Timing | Failure] = []
    for model in models:
        if stop() or time.monotonic() > end:
            out.append(Failure("skipped", "not timed: there was no time left"))
            continue
        try:
            exe = compile_model(read_model(model), threads=threads, is_valid=True)
            feeds = random_inputs(exe)
            median, low, high, runs = seconds_of(lambda: exe.run(feeds))  # noqa: B023
        except (ModelError, ValueError, NotImplementedError) as e:
            out.append(Failure("error", str(e)))
            continue
        out.append(Timing(median * 1e6, low * 1e6, high * 1e6, runs))
    return out


def random_inputs(exe: Executable) -> dict[str, np.ndarray]:
    """Return inputs for a model with static sizes: normally distributed floats, ones for other
    types."""
    rng = np.random.default_rng(0)
    out = {}
    for i in exe.model.graph.inputs:
        assert i.type.dtype is not None
        assert i.type.shape is not None
        shape = tuple(d for d in i.type.shape if isinstance(d, int))
        kind = to_numpy(i.type.dtype)
        floats = i.type.dtype.is_float
        out[i.name] = rng.standard_normal(shape).astype(kind) if floats else np.ones(shape, kind)
    return out


def make_clock(
    path: Path,
    feeds: Mapping[str, np.ndarray],
    *,
    threads: int,
    left_out: frozenset[KernelDecision] = frozenset(),
) -> Callable[[], float]:
    """Return a function that returns the microseconds of a run of a model, which ran once.
    left_out: kernel decisions that are not made."""
    clock = time.thread_time if threads == 1 else time.perf_counter  # see plan/timing/turns.py
    exe = compile_model(
        read_model(path), threads=threads, allowed=AllowedTransforms(left_out=left_out)
    )

    def run() -> float:
        begin = clock()
        exe.run(feeds)
        return 1e6 * (clock() - begin)

    run()
    return run


def make_planner(
    *,
    threads: int,
    sizes: Mapping[str, int],
    float_class: str,
    store: Store,
    is_over: Callable[[], bool],
    left_out: frozenset[KernelDecision] = frozenset(),
) -> PlanKernels:
    """Return what prices plans on this machine. sizes: of symbols. is_over: True once nothing more
    may be measured. left_out: kernel decisions that are not made."""
    machine = host()
    settings = Settings(
        machine.width,
        tuning_records.chosen_options(store, tuning_records.cpu_target(threads)),
        float_class >= "E2",
        processor=machine.processor,
        threads=threads,
    )
    times = CpuKernelTimes(
        TurnTimer.open(machine, threads, store), objects_folder(),
        applies_rules="simplification" not in left_out,
    )  # fmt: skip
    settings = leave_out(settings, left_out)
    return PlanKernels(settings, times, sizes, float_class, store, is_over)


COMPILED_TIMERS = CompiledTimers(
    TIMING_KIND, make_clock, make_planner, decision_titles(CPU_DECISIONS), time_nodes
)
