"""`tune` on a CPU: rewrites of the graph, then options of its kernels, both by measuring."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from superopt import guard
from superopt.cost.store import Store
from superopt.onnx_io.read.source import Source
from superopt.pipeline.allowed import Allowed
from superopt.pipeline.compile import compile as compile_
from superopt.pipeline.rewritten import rewritten, search
from superopt.pipeline.shapes import fitting, representative
from superopt.report.compiled import Tuned
from superopt.report.data import Event


def tuned(
    source: Source,
    threads: int,
    shapes: Mapping[str, int],
    seconds: float,
    graph_seconds: float,
    store: Path | None,
    show: Callable[[Event], None],
    stop: Callable[[], bool],
    may: Allowed,
) -> Tuned:
    """Measure for at most `max_seconds`, of which `max_graph_seconds` are for rewrites, and write
    the fastest to `store`. shapes: values of symbolic sizes.

    Raises ModelError for an invalid model.
    """
    begin = time.monotonic()
    rewrites, faster = 0, 1.0
    if may.tiles:
        rewrites, faster = search(source, threads, shapes, graph_seconds, store, show, stop)
    exe = compile_(source, threads=threads, store=store, allowed=may, rewrite=rewritten)
    sizes = representative(exe.model, shapes)
    with Store.open(store) as held, fitting(exe.model, shapes):
        left = max(seconds - (time.monotonic() - begin), 0.0)
        found = exe.tune(sizes, left, held, show, stop)
        notes = (*held.notes, *guard.current().said())
    took = time.monotonic() - begin
    return replace(found, seconds=took, rewrites=rewrites, faster=faster, notes=notes)
