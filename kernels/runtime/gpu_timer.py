"""Time programs on a GPU, with CUDA events around graphs of several runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.kernels.runtime.gpu_device import synchronize
from superopt.kernels.runtime.gpu_program import GpuProgram
from superopt.kernels.triton.compiler import capture_graph

RUNS_PER_GRAPH = 10  # of the timed program in a graph
WARMUP_SECONDS = 0.05


def measure_ms(
    r: GpuProgram,
    repeats: int = RUNS_PER_GRAPH,
    samples: int = 5,
    other_programs: Sequence[GpuProgram] = (),
) -> float:
    """Return the time in ms of `repeats` runs' average on the device: the median of `samples` graph
    launches, alternating with other programs of equal time."""
    tick = graph_timer(r, repeats, other_programs)
    return float(np.median([tick() for _ in range(samples)]))


@dataclass(frozen=True, slots=True)
class GraphTimer:
    """Times one run, in ms, by replaying a graph of `repeats` runs. programs: owners of the memory
    that the graph uses."""

    graph: Any
    repeats: int
    programs: tuple[GpuProgram, ...]

    def __call__(self) -> float:
        begin, end = (_timing_event() for _ in range(2))
        begin.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / self.repeats


def graph_timer(
    r: GpuProgram, repeats: int = RUNS_PER_GRAPH, other_programs: Sequence[GpuProgram] = ()
) -> Callable[[], float]:
    """Return a function that times one run, in ms. The program has run before."""
    import torch

    if not torch.cuda.is_available():  # in the interpreter, whose times mean nothing
        once = _run_seconds(r.launch) * 1e3
        return lambda: once
    r.launch()

    def launch() -> None:
        for n in range(repeats):
            [r, *other_programs][n % (1 + len(other_programs))].launch()

    out = GraphTimer(capture_graph(launch), repeats, (r, *other_programs))
    out()
    return out


def warm_up(run: Callable[[], object]) -> None:
    """Run for a while, so that the device reaches its working clock; not in the interpreter, whose
    times mean nothing."""
    import torch

    begin = time.perf_counter()
    while torch.cuda.is_available() and time.perf_counter() - begin < WARMUP_SECONDS:
        run()
        synchronize("cuda")


def _run_seconds(run: Callable[[], None]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _timing_event() -> Any:
    import torch

    cuda: Any = torch.cuda  # whose classes have no types
    return cuda.Event(enable_timing=True)
