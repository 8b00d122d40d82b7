"""Models in onnxruntime's worker process, on inputs that the check draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from superopt import ort
from superopt.check.inputs import Feeds
from superopt.ir import graph as ir_graph
from superopt.onnx_io.export.exporter import ExportError, export_model
from superopt.onnx_io.export.model_file import write_model
from superopt.onnx_io.import_.model import Model

Got = Mapping[str, ort.Value]  # results of a run, by name


@dataclass(slots=True)
class Session:
    """A model in the worker: loaded at its first use, and again if the worker died meanwhile.

    A context manager that frees it. path: None for a model that there is not; level: of
    onnxruntime's graph optimizations; limit: seconds that loading it, and a run, may take.
    """

    path: Path | None
    threads: int
    level: str = "all"
    limit: float | None = None
    _held: ort.Loaded | ort.Failed | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.drop()

    def load(self) -> ort.Loaded | ort.Failed:
        """The loaded model; Failed where there is no runtime, no path, or it refuses the model."""
        if self.path is None or ort.available() is None:
            return ort.Failed(
                "skipped", "onnxruntime is not installed" if self.path else "no model"
            )
        stale = isinstance(self._held, ort.Loaded) and self._held.start != ort.shared().starts
        if self._held is None or stale:
            self._held = ort.shared().load(
                self.path, threads=self.threads, level=self.level, limit=self.limit
            )
        return self._held

    @property
    def refused(self) -> str:
        """Why the model is not there; empty where it is."""
        held = self.load()
        return (held.message or held.kind) if isinstance(held, ort.Failed) else ""

    def run(self, feed: Feeds) -> Got | ort.Failed:
        """What the model gives; Failed where it is not there, does not survive the inputs, or takes
        too long."""
        held = self.load()
        if isinstance(held, ort.Failed):
            return held
        return ort.shared().run(held, dict(feed.arrays), limit=self.limit)

    def drop(self) -> None:
        """Free the model; the next use loads it again."""
        held, self._held = self._held, None
        if isinstance(held, ort.Loaded):
            ort.shared().drop(held)


@dataclass(frozen=True, slots=True)
class Watched:
    """A file whose outputs hold more than the model's own: by which name each value comes out."""

    path: Path
    ports: Mapping[ir_graph.Value, str]


def watched(
    model: Model, graph: ir_graph.Graph, wanted: Sequence[ir_graph.Value], path: Path, plain: Path
) -> Watched | None:
    """A file of `graph` that gives all of `wanted`: `plain` where its outputs do, else one written
    to `path`. None where it cannot be written.

    What is an input or a constant, or no tensor, is left out.
    """
    names = [v.name or "" for v in model.source.model.graph.outputs]
    ports = dict(zip(graph.outputs, names, strict=True))
    more = [v for v in dict.fromkeys(wanted) if ir_graph.producer(v) is not None and v not in ports]
    more = [v for v in more if v.type.dtype is not None]
    if not more:
        return Watched(plain, ports)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_model(export_model(model, graph, extra_outputs=more), path, original=model.source)
    except (ExportError, ValueError):
        return None
    return Watched(path, {**ports, **{v: f"extra{n}" for n, v in enumerate(more)}})


def value(
    ports: Mapping[ir_graph.Value, str], got: Got, feed: Feeds, v: ir_graph.Value
) -> np.ndarray | None:
    """The array of `v` after a run; None where it is no tensor or did not come out."""
    match v:
        case ir_graph.Input(name, _):
            return feed.arrays.get(name)
        case ir_graph.Constant():
            return v.load()
    found = got.get(ports.get(v, ""))
    return found if isinstance(found, np.ndarray) else None
