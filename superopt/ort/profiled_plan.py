"""The nodes that onnxruntime runs: its optimized graph, with the types of a run."""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superopt.errors import ModelError
from superopt.ort.sessions import Source, _ort, error_text, load_session, new_session_options
from superopt.ort.timing import draw_input

# What a profile says of a node or value: its element type, as onnxruntime writes it, and its shape.
PortTypes = list[tuple[str, list[int]]]


@dataclass(frozen=True, slots=True)
class NodePlan:
    """An optimized model, and the types of the results of each of its nodes, by the node's name."""

    model: bytes
    results: Mapping[str, PortTypes]


def read_node_plan(model: Source, threads: int) -> NodePlan:
    """Load a model, run it once on drawn inputs, and return what ran.

    onnxruntime's optimized graph has nodes for its own layouts, without types: those are in the
    profile of the run. Raises ModelError if the model does not load or run.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = new_session_options(threads)
        options.optimized_model_filepath = os.path.join(folder, "optimized.onnx")
        options.enable_profiling = True
        options.profile_file_prefix = os.path.join(folder, "profile")
        session = load_session(model, threads, options=options)
        try:
            try:
                _run(session.raw, {p.name: draw_input(p, 1) for p in session.inputs})
            except ModelError:
                raise
            except Exception:
                _run(session.raw, {p.name: draw_input(p, 0) for p in session.inputs})
        except ModelError:
            raise
        except Exception as error:  # onnxruntime has a dozen exception types without a common base
            raise ModelError("onnxruntime cannot run the model", error_text(error)) from error
        finally:
            profile = session.raw.end_profiling()
        return NodePlan(
            Path(options.optimized_model_filepath).read_bytes(),
            _result_types(json.loads(Path(profile).read_text())),
        )


def _run(session: Any, feeds: dict[str, Any]) -> None:
    session.run(None, feeds)


def _result_types(events: list[dict[str, Any]]) -> dict[str, PortTypes]:
    """Return the types of the results of each node that ran."""
    end = "_kernel_time"
    return {
        e["name"].removesuffix(end): [
            (str(kind), [int(d) for d in dims])
            for port in e["args"]["output_type_shape"]
            for kind, dims in port.items()
        ]
        for e in events
        if e.get("cat") == "Node" and e["name"].endswith(end)
    }
