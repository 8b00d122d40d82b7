"""`optimize`: read, search, fold, check, time whole models, keep the fastest that passed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from superopt import ort
from superopt.check.inputs import Feeds, feeds
from superopt.check.numeric import Checked, check, opaque_nodes
from superopt.cost.clock import Ratio, compare, faster
from superopt.cost.machine import Machine, machine
from superopt.cost.measured import MeasuredClock
from superopt.cost.model import Costs, by_roofline
from superopt.cost.store import Store, Target
from superopt.errors import CheckFailed
from superopt.ir import graph as g
from superopt.ir.fold import fold
from superopt.onnx_io.exporter import export_model, expressible
from superopt.onnx_io.importer import Model, import_model
from superopt.onnx_io.source import Source, read
from superopt.onnx_io.validate import validate
from superopt.onnx_io.write import copy_unchanged, write_model
from superopt.pipeline.runtime import runner
from superopt.pipeline.shapes import representative, unequal
from superopt.report.data import Event
from superopt.rules.rule import Rule
from superopt.rules.term import App, walk
from superopt.search.backtrack import Limits, StopReason
from superopt.search.decisions import log, replay
from superopt.search.move import Refusals
from superopt.search.run import Outcome, Variant, improve

SEARCH_PART = 0.45  # of the budget; checks and whole-model timings take the rest
TIMED = 3  # variants that are timed whole


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller asked for; see `superopt.api.optimize`."""

    budget: float = 60.0
    rules: tuple[Rule, ...] = ()
    shapes: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, np.ndarray] | None = None
    threads: int = 1
    seed: int = 0
    alpha: float = 1.05
    progress: Callable[[Event], None] = lambda event: None
    stop: Callable[[], bool] = lambda: False
    replay: str | None = None
    store: Path | None = None
    cost: str = "auto"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rewritten and folded model in a file, with its check and its place in the timing."""

    variant: Variant
    graph: g.Graph
    tensors: Model
    path: Path
    checked: Checked
    folded: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Everything that an optimization found; `winner` is None when nothing faster passed."""

    source: Source
    model: Model
    request: Request
    machine: Machine
    outcome: Outcome
    refusals: Refusals
    winner: Candidate | None
    times: tuple[tuple[float, ...], ...]
    ratio: Ratio | None
    checked: Checked | None
    cost_before: float
    cost_after: float
    clock: MeasuredClock | None
    notes: tuple[str, ...]
    folder: tempfile.TemporaryDirectory[str]


def optimize(source: Source, request: Request) -> Done:
    """The fastest checked model that the rules reach from `source` within the budget.

    Raises ModelError for an invalid model, CheckFailed when every candidate disagrees with the
    original (which means a wrong rule: nothing is written).
    """
    begin = time.monotonic()
    request.progress(Event("load", f"reading {source.label}", 0.0))
    validate(source)
    model = import_model(source)
    sizes = representative(model, request.shapes)
    here = machine()
    notes: list[str] = []
    store = Store.open(request.store)
    notes += store.notes
    clock, costs = _costs(model, sizes, request, store, here, begin, notes)
    rules = tuple(r for r in request.rules if _usable(r, model.opset))
    refusals = Refusals()
    if clock is not None:
        request.progress(Event("measure", "timing operators", 0.05))
    cost_before = costs.of_graph(model.graph)
    if request.replay is not None:
        outcome = _replayed(request.replay, model, rules, costs)
    else:
        outcome = improve(
            model.graph,
            rules,
            costs,
            seconds=max(0.0, begin + SEARCH_PART * request.budget - time.monotonic()),
            limits=Limits(alpha=request.alpha, seconds=SEARCH_PART * request.budget),
            refusals=refusals,
            stop=request.stop,
            progress=lambda text, cost: request.progress(Event("search", text, 0.3, cost)),
        )
    folder = tempfile.TemporaryDirectory(prefix="superopt-")
    try:
        return _finish(
            source, model, request, here, outcome, refusals, costs, clock, sizes, begin, cost_before,
            notes, folder,
        )  # fmt: skip
    except BaseException:
        folder.cleanup()
        raise
    finally:
        store.close()


