"""Models that ONNX's checker refuses and onnxruntime runs: as it ran its own operators under ONNX's
name before ONNX had them. They run there, whole."""

from __future__ import annotations

from dataclasses import replace

from superopt import ort
from superopt.errors import ModelError, UsageError
from superopt.onnx_io.outside import around
from superopt.onnx_io.source import Source
from superopt.onnx_io.validate import harmless
from superopt.ort.values import element_of


def outside(source: Source, threads: int) -> tuple[Source, ort.Session] | None:
    """A model that stands for it, and what runs it; None where onnxruntime does not, either. It is
    loaded in another process first, which it may crash."""
    if ort.available() is None or not harmless(source):
        return None
    held = (
        bytes(source.skeleton.proto().SerializeToString()) if source.path is None else source.path
    )
    with ort.Worker(limit=LIMIT) as worker:
        if isinstance(worker.load(held, threads=threads), ort.Failed):
            return None
    try:
        session = ort.session(held, threads)
        ports = (
            [(p.name, element_of(p.type), p.shape) for p in some]
            for some in (session.inputs, session.outputs)
        )
        return replace(around("model", *ports), label=source.label), session
    except (ModelError, UsageError, ValueError):  # ValueError: of what is no tensor
        return None


LIMIT = 60.0  # seconds
