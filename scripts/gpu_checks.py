"""How models are timed on a GPU by scripts/bench_gpu.py, what is asked of what they compute, and
what the GPU can do at most."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

RUNS, TOGETHER, TURNS = 20, 10, 5  # of a median; calls between two events; sittings
# By GPU, operations by precision and bytes in a second, that its tables go by; others are measured.
GIVEN = {
    "NVIDIA H100 80GB HBM3": ({"fp16": 800e12, "bf16": 800e12, "tf32": 400e12, "fp32": 60e12}, 3e12)
}


def folder() -> Path:
    """For files of this process."""
    made = tempfile.mkdtemp(prefix="bench_gpu_")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def most(precision: str) -> Any:
    """What the current GPU can do at most (`gpu_device.Peak`): a large product by cuBLAS, and
    a large copy, where its figures are not given."""
    from superopt.kernels.runtime.gpu_device import (
        GpuPeak,
        device_name,
        execution_device,
        measure_gpu_peak,
    )

    on = execution_device()
    if (card := device_name(on)) in GIVEN:
        flops, memory = GIVEN[card]
        return GpuPeak(flops[precision], memory)
    return measure_gpu_peak(on, precision)


def poison(made: Any) -> None:
    """Fill memory that kernels write, and outputs, with what is no number."""
    import torch

    for part in made.kernel_steps:
        for k in part.gpu_program.loaded.values():
            for t, _ in k.text.scratch:
                k.own_tensors[t].view(torch.uint8).fill_(255)
        part.gpu_program.memory[part.program.border_bytes :].fill_(255)
        for x in part.gpu_program.workspaces:
            x.fill_(255)
        for x in part.gpu_program.outputs:
            x.fill_(float("nan") if x.is_floating_point() else 7)


def accuracy(exe: Any) -> dict[str, Any]:
    """By DESIGN section 14, on one set of inputs: is each output within the tolerance, and the
    worst one's largest error, and the original's in that precision, by its rms."""
    found = exe.accuracy(sets=1)
    worst = max(found.outputs, key=lambda x: (bool(x.failure), x.max_error / (x.rms or 1.0)))
    errors = [x / (worst.rms or 1.0) for x in (worst.max_error, worst.original_max_error)]
    return {"ok": found.passed, "errors": errors, "why": worst.failure}


def exact(graph: Any, feeds: Mapping[str, Any]) -> list[np.ndarray]:
    """The graph's outputs in float64, operator by operator."""
    from superopt.ir.evaluate import evaluate
    from superopt.te.eval.domain import Reals
    from superopt.te.expr.dtype import F64

    return [np.asarray(x, np.float64) for x in evaluate(graph, feeds, Reals(F64))]


def far(a: Any, b: np.ndarray) -> float:
    """The largest difference by the rms of `b`; what is no number stays none."""
    rms = float(np.sqrt((b**2).mean())) or 1.0
    return float(np.abs(np.asarray(a, np.float64) - b).max() / rms)


def drawn(exe: Any, rng: np.random.Generator) -> dict[str, np.ndarray]:
    out = {}
    for p in exe.input_ports:
        shape = [d if isinstance(d, int) else 1 for d in p.shape]
        if p.dtype.kind == "f":
            out[p.name] = rng.standard_normal(shape).astype(p.dtype)
        else:
            out[p.name] = rng.integers(0, 2, shape).astype(p.dtype)
    return out


def event_ms(run: Any, runs: int = RUNS) -> float:
    """Of one of several calls in a row: what comes before the first one does not count."""
    import torch

    from superopt.kernels.runtime.gpu_timer import warm_up

    warm_up(run)
    times = []
    for _ in range(runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(TOGETHER):
            run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / TOGETHER)
    return float(np.median(times))


def in_turns(*runs: Any) -> list[float]:
    """Medians of each, of some sittings one after the other."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(TURNS):
        for own, run in zip(times, runs, strict=True):
            own.append(event_ms(run, 5))
    return [float(np.median(t)) for t in times]
