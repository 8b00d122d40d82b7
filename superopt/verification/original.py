"""The original model as the check sees it: inputs on which it runs, and its results on them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from superopt.check.numeric_check import (
    NotEvaluable,
    OnValue,
    Reference,
    Values,
    reference_values,
)
from superopt.check.opaque_regions import (
    Regions,
    cut_at_opaque_nodes,
    draw_opaque_results,
    opaque_nodes,
)
from superopt.check.random_inputs import Feeds
from superopt.errors import OutOfTime
from superopt.ir import graph as ir_graph
from superopt.loading import representative_sizes
from superopt.loading.request import Request
from superopt.onnx_io.export.model_file import copy_unchanged
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.te.expr.node import Size
from superopt.verification.input_probe import AddNote, InputSet, Probe
from superopt.verification.ort_session import (
    OrtSession,
    Results,
    WatchedFile,
    value_array,
    write_watched_file,
)

MAX_RUN_PART = 0.5  # of the budget, for loading the original and for a run of it
MIN_RUN_TIMEOUT_S = 1.0  # minimum, however short the budget is
MAX_CHECK_PART = 0.15  # of the budget, for evaluating the original in float64 if models are timed
RELEASE_AFTER_BYTES = 128 << 20  # of weights read, after which their pages are released


@dataclass(slots=True)
class Original:
    """The model that candidates are compared with.

    session: the model in ONNX Runtime; path: its file; refusal: why ONNX Runtime does not run it,
    empty if it does; sets: the inputs of the check, the most revealing first; run_us: approximate
    time of a run in ONNX Runtime (0: unknown).
    """

    model: Model
    regions: Regions
    session: OrtSession
    path: Path
    refusal: str
    watched_file: WatchedFile | None
    sets: tuple[InputSet, ...]
    sizes: Mapping[str, int]
    run_us: float
    seed: int
    evaluation_seconds: float = 0.0  # of all reference evaluations
    slowest_evaluation_seconds: float = 0.0  # of the slowest one
    max_optional_seconds: float = (
        0.0  # limit for the reference evaluations of optional sets together
    )
    output_references: dict[int, Reference | str] = field(
        default_factory=dict
    )  # see output_comparison.py
    unrounded_results: dict[str, Values | None] = field(
        default_factory=dict
    )  # see quantized_outputs.py
    _references: dict[int, Reference | str] = field(default_factory=dict)

    @property
    def output_names(self) -> list[str]:
        """The names of the model's outputs."""
        return [v.name or "" for v in self.model.source.model.graph.outputs]

    @property
    def is_runnable(self) -> bool:
        """True if ONNX Runtime runs it on some of the inputs."""
        return any(s.results is not None for s in self.sets)

    def is_evaluated(self, n: int) -> bool:
        """True if set number `n` was evaluated before."""
        return n in self._references or n in self.output_references

    def region_reference(self, n: int) -> Reference | str:
        """Return the original's values on set number `n`, computed once; a text if there are
        none."""
        if n not in self._references:
            begin = time.monotonic()
            self._references[n] = self._evaluate_reference(self.sets[n])
            took = time.monotonic() - begin
            self.evaluation_seconds += took
            self.slowest_evaluation_seconds = max(self.slowest_evaluation_seconds, took)
        return self._references[n]

    def _evaluate_reference(self, s: InputSet) -> Reference | str:
        keep = release_pages_periodically(self.model.source)
        try:
            if s.results is None or self.watched_file is None:
                born = sorted(set(self.model.size_producers))
                return reference_values(
                    self.regions,
                    s.feed,
                    draw_opaque_results(self.regions, s.feed, born, self.seed),
                    None,
                    keep,
                )
            ports, got = self.watched_file.output_names, s.results
            free = opaque_results(self.regions, self.model.graph, ports, got, s.feed)
            ran = tuple(value_array(ports, got, s.feed, p.value) for p in self.regions.observed)
            return reference_values(self.regions, s.feed, free, ran, keep)
        except NotEvaluable as e:
            return f"inputs {s.feed.kind}: the original cannot be evaluated there: {e}"
        except MemoryError as e:
            return f"inputs {s.feed.kind}: no memory to evaluate the original: {e}"
        except OutOfTime as e:
            return f"inputs {s.feed.kind}: {e.what}: {e.why}"


