"""Rewrites of a compiled model's graph: a search with kernel costs finds them once, when the model
is tuned; compilation repeats them from the log of that search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from superopt.compilation.node_timing import COMPILED_TIMERS
from superopt.cost import tuning_records
from superopt.cost.store import Store
from superopt.errors import SuperoptError
from superopt.ir.constant_folding import fold_constants
from superopt.loading.model import load_model
from superopt.loading.readable_model import make_readable
from superopt.loading.request import Request
from superopt.loading.rule_library import load_library
from superopt.onnx_io.export.exporter import export_model
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import Source, read_model
from superopt.optimization.optimization_result import decision_log
from superopt.optimization.optimize import optimize
from superopt.report.data.report import Event
from superopt.search.decision_log import replay


def apply_rewrite_log(source: Source, log: str) -> Source:
    """Return the model after the log's decisions; unchanged if they do not apply any more."""
    try:
        model = import_model(source)
        steps = replay(log, model.graph, load_library(), source.sha256)
        made = export_model(model, fold_constants(steps[-1].after).graph)
        return replace(read_model(made), label=source.label)
    except SuperoptError:  # the log is of other rules
        return source


def search_and_store(
    source: Source,
    threads: int,
    shapes: Mapping[str, int],
    budget: float,
    store_path: Path | None,
    progress: Callable[[Event], None],
    stop: Callable[[], bool],
) -> tuple[int, float]:
    """Search for a graph that is faster when compiled, checked and timed as by `optimize`, and
    store its decision log. Return the number of rewrites and the speedup; 0 and 1.0 if there is
    none."""
    given = make_readable(source, threads)
    if given.session is not None:
        return 0, 1.0
    request = Request(
        budget=budget, rules=load_library(), shapes=shapes, threads=threads, store=store_path,
        target="cpu", progress=progress, stop=stop, timers=COMPILED_TIMERS,
    )  # fmt: skip
    done = optimize(load_model(given.source), request)
    done.scratch.remove()
    if done.winner is None or done.ratio is None:
        return 0, 1.0
    us = done.cost_after
    with Store.open(store_path) as store:
        tuning_records.store_rewrites(
            store, threads, done.source.sha256, decision_log(done), (us, us, us, 1)
        )
    return len(done.winner.variant.steps), done.ratio.mid
