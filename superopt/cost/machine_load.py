"""The load of the machine while models are timed, as Linux reports it; zero elsewhere.

The kernel counts for each thread the time that it was runnable without a core
(/proc/PID/task/TID/schedstat), and for each processor the time of all processes (/proc/stat). Both
are read before and after a measurement, and nothing runs during it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

BUSY_WAIT_SHARE = 0.05  # shares of the time from which on intervals are noticeably wider
BUSY_OTHERS_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Load:
    """wait_share: the share of the time in which the timed processes were runnable without a core.
    others_share: the share of all processors' time that other processes took. Both in [0, 1].
    """

    wait_share: float = 0.0
    others_share: float = 0.0

    @property
    def is_busy(self) -> bool:
        """True if timings are noticeably uncertain."""
        return self.wait_share > BUSY_WAIT_SHARE or self.others_share > BUSY_OTHERS_SHARE

    def __str__(self) -> str:
        return (
            f"the machine was busy: other processes took {self.others_share:.0%} of the "
            f"processors, and the models waited {self.wait_share:.0%} of the time for a core; "
            "intervals are wider"
        )


NO_LOAD = Load()


def max_load(loads: Sequence[Load]) -> Load:
    """Return the maximum of each share; NO_LOAD without loads."""
    return Load(
        max((x.wait_share for x in loads), default=0.0),
        max((x.others_share for x in loads), default=0.0),
    )


@dataclass(frozen=True, slots=True)
class LoadMeter:
    """Measures from its creation. processes: those that are timed."""

    processes: tuple[int, ...]
    start_time: float
    run_seconds: float
    wait_seconds: float
    total_seconds: float

    @classmethod
    def start(cls, processes: Iterable[int]) -> LoadMeter:
        given = tuple(processes)
        return cls(given, time.monotonic(), *_scheduled_seconds(given), _total_cpu_seconds())

    def stop(self) -> Load:
        """Return the load since the meter was created."""
        wall = time.monotonic() - self.start_time
        ran, waited = (
            now - then
            for now, then in zip(
                _scheduled_seconds(self.processes),
                (self.run_seconds, self.wait_seconds),
                strict=True,
            )
        )
        everyone = _total_cpu_seconds() - self.total_seconds
        cores = os.cpu_count() or 1
        others = max(everyone - ran, 0.0) / (cores * wall) if wall > 0 else 0.0
        share = waited / (ran + waited) if ran + waited > 0 else 0.0
        return Load(min(max(share, 0.0), 1.0), min(others, 1.0))


def _scheduled_seconds(processes: Iterable[int]) -> tuple[float, float]:
    """Return the seconds that the threads of processes ran, and that they waited for a core."""
    ran = waited = 0
    for process in processes:
        with suppress(OSError, ValueError):
            for task in Path(f"/proc/{process}/task").iterdir():
                fields = (task / "schedstat").read_text().split()
                ran += int(fields[0])
                waited += int(fields[1])
    return ran * 1e-9, waited * 1e-9


def _total_cpu_seconds() -> float:
    """Return the processor seconds of all processes since boot; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        user, nice, system, _, _, irq, soft, *stolen = map(int, fields)
        used = user + nice + system + irq + soft + (stolen[0] if stolen else 0)
        return used / os.sysconf("SC_CLK_TCK")
    return 0.0
