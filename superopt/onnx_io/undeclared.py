"""Initializers that are no inputs in models of before IR version 4, when each had to be one:
onnxruntime reads them, and tools leave them so that take such inputs away."""

from __future__ import annotations

from superopt.onnx_io.importer import OVERRIDABLE_SINCE
from superopt.onnx_io.source import Source


def undeclared(source: Source) -> Source | None:
    """The model as one of the version from which on they need not be; nobody could give another
    value for any of them before, so that none is an input then. None where nothing changes."""
    model = source.skeleton.message
    own = {t.name for t in model.graph.initializer}
    given = [i for i in model.graph.input if i.name not in own]
    if model.ir_version >= OVERRIDABLE_SINCE or len(given) + len(own) == len(model.graph.input):
        return None
    model = source.skeleton.proto()
    model.ir_version = OVERRIDABLE_SINCE
    del model.graph.input[:]
    model.graph.input.extend(given)
    return source.instead(model)
