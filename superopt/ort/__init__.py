"""The interface to onnxruntime: loading, running and timing ONNX models.

`load_session` and `run` work in this process. Whatever may crash, hang or run out of memory, and
all timing, goes through a `Worker`, a child process that is restarted when it dies. The modules for
timing and for other processes load on first use (PEP 562): a process that runs one session does not
need them.
"""

import importlib
from typing import TYPE_CHECKING

from superopt.ort.runtime import (
    Port,
    Session,
    Source,
    available,
    caller,
    levels,
    plainly,
    run,
    run_options,
    session,
    session_of_part,
)
from superopt.ort.values import Array, Feeds, Value

if TYPE_CHECKING:
    from superopt.ort.measure import Tried, runs_everywhere, time_interleaved, time_single
    from superopt.ort.timing import Timing
    from superopt.ort.worker import Failed, Loaded, Worker, shared

# The module of each name that is loaded on first use.
_HOME = {
    "Failed": "superopt.ort.worker",
    "Loaded": "superopt.ort.worker",
    "Timing": "superopt.ort.timing",
    "Tried": "superopt.ort.measure",
    "Worker": "superopt.ort.worker",
    "runs_everywhere": "superopt.ort.measure",
    "shared": "superopt.ort.worker",
    "time_interleaved": "superopt.ort.measure",
    "time_single": "superopt.ort.measure",
}

__all__ = [
    "Array",
    "Failed",
    "Feeds",
    "Loaded",
    "Port",
    "Session",
    "Source",
    "Timing",
    "Tried",
    "Value",
    "Worker",
    "available",
    "caller",
    "levels",
    "plainly",
    "run",
    "run_options",
    "runs_everywhere",
    "session",
    "session_of_part",
    "shared",
    "time_interleaved",
    "time_single",
]


def __getattr__(name: str) -> object:
    if (home := _HOME.get(name)) is None:
        raise AttributeError(f"module 'superopt.ort' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
