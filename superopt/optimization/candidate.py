"""A graph that the search found: folded, written to a file and checked against the original."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from superopt.check.numeric_check import CheckOutcome
from superopt.ir import graph as ir_graph
from superopt.ir.constant_folding import FoldResult, fold_constants
from superopt.loading.request import Deadline
from superopt.onnx_io.export.exporter import ExportedModel, ExportError, export_with_names
from superopt.onnx_io.export.model_file import write_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.mapped_file import Region
from superopt.onnx_io.read.source import Source, read_model
from superopt.report.data.certificate import Certificate
from superopt.search.improve import Variant
from superopt.verification.candidate_check import WrongResult, check_candidate
from superopt.verification.end_to_end import RejectedCandidate
from superopt.verification.original import Original
from superopt.verification.ort_session import OrtSession

# Of a model with more bytes, constants that ONNX Runtime folds when it loads the original are not
# folded ahead: to compute and write them takes longer than to load them.
LARGE_MODEL_BYTES = 512 << 20
MIN_KEPT_BYTES = 1 << 20  # of such a constant


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rewritten model in a file, its ONNX Runtime session, and its check.

    source: the file, as read; origins: of the original's weights in its data file; notes: what was
    not folded; node_names: name in the file of a result of each node of the variant that was
    written; certificate: of the winner only.
    """

    variant: Variant
    session: OrtSession
    path: Path
    source: Source
    origins: Mapping[int, Region]
    check: CheckOutcome
    notes: tuple[str, ...]
    node_names: Mapping[ir_graph.Node, str]
    certificate: Certificate | None = None

    @property
    def sha256(self) -> str:
        """The digest of the file and its data."""
        return self.source.sha256


def write_graph(model: Model, graph: ir_graph.Graph, path: Path) -> dict[ir_graph.Value, str]:
    """Write `graph` to a file; return the name of each result. Raises ExportError if it cannot be
    expressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made, names = export_with_names(model, graph)
    write_model(made, path, original=model.source, is_durable=False)
    return names


# Returns the model of a variant, given its folded graph, and the names of its values.
ExportVariant = Callable[[Model, Variant, ir_graph.Graph], ExportedModel]


def export_variant(model: Model, variant: Variant, folded: ir_graph.Graph) -> ExportedModel:
    """Return the ONNX model of a folded variant, and the names of its values. Raises ExportError if
    it cannot be expressed."""
    return export_with_names(model, folded)


def find_node_names(
    graph: ir_graph.Graph, folded: ir_graph.Graph, names: Mapping[ir_graph.Value, str]
) -> dict[ir_graph.Node, str]:
    """Return the name in the file of a result of each node of `graph` that is also in `folded`,
    which is `graph` with some values replaced by constants."""
    out: dict[ir_graph.Node, str] = {}
    pairs = list(zip(graph.outputs, folded.outputs, strict=True))
    while pairs:
        v, w = pairs.pop()
        n, m = ir_graph.producer(v), ir_graph.producer(w)
        if n is None or m is None or n in out:
            continue
        out[n] = next((names[r] for r in ir_graph.results(m) if r in names), "")
        operands = zip(n.inputs, m.inputs, strict=True)
        pairs += [(a, b) for a, b in operands if a is not None and b is not None]
    return out


def kept_values(model: Model) -> Set[ir_graph.Value]:
    """Return the values that are not folded in a model's variants."""
    if not is_large(model.source):
        return frozenset()
    return frozenset(v for v in ir_graph.walk(model.graph) if _is_large(v))


def is_large(source: Source) -> bool:
    """True if the weights of a model dominate the time and memory that it takes."""
    return source.size_bytes >= LARGE_MODEL_BYTES


def _is_large(v: ir_graph.Value) -> bool:
    shape, dtype = v.type.shape, v.type.dtype
    if shape is None or dtype is None or not all(isinstance(d, int) for d in shape):
        return False
    return math.prod(map(int, shape)) * dtype.bits >= 8 * MIN_KEPT_BYTES  # type: ignore[arg-type]


def examine_variant(
    original: Original,
    variant: Variant,
    folder: Path,
    threads: int,
    deadline: Deadline,
    fold: Callable[[ir_graph.Graph], FoldResult] | None = None,
    export: ExportVariant = export_variant,
) -> Candidate | RejectedCandidate | WrongResult:
    """Fold, write and check a variant. Its files are in `folder`, which is removed unless the
    result is a Candidate. fold: of constants, by default `fold_constants`."""
    path = folder / "model.onnx"
    session = OrtSession(path, threads, original.session.level)
    is_kept = False
    try:
        source = original.model.source
        if is_large(source):  # a process has no room for it and for the candidate
            original.session.drop()
        kept = kept_values(original.model)
        folded = fold(variant.graph) if fold else fold_constants(variant.graph, kept=kept)
        source.release_pages()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            made, names = export(original.model, variant, folded.graph)
            written = write_model(made, path, original=source, is_durable=False)
        except ExportError as e:
            return RejectedCandidate(f"it cannot be written: {e}")
        found = check_candidate(original, variant.graph, folded.graph, session, deadline)
        if not isinstance(found, CheckOutcome):
            return found
        if found.unchecked:
            places = ", ".join(found.unchecked[:3])
            return RejectedCandidate(f"{places} cannot be checked")
        is_kept = True
        return Candidate(
            variant, session, path, read_model(path), written.origins, found, folded.skipped,
            find_node_names(variant.graph, folded.graph, names),
        )  # fmt: skip
    finally:
        if not is_kept:
            session.drop()
            shutil.rmtree(folder, ignore_errors=True)
