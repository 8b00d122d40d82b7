"""How much faster a model is when superopt compiles it than in onnxruntime."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from superopt.compilation.runtime.child_process import CAN_RUN_CHILDREN
from superopt.report.data.report import Interval

LOG = logging.getLogger("superopt.optimize")
TIMED_PART = 0.2  # of the seconds; most of the rest is for starting and compiling
MAX_END_SECONDS = 3.0  # from SIGTERM to the end of the command
BUDGET_PART = 0.7  # of the seconds, the budget of the command, which may overrun it


def measure_compiled_speedup(
    path: Path, threads: int, shapes: Mapping[str, int], seconds: float
) -> Interval | None:
    """Return the ratio of the latencies in onnxruntime and compiled, timed in turns in a process of
    its own; None if that takes more than these seconds in all, or if it fails."""
    if not CAN_RUN_CHILDREN:
        return None
    sizes = [x for name, n in shapes.items() for x in ("--shape", f"{name}={n}")]
    command = [
        sys.executable, "-P", "-m", "superopt", "bench", str(path), "--vs", "ort,superopt",
        "--threads", str(threads), "--seconds", f"{TIMED_PART * seconds:.3f}", "--json", "--quiet",
        "--budget", f"{BUDGET_PART * seconds:.3f}", *sizes,
    ]  # fmt: skip
    package = str(Path(__file__).resolve().parents[2])
    folders = os.pathsep.join((package, *filter(None, sys.path)))
    try:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": folders},
        ) as child:  # fmt: skip
            try:
                out, _ = child.communicate(timeout=seconds)
            finally:
                _end(child)
        low, middle, high = json.loads(out)[-1]["speedup"]
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, LookupError) as e:
        LOG.info("not compared with the compiled model: %s", e)
        return None
    return low, middle, high


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the command, which ends its own child."""
    child.terminate()
    try:
        child.wait(MAX_END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
