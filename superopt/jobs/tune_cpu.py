"""`tune` on a CPU: rewrites of the graph, then options of its kernels, both by measuring."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from superopt import guard
from superopt.compilation.cpu.load_compiler import compile_model as compile_
from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
from superopt.compilation.frontend.profile_inputs import given_or_random_inputs
from superopt.compilation.model.executable import Executable
from superopt.compilation.node_timing import COMPILED_TIMERS
from superopt.cost import tuning_records
from superopt.cost.store import Store
from superopt.jobs.graph_rewrites import (
    CompiledSearch,
    FoundRewrites,
    apply_rewrite_log,
    search_and_store,
)
from superopt.kernels.loops.option import Option
from superopt.loading.representative_sizes import explain_default_sizes, representative_sizes
from superopt.onnx_io.read.source import Source
from superopt.report.compilation.compile_report import TuningReport
from superopt.report.data.report import Event

LOG = logging.getLogger("superopt.tune")
MIN_TUNING_SECONDS = 1e-3  # if rewrites took all of the budget
RACE_PART = 0.2  # of the time for schedules, in which the whole model is timed with them
RACE_SESSIONS, MIN_RACE_ROUNDS = 4, 5


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
    precision: str = "fp32",
) -> TuningReport:
    """Measure for at most `max_seconds`, of which `max_graph_seconds` are for rewrites, and write
    the fastest to `store`. Without the latter the graph stays. shapes: values of symbolic sizes.
    precision: of the kernels; rewrites are measured in float32.

    Raises ModelError for an invalid model.
    """
    begin = time.monotonic()
    rewrites = FoundRewrites()
    if allowed.winograd and max_graph_seconds > 0:
        on = tuning_records.cpu_target(threads)
        search = CompiledSearch("cpu", COMPILED_TIMERS, on, threads)
        rewrites = search_and_store(
            source, search, shapes, max_graph_seconds, store, progress, stop
        )
        LOG.info("%d graph rewrites, %.3g times as fast", rewrites.count, rewrites.speedup)
    before, exe = (
        compile_(
            source,
            threads=threads,
            store=store,
            allowed=allowed,
            rewrite=apply_rewrite_log,
            precision=precision,
        )
        for _ in range(2)
    )
    sizes = representative_sizes(exe.model, shapes)
    with Store.open(store) as held, explain_default_sizes(exe.model, shapes):
        usual = options_of(before, sizes)
        left = max(max_seconds - (time.monotonic() - begin), MIN_TUNING_SECONDS)
        found = exe.tune(
            sizes, budget=(1 - RACE_PART) * left, store=held, progress=progress, stop=stop
        )
        chosen = options_of(exe, sizes)
        changed = {k: o for k, o in usual.items() if chosen.get(k) != o}
        notes = (*held.notes, *guard.current_guard().take_notes())
        ratio = race_executables(before, exe, sizes, RACE_PART * left) if changed else None
        if ratio is not None:
            LOG.info("%d schedules changed: the model is %.3g times as fast", len(changed), ratio)
        if ratio is not None and ratio < 1:
            target = tuning_records.cpu_target(threads)
            tuning_records.store_chosen_options(held, target, changed)
            notes += (
                "the fastest schedules of kernels alone are not used: with them the whole model is "
                f"{ratio:.3f} times as fast",
            )
            ratio = None
    took = time.monotonic() - begin
    return replace(
        found, seconds=took, rewrites=rewrites.count, faster=rewrites.speedup, notes=notes,
        waterfall=rewrites.stages_with(ratio),
    )  # fmt: skip


def options_of(exe: Executable, sizes: Mapping[str, int]) -> dict[str, Option]:
    """Return the options of the kernels at these sizes, by the keys of their problems."""
    steps = exe.variant(sizes).kernel_steps
    return {key: option for s in steps for key, option in s.program.options.items()}


def race_executables(
    old: Executable, new: Executable, sizes: Mapping[str, int], seconds: float
) -> float:
    """Return how many times as fast `new` is, timed in turns: the mean of sessions, each with
    memory of its own, less what it varies."""
    feeds = given_or_random_inputs(new.model, None, sizes, seconds)
    clock = time.thread_time if new.device.kernel_threads == 1 else time.perf_counter
    logs = []
    for _ in range(RACE_SESSIONS):
        for exe in (old, new):
            exe.drop_variants()
            exe.run(feeds)
        ratios: list[float] = []
        end = time.monotonic() + seconds / RACE_SESSIONS
        while len(ratios) < MIN_RACE_ROUNDS or time.monotonic() < end:
            times = []
            for exe in (old, new):
                begin = clock()
                exe.run(feeds)
                times.append(clock() - begin)
            ratios.append(times[0] / times[1])
        logs.append(math.log(statistics.median(ratios)))
    return math.exp(statistics.mean(logs) - statistics.stdev(logs) / math.sqrt(len(logs)))