def _replayed(text: str, model: Model, rules: Sequence[Rule], costs: Costs) -> Outcome:
    """The outcome of an earlier run, its decisions taken again without pricing or timing."""
    begin = time.monotonic()
    steps = tuple(replay(text, model.graph, rules, model.source.sha256))
    graph = steps[-1].after if steps else model.graph
    variant = Variant("replay", graph, costs.of_graph(graph), steps)
    return Outcome((variant,), len(steps), time.monotonic() - begin, StopReason.EXHAUSTED, 0)


def _usable(rule: Rule, opset: int) -> bool:
    """Can every operator of the rule's right side be written in this opset?"""
    written = {p.op for t in rule.rhs for p in walk(t) if isinstance(p, App)}
    return all(expressible(op, opset) for op in written)


def _costs(
    model: Model,
    sizes: Mapping[str, int],
    request: Request,
    store: Store,
    here: Machine,
    begin: float,
    notes: list[str],
) -> tuple[MeasuredClock | None, Costs]:
    version = ort.available()
    if request.cost == "roofline" or version is None or request.replay is not None:
        if version is None:
            notes.append("onnxruntime is not installed: costs are estimates and nothing was timed")
        return None, Costs(sizes, by_roofline(request.threads))
    clock = MeasuredClock(
        store,
        Target.on(here, "onnxruntime", version, request.threads),
        model.opset,
        model.source.model.ir_version,
        request.threads,
        deadline=begin + SEARCH_PART * request.budget,
        stop=request.stop,
    )
    return clock, Costs(sizes, clock)


def _finish(
    source: Source,
    model: Model,
    request: Request,
    here: Machine,
    outcome: Outcome,
    refusals: Refusals,
    costs: Costs,
    clock: MeasuredClock | None,
    sizes: dict[str, int],
    begin: float,
    cost_before: float,
    notes: list[str],
    folder: tempfile.TemporaryDirectory[str],
) -> Done:
    names = [v.name or "" for v in source.model.graph.outputs]
    original = original_file(source, Path(folder.name))
    failures: list[str] = []
    watched = opaque_nodes(model.graph)
    run_original = _original_runner(
        model, original, names, watched, request, Path(folder.name), failures
    )
    sets = list(feeds(model.graph, sizes, request.seed, request.inputs))
    if model.sizes:
        sets += [Feeds(f"{f.kind}, other sizes", f.arrays)
                 for f in feeds(model.graph, unequal(sizes), request.seed, None)][:1]  # fmt: skip
    passed: list[Candidate] = []
    refused: list[tuple[Variant, Checked]] = []
    for variant in outcome.variants[: TIMED + 1]:
        if variant.graph == model.graph:
            continue
        request.progress(
            Event("check", f"checking the graph of {variant.label}", 0.6, variant.cost)
        )
        done = fold(variant.graph)
        path = Path(folder.name, f"candidate{len(passed) + len(refused)}", "model.onnx")
        path.parent.mkdir()
        exported = export_model(model, done.graph)
        write_model(exported, path, like=source)
        checked = check(
            model.graph, done.graph, names, sets, sizes,
            run_original=run_original,
            run_candidate=runner(path, names, request.threads, failures),
            seed=request.seed, stop=request.stop,
        )  # fmt: skip
        if checked.failures:
            refused.append((variant, checked))
            continue
        found = _loads(path, original, sets[0], request.threads)
        if found:
            notes.append(found)
            continue
        passed.append(
            Candidate(variant, done.graph, model, path, checked, done.nodes, done.skipped)
        )
        if request.stop() or len(passed) == TIMED:
            break
    if refused and not passed:
        variant, checked = refused[0]
        raise _check_failed(model, variant, checked)
    for variant, checked in refused:
        bad = checked.failures[0]
        notes.append(
            f"the graph of {variant.label} was refused: {bad.place}: {bad.compared.failure}"
        )
    winner, times, ratio = _race(original, passed, sets, request, clock, notes, begin)
    return Done(
        source, model, request, here, outcome, refusals, winner, times, ratio,
        winner.checked if winner else (passed[0].checked if passed else None),
        cost_before, winner.variant.cost if winner else cost_before, clock, tuple(notes), folder,
    )  # fmt: skip


