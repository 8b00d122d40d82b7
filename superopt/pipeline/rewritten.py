"""Rewrites of a compiled model's graph: a search with kernel costs finds them once, when the model
is tuned; compilation repeats them from the log of that search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from superopt.cost import tuned
from superopt.cost.store import Store
from superopt.errors import SuperoptError
from superopt.ir.constant_folding import fold_constants
from superopt.onnx_io.export.exporter import export_model
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import Source, read_model
from superopt.pipeline.load import load_model
from superopt.pipeline.optimize import decisions, optimize
from superopt.pipeline.outside import readable
from superopt.pipeline.request import Request
from superopt.pipeline.rule_library import load_library
from superopt.pipeline.timed import TIMERS
from superopt.report.data import Event
from superopt.search.decision_log import replay


def rewritten(source: Source, log: str) -> Source:
    """Return the model after the log's decisions; unchanged if they do not apply any more."""
    try:
        model = import_model(source)
        steps = replay(log, model.graph, load_library(), source.sha256)
        made = export_model(model, fold_constants(steps[-1].after).graph)
        return replace(read_model(made), label=source.label)
    except SuperoptError:  # the log is of other rules
        return source


def search(
    source: Source,
    threads: int,
    shapes: Mapping[str, int],
    budget: float,
    place: Path | None,
    progress: Callable[[Event], None],
    stop: Callable[[], bool],
) -> tuple[int, float]:
    """Search for a graph that is faster when compiled, checked and timed as by `optimize`, and
    store its decision log. Return the number of rewrites and the speedup; 0 and 1.0 if there is
    none."""
    given = readable(source, threads)
    if given.session is not None:
        return 0, 1.0
    request = Request(
        budget=budget, rules=load_library(), shapes=shapes, threads=threads, store=place,
        target="cpu", progress=progress, stop=stop, timers=TIMERS,
    )  # fmt: skip
    done = optimize(load_model(given.source), request)
    done.scratch.remove()
    if done.winner is None or done.ratio is None:
        return 0, 1.0
    us = done.cost_after
    with Store.open(place) as store:
        tuned.keep_graph(store, threads, done.source.sha256, decisions(done), (us, us, us, 1))
    return len(done.winner.variant.steps), done.ratio.mid
