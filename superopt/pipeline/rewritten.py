"""The graph of a model that is compiled: found by searching with what kernels take, once, when the
model is tuned; made again by the log of that search, whenever it is compiled."""

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
    """The model after the log's decisions; as it is, where they do not fit any more."""
    try:
        model = import_model(source)
        steps = replay(log, model.graph, load_library(), source.sha256)
        made = export_model(model, fold_constants(steps[-1].after).graph)
        return replace(read_model(made), label=source.label)
    except SuperoptError:  # of another version's rules
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
    """Look for a graph that is faster when it is compiled, checked and timed as by `optimize`, and
    write down how it is made. How many rewrites there are, and how many times as fast it is; 0 and
    1.0 where there is none."""
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
