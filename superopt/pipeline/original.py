"""The original model as the check sees it: inputs on which it runs, and its results on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from superopt import ort
from superopt.check.inputs import KINDS, Feeds, feeds
from superopt.check.numeric import Keep, Reference, Unrunnable, reference
from superopt.check.regions import Regions, cut, drawn, opaque_nodes
from superopt.errors import OutOfTime, UsageError
from superopt.ir import graph as ir_graph
from superopt.onnx_io.export.model_file import copy_unchanged
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.pipeline import shapes
from superopt.pipeline.request import Request
from superopt.pipeline.runtime import Got, Session, Watched, value, watched

PROBE_PART = 0.25  # of the budget: a slower model is checked on one set of inputs only
RUN_PART = 0.5  # of the budget, for loading the original and for a run of it
LEAST_RUN_SECONDS = 1.0  # minimum, however short the budget is
CHECK_PART = 0.15  # of the budget, for evaluating the original in float64 if models are timed
RELEASE_BYTES = 128 << 20  # of weights read, after which their pages are released
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Set:
    """One set of inputs, the runtime's results on it (None: it did not run), and whether every
    candidate must be checked on it, however little time there is."""

    feed: Feeds
    got: Got | None
    must: bool


@dataclass(slots=True)
class Original:
    """The model that candidates are compared with.

    session: the model in ONNX Runtime; path: its file; refusal: why ONNX Runtime does not run it,
    empty if it does; sets: the inputs of the check, the most revealing first; run_us: approximate
    time of a run in ONNX Runtime (0: unknown).
    """

    model: Model
    regions: Regions
    session: Session
    path: Path
    refused: str
    file: Watched | None
    sets: tuple[Set, ...]
    sizes: Mapping[str, int]
    us: float
    seed: int
    seconds: float = 0.0  # of all reference evaluations
    slowest: float = 0.0  # of the slowest one
    check_seconds: float = 0.0  # limit for the reference evaluations of optional sets together
    outputs: dict[int, Reference | str] = field(default_factory=dict)  # see output_comparison.py
    _known: dict[int, Reference | str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of the model's outputs."""
        return [v.name or "" for v in self.model.source.model.graph.outputs]

    @property
    def runs(self) -> bool:
        """True if ONNX Runtime runs it on some of the inputs."""
        return any(s.got is not None for s in self.sets)

    def knows(self, n: int) -> bool:
        """True if set number `n` was evaluated before."""
        return n in self._known or n in self.outputs

    def reference(self, n: int) -> Reference | str:
        """Return the original's values on set number `n`, computed once; a text if there are
        none."""
        if n not in self._known:
            begin = time.monotonic()
            self._known[n] = self._reference(self.sets[n])
            took = time.monotonic() - begin
            self.seconds += took
            self.slowest = max(self.slowest, took)
        return self._known[n]

    def _reference(self, s: Set) -> Reference | str:
        keep = releasing(self.model.source)
        try:
            if s.got is None or self.file is None:
                born = sorted(set(self.model.size_producers))
                return reference(
                    self.regions, s.feed, drawn(self.regions, s.feed, born, self.seed), None, keep
                )
            ports, got = self.file.ports, s.got
            free = free_values(self.regions, self.model.graph, ports, got, s.feed)
            ran = tuple(value(ports, got, s.feed, p.value) for p in self.regions.places)
            return reference(self.regions, s.feed, free, ran, keep)
        except Unrunnable as e:
            return f"inputs {s.feed.kind}: the original cannot be evaluated there: {e}"
        except MemoryError as e:
            return f"inputs {s.feed.kind}: no memory to evaluate the original: {e}"
        except OutOfTime as e:
            return f"inputs {s.feed.kind}: {e.what}: {e.why}"