def release_pages_periodically(source: Source) -> OnValue:
    """Return a callback for `evaluate` that releases the pages of weights from time to time."""
    backings = [*source.skeleton.files.values()]
    if source.raw is not None:
        backings.append(source.raw.backing)
    read = 0

    def keep(v: ir_graph.Value, array: np.ndarray) -> None:
        nonlocal read
        n = ir_graph.producer(v)
        read += sum(i.nbytes for i in (n.inputs if n else ()) if isinstance(i, ir_graph.Constant))
        if read > RELEASE_AFTER_BYTES:
            read = 0
            for b in backings:
                b.release(0, len(b.view))

    return keep


def opaque_results(
    regions: Regions,
    graph: ir_graph.Graph,
    output_names: Mapping[ir_graph.Value, str],
    results: Results,
    feed: Feeds,
) -> dict[str, np.ndarray]:
    """Return the results of the opaque nodes of `graph` in a run, by the names of the regions'
    inputs."""
    found: dict[str, np.ndarray] = {}
    for n in opaque_nodes(graph):
        for i, v in zip(
            regions.opaque_results[n.attr("payload")], ir_graph.results(n), strict=True
        ):
            array = value_array(output_names, results, feed, v)
            if array is not None:
                found[i.name] = array
    return found


def original_file(source: Source, folder: Path) -> Path:
    """Return a file with the original: its own if it has one."""
    if source.path is not None:
        return source.path
    path = folder / "original" / "model.onnx"
    path.parent.mkdir(exist_ok=True, parents=True)
    copy_unchanged(source, path)
    return path


def prepare_original(model: Model, request: Request, folder: Path, add_note: AddNote) -> Original:
    """Find inputs on which the model runs, and run it on them.

    Raises UsageError if it does not run on the user's own inputs or sizes.
    """
    path = original_file(model.source, folder)
    session = OrtSession(
        path, request.threads, timeout_s=max(MAX_RUN_PART * request.budget, MIN_RUN_TIMEOUT_S),
        exact_integers=request.exact_integers, level=request.runtime_level,
    )  # fmt: skip
    try:
        return _run_original(model, request, folder, add_note, session, path)
    except BaseException:
        session.drop()
        raise


def _run_original(
    model: Model, request: Request, folder: Path, add_note: AddNote, session: OrtSession, path: Path
) -> Original:
    regions = cut_at_opaque_nodes(
        model.graph, [v.name or "" for v in model.source.model.graph.outputs]
    )
    sizes = representative_sizes.representative_sizes(model, request.shapes)
    if request.stop():
        add_note("it was stopped before the search")
        return Original(model, regions, session, path, "", None, (), sizes, 0.0, request.seed)
    wanted = [v for n in opaque_nodes(model.graph) for v in ir_graph.results(n)]
    wanted += [p.value for p in regions.observed]
    file = write_watched_file(model, model.graph, wanted, folder / "watched" / "model.onnx", path)
    own = file is not None and file.path == path
    if file is not None:
        held = session if own else replace(session, path=file.path, _loaded=None)
        try:
            probe = Probe(model, request, held, held.refusal)
            sets = tuple(probe.input_sets(sizes, add_note))
        finally:
            if not own:
                held.drop()
    if not own and (file is None or probe.refusal):
        # ONNX Runtime may run the model with its own outputs only
        file = None
        probe = Probe(model, request, session, session.refusal)
        sets = tuple(
            InputSet(s.feed, None, s.is_required)
            for s in probe.input_sets(sizes, lambda line: None)
        )
    if request.is_untimed:
        session.drop()
    return Original(
        model,
        regions,
        session,
        path,
        probe.refusal,
        file,
        sets,
        {**(probe.sizes or sizes), **_result_sizes(model, sets, file, probe.sizes or sizes)},
        probe.run_us,
        request.seed,
        max_optional_seconds=request.budget * (1.0 if request.is_untimed else MAX_CHECK_PART),
    )


def _result_sizes(
    model: Model, sets: Sequence[InputSet], file: WatchedFile | None, sizes: Mapping[str, int]
) -> dict[str, int]:
    """Return the sizes that results of opaque nodes have in a run at these sizes of inputs: no
    input says them."""
    given = [name for name in sizes if name in model.size_bindings]
    for s in sets:
        if file is None or s.results is None:
            continue
        if any(s.feed.sizes.get(name) != sizes[name] for name in given):
            continue
        found: dict[str, int] = {}
        for v in (v for n in opaque_nodes(model.graph) for v in ir_graph.results(n)):
            array = value_array(file.output_names, s.results, s.feed, v)
            if array is None or len(array.shape) != len(v.type.shape or ()):
                continue
            for d, extent in zip(v.type.shape or (), array.shape, strict=True):
                if isinstance(d, Size) and d.name not in model.size_bindings:
                    found[d.name] = max(extent, 1)
        return found
    return {}
