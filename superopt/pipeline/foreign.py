"""Segments of a compiled model that run in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superopt import ort
from superopt.cost.machine import processor
from superopt.errors import ModelError, Unlike, UsageError
from superopt.ir import graph as ir_graph
from superopt.onnx_io.check.int8_saturation import SaturatingNode, saturating_nodes
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.onnx_io.transform.contrib_decomposition import replaced_result
from superopt.onnx_io.transform.submodel import extract_submodel, value_names
from superopt.pipeline.integer_mode import DEFAULT, IntegerMode, integer_mode, sums_in_16_bits
from superopt.pipeline.mapped_weights import mapped_model
from superopt.pipeline.outputs import Spec
from superopt.pipeline.ports import dtype_of, shape_at
from superopt.plan.graph.partition import (
    INTEGER_PRODUCT_REASON,
    Segment,
    Units,
    has_integer_products,
)
from superopt.te.expr import index
from superopt.te.expr.dtype import STRING

Arrays = dict[ir_graph.Value, Any]
UNFIT = "ShapeInferenceError"  # in ONNX Runtime's messages about shapes


@dataclass(frozen=True, slots=True)
class Foreign:
    """A segment in ONNX Runtime. inputs: values by input name. output_specs: planned shapes and
    types of the outputs that kernels read; None for others."""

    segment: Segment
    session: ort.Session
    given: Mapping[str, ir_graph.Value]
    outputs: tuple[str, ...]
    specs: tuple[Spec | None, ...]

    def run(self, env: Arrays) -> None:
        """Run the segment. Raises Unlike if an output differs from its planned shape or type."""
        feeds = {name: env[v] for name, v in self.given.items()}
        found = ort.run(self.session, feeds, self.outputs)
        checked(self, list(found.values()))
        env.update(zip(self.segment.outputs, found.values(), strict=True))


def checked(s: Foreign, found: Sequence[Any]) -> None:
    """Raise Unlike if an output differs from its planned shape or type."""
    for name, x, spec in zip(s.outputs, found, s.specs, strict=True):
        if spec is not None and (x.shape != spec[0] or x.dtype != spec[1]):
            raise Unlike(
                f"{name} is {x.dtype}{list(x.shape)} in onnxruntime",
                f"shape inference gives {spec[1]}{list(spec[0])}",
                "correct the model's shapes, or run it in onnxruntime",
            )


def whole(graph: ir_graph.Graph, e: Unlike) -> dict[ir_graph.Node, str]:
    """Return all nodes, with why they run in ONNX Runtime."""
    return dict.fromkeys(ir_graph.nodes(graph), f"{e.what}; {e.why}")


def unread(model: Model, s: Segment, session: ort.Session) -> Foreign:
    """Return the segment of a model that superopt does not read. s: the opaque node that stands for
    it."""
    names = model.names
    given = {names[v]: v for v in s.inputs}
    outputs = tuple(names[v] for v in s.outputs)
    return Foreign(s, session, given, outputs, (None,) * len(outputs))


def unsaved(model: Model, without: Mapping[ir_graph.Node, str]) -> UsageError:
    """Return the error for saving such a model. fallback_reasons: of its node."""
    (why,) = without.values()
    return UsageError(f"{model.source.label} cannot be saved", why, "keep the model itself")


@dataclass(slots=True)
class Original:
    """The model as given, and a session of it for inputs of all sizes."""

    source: Source
    threads: int
    held: ort.Session | None = None
    known: IntegerMode | None = None

    @property
    def mode(self) -> IntegerMode:
        """How all sessions of the model multiply integers."""
        if self.known is None:
            some = sums_in_16_bits(processor()[1])
            self.known = integer_mode(_saturating(self.source)) if some else DEFAULT
        return self.known

    def session(self) -> ort.Session:
        """Return the session. Raises ModelError if ONNX Runtime rejects the model or is not
        installed."""
        if self.held is None:
            self.held = self._mapped() or self.part(_file(self.source), self.threads)
        return self.held

    def _mapped(self) -> ort.Session | None:
        """Return a session that maps large weights; None if there are none, or if ONNX Runtime
        cannot open such a model (before version 1.20)."""
        self.source.check_unchanged()  # mapped data may have changed
        if (found := mapped_model(self.source)) is None:
            return None
        level, unsigned = self.mode.level, self.mode.unsigned_weights
        try:
            return ort.session(found.data, self.threads, level, unsigned, found.folder)
        except ModelError:
            return None

    def part(self, file: Path | bytes, threads: int) -> ort.Session:
        """Return a session of a part of the model, or of the whole."""
        return ort.session_of_part(file, threads, self.mode.level, self.mode.unsigned_weights)


def _saturating(source: Source) -> tuple[SaturatingNode, ...]:
    try:
        return saturating_nodes(source.model)
    except ModelError:  # onnx_ir cannot represent everything that ONNX Runtime runs
        return ()


def _file(source: Source) -> Path | bytes:
    """Return what ONNX Runtime loads: the file itself if it is unchanged."""
    source.check_unchanged()  # mapped data may have changed
    if source.raw is None:
        names = [v.name for v in source.model.graph.outputs if v.name]
        return extract_submodel(source, {}, names)[0]
    return source.current_path() or bytes(source.raw.view())


def units(model: Model) -> Units:
    """Return, for each node that is a part of a node of the file or of a decomposed contrib
    operator, all parts of that node."""
    live, parts = set(ir_graph.nodes(model.graph)), dict[str, set[ir_graph.Node]]()
    for n in filter(live.__contains__, model.origins):
        if (name := _operator(model, n)) is not None:
            parts.setdefault(name, set()).add(n)
    out: dict[ir_graph.Node, Collection[ir_graph.Node]] = {
        n: some & live for n, some in model.expansion_units().items() if n in live
    }
    for some in parts.values():
        whole = frozenset(some.union(*(out.get(n, ()) for n in some)))
        out |= dict.fromkeys(whole, whole)
    return out


def told_operators(model: Model) -> bool:
    """True if nodes of the model stand for contrib operators of ONNX Runtime."""
    return any(_operator(model, n) is not None for n in model.origins)


def _operator(model: Model, n: ir_graph.Node) -> str | None:
    """Return the first result of the contrib operator that a node is a part of; else None."""
    origin = model.origins.get(n)
    return None if origin is None else replaced_result(origin.node)


def checked_available(model: Model, nodes: Sequence[ir_graph.Node]) -> None:
    """Raise ModelError if ONNX Runtime, which runs these nodes, is not installed."""
    if ort.available() is None:
        what = ", ".join(dict.fromkeys(n.op.title for n in nodes))
        raise ModelError(
            f"{model.source.label}: {what} run only in onnxruntime", "it is not installed",
            'pip install "superopt-onnx[ort]"',
        )  # fmt: skip


def foreign(
    model: Model,
    s: Segment,
    threads: int,
    sizes: Mapping[str, int],
    original: Original | None = None,
) -> Foreign:
    """Return a segment of a model in ONNX Runtime: with the original's contrib operators if it has
    parts of them.

    Raises ModelError if ONNX Runtime is not installed, or does not run the segment, for example
    because the shapes of the inputs do not fit each other.
    """
    checked_available(model, s.nodes)
    names = model.names
    outputs = tuple(names[v] for v in s.outputs)
    given = {names[v]: v for v in s.inputs}
    source = model.source
    if original is not None and any(_operator(model, n) is not None for n in s.nodes):
        own = value_names(original.source)
        source = original.source if own.issuperset((*given, *outputs)) else source
    part, wanted = extract_submodel(source, {n: v.type for n, v in given.items()}, outputs)
    load = ort.session_of_part if original is None else original.part
    with fitting_shapes(model):
        session = load(part, threads)
    inputs = {i.name: i for i in model.graph.inputs}
    some = {n: given.get(n) or inputs[n] for n in wanted}
    return Foreign(s, session, some, outputs, _specs(model.graph, s, sizes))


@contextmanager
def fitting_shapes(model: Model) -> Iterator[None]:
    """Add the inputs' types to ONNX Runtime's errors about shapes."""
    try:
        yield
    except ModelError as e:
        if UNFIT not in e.why:
            raise
        inputs = ", ".join(f"{i.name}: {i.type}" for i in model.graph.inputs)
        raise ModelError(
            e.what, f"{e.why}; the inputs: {inputs}",
            "pass inputs whose shapes fit each other, or check the model with onnx.checker",
        ) from e  # fmt: skip


def _specs(graph: ir_graph.Graph, s: Segment, sizes: Mapping[str, int]) -> tuple[Spec | None, ...]:
    """Return the planned shapes and types of outputs. Kernels read no outputs of a whole model."""
    out: list[Spec | None] = []
    for v in s.outputs:
        t, known = v.type, len(s.nodes) < len(ir_graph.nodes(graph))
        known = known and t.dtype not in (None, STRING) and t.shape is not None
        known = known and all(index.symbols(d) <= sizes.keys() for d in t.shape or ())
        out.append((shape_at(t, sizes), dtype_of(t)) if known else None)
    return tuple(out)


def without_kernels(model: Model) -> dict[ir_graph.Node, str]:
    """Return all nodes if ONNX Runtime is installed and has faster kernels for the whole model."""
    whole = ort.available() is not None and has_integer_products(model.graph)
    return dict.fromkeys(ir_graph.nodes(model.graph), INTEGER_PRODUCT_REASON) if whole else {}
