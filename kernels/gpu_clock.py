"""Time programs on a GPU, with CUDA events around graphs of several runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.kernels.gpu_compiled import recorded
from superopt.kernels.gpu_device import wait
from superopt.kernels.gpu_program import Running

TIMES = 10  # of the timed program in a graph
WARM = 0.05


def event_ms(
    r: Running, times: int = TIMES, runs: int = 5, others: Sequence[Running] = ()
) -> float:
    """Return the time in ms of `repeats` runs' average on the device: the median of `samples` graph
    launches, alternating with other programs of equal time."""
    tick = clock(r, times, others)
    return float(np.median([tick() for _ in range(runs)]))


@dataclass(frozen=True, slots=True)
class Clock:
    """Times one run, in ms, by replaying a graph of `repeats` runs. programs: owners of the memory
    that the graph uses."""

    graph: Any
    times: int
    held: tuple[Running, ...]

    def __call__(self) -> float:
        begin, end = (_event() for _ in range(2))
        begin.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / self.times


def clock(r: Running, times: int = TIMES, others: Sequence[Running] = ()) -> Callable[[], float]:
    """Return a function that times one run, in ms. The program has run before."""
    import torch

    if not torch.cuda.is_available():  # in the interpreter, whose times mean nothing
        once = _seconds_of(r.launch) * 1e3
        return lambda: once
    r.launch()

    def launch() -> None:
        for n in range(times):
            [r, *others][n % (1 + len(others))].launch()

    out = Clock(recorded(launch), times, (r, *others))
    out()
    return out


def warmed(run: Callable[[], object]) -> None:
    """Run for a while, so that the device reaches its working clock; not in the interpreter, whose
    times mean nothing."""
    import torch

    begin = time.perf_counter()
    while torch.cuda.is_available() and time.perf_counter() - begin < WARM:
        run()
        wait("cuda")


def _seconds_of(run: Callable[[], None]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _event() -> Any:
    import torch

    cuda: Any = torch.cuda  # whose classes have no types
    return cuda.Event(enable_timing=True)
