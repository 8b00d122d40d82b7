"""The nodes that onnxruntime runs: its optimized graph, with the types of a run."""

import contextlib
import json
import math
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superopt.errors import ModelError
from superopt.ort.sessions import (
    Session,
    Source,
    error_text,
    load_session,
    new_session_options,
)
from superopt.ort.timing import draw_input

# What a profile says of a node or value: its element type, as onnxruntime writes it, and its shape.
PortTypes = list[tuple[str, list[int]]]

RUNS, MAX_RUN_SECONDS = 8, 0.02  # of a profile, at most; there are always two
TRUNCATED_US = 0.5  # a profile has whole microseconds, rounded down
_NODE_END = "_kernel_time"  # of the names of a profile's events
# Options of onnxruntime: large weights of the optimized model are written to another file.
_WEIGHTS_FILE = "session.optimized_model_external_initializers_file_name"
_MIN_WEIGHT_BYTES = "session.optimized_model_external_initializers_min_size_in_bytes"
MAX_INLINE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class NodePlan:
    """An optimized model; the types of the results of each of its nodes, and its microseconds in
    the fastest of some runs, both by the node's name."""

    model: bytes
    results: Mapping[str, PortTypes]
    us: Mapping[str, float]


def read_node_plan(model: Source, threads: int) -> NodePlan:
    """Load a model, run it on drawn inputs, and return what ran.

    onnxruntime's optimized graph has nodes for its own layouts, without types: those are in the
    profile. Raises ModelError if the model does not load or run.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = new_session_options(threads)
        options.optimized_model_filepath = os.path.join(folder, "optimized.onnx")
        with contextlib.suppress(OSError):  # the weights of the optimized model are not read
            Path(folder, "optimized.data").symlink_to(os.devnull)
        options.add_session_config_entry(_WEIGHTS_FILE, "optimized.data")
        options.add_session_config_entry(_MIN_WEIGHT_BYTES, str(MAX_INLINE_BYTES))
        options.enable_profiling = True
        options.profile_file_prefix = os.path.join(folder, "profile")
        session = load_session(model, threads, options=options)
        try:
            _run_some(session)
        finally:
            profile = session.raw.end_profiling()
        events = [
            (e["name"].removesuffix(_NODE_END), e)
            for e in json.loads(Path(profile).read_text())
            if e.get("cat") == "Node" and e["name"].endswith(_NODE_END)
        ]
        us: dict[str, float] = {}
        for name, e in events:
            us[name] = min(us.get(name, math.inf), float(e["dur"]) + TRUNCATED_US)
        return NodePlan(
            Path(options.optimized_model_filepath).read_bytes(),
            {name: _result_types(e) for name, e in events},
            us,
        )


def _run_some(session: Session) -> None:
    """Run a session until it was profiled. Integers are drawn as ones and, if that fails, as zeros,
    which are valid indices of everything."""
    try:
        feeds = {p.name: draw_input(p, 1) for p in session.inputs}
        session.raw.run(None, feeds)
    except ModelError:
        raise
    except Exception:
        feeds = {p.name: draw_input(p, 0) for p in session.inputs}
    begin = time.perf_counter()
    try:
        for _ in range(RUNS - 1):
            session.raw.run(None, feeds)
            if time.perf_counter() - begin > MAX_RUN_SECONDS:
                break
    except Exception as error:  # onnxruntime has a dozen exception types without a common base
        raise ModelError("onnxruntime cannot run the model", error_text(error)) from error


def _result_types(event: Mapping[str, Any]) -> PortTypes:
    return [
        (str(kind), [int(d) for d in dims])
        for port in event["args"]["output_type_shape"]
        for kind, dims in port.items()
    ]
