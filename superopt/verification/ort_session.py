"""Models in ONNX Runtime's worker process, on the inputs of a check."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from superopt import ort
from superopt.check.random_inputs import Feeds
from superopt.ir import graph as ir_graph
from superopt.onnx_io.export.exporter import ExportError, export_model
from superopt.onnx_io.export.model_file import write_model
from superopt.onnx_io.import_.model import Model

Results = Mapping[str, ort.Value]  # results of a run, by output name


@dataclass(slots=True)
class OrtSession:
    """A model in the worker: loaded on first use, and again if the worker has died.

    A context manager that frees it. path: None if there is no model; level: of ONNX Runtime's graph
    optimizations; timeout_s: for loading and for a run; exact_integers: multiply 8-bit integers
    exactly on processors where ONNX Runtime's default saturates, which takes longer.
    """

    path: Path | None
    threads: int
    level: str = "all"
    timeout_s: float | None = None
    exact_integers: bool = False
    load_seconds: float = 0.0  # that the last loading took
    _loaded: ort.LoadedModel | ort.Failure | None = None

    def __enter__(self) -> OrtSession:
        return self

    def __exit__(self, *error: object) -> None:
        self.drop()

    def load(self) -> ort.LoadedModel | ort.Failure:
        """Return the loaded model; Failed if there is no runtime or no path, or if it rejects the
        model."""
        if self.path is None or ort.installed_version() is None:
            return ort.Failure(
                "skipped", "onnxruntime is not installed" if self.path else "no model"
            )
        stale = (
            isinstance(self._loaded, ort.LoadedModel)
            and self._loaded.process_number != ort.shared_worker().start_count
        )
        if self._loaded is None or stale:
            begin = time.monotonic()
            self._loaded = ort.shared_worker().load(
                self.path, threads=self.threads, level=self.level, limit=self.timeout_s,
                exact_integers=self.exact_integers,
            )  # fmt: skip
            self.load_seconds = time.monotonic() - begin
        return self._loaded

    @property
    def refusal(self) -> str:
        """Why the model is not loaded; empty if it is."""
        held = self.load()
        return (held.message or held.kind) if isinstance(held, ort.Failure) else ""

    def run(self, feed: Feeds) -> Results | ort.Failure:
        """Return the model's results; Failed if it is not loaded, crashes on the inputs, or times
        out."""
        held = self.load()
        if isinstance(held, ort.Failure):
            return held
        return ort.shared_worker().run(held, dict(feed.arrays), limit=self.timeout_s)

    def drop(self) -> None:
        """Free the model; the next use loads it again."""
        held, self._loaded = self._loaded, None
        if isinstance(held, ort.LoadedModel):
            ort.shared_worker().unload(held)


@dataclass(frozen=True, slots=True)
class WatchedFile:
    """A model file with extra outputs; output_names: of each value."""

    path: Path
    output_names: Mapping[ir_graph.Value, str]


def write_watched_file(
    model: Model,
    graph: ir_graph.Graph,
    watched_values: Sequence[ir_graph.Value],
    path: Path,
    unwatched_path: Path,
) -> WatchedFile | None:
    """Return a file of `graph` that outputs all `watched_values`: `unwatched_path` if its outputs
    do, else a file written to `path`. None if it cannot be written.

    Inputs, constants and non-tensors are left out.
    """
    names = [v.name or "" for v in model.source.model.graph.outputs]
    ports = dict(zip(graph.outputs, names, strict=True))
    more = [
        v
        for v in dict.fromkeys(watched_values)
        if ir_graph.producer(v) is not None and v not in ports
    ]
    more = [v for v in more if v.type.dtype is not None]
    if not more:
        return WatchedFile(unwatched_path, ports)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        made = export_model(model, graph, extra_outputs=more)
        write_model(made, path, original=model.source, is_durable=False)
    except (ExportError, ValueError):
        return None
    return WatchedFile(path, {**ports, **{v: f"extra{n}" for n, v in enumerate(more)}})


def value_array(
    output_names: Mapping[ir_graph.Value, str], results: Results, feed: Feeds, v: ir_graph.Value
) -> np.ndarray | None:
    """Return the array of `v` after a run; None if it is not a tensor or not an output."""
    match v:
        case ir_graph.Input(name, _):
            return feed.arrays.get(name)
        case ir_graph.Constant():
            return v.load()
    found = results.get(output_names.get(v, ""))
    return found if isinstance(found, np.ndarray) else None
