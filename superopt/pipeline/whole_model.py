"""A whole model in onnxruntime, read from its own file: no copy of it is written for that."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from superopt import ort
from superopt.errors import ModelError
from superopt.ir import graph as g
from superopt.onnx_io.model import Model
from superopt.pipeline.foreign import Foreign
from superopt.plan.segments import Segment

if TYPE_CHECKING:
    from superopt.pipeline.compile import Compiler
    from superopt.pipeline.executable import Steps


def whole_steps(c: Compiler) -> Steps:
    """What runs a whole model in onnxruntime. Raises ModelError where that refuses it."""
    own = dict.fromkeys(g.nodes(c.model.graph), "not compiled for these sizes yet")
    other = replace(c, without=own, fixed={})
    parts = other.split({}) if c.session is None else []
    if len(parts) == 1 and (found := whole_from_file(c.model, parts[0], c.threads)):
        return [found]
    return other.compiled({})


def whole_from_file(model: Model, s: Segment, threads: int) -> Foreign | None:
    """The segment, which is the whole model, as its file has it. None where the model is of no
    file, or another one is there by now, and where onnxruntime refuses it."""
    path = model.source.current_path()
    if path is None or set(model.graph.outputs) - set(s.outputs):
        return None
    try:
        session = ort.session_of_part(path, threads)
    except ModelError:
        return None
    names = model.names
    given = {i.name: i for i in model.graph.inputs}
    outputs = tuple(names[v] for v in s.outputs)
    known = {p.name for p in session.outputs}
    if not {p.name for p in session.inputs} <= given.keys() or not {*outputs} <= known:
        return None
    return Foreign(s, session, given, outputs, (None,) * len(outputs))
