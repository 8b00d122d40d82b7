"""Models that ONNX's checker rejects and ONNX Runtime runs: it ran its own operators under ONNX's
domain before ONNX had them, does not need the shapes of outputs or initializers among the inputs,
and sorts nodes itself. ONNX Runtime infers the shapes; with these, and with sorted nodes, such a
model is read like others. Otherwise all of it runs in ONNX Runtime. Its contrib operators that ONNX
operators can express are decomposed (`contrib_decomposition`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from superopt import ort
from superopt.errors import ModelError, UsageError
from superopt.loading.model import file_or_bytes, is_loadable_in_onnxruntime
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
from superopt.ort.tensors import element_name

RewriteSource = Callable[[Source, str], Source]  # applies a stored rewrite log


@dataclass(frozen=True, slots=True)
class ReadableModel:
    """A valid model: the given one, the given one completed or sorted, or an opaque one in its
    place. original: the model as given. session: runs it, if superopt does not read it; error: why
    superopt does not."""

    source: Source
    original: Source
    session: ort.Session | None = None
    error: ModelError | None = None

    @property
    def fallback_reason(self) -> str:
        """The reason of the opaque node that stands for a model that superopt does not read."""
        return " ".join(f"onnxruntime reads the model, superopt does not: {self.error}".split())


def rewritten_model(given: ReadableModel, log: str, rewrite: RewriteSource) -> ReadableModel:
    """Return the model after the rewrites of a log; unchanged if they do not apply any more."""
    found = rewrite(given.source, log)
    return given if found is given.source else replace(given, source=found, original=found)


def make_readable(source: Source, threads: int) -> ReadableModel:
    """Return a valid form of a model. Raises ModelError for a model that neither superopt nor ONNX
    Runtime reads."""
    fixed, _ = repair_model(source)
    own = decompose_contrib_ops(fixed)
    for some in (own, fixed) if own is not None else (fixed,):
        try:
            validate(some)
            return ReadableModel(_inline_functions(some), source)
        except ModelError as e:
            error = e
        for other in (drop_initializer_inputs(some), with_inferred_output_types(some)):
            if other is not None and _if_valid(other) is not None:
                return ReadableModel(_inline_functions(other), source)
    found = complete_with_onnxruntime(source, threads)
    if found is None:
        raise error
    made, session = found
    return ReadableModel(made, source, session, error if session is not None else None)


def complete_with_onnxruntime(
    source: Source, threads: int
) -> tuple[Source, ort.Session | None] | None:
    """Complete a model with what ONNX Runtime infers.

    Return the completed model if it is valid; the repaired one if an input or output is a sequence,
    optional or map, which an opaque model cannot have; else an opaque model, and the session that
    runs it. None if ONNX Runtime does not run it either. The model is first loaded in another
    process, because it may crash it.
    """
    held = file_or_bytes(source)
    fixed, _ = repair_model(source)
    if (
        held is None
        or not is_structurally_valid(fixed)
        or not is_loadable_in_onnxruntime(source, threads)
    ):
        return None
    try:
        session = ort.load_session(held, threads)
        if not all(_is_tensor(p.type) for p in (*session.inputs, *session.outputs)):
            return fixed, None
        inputs, outputs = _session_ports(session, source)
        full = _if_valid(with_output_types(source, outputs))
        if full is not None:
            return full, None
        return replace(opaque_model("model", inputs, outputs), label=source.label), session
    except (ModelError, UsageError, ValueError):  # ValueError: from a non-tensor
        return None


def _inline_functions(source: Source) -> Source:
    """Return the model without local functions, if they can be inlined."""
    flat = inline_functions(source)
    return source if flat is None or _if_valid(flat) is None else flat


def _if_valid(source: Source) -> Source | None:
    try:
        validate(source)
    except ModelError:
        return None
    return source


def _is_tensor(type_text: str) -> bool:
    return element_name(type_text) != type_text


def _session_ports(session: ort.Session, source: Source) -> list[list[Port]]:
    """Return the inputs and the outputs of a session. For a value without a declared shape ONNX
    Runtime reports rank 0; it is a scalar only if ONNX's shape inference says so."""
    graph = source.skeleton.shared_proto.graph
    ports = (*graph.input, *graph.output)
    outputs_with_shape = {v.name for v in ports if v.type.tensor_type.HasField("shape")}
    if any(not p.shape and p.name not in outputs_with_shape for p in session.outputs):
        outputs_with_shape |= scalar_outputs(source)
    both = (session.inputs, session.outputs)
    return [
        [
            (
                p.name,
                element_name(p.type),
                p.shape if p.shape or p.name in outputs_with_shape else None,
            )
            for p in some
        ]
        for some in both
    ]
