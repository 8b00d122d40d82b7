"""`tune` on a CPU: rewrites of the graph, then options of its kernels, both by measuring."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from superopt import guard
from superopt.compilation.cpu.load_compiler import compile_model as compile_
from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
from superopt.cost.store import Store
from superopt.jobs.graph_rewrites import apply_rewrite_log, search_and_store
from superopt.loading.representative_sizes import explain_default_sizes, representative_sizes
from superopt.onnx_io.read.source import Source
from superopt.report.compilation.compile_report import TuningReport
from superopt.report.data.report import Event

LOG = logging.getLogger("superopt.tune")
MIN_TUNING_SECONDS = 1e-3  # if rewrites took all of the budget


def tune_model(
    source: Source,
    threads: int,
    shapes: Mapping[str, int],
    max_seconds: float,
    max_graph_seconds: float,
    store: Path | None,
    progress: Callable[[Event], None],
    stop: Callable[[], bool],
    allowed: AllowedTransforms,
) -> TuningReport:
    """Measure for at most `max_seconds`, of which `max_graph_seconds` are for rewrites, and write
    the fastest to `store`. Without the latter the graph stays. shapes: values of symbolic sizes.

    Raises ModelError for an invalid model.
    """
    begin = time.monotonic()
    rewrites, faster = 0, 1.0
    if allowed.winograd and max_graph_seconds > 0:
        rewrites, faster = search_and_store(
            source, threads, shapes, max_graph_seconds, store, progress, stop
        )
        LOG.info("%d graph rewrites, %.3g times as fast", rewrites, faster)
    exe = compile_(source, threads=threads, store=store, allowed=allowed, rewrite=apply_rewrite_log)
    sizes = representative_sizes(exe.model, shapes)
    with Store.open(store) as held, explain_default_sizes(exe.model, shapes):
        left = max(max_seconds - (time.monotonic() - begin), MIN_TUNING_SECONDS)
        found = exe.tune(sizes, budget=left, store=held, progress=progress, stop=stop)
        notes = (*held.notes, *guard.current_guard().take_notes())
    took = time.monotonic() - begin
    return replace(found, seconds=took, rewrites=rewrites, faster=faster, notes=notes)
