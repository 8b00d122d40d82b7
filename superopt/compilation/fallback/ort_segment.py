"""Segments of a compiled model that run in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from superopt import ort
from superopt.compilation.cache import constant_files
from superopt.compilation.fallback.integer_mode import (
    DEFAULT_MODE,
    IntegerMode,
    choose_integer_mode,
    saturates_uint8_products,
)
from superopt.compilation.fallback.mapped_weights import (
    MIN_MAPPED_TENSOR_BYTES,
    map_large_weights,
)
from superopt.compilation.fallback.session_segment import OrtSegment, SessionModel, SessionPart
from superopt.compilation.fallback.whole_model import MappedModel
from superopt.compilation.frontend.graph_ports import numpy_dtype, static_shape
from superopt.compilation.runtime.output_buffers import ArraySpec
from superopt.cost.cache_folders import constants_folder
from superopt.cost.machine import processor_info
from superopt.errors import ModelError, RuntimeMismatch, UsageError
from superopt.ir import graph as ir_graph
from superopt.onnx_io.check.int8_saturation import SaturatingNode, saturating_nodes
from superopt.onnx_io.external_weights import large_initializers, with_external_weights
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source, read_model
from superopt.onnx_io.transform.contrib_decomposition import replaced_result
from superopt.onnx_io.transform.submodel import extract_submodel, value_names
from superopt.plan.graph.partition import Segment, Units
from superopt.te.expr import index
from superopt.te.expr.dtype import STRING
from superopt.te.expr.tensor import TensorType

SHAPE_ERROR_TEXT = "ShapeInferenceError"  # in ONNX Runtime's messages about shapes


def fallback_reasons(graph: ir_graph.Graph, e: RuntimeMismatch) -> dict[ir_graph.Node, str]:
    """Return all nodes, with why they run in ONNX Runtime."""
    return dict.fromkeys(ir_graph.nodes(graph), f"{e.what}; {e.why}")


def unsaveable_error(model: Model, fallback_reasons: Mapping[ir_graph.Node, str]) -> UsageError:
    """Return the error for saving such a model. fallback_reasons: of its node."""
    (why,) = fallback_reasons.values()
    return UsageError(f"{model.source.label} cannot be saved", why, "keep the model itself")


@dataclass(slots=True)
class GivenModel:
    """The model as given, and a session of it for inputs of all sizes."""

    source: Source
    threads: int
    cached_session: ort.Session | None = None
    cached_mode: IntegerMode | None = None
    mapped: MappedModel | None = None  # that the session reads

    @property
    def mode(self) -> IntegerMode:
        """How all sessions of the model multiply integers."""
        if self.cached_mode is None:
            some = saturates_uint8_products(processor_info()[1])
            self.cached_mode = (
                choose_integer_mode(find_saturating_nodes(self.source)) if some else DEFAULT_MODE
            )
        return self.cached_mode

    def session(self) -> ort.Session:
        """Return the session. Raises ModelError if ONNX Runtime rejects the model or is not
        installed."""
        if self.cached_session is None:
            self.cached_session = self._mapped_session() or self.segment_session(
                _model_file(self.source), self.threads
            )
        return self.cached_session

    def stored_model(self) -> SessionModel | None:
        """Return the model as the disk cache keeps it; None if it has external data."""
        if self.source.has_external_data:
            return None
        file = _model_file(self.source)
        data = file if isinstance(file, bytes) else file.read_bytes()
        return session_model(data, self.threads, self.mode)

    def _mapped_session(self) -> ort.Session | None:
        """Return a session that maps large weights; None if there are none, or if ONNX Runtime
        cannot open such a model (before version 1.20)."""
        self.source.check_unchanged()  # mapped data may have changed
        if (found := map_large_weights(self.source)) is None:
            return None
        level, unsigned = self.mode.level, self.mode.unsigned_weights
        try:
            made = ort.load_session(found.data, self.threads, level, unsigned, constants_folder())
        except ModelError:
            return None
        self.mapped = found
        return made

    def segment_session(self, file: Path | bytes, threads: int) -> ort.Session:
        """Return a session of a part of the model, or of the whole."""
        return ort.load_part_session(file, threads, self.mode.level, self.mode.unsigned_weights)


def find_saturating_nodes(source: Source) -> tuple[SaturatingNode, ...]:
    """Return the nodes that may saturate; none for a model that onnx_ir cannot represent."""
    try:
        return saturating_nodes(source.model)
    except ModelError:  # onnx_ir cannot represent everything that ONNX Runtime runs
        return ()


def _model_file(source: Source) -> Path | bytes:
    """Return what ONNX Runtime loads: the file itself if it is unchanged."""
    source.check_unchanged()  # mapped data may have changed
    if source.raw is None:
        names = [v.name for v in source.model.graph.outputs if v.name]
        return extract_submodel(source, {}, names)[0]
    return source.current_path() or bytes(source.raw.view())


def atomic_units(model: Model) -> Units:
    """Return, for each node that is a part of a node of the file or of a decomposed contrib
    operator, all parts of that node."""
    live, parts = set(ir_graph.nodes(model.graph)), dict[str, set[ir_graph.Node]]()
    for n in filter(live.__contains__, model.origins):
        if (name := _contrib_result(model, n)) is not None:
            parts.setdefault(name, set()).add(n)
    out: dict[ir_graph.Node, Collection[ir_graph.Node]] = {
        n: some & live for n, some in model.expansion_units().items() if n in live
    }
    for some in parts.values():
        whole = frozenset(some.union(*(out.get(n, ()) for n in some)))
        out |= dict.fromkeys(whole, whole)
    return out


def has_contrib_parts(model: Model) -> bool:
    """True if nodes of the model stand for contrib operators of ONNX Runtime."""
    return any(_contrib_result(model, n) is not None for n in model.origins)


def _contrib_result(model: Model, n: ir_graph.Node) -> str | None:
    """Return the first result of the contrib operator that a node is a part of; else None."""
    origin = model.origins.get(n)
    return None if origin is None else replaced_result(origin.node)


def check_onnxruntime_available(model: Model, nodes: Sequence[ir_graph.Node]) -> None:
    """Raise ModelError if ONNX Runtime, which runs these nodes, is not installed."""
    if ort.installed_version() is None:
        what = ", ".join(dict.fromkeys(n.op.title for n in nodes))
        raise ModelError(
            f"{model.source.label}: {what} run only in onnxruntime", "it is not installed",
            'pip install "superopt-onnx[ort]"',
        )  # fmt: skip


def session_part(
    model: Model, s: Segment, threads: int, given_model: GivenModel | None = None
) -> SessionPart:
    """Return a segment of a model for ONNX Runtime: with the original's contrib operators if it has
    parts of them. Raises ModelError if ONNX Runtime is not installed."""
    check_onnxruntime_available(model, s.nodes)
    names = model.names
    outputs = tuple(names[v] for v in s.outputs)
    given = {names[v]: v for v in s.inputs}
    source = model.source
    if given_model is not None and any(_contrib_result(model, n) is not None for n in s.nodes):
        own = value_names(given_model.source)
        source = given_model.source if own.issuperset((*given, *outputs)) else source
    types = {n: v.type for n, v in given.items()}
    first, wanted = extract_submodel(source, types, outputs)
    unused = [first]  # for the session that is opened now; the model is extracted again for others

    def extract() -> bytes:
        return unused.pop() if unused else extract_submodel(source, types, outputs)[0]

    def load_session() -> ort.Session:
        load = ort.load_part_session if given_model is None else given_model.segment_session
        with explain_shape_errors(model):
            return load(extract(), threads)

    mode = DEFAULT_MODE if given_model is None else given_model.mode
    inputs = {i.name: i for i in model.graph.inputs}
    some = {n: given.get(n) or inputs[n] for n in wanted}
    return SessionPart(
        s, some, outputs, load_session, lambda: session_model(extract(), threads, mode)
    )


def session_model(data: bytes, threads: int, mode: IntegerMode) -> SessionModel:
    """Return a model as the disk cache keeps it: with large initializers as constant files."""
    source = read_model(data)
    large = large_initializers(source, MIN_MAPPED_TENSOR_BYTES)
    digests = {name: constant_files.write_region(region) for name, region in large.items()}
    files = {name: f"{digest}{constant_files.SUFFIX}" for name, digest in digests.items() if digest}
    short = with_external_weights(source, files) if files else data
    sums = [constant_files.file_checksum(d) for d in digests.values() if d]
    weights = tuple(w for w in sums if w is not None)
    how = threads, mode.level, mode.unsigned_weights
    if short is None or len(weights) < len(sums):
        return SessionModel(data, (), *how)
    return SessionModel(short, weights, *how)


def make_ort_segment(
    model: Model,
    s: Segment,
    threads: int,
    sizes: Mapping[str, int],
    given_model: GivenModel | None = None,
) -> OrtSegment:
    """Return a segment of a model in ONNX Runtime; see `session_part`.

    Raises ModelError if ONNX Runtime is not installed, or does not run the segment, for example
    because the shapes of the inputs do not fit each other.
    """
    specs = output_specs(model.graph, s, sizes)
    return session_part(model, s, threads, given_model).open_segment(specs)


@contextmanager
def explain_shape_errors(model: Model) -> Iterator[None]:
    """Add the inputs' types to ONNX Runtime's errors about shapes."""
    try:
        yield
    except ModelError as e:
        if SHAPE_ERROR_TEXT not in e.why:
            raise
        inputs = ", ".join(f"{i.name}: {i.type}" for i in model.graph.inputs)
        raise ModelError(
            e.what, f"{e.why}; the inputs: {inputs}",
            "pass inputs whose shapes fit each other, or check the model with onnx.checker",
        ) from e  # fmt: skip


def output_specs(
    graph: ir_graph.Graph, s: Segment, sizes: Mapping[str, int]
) -> tuple[ArraySpec | None, ...]:
    """Return the planned shapes and types of outputs."""
    types = planned_types(graph, s, sizes)
    return tuple(None if t is None else (static_shape(t, sizes), numpy_dtype(t)) for t in types)


def planned_types(
    graph: ir_graph.Graph, s: Segment, sizes: Mapping[str, int]
) -> tuple[TensorType | None, ...]:
    """Return the types of outputs by these sizes; None for those that depend on others. Kernels
    read no outputs of a whole model."""
    known = len(s.nodes) < len(ir_graph.nodes(graph))
    return tuple(v.type if known and _is_planned(v.type, sizes) else None for v in s.outputs)


def _is_planned(t: TensorType, sizes: Mapping[str, int]) -> bool:
    if t.dtype in (None, STRING) or t.shape is None:
        return False
    return all(index.symbols(d) <= sizes.keys() for d in t.shape)
