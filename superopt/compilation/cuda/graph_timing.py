"""What `optimize` for a GPU times: kernels of plans, and whole models as CUDA graphs. Without a GPU
nothing is timed, and costs are predicted for an H100."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from superopt.compilation.cuda.device import DOT_PRECISIONS, check_precision, open_gpu
from superopt.compilation.cuda.load_compiler import compile_model
from superopt.compilation.cuda.plan_settings import DEFAULT_STREAMS, gpu_settings
from superopt.compilation.cuda.tune_kernels import stored_options
from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
from superopt.compilation.model.executable import Executable
from superopt.cost.store import Store
from superopt.errors import UsageError
from superopt.kernels.runtime.gpu_device import device_name
from superopt.kernels.runtime.gpu_timer import graph_timer, warm_up
from superopt.loading.request import CompiledTimers
from superopt.onnx_io.read.source import read_model
from superopt.plan.decisions import GPU_DECISIONS, KernelDecision, decision_titles
from superopt.plan.timing.gpu_times import GpuKernelTimes
from superopt.plan.timing.plan_kernels import PlanKernels

TIMING_KIND = "cuda-graph-v1"  # part of store keys: change it when the timed work changes


def gpu_timers(precision: str, *, may_measure: bool = True) -> CompiledTimers:
    """Return the timers of this GPU; without one, or unless they may measure, those that predict
    costs. Raises UsageError for an unknown precision."""
    check_precision(precision)
    device = _measured_device(precision) if may_measure else None
    return CompiledTimers(
        TIMING_KIND,
        partial(make_clock, precision=precision),
        partial(make_planner, precision=precision, device=device),
        decision_titles(GPU_DECISIONS),
        is_predicted=device is None,
        device=device or "",
    )


def _measured_device(precision: str) -> str | None:
    """Return the name of the GPU; None without one, and in Triton's interpreter."""
    try:
        found = open_gpu(precision)
    except UsageError:
        return None
    return device_name("cuda") if found.torch_device == "cuda" else None


def make_planner(
    *,
    threads: int,
    sizes: Mapping[str, int],
    float_class: str,
    store: Store,
    is_over: Callable[[], bool],
    precision: str,
    device: str | None,
    left_out: frozenset[KernelDecision] = frozenset(),
) -> PlanKernels:
    """Return what prices plans. sizes: of symbols. is_over: True once nothing more may be measured.
    device: the name of the GPU; None if costs are predicted. left_out: kernel decisions that are
    not made."""
    dots = DOT_PRECISIONS[precision]
    streams = 1 if "streams" in left_out else DEFAULT_STREAMS
    vendor = "libraries" not in left_out
    times = GpuKernelTimes(
        dots, vendor, streams, device,
        applies_rules="simplification" not in left_out,
    )  # fmt: skip
    options = {} if device is None else stored_options(store, "cuda", dots, vendor)
    allowed = AllowedTransforms(float_class, left_out=left_out)
    settings = gpu_settings(precision, allowed, options)
    return PlanKernels(settings, times, sizes, float_class, store, is_over)


def make_clock(
    path: Path,
    feeds: Mapping[str, np.ndarray],
    *,
    threads: int,
    precision: str,
    left_out: frozenset[KernelDecision] = frozenset(),
) -> Callable[[], float]:
    """Return a function that returns the microseconds of a run of a model, which ran before.
    left_out: kernel decisions that are not made."""
    tick = run_clock(compile_model(read_model(path), precision, left_out=left_out), feeds)
    warm_up(tick)
    return tick


def run_clock(exe: Executable, feeds: Mapping[str, Any]) -> Callable[[], float]:
    """Return a function that times a run, in microseconds: of the model's CUDA graph if all of it
    is one, else of a call."""
    exe.run(feeds)
    arrays = exe.input_arrays(feeds)
    made = exe.variant(exe.infer_sizes(arrays))
    if len(made.steps) == len(made.kernel_steps) == 1:
        tick = graph_timer(made.kernel_steps[0].gpu_program)
        return lambda: 1e3 * tick()

    def call() -> float:
        begin = time.perf_counter()
        exe.run(feeds)
        exe.device.synchronize()
        return 1e6 * (time.perf_counter() - begin)

    return call