def original_file(source: Source, folder: Path) -> Path:
    """A file with the original: its own where it has one."""
    if source.path is not None:
        return source.path
    path = folder / "original" / "model.onnx"
    path.parent.mkdir(exist_ok=True)
    copy_unchanged(source, path)
    return path


def _original_runner(
    model: Model,
    original: Path,
    names: Sequence[str],
    watched: Sequence[g.Node],
    request: Request,
    folder: Path,
    failures: list[str],
) -> Callable[[Mapping[str, np.ndarray]], list[np.ndarray] | None]:
    """Runs the original, with the results of its opaque nodes as further outputs."""
    values = [v for n in watched for v in g.results(n)]
    if not values:
        return runner(original, names, request.threads, failures)
    if any(v.type.dtype is None for v in values):
        return lambda feeds: None  # sequences and the like cannot be taken out
    path = folder / "watched" / "model.onnx"
    path.parent.mkdir(exist_ok=True)
    write_model(export_model(model, extra=values), path, like=model.source)
    extra = [f"extra{n}" for n in range(len(values))]
    return runner(path, [*names, *extra], request.threads, failures)


def _loads(path: Path, original: Path, feed: Feeds, threads: int) -> str:
    """Why onnxruntime does not run the candidate at some level at which it runs the original."""
    if ort.available() is None:
        return ""
    tried = ort.runs_everywhere(path, dict(feed.arrays), threads=threads)
    bad = [t for t in tried if not t.ok]
    if not bad:
        return ""
    before = {
        t.level: t.ok for t in ort.runs_everywhere(original, dict(feed.arrays), threads=threads)
    }
    for t in bad:
        if before[t.level]:
            return (
                f"a candidate was dropped: onnxruntime refuses it at level {t.level}: {t.message}"
            )
    return ""


def _check_failed(model: Model, variant: Variant, checked: Checked) -> CheckFailed:
    bad = checked.failures[0]
    return CheckFailed(
        f"{model.source.label}: output {bad.place} changed",
        f"{bad.compared.failure} (inputs: {bad.kind})",
        "report this model; nothing was written",
    )


def _race(
    original: Path,
    passed: Sequence[Candidate],
    sets: Sequence[Feeds],
    request: Request,
    clock: MeasuredClock | None,
    notes: list[str],
    begin: float,
) -> tuple[Candidate | None, tuple[tuple[float, ...], ...], Ratio | None]:
    """The candidate that is faster than the original beyond noise, with the times of both."""
    if not passed:
        return None, (), None
    if ort.available() is None or request.cost == "roofline" or request.replay is not None:
        best = min(passed, key=lambda c: c.variant.cost)
        return best, (), None
    request.progress(Event("time", "timing whole models in turns", 0.85))
    left = begin + request.budget - time.monotonic()
    seconds = min(20.0, max(2.0, 0.8 * left)) if not request.stop() else 2.0
    plain = next((f for f in sets if f.kind == "normal"), sets[0])
    times = ort.time_interleaved(
        [original, *(c.path for c in passed)], dict(plain.arrays),
        threads=request.threads, seconds=seconds, rounds=60, seed=request.seed,
    )  # fmt: skip
    if isinstance(times, ort.Failed):
        notes.append(f"whole models were not timed: {times.message}")
        return None, (), None
    ranked = sorted(
        (
            (compare(times[0], t, request.seed), c, t)
            for c, t in zip(passed, times[1:], strict=True)
        ),
        key=lambda row: -row[0].mid,
    )
    ratio, best, taken = ranked[0]
    pair = (tuple(times[0]), tuple(taken))
    return (best if faster(ratio) else None), pair, ratio


def save(done: Done, path: Path) -> None:
    """Write the result by rename: the winner, or a byte-identical copy of the input."""
    if done.winner is None:
        copy_unchanged(done.source, path)
    else:
        write_model(export_model(done.model, done.winner.graph), path, like=done.source)


def sha256(done: Done) -> str:
    """The digest of the winner's file."""
    assert done.winner is not None
    return read(done.winner.path).sha256


def decisions(done: Done) -> str:
    """The log of what was decided, for `replay`; without rounds when nothing changed."""
    steps = done.winner.variant.steps if done.winner else ()
    return log(steps, done.request.rules, done.source.sha256)