def releasing(source: Source) -> Keep:
    """Return a callback for `evaluate` that releases the pages of weights from time to time."""
    backings = [*source.skeleton.files.values()]
    if source.raw is not None:
        backings.append(source.raw.backing)
    read = 0

    def keep(v: ir_graph.Value, array: np.ndarray) -> None:
        nonlocal read
        n = ir_graph.producer(v)
        read += sum(i.nbytes for i in (n.inputs if n else ()) if isinstance(i, ir_graph.Constant))
        if read > RELEASE_BYTES:
            read = 0
            for b in backings:
                b.release(0, len(b.view))

    return keep


def free_values(
    regions: Regions,
    graph: ir_graph.Graph,
    ports: Mapping[ir_graph.Value, str],
    got: Got,
    feed: Feeds,
) -> dict[str, np.ndarray]:
    """Return the results of the opaque nodes of `graph` in a run, by the names of the regions'
    inputs."""
    found: dict[str, np.ndarray] = {}
    for n in opaque_nodes(graph):
        for i, v in zip(regions.free[n.attr("payload")], ir_graph.results(n), strict=True):
            array = value(ports, got, feed, v)
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


def prepare(model: Model, request: Request, folder: Path, note: Note) -> Original:
    """Find inputs on which the model runs, and run it on them.

    Raises UsageError if it does not run on the user's own inputs or sizes.
    """
    path = original_file(model.source, folder)
    session = Session(
        path, request.threads, limit=max(RUN_PART * request.budget, LEAST_RUN_SECONDS)
    )
    try:
        return _prepare(model, request, folder, note, session, path)
    except BaseException:
        session.drop()
        raise


def _prepare(
    model: Model, request: Request, folder: Path, note: Note, session: Session, path: Path
) -> Original:
    regions = cut(model.graph, [v.name or "" for v in model.source.model.graph.outputs])
    sizes = shapes.representative(model, request.shapes)
    if request.stop():
        note("it was stopped before the search")
        return Original(model, regions, session, path, "", None, (), sizes, 0.0, request.seed)
    wanted = [v for n in opaque_nodes(model.graph) for v in ir_graph.results(n)]
    wanted += [p.value for p in regions.places]
    file = watched(model, model.graph, wanted, folder / "watched" / "model.onnx", path)
    own = file is not None and file.path == path
    if file is not None:
        held = session if own else Session(file.path, request.threads, limit=session.limit)
        try:
            probe = _Probe(model, request, held, held.refused)
            sets = tuple(probe.sets(sizes, note))
        finally:
            if not own:
                held.drop()
    if not own and (file is None or probe.refused):
        # ONNX Runtime may run the model with its own outputs only
        file = None
        probe = _Probe(model, request, session, session.refused)
        sets = tuple(Set(s.feed, None, s.must) for s in probe.sets(sizes, lambda line: None))
    if request.untimed:
        session.drop()
    return Original(
        model,
        regions,
        session,
        path,
        probe.refused,
        file,
        sets,
        probe.sizes or sizes,
        probe.us,
        request.seed,
        check_seconds=request.budget * (1.0 if request.untimed else CHECK_PART),
    )


