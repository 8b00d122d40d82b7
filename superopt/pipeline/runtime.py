"""Models in onnxruntime's worker process, on inputs that the check draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from superopt import ort
from superopt.check.inputs import Feeds
from superopt.ir import graph as g
from superopt.onnx_io.exporter import ExportError, export_model
from superopt.onnx_io.model import Model
from superopt.onnx_io.write import write_model

Got = Mapping[str, ort.Value]  # results of a run, by name


@dataclass(frozen=True, slots=True)
class Held:
    """A model in the worker: what it gives on inputs, or why it is not there (then run fails)."""

    run: Callable[[Feeds], Got | ort.Failed]
    refused: str


@contextmanager
def loaded(path: Path | None, threads: int) -> Iterator[Held]:
    """The model at `path`, freed at the end; refused where there is no runtime, or no path."""
    held: ort.Loaded | ort.Failed
    if path is None or ort.available() is None:
        held = ort.Failed("skipped", "onnxruntime is not installed" if path else "no model")
    else:
        held = ort.shared().load(path, threads=threads)
    if isinstance(held, ort.Failed):
        failed = held
        yield Held(lambda feed: failed, failed.message or failed.kind)
        return
    model = held
    try:
        yield Held(lambda feed: ort.shared().run(model, dict(feed.arrays)), "")
    finally:
        ort.shared().drop(model)


@dataclass(frozen=True, slots=True)
class Watched:
    """A file whose outputs hold more than the model's own: by which name each value comes out."""

    path: Path
    ports: Mapping[g.Value, str]


def watched(
    model: Model, graph: g.Graph, wanted: Sequence[g.Value], path: Path, plain: Path
) -> Watched | None:
    """A file of `graph` that gives all of `wanted`: `plain` where its outputs do, else one written
    to `path`. None where it cannot be written.

    What is an input or a constant, or no tensor, is left out.
    """
    names = [v.name or "" for v in model.source.model.graph.outputs]
    ports = dict(zip(graph.outputs, names, strict=True))
    more = [v for v in dict.fromkeys(wanted) if g.producer(v) is not None and v not in ports]
    more = [v for v in more if v.type.dtype is not None]
    if not more:
        return Watched(plain, ports)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_model(export_model(model, graph, extra=more), path, like=model.source)
    except (ExportError, ValueError):
        return None
    return Watched(path, {**ports, **{v: f"extra{n}" for n, v in enumerate(more)}})


def value(ports: Mapping[g.Value, str], got: Got, feed: Feeds, v: g.Value) -> np.ndarray | None:
    """The array of `v` after a run; None where it is no tensor or did not come out."""
    match v:
        case g.Input(name, _):
            return feed.arrays.get(name)
        case g.Constant():
            return v.load()
    found = got.get(ports.get(v, ""))
    return found if isinstance(found, np.ndarray) else None
