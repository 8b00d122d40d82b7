"""A model as every command takes it: valid, or else one that onnxruntime loads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from superopt import ort
from superopt.errors import ModelError
from superopt.onnx_io.check.validate import is_structurally_valid, validate
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.onnx_io.transform.repair import repair_model

LOAD_SECONDS = 60.0  # that onnxruntime may take to load a model that ONNX's checker refuses


@dataclass(frozen=True, slots=True)
class Loaded:
    """model: what was imported; notes: what the user should know of a model that is not valid."""

    model: Model
    notes: tuple[str, ...] = ()


def load_model(source: Source) -> Loaded:
    """Import a model that is valid, or that onnxruntime loads though ONNX's checker refuses it.

    Nodes that superopt does not understand are carried through. Raises ModelError for a model that
    neither ONNX's checker nor onnxruntime accepts, or whose data is damaged.
    """
    fixed, notes = repair_model(source)
    try:
        validate(fixed)
    except ModelError as refused:
        if not (is_structurally_valid(fixed) and loads_in_onnxruntime(source)):
            raise
        said = f"onnxruntime loads it, though it is not a valid ONNX model: {refused.why}"
        notes = (said, *notes)
    return Loaded(import_model(fixed), tuple(f"{source.label}: {note}" for note in notes))


def loads_in_onnxruntime(source: Source, threads: int = 1) -> bool:
    """True if onnxruntime loads the model as it was given; it does so in a process of its own,
    which the model may crash."""
    given = file_or_bytes(source)
    if given is None or ort.available() is None:
        return False
    with ort.Worker(limit=LOAD_SECONDS) as worker:
        return not isinstance(worker.load(given, threads=threads), ort.Failed)


def file_or_bytes(source: Source) -> bytes | Path | None:
    """The model as onnxruntime reads it; None for one without file or bytes."""
    if source.path is not None:
        return source.path
    return None if source.raw is None else bytes(source.raw.view())
