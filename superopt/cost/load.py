"""How busy the machine is while models are timed, as Linux counts it; quiet where it does not.

A thread that could run but has no core waits: the kernel counts that for each thread
(/proc/PID/task/TID/schedstat), and the time that all processes took for each processor
(/proc/stat). Both are read before and after, so that nothing is done while models run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

BUSY_WAITED = 0.05  # of the time from which on intervals are noticeably wider
BUSY_OTHERS = 0.25


@dataclass(frozen=True, slots=True)
class Load:
    """waited: the share of the time in which the timed processes could run and had no core.
    others: the share of all processors' time that other processes took. Both from 0 to 1."""

    waited: float = 0.0
    others: float = 0.0

    @property
    def busy(self) -> bool:
        """True where timings are noticeably uncertain."""
        return self.waited > BUSY_WAITED or self.others > BUSY_OTHERS

    def __str__(self) -> str:
        return (
            f"the machine was busy: other processes took {self.others:.0%} of the processors, and"
            f" the models waited {self.waited:.0%} of the time for a core; intervals are wider"
        )


QUIET = Load()


def heaviest(loads: Sequence[Load]) -> Load:
    """The most that each share was; quiet of none."""
    return Load(
        max((x.waited for x in loads), default=0.0), max((x.others for x in loads), default=0.0)
    )


@dataclass(frozen=True, slots=True)
class LoadMeter:
    """Begins to measure when it is made. processes: those that are timed."""

    processes: tuple[int, ...]
    begin: float
    ran: float
    waited: float
    total: float

    @classmethod
    def start(cls, processes: Iterable[int]) -> LoadMeter:
        given = tuple(processes)
        return cls(given, time.monotonic(), *_own(given), _total())

    def stop(self) -> Load:
        """The load since the meter was made."""
        wall = time.monotonic() - self.begin
        ran, waited = (
            now - then
            for now, then in zip(_own(self.processes), (self.ran, self.waited), strict=True)
        )
        everyone = _total() - self.total
        cores = os.cpu_count() or 1
        others = max(everyone - ran, 0.0) / (cores * wall) if wall > 0 else 0.0
        share = waited / (ran + waited) if ran + waited > 0 else 0.0
        return Load(min(max(share, 0.0), 1.0), min(others, 1.0))


def _own(processes: Iterable[int]) -> tuple[float, float]:
    """Seconds that the threads of processes ran, and that they waited for a core."""
    ran = waited = 0
    for process in processes:
        with suppress(OSError, ValueError):
            for task in Path(f"/proc/{process}/task").iterdir():
                fields = (task / "schedstat").read_text().split()
                ran += int(fields[0])
                waited += int(fields[1])
    return ran * 1e-9, waited * 1e-9


def _total() -> float:
    """Seconds of processors' time that all processes took since the machine started; 0 where that
    is not known."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        user, nice, system, _, _, irq, soft, *stolen = map(int, fields)
        used = user + nice + system + irq + soft + (stolen[0] if stolen else 0)
        return used / os.sysconf("SC_CLK_TCK")
    return 0.0
