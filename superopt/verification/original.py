"""The original model as the check sees it: inputs on which it runs, and its results on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from superopt import ort
from superopt.check.numeric_check import NotEvaluable, OnValue, Reference, reference_values
from superopt.check.opaque_regions import (
    Regions,
    cut_at_opaque_nodes,
    draw_opaque_results,
    opaque_nodes,
)
from superopt.check.random_inputs import INPUT_KINDS, Feeds, random_feeds
from superopt.errors import OutOfTime, UsageError
from superopt.ir import graph as ir_graph
from superopt.loading import representative_sizes
from superopt.loading.request import Request
from superopt.onnx_io.export.model_file import copy_unchanged
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.verification.ort_session import (
    OrtSession,
    Results,
    WatchedFile,
    value_array,
    write_watched_file,
)

MAX_PROBE_PART = 0.25  # of the budget: a slower model is checked on one set of inputs only
MAX_RUN_PART = 0.5  # of the budget, for loading the original and for a run of it
MIN_RUN_TIMEOUT_S = 1.0  # minimum, however short the budget is
MAX_CHECK_PART = 0.15  # of the budget, for evaluating the original in float64 if models are timed
RELEASE_AFTER_BYTES = 128 << 20  # of weights read, after which their pages are released
AddNote = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class InputSet:
    """One set of inputs, the runtime's results on it (None: it did not run), and whether every
    candidate must be checked on it, however little time there is."""

    feed: Feeds
    results: Results | None
    is_required: bool


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
        path, request.threads, timeout_s=max(MAX_RUN_PART * request.budget, MIN_RUN_TIMEOUT_S)
    )
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
        held = (
            session if own else OrtSession(file.path, request.threads, timeout_s=session.timeout_s)
        )
        try:
            probe = _Probe(model, request, held, held.refusal)
            sets = tuple(probe.input_sets(sizes, add_note))
        finally:
            if not own:
                held.drop()
    if not own and (file is None or probe.refusal):
        # ONNX Runtime may run the model with its own outputs only
        file = None
        probe = _Probe(model, request, session, session.refusal)
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
        probe.sizes or sizes,
        probe.run_us,
        request.seed,
        max_optional_seconds=request.budget * (1.0 if request.is_untimed else MAX_CHECK_PART),
    )


@dataclass(slots=True)
class _Probe:
    """Tries inputs. Remembers why ONNX Runtime rejected the model, and the fastest run.

    empty_result: the last inputs and results where no output had elements.
    """

    model: Model
    request: Request
    session: OrtSession
    refusal: str
    run_us: float = 0.0
    sizes: Mapping[str, int] | None = None
    failure: str = ""
    empty_result: tuple[Feeds, Results] | None = None

    def input_sets(self, sizes: Mapping[str, int], add_note: AddNote) -> Iterator[InputSet]:
        given = self.request.inputs
        if given is not None:
            yield InputSet(*self._run_given_inputs(given, sizes), True)
        begin = time.monotonic()
        first = self._first_set(sizes, add_note)
        if first is None:
            return
        yield first
        if time.monotonic() - begin > MAX_PROBE_PART * self.request.budget and not self.refusal:
            add_note("the original runs slowly: it was checked on one set of inputs only")
            return
        self.sizes = first.feed.sizes
        if self.model.size_bindings:
            yield from self._sets_at_other_sizes(self.sizes, add_note)
        for kind in INPUT_KINDS[1:]:
            if self.request.stop():
                return
            found = self._run_random_inputs(self.sizes, kind)
            if found is not None:
                yield InputSet(*found, False)
            else:
                add_note(f"the original does not run on {kind} inputs, which were not checked")

    def _run_given_inputs(
        self, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int]
    ) -> tuple[Feeds, Results | None]:
        defaults = {
            i.name: v.const_value.numpy()
            for i, v in self.model.input_defaults.items()
            if v.const_value is not None
        }
        feed = Feeds("given", {**defaults, **arrays}, sizes)
        got = self._try_run(feed)
        if isinstance(got, ort.Failure):
            raise UsageError(
                f"{self.model.source.label} does not run on the given inputs",
                got.message,
                "pass inputs that onnxruntime accepts, or omit --inputs",
            )
        return feed, got

    def _first_set(self, sizes: Mapping[str, int], add_note: AddNote) -> InputSet | None:
        """Return the first set at the representative sizes, or at others if the model does not run
        there."""
        asked = bool(self.request.shapes)
        why = ""
        empty: InputSet | None = None
        for tried in (sizes, *(() if asked else representative_sizes.alternative_sizes(sizes))):
            found = self._run_random_inputs(tried, INPUT_KINDS[0])
            if found is not None:
                if tried is not sizes:
                    add_note(
                        "the model does not run at"
                        f" {representative_sizes.sizes_text(self.model, sizes)}; costs are for"
                        f" {representative_sizes.sizes_text(self.model, tried)} instead"
                    )
                return InputSet(*found, True)
            why = self.failure
            if self.empty_result is not None:
                empty = empty or InputSet(*self.empty_result, True)
            if not self.model.size_bindings:
                break
        if empty is not None:
            return empty
        if asked and why:
            raise UsageError(
                f"{self.model.source.label} does not run at "
                f"{representative_sizes.sizes_text(self.model, sizes)}",
                why,
                "set other sizes with --shape",
            )
        add_note(f"no inputs were found on which the model runs: {why}; pass some with --inputs")
        return None

    def _sets_at_other_sizes(
        self, sizes: Mapping[str, int], add_note: AddNote
    ) -> Iterator[InputSet]:
        """Yield a set at other sizes, and one where every size is 1."""
        for tried in representative_sizes.alternative_sizes(sizes):
            found = None if tried == sizes else self._run_random_inputs(tried, INPUT_KINDS[0])
            if found is not None:
                yield InputSet(*self._with_sizes_in_label(*found), True)
                break
        else:
            add_note(
                f"the model runs at {representative_sizes.sizes_text(self.model, sizes)} only, "
                "where it was checked"
            )
        ones = dict.fromkeys(sizes, 1)
        found = None if ones == sizes else self._run_random_inputs(ones, INPUT_KINDS[0])
        if found is not None:
            yield InputSet(*self._with_sizes_in_label(*found), False)

    def _with_sizes_in_label(
        self, feed: Feeds, results: Results | None
    ) -> tuple[Feeds, Results | None]:
        kind = f"{feed.kind} at {representative_sizes.sizes_text(self.model, feed.sizes)}"
        return Feeds(kind, feed.arrays, feed.sizes), results

    def _run_random_inputs(
        self, sizes: Mapping[str, int], kind: str
    ) -> tuple[Feeds, Results | None] | None:
        """Return random inputs of a kind and the model's results; None if it does not run."""
        self.empty_result = None
        for tame in (False, True):
            try:
                feed = next(
                    random_feeds(
                        self.model.graph, sizes, self.request.seed, [kind], zero_integers=tame
                    )
                )
            except (TypeError, KeyError, MemoryError) as e:
                self.failure = f"no inputs can be drawn: {e}"
                return None
            got = self._try_run(feed)
            if not isinstance(got, ort.Failure):
                if (
                    got is None
                    or kind != INPUT_KINDS[0]
                    or sizes == self.sizes
                    or not _is_empty(got)
                ):
                    return feed, got
                self.failure, self.empty_result = "its results are empty", (feed, got)
                return None
            self.failure = got.message
        return None

    def _try_run(self, feed: Feeds) -> Results | ort.Failure | None:
        """Return the model's results; None if there is no runtime for it, Failed if it fails."""
        if self.refusal:
            return None
        begin = time.perf_counter()
        got = self.session.run(feed)
        if isinstance(got, ort.Failure):
            if got.kind != "error":  # it crashed or timed out, and would again
                self.refusal = got.message
                return None
            return got
        us = (time.perf_counter() - begin) * 1e6
        self.run_us = min(self.run_us or us, us)
        return got


def _is_empty(results: Results) -> bool:
    return all(isinstance(a, np.ndarray) and a.size == 0 for a in results.values())
