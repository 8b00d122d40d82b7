"""How much faster a model is when superopt compiles it than in onnxruntime."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from superopt.errors import SuperoptError
from superopt.jobs.benchmark import run_benchmark
from superopt.report.data.report import Interval

LOG = logging.getLogger("superopt.optimize")


def measure_compiled_speedup(
    path: Path, threads: int, shapes: Mapping[str, int], seconds: float
) -> Interval | None:
    """Return the ratio of the latencies, timed in turns for `seconds` after compiling; None if the
    model cannot be compiled or timed within the limits of the call."""
    try:
        rows = run_benchmark(
            [path], runtimes=("ort", "superopt"), threads=threads, seconds=seconds, shapes=shapes
        )
    except (SuperoptError, MemoryError) as e:
        LOG.info("not compared with the compiled model: %s", e)
        return None
    return rows[-1].speedup
