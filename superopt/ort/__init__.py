"""Everything that touches onnxruntime: loading, running and timing ONNX models.

`session` and `run` work in this process.  Whatever may crash, hang or run out of memory goes
through a `Worker`, a child process that is started anew when it dies; so does all timing.
"""

from superopt.ort.measure import Tried, runs_everywhere, time_interleaved, time_single
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
from superopt.ort.timing import Timing
from superopt.ort.values import Array, Feeds, Value
from superopt.ort.worker import Failed, Loaded, Worker, shared

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
