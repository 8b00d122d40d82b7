"""Loading of models: valid ones, and those that only ONNX Runtime accepts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from superopt import guard, ort
from superopt.errors import ModelError
from superopt.onnx_io.check.validate import is_structurally_valid, validate
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.onnx_io.transform.repair import repair_model

LOAD_TIMEOUT_S = 60.0  # limit for loading, in ONNX Runtime, a model that ONNX's checker rejects


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """model: the imported model; notes: what the user should know about a model that is not
    valid."""

    model: Model
    notes: tuple[str, ...] = ()


def load_model(source: Source) -> LoadedModel:
    """Import a model that is valid, or that ONNX Runtime loads though ONNX's checker rejects it.

    Nodes that superopt does not understand become opaque nodes. Raises ModelError for a model that
    neither ONNX's checker nor ONNX Runtime accepts, or whose data is damaged.
    """
    fixed, notes = repair_model(source)
    try:
        validate(fixed)
    except ModelError as refused:
        if not (is_structurally_valid(fixed) and is_loadable_in_onnxruntime(source)):
            raise
        said = f"not a valid ONNX model, but onnxruntime loads it: {refused.why}"
        notes = (said, *notes)
    return LoadedModel(import_model(fixed), tuple(f"{source.label}: {note}" for note in notes))


def is_loadable_in_onnxruntime(source: Source, threads: int = 1) -> bool:
    """True if ONNX Runtime loads the model as given. It does so in a separate process, because the
    model may crash it. Raises OutOfTime if the deadline of the call ended it."""
    given = file_or_bytes(source)
    if given is None or ort.installed_version() is None:
        return False
    with ort.Worker(limit=LOAD_TIMEOUT_S) as worker:
        found = worker.load(given, threads=threads)
    if isinstance(found, ort.Failure):
        guard.check_time("loading the model in ONNX Runtime")
        return False
    return True


def file_or_bytes(source: Source) -> bytes | Path | None:
    """Return the model as ONNX Runtime reads it; None for one without a file or bytes."""
    if source.path is not None:
        return source.path
    return None if source.raw is None else bytes(source.raw.view())