@dataclass(slots=True)
class _Probe:
    """Tries inputs. Remembers why ONNX Runtime rejected the model, and the fastest run.

    empty_result: the last inputs and results where no output had elements.
    """

    model: Model
    request: Request
    held: Session
    refused: str
    us: float = 0.0
    sizes: Mapping[str, int] | None = None
    why: str = ""
    empty: tuple[Feeds, Got] | None = None

    def sets(self, sizes: Mapping[str, int], note: Note) -> Iterator[Set]:
        given = self.request.inputs
        if given is not None:
            yield Set(*self._given(given, sizes), True)
        begin = time.monotonic()
        first = self._first(sizes, note)
        if first is None:
            return
        yield first
        if time.monotonic() - begin > PROBE_PART * self.request.budget and not self.refused:
            note("the original runs slowly: it was checked on one set of inputs only")
            return
        self.sizes = first.feed.sizes
        if self.model.size_bindings:
            yield from self._elsewhere(self.sizes, note)
        for kind in KINDS[1:]:
            if self.request.stop():
                return
            found = self._on(self.sizes, kind)
            if found is not None:
                yield Set(*found, False)
            else:
                note(f"the original does not run on {kind} inputs, which were not checked")

    def _given(
        self, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int]
    ) -> tuple[Feeds, Got | None]:
        defaults = {
            i.name: v.const_value.numpy()
            for i, v in self.model.input_defaults.items()
            if v.const_value is not None
        }
        feed = Feeds("given", {**defaults, **arrays}, sizes)
        got = self._try(feed)
        if isinstance(got, ort.Failed):
            raise UsageError(
                f"{self.model.source.label} does not run on the given inputs",
                got.message,
                "pass inputs that onnxruntime accepts, or omit --inputs",
            )
        return feed, got

    def _first(self, sizes: Mapping[str, int], note: Note) -> Set | None:
        """Return the first set at the representative sizes, or at others if the model does not run
        there."""
        asked = bool(self.request.shapes)
        why = ""
        empty: Set | None = None
        for tried in (sizes, *(() if asked else shapes.others(sizes))):
            found = self._on(tried, KINDS[0])
            if found is not None:
                if tried is not sizes:
                    note(
                        f"the model does not run at {shapes.text(self.model, sizes)};"
                        f" costs are for {shapes.text(self.model, tried)} instead"
                    )
                return Set(*found, True)
            why = self.why
            if self.empty is not None:
                empty = empty or Set(*self.empty, True)
            if not self.model.size_bindings:
                break
        if empty is not None:
            return empty
        if asked and why:
            raise UsageError(
                f"{self.model.source.label} does not run at {shapes.text(self.model, sizes)}",
                why,
                "set other sizes with --shape",
            )
        note(f"no inputs were found on which the model runs: {why}; pass some with --inputs")
        return None

    def _elsewhere(self, sizes: Mapping[str, int], note: Note) -> Iterator[Set]:
        """Yield a set at other sizes, and one where every size is 1."""
        for tried in shapes.others(sizes):
            found = None if tried == sizes else self._on(tried, KINDS[0])
            if found is not None:
                yield Set(*self._at(*found), True)
                break
        else:
            note(f"the model runs at {shapes.text(self.model, sizes)} only, where it was checked")
        ones = dict.fromkeys(sizes, 1)
        found = None if ones == sizes else self._on(ones, KINDS[0])
        if found is not None:
            yield Set(*self._at(*found), False)

    def _at(self, feed: Feeds, got: Got | None) -> tuple[Feeds, Got | None]:
        kind = f"{feed.kind} at {shapes.text(self.model, feed.sizes)}"
        return Feeds(kind, feed.arrays, feed.sizes), got

    def _on(self, sizes: Mapping[str, int], kind: str) -> tuple[Feeds, Got | None] | None:
        """Return random inputs of a kind and the model's results; None if it does not run."""
        self.empty = None
        for tame in (False, True):
            try:
                feed = next(feeds(self.model.graph, sizes, self.request.seed, [kind], tame=tame))
            except (TypeError, KeyError, MemoryError) as e:
                self.why = f"no inputs can be drawn: {e}"
                return None
            got = self._try(feed)
            if not isinstance(got, ort.Failed):
                if got is None or kind != KINDS[0] or sizes == self.sizes or not _empty(got):
                    return feed, got
                self.why, self.empty = "its results are empty", (feed, got)
                return None
            self.why = got.message
        return None

    def _try(self, feed: Feeds) -> Got | ort.Failed | None:
        """Return the model's results; None if there is no runtime for it, Failed if it fails."""
        if self.refused:
            return None
        begin = time.perf_counter()
        got = self.held.run(feed)
        if isinstance(got, ort.Failed):
            if got.kind != "error":  # it crashed or timed out, and would again
                self.refused = got.message
                return None
            return got
        us = (time.perf_counter() - begin) * 1e6
        self.us = min(self.us or us, us)
        return got


def _empty(got: Got) -> bool:
    return all(isinstance(a, np.ndarray) and a.size == 0 for a in got.values())
