"""How busy the machine is, as the kernel counts it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from superopt.cost import machine_load
from superopt.cost.machine_load import NO_LOAD, Load, LoadMeter, max_load

SCHEDSTAT = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/schedstat")


@pytest.mark.parametrize(
    ("own", "total", "found"),
    [
        (((0.0, 0.0), (8.0, 0.0)), (100.0, 108.0), Load(0.0, 0.0)),
        (((1.0, 1.0), (3.0, 7.0)), (100.0, 118.0), Load(0.75, 0.8)),
        (((0.0, 0.0), (0.0, 0.0)), (0.0, 0.0), NO_LOAD),  # where the system says nothing
    ],
)
def test_shares(
    own: tuple[tuple[float, float], ...],
    total: tuple[float, ...],
    found: Load,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of ten seconds on two processors."""
    answers, sums, clock = iter(own), iter(total), iter((50.0, 60.0))
    monkeypatch.setattr(machine_load, "_scheduled_seconds", lambda processes: next(answers))
    monkeypatch.setattr(machine_load, "_total_cpu_seconds", lambda: next(sums))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert LoadMeter.start([1]).stop() == found


def test_the_heaviest_of_several() -> None:
    assert max_load([Load(0.1, 0.5), Load(0.3, 0.2)]) == Load(0.3, 0.5)
    assert max_load([]) == NO_LOAD
    assert not NO_LOAD.is_busy
    assert "waited 30% of the time" in str(Load(0.3, 0.5))


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="the kernel counts no waiting")
def test_a_process_without_a_core_of_its_own_waits() -> None:
    """Twice as many processes as processors: each of them waits about half of the time."""
    spin = [sys.executable, "-c", "while True: pass"]
    some = [subprocess.Popen(spin) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        meter = LoadMeter.start([some[0].pid])
        time.sleep(2.0)
        found = meter.stop()
    finally:
        for process in some:
            process.kill()
            process.wait()
    assert found.wait_share > 0.2
    assert found.is_busy
