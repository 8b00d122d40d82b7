"""How long programs take on a GPU: by its events, of graphs of some runs in a row."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.kernels.gpu_compiled import recorded
from superopt.kernels.gpu_device import wait
from superopt.kernels.gpu_program import Running

TIMES = 10  # in a row, of what is timed
WARM = 0.05  # seconds


def event_ms(
    r: Running, times: int = TIMES, runs: int = 5, others: Sequence[Running] = ()
) -> float:
    """How long all calls take together, on the device: the median of some runs, of each `times`
    times in a row, in turns with others that take as long."""
    tick = clock(r, times, others)
    return float(np.median([tick() for _ in range(runs)]))


@dataclass(frozen=True, slots=True)
class Clock:
    """What times a run, ms: of calls that were recorded so many times in a row. held: whose memory
    the graph reads and writes."""

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
    """What times one run of these, ms a time; it was run before."""
    import torch

    if not torch.cuda.is_available():  # in the interpreter, whose times say nothing
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
    """Run for a while, so that the device's clock is what it is at work; in the interpreter, whose
    times say nothing, not at all."""
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
