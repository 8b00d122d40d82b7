"""Models that ONNX's checker refuses and onnxruntime runs: as it ran its own operators under ONNX's
name before ONNX had them, does not need the shapes of outputs to be told, nor initializers to be
inputs, or sorts nodes itself. The shapes it tells; with these, and with its nodes in order, a model
is as others are. Else it runs there, whole. Its own operators that are told by ONNX's are read as
these (`told`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from superopt import ort
from superopt.errors import ModelError, UsageError
from superopt.onnx_io.check.validate import is_structurally_valid, validate
from superopt.onnx_io.read.source import Source
from superopt.onnx_io.transform.contrib_decomposition import decompose_contrib_ops, inline_functions
from superopt.onnx_io.transform.initializer_inputs import drop_initializer_inputs
from superopt.onnx_io.transform.opaque_model import (
    Port,
    opaque_model,
    scalar_outputs,
    with_inferred_output_types,
    with_output_types,
)
from superopt.onnx_io.transform.repair import repair_model
from superopt.ort.values import element_of
from superopt.pipeline.load import file_or_bytes, loads_in_onnxruntime


@dataclass(frozen=True, slots=True)
class Readable:
    """A valid model: the one that was given, the same with what it leaves out or in order, or one
    that stands for it. given: the model as it was given. session: runs it, where superopt does not
    read it; error: what is said of it then."""

    source: Source
    given: Source
    session: ort.Session | None = None
    error: ModelError | None = None

    @property
    def why(self) -> str:
        """Of the node that stands for a model that superopt does not read."""
        return " ".join(f"onnxruntime reads the model, superopt does not: {self.error}".split())


def readable(source: Source, threads: int) -> Readable:
    """Raises ModelError for a model that neither superopt nor onnxruntime reads."""
    fixed, _ = repair_model(source)
    own = decompose_contrib_ops(fixed)
    for some in (own, fixed) if own is not None else (fixed,):
        try:
            validate(some)
            return Readable(_flat(some), source)
        except ModelError as e:
            error = e
        for other in (drop_initializer_inputs(some), with_inferred_output_types(some)):
            if other is not None and _valid(other) is not None:
                return Readable(_flat(other), source)
    found = outside(source, threads)
    if found is None:
        raise error
    made, session = found
    return Readable(made, source, session, error if session is not None else None)


def outside(source: Source, threads: int) -> tuple[Source, ort.Session | None] | None:
    """The model with what it leaves out, where it is valid with that, or as it is where an input or
    output is a sequence, optional or map, which no model can stand for; else a model that stands
    for it, and what runs it. None where onnxruntime does not, either. It is loaded in another
    process first, which it may crash."""
    held = file_or_bytes(source)
    fixed, _ = repair_model(source)
    if (
        held is None
        or not is_structurally_valid(fixed)
        or not loads_in_onnxruntime(source, threads)
    ):
        return None
    try:
        session = ort.session(held, threads)
        if not all(_is_tensor(p.type) for p in (*session.inputs, *session.outputs)):
            return fixed, None
        inputs, outputs = _ports(session, source)
        full = _valid(with_output_types(source, outputs))
        if full is not None:
            return full, None
        return replace(opaque_model("model", inputs, outputs), label=source.label), session
    except (ModelError, UsageError, ValueError):  # ValueError: of what is no tensor
        return None


def _flat(source: Source) -> Source:
    """Without local functions, where it can be."""
    flat = inline_functions(source)
    return source if flat is None or _valid(flat) is None else flat


def _valid(source: Source) -> Source | None:
    try:
        validate(source)
    except ModelError:
        return None
    return source


def _is_tensor(type_text: str) -> bool:
    return element_of(type_text) != type_text


def _ports(session: ort.Session, source: Source) -> list[list[Port]]:
    """Of inputs and of outputs. Where the model tells no shape, onnxruntime says that there are no
    axes: that there are none is known then where onnx's own inference says so."""
    graph = source.skeleton.shared_proto.graph
    ports = (*graph.input, *graph.output)
    told = {v.name for v in ports if v.type.tensor_type.HasField("shape")}
    if any(not p.shape and p.name not in told for p in session.outputs):
        told |= scalar_outputs(source)
    both = (session.inputs, session.outputs)
    return [
        [(p.name, element_of(p.type), p.shape if p.shape or p.name in told else None) for p in some]
        for some in both
    ]
