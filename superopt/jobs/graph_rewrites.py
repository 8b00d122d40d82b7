"""Rewrites of a compiled model's graph: a search with kernel costs finds them once, when the model
is tuned; compilation repeats them from the log of that search."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from superopt.cost import tuning_records
from superopt.cost.store import Store, Target
from superopt.errors import SuperoptError
from superopt.ir.constant_folding import fold_constants
from superopt.loading.model import load_model
from superopt.loading.readable_model import make_readable
from superopt.loading.request import CompiledTimers, Request
from superopt.loading.rule_library import load_library
from superopt.onnx_io.export.exporter import export_model
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import Source, read_model
from superopt.optimization.optimization_result import decision_log
from superopt.optimization.optimize import optimize
from superopt.optimization.report.waterfall import make_waterfall
from superopt.report.data.attribution import WaterfallStage
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


SCHEDULES_TITLE = "schedules tuned in this search"


@dataclass(frozen=True, slots=True)
class CompiledSearch:
    """A search for a graph of a compiled model. timers: of the target. store_target: of the log."""

    target: str
    timers: CompiledTimers
    store_target: Target
    threads: int = 1
    precision: str = "fp32"


@dataclass(frozen=True, slots=True)
class FoundRewrites:
    """The number of rewrites that a search found, and the speedup by them; cost_source: where it
    comes from if it was not timed. waterfall: from kernels alone to the result."""

    count: int = 0
    speedup: float = 1.0
    cost_source: str = ""
    waterfall: tuple[WaterfallStage, ...] = ()

    def stages_with(self, schedules_speedup: float | None) -> tuple[WaterfallStage, ...]:
        """Return the waterfall with the schedules that were tuned after the rewrites, and how much
        faster they are; None if that was not measured."""
        if not self.waterfall or schedules_speedup is None:
            return self.waterfall
        *stages, result = self.waterfall
        us = result.us / schedules_speedup
        tuned = WaterfallStage(SCHEDULES_TITLE, "decision", us, True)
        return (*stages, tuned, replace(result, us=us))


def search_and_store(
    source: Source,
    search: CompiledSearch,
    shapes: Mapping[str, int],
    budget: float,
    store_path: Path | None,
    progress: Callable[[Event], None],
    stop: Callable[[], bool],
) -> FoundRewrites:
    """Search for a graph that is faster when compiled, checked and timed as by `optimize`, and
    store its decision log. On a GPU that is not here the speedup is predicted, as in `optimize`."""
    given = make_readable(source, search.threads)
    if given.session is not None:
        return FoundRewrites()
    request = Request(
        budget=budget, rules=load_library(), shapes=shapes, threads=search.threads,
        store=store_path, target=search.target, progress=progress, stop=stop,
        timers=search.timers, precision=search.precision,
    )  # fmt: skip
    done = optimize(load_model(given.source), request)
    done.scratch.remove()
    waterfall = make_waterfall(done)
    if done.winner is None or (done.ratio is None and not request.is_predicted):
        return FoundRewrites(waterfall=waterfall)
    us = done.cost_after
    with Store.open(store_path) as store:
        tuning_records.store_rewrites(
            store, search.store_target, done.source.sha256, decision_log(done), (us, us, us, 1)
        )
    count = len(done.winner.variant.steps)
    if done.ratio is None:
        predicted = done.cost_before / done.cost_after
        return FoundRewrites(count, predicted, request.cost_source, waterfall)
    return FoundRewrites(count, done.ratio.mid, waterfall=waterfall)
