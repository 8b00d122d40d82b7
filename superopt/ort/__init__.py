"""The interface to onnxruntime: loading, running and timing ONNX models.

`load_session` and `run` work in this process. Whatever may crash, hang or run out of memory, and
all timing, goes through a `Worker`, a child process that is restarted when it dies. The modules for
timing and for other processes load on first use (PEP 562): a process that runs one session does not
need them.
"""

import importlib
from typing import TYPE_CHECKING

from superopt.ort.sessions import (
    Port,
    Session,
    Source,
    has_numpy_types,
    installed_version,
    load_part_session,
    load_session,
    optimization_levels,
    raw_run_function,
    run,
    run_options,
)
from superopt.ort.tensors import Array, Feeds, Value

if TYPE_CHECKING:
    from superopt.ort.measure import (
        LevelResult,
        node_plan,
        run_at_all_levels,
        time_interleaved,
        time_single,
    )
    from superopt.ort.profiled_plan import NodePlan
    from superopt.ort.timing import Timing
    from superopt.ort.worker import Failure, LoadedModel, Worker, shared_worker

# The module of each name that is loaded on first use.
_HOME = {
    "Failure": "superopt.ort.worker",
    "LoadedModel": "superopt.ort.worker",
    "Timing": "superopt.ort.timing",
    "LevelResult": "superopt.ort.measure",
    "NodePlan": "superopt.ort.profiled_plan",
    "Worker": "superopt.ort.worker",
    "node_plan": "superopt.ort.measure",
    "run_at_all_levels": "superopt.ort.measure",
    "shared_worker": "superopt.ort.worker",
    "time_interleaved": "superopt.ort.measure",
    "time_single": "superopt.ort.measure",
}

__all__ = [
    "Array",
    "Failure",
    "Feeds",
    "LevelResult",
    "LoadedModel",
    "NodePlan",
    "Port",
    "Session",
    "Source",
    "Timing",
    "Value",
    "Worker",
    "has_numpy_types",
    "installed_version",
    "load_part_session",
    "load_session",
    "node_plan",
    "optimization_levels",
    "raw_run_function",
    "run",
    "run_at_all_levels",
    "run_options",
    "shared_worker",
    "time_interleaved",
    "time_single",
]


def __getattr__(name: str) -> object:
    if (home := _HOME.get(name)) is None:
        raise AttributeError(f"module 'superopt.ort' has no attribute {name!r}")
    value: object = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
