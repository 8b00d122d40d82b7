"""`tune` on a GPU: rewrites of the graph, then options of its kernels."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from superopt.compilation.cuda.device import open_gpu
from superopt.compilation.cuda.graph_timing import gpu_timers
from superopt.compilation.cuda.load_compiler import compile_model
from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
from superopt.cost import tuning_records
from superopt.cost.store import Store
from superopt.jobs.graph_rewrites import (
    CompiledSearch,
    FoundRewrites,
    apply_rewrite_log,
    search_and_store,
)
from superopt.kernels.runtime.gpu_device import device_name
from superopt.loading.representative_sizes import representative_sizes
from superopt.onnx_io.read.source import Source
from superopt.report.compilation.compile_report import TuningReport
from superopt.report.data.report import Event

LOG = logging.getLogger("superopt.tune")
MIN_TUNING_SECONDS = 1e-3  # if rewrites took all of the budget


def tune_model(
    source: Source,
    shapes: Mapping[str, int],
    max_seconds: float,
    max_graph_seconds: float,
    store: Path | None,
    progress: Callable[[Event], None],
    stop: Callable[[], bool],
    allowed: AllowedTransforms,
    precision: str,
    vendor: bool,
) -> TuningReport:
    """Measure for at most `max_seconds`, of which `max_graph_seconds` are for rewrites, and write
    the fastest to `store`. Without the latter the graph stays. shapes: values of symbolic sizes.

    Raises ModelError for an invalid model; UsageError if there is no GPU.
    """
    begin = time.monotonic()
    device = open_gpu(precision)
    rewrites = FoundRewrites()
    if allowed.winograd and max_graph_seconds > 0:
        on = tuning_records.gpu_models_target(device_name(device.torch_device), precision)
        search = CompiledSearch("cuda", gpu_timers(precision), on, precision=precision)
        rewrites = search_and_store(
            source, search, shapes, max_graph_seconds, store, progress, stop
        )
        LOG.info("%d graph rewrites, %.3g times as fast", rewrites.count, rewrites.speedup)
    exe = compile_model(
        source, precision, allowed.float_class, store, vendor, rewrite=apply_rewrite_log
    )
    sizes = representative_sizes(exe.model, shapes)
    with Store.open(store) as held:
        left = max(max_seconds - (time.monotonic() - begin), MIN_TUNING_SECONDS)
        found = exe.tune(sizes, budget=left, store=held, progress=progress, stop=stop)
        return replace(
            found, seconds=time.monotonic() - begin, rewrites=rewrites.count,
            faster=rewrites.speedup, cost_source=rewrites.cost_source,
            waterfall=rewrites.waterfall,
            notes=(*found.notes, *held.notes),
        )  # fmt: skip
