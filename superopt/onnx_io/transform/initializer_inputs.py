"""Initializers that are not inputs in models before IR version 4, which required it. ONNX Runtime
accepts them, and tools that remove such inputs produce them."""

from __future__ import annotations

from superopt.onnx_io.import_.importer import OVERRIDABLE_SINCE_IR_VERSION
from superopt.onnx_io.read.source import Source


def drop_initializer_inputs(source: Source) -> Source | None:
    """Return the model with the first IR version that allows this, without inputs for initializers:
    none of them could be overridden before. None if nothing changes."""
    model = source.skeleton.shared_proto
    own = {t.name for t in model.graph.initializer}
    given = [i for i in model.graph.input if i.name not in own]
    if model.ir_version >= OVERRIDABLE_SINCE_IR_VERSION or len(given) + len(own) == len(
        model.graph.input
    ):
        return None
    model = source.skeleton.new_proto()
    model.ir_version = OVERRIDABLE_SINCE_IR_VERSION
    del model.graph.input[:]
    model.graph.input.extend(given)
    return source.with_proto(model)
