"""`bench`: time models against each other and in other runtimes, interleaved; medians and
confidence intervals."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from superopt import guard, ort
from superopt.baselines import openvino, torch_compile
from superopt.check.random_inputs import random_feeds
from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.model.compile_model import compile_model
from superopt.cost.machine import this_machine
from superopt.cost.machine_load import Load, LoadMeter, max_load
from superopt.cost.speedup import TimingSession, predict_speedup
from superopt.errors import OutOfTime, SuperoptError, UsageError
from superopt.jobs.graph_rewrites import apply_rewrite_log
from superopt.loading.readable_model import make_readable
from superopt.loading.representative_sizes import default_sizes_text, representative_sizes
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.optimization.report.latencies import median_latency, ratio_interval
from superopt.ort.timing import SPIN_SECONDS, bind_run, interleave
from superopt.report.data.report import BenchRow, Event

RUNTIMES = ("ort", "openvino", "torch", "superopt")
MAX_ROUNDS = 40
REPETITIONS = 5
MAX_TIMING_SHARE = 0.5  # of the time that is left; models are loaded in the rest
PROGRESS_INTERVAL_S = 0.5  # seconds between two events, which disturb the caches


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """The target of superopt and torch, and the precision of floats; see `superopt.compile`."""

    target: str = "cpu"
    precision: str = "fp32"
    vendor: bool = True
    float_class: str = "E2"


@dataclass(frozen=True, slots=True)
class _ModelRuntime:
    """One model in one runtime."""

    model: str
    runtime: str
    load_run: Callable[
        [], Callable[[], object]
    ]  # loads the model and returns a function that runs it
    note: str  # why it does not run; empty if it does


@dataclass(frozen=True, slots=True)
class _Repetition:
    """One repetition: the rounds of every model that runs, and the load during it."""

    times_us: Mapping[int, Sequence[float]]
    load: Load


def run_benchmark(
    models: Sequence[Path],
    *,
    runtimes: Sequence[str] = ("ort",),
    threads: int = 1,
    seconds: float = 10.0,
    shapes: Mapping[str, int] | None = None,
    seed: int = 0,
    progress: Callable[[Event], None] = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
    target: BenchTarget = BenchTarget(),
) -> tuple[BenchRow, ...]:
    """Time every model in every runtime, one run of each in every round, for `seconds` in total.

    All models take the same inputs if their inputs agree. The speedup is relative to the first
    model in the first runtime. Raises UsageError for an unknown runtime.
    """
    for name in runtimes:
        if name not in RUNTIMES:
            raise UsageError(
                f"no runtime {name}", f"runtimes are {', '.join(RUNTIMES)}", "use one of them"
            )
    lanes: list[_ModelRuntime] = []
    own: list[str] = []
    first: Mapping[str, np.ndarray] | None = None
    for path in models:
        model = import_model(make_readable(read_model(path), threads).source)
        try:
            made = next(
                random_feeds(model.graph, representative_sizes(model, shapes or {}), seed)
            ).arrays
        except (TypeError, KeyError, MemoryError) as e:
            raise UsageError(
                f"{path.name} cannot be timed", f"no inputs can be drawn: {e}", "omit it"
            ) from None
        own.append(default_sizes_text(model, shapes or {}))
        arrays = dict(made)
        if first is not None and _have_same_inputs(first, made):
            arrays = {name: first[name] for name in made}
        first = arrays if first is None else first
        for runtime in runtimes:
            progress(Event("load", f"{path.name} in {runtime}"))
            lanes.append(_prepare_runtime(path, runtime, arrays, threads, target, seconds))
    if all(lane.note for lane in lanes):
        raise UsageError(
            "no model was timed",
            "; ".join(dict.fromkeys(f"{lane.model}: {lane.note}" for lane in lanes)),
            "name a model and a runtime that runs it; see "
            f"`superopt doctor`{_default_sizes_hint(own)}",
        )
    sat = _time_repetitions(lanes, seconds, threads, seed, stop, progress)
    return tuple(_bench_rows(lanes, sat, threads, seed))


def _default_sizes_hint(default_sizes: Sequence[str]) -> str:
    """Return a hint about sizes that superopt chose; empty if it chose none."""
    some = ", ".join(dict.fromkeys(filter(None, default_sizes)))
    return f"; superopt chose {some}: set other sizes by --shape NAME=N" if some else ""


def _have_same_inputs(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> bool:
    """True if two models take the same inputs."""
    return {n: (x.shape, x.dtype) for n, x in a.items()} == {
        n: (x.shape, x.dtype) for n, x in b.items()
    }


def _has_declared_shapes(session: ort.Session, outputs: Mapping[str, object]) -> bool:
    """True if the outputs have the shapes that the model declares."""
    for port in session.raw.get_outputs():
        shape = getattr(outputs[port.name], "shape", port.shape)
        said = [m if isinstance(m, int) else n for m, n in zip(port.shape, shape, strict=False)]
        if said != [*shape]:
            return False
    return True


def _prepare_runtime(
    path: Path,
    runtime: str,
    arrays: Mapping[str, np.ndarray],
    threads: int,
    target: BenchTarget,
    seconds: float,
) -> _ModelRuntime:
    """Load a model in a runtime. The result has a note if the model does not run, or if one run
    takes longer than `seconds`."""

    def in_ort() -> Callable[[], object]:
        session = ort.load_session(path, threads=threads)
        with guard.limit_call(seconds):
            found = ort.run(session, arrays)  # raises a readable error for unfit inputs
        if _has_declared_shapes(session, found):
            return bind_run(session, arrays)
        # outputs of other shapes cannot be bound
        return lambda: session.raw.run(None, dict(arrays))

    def in_openvino() -> Callable[[], object]:
        return openvino.prepare(path, arrays, threads)

    def in_torch() -> Callable[[], object]:
        device = "cuda" if target.target == "cuda" else "cpu"
        return torch_compile.prepare(path, arrays, threads, device, target.precision)

    def compiled() -> Callable[[], object]:
        options = CompileOptions(
            target.target,
            threads,
            AllowedTransforms(target.float_class),
            target.precision,
            target.vendor,
        )
        return compile_model(read_model(path), options, apply_rewrite_log).prepare_run(arrays)

    loads = {"ort": in_ort, "openvino": in_openvino, "torch": in_torch, "superopt": compiled}
    load = loads[runtime]
    try:
        run = load()
        with guard.limit_call(seconds):
            run()
    except OutOfTime:
        return _ModelRuntime(path.name, runtime, load, f"one run takes longer than {seconds:g} s")
    except SuperoptError as e:
        return _ModelRuntime(path.name, runtime, load, f"{e.what}: {e.why}")
    except MemoryError as e:
        return _ModelRuntime(path.name, runtime, load, f"out of memory: {e}")
    return _ModelRuntime(path.name, _runtime_label(runtime, target), load, "")


def _runtime_label(runtime: str, target: BenchTarget) -> str:
    """Return the name of a runtime with its version."""
    there = f" on the GPU, in {target.precision}" if target.target == "cuda" else ""
    if there and runtime == "superopt" and os.environ.get("TRITON_INTERPRET") == "1":
        there = f" in Triton's interpreter, in {target.precision}"
    match runtime:
        case "ort":
            return f"onnxruntime {ort.installed_version()}"
        case "openvino":
            return f"openvino {openvino.version()}"
        case "torch":
            return f"torch {torch_compile.version()}{there}"
    if target.target == "cpu" and target.precision != "fp32":
        there = f", in {target.precision}"
    return f"superopt (compiled){there}"


def _time_repetitions(
    lanes: Sequence[_ModelRuntime],
    seconds: float,
    threads: int,
    seed: int,
    stop: Callable[[], bool],
    progress: Callable[[Event], None],
) -> list[_Repetition]:
    """Return the times of every model in every round, in microseconds: the median of a burst of
    runs, as in service, where one model runs repeatedly. The order of bursts within a round is
    random.

    Models are loaded again for each repetition, because memory addresses affect the times.
    """
    begin = last_progress = time.monotonic()

    def enough(times: list[list[float]]) -> bool:
        nonlocal last_progress
        if time.monotonic() - last_progress > PROGRESS_INTERVAL_S:
            last_progress = time.monotonic()
            progress(
                Event("time", "models, interleaved", min(1.0, (last_progress - begin) / seconds))
            )
        return stop()

    live = [i for i, lane in enumerate(lanes) if not lane.note]
    sat: list[_Repetition] = []
    pause = SPIN_SECONDS if threads > 1 else 0.0
    limits = guard.current_guard()
    for n in range(REPETITIONS):
        left = limits.seconds_left() / (REPETITIONS - n)
        length = min(seconds / REPETITIONS, left * MAX_TIMING_SHARE)
        try:
            runs = [lanes[i].load_run() for i in live]
            meter = LoadMeter.start([os.getpid()])
            more = interleave(
                runs, length, MAX_ROUNDS // REPETITIONS, seed + n, enough, pause=pause
            )
        except (RuntimeError, OutOfTime):  # a session that was stopped raises the former
            if limits.seconds_left() > 0:
                raise
            if not sat:
                raise guard.out_of_time_error("timing") from None
            limits.note(f"the budget ended after {n} of {REPETITIONS} repetitions")
            break
        sat.append(_Repetition(dict(zip(live, more, strict=True)), meter.stop()))
    return sat


def _bench_rows(
    lanes: Sequence[_ModelRuntime], repetitions: Sequence[_Repetition], threads: int, seed: int
) -> list[BenchRow]:
    here, load = this_machine().text, max_load([s.load for s in repetitions])
    if load.is_busy:
        guard.current_guard().note(str(load))
    rows: list[BenchRow] = []
    for i, lane in enumerate(lanes):
        if lane.note:
            rows.append(BenchRow(lane.model, lane.runtime, None, None, lane.note))
            continue
        against = [
            TimingSession(s.times_us[0], s.times_us[i], s.load)
            for s in repetitions
            if 0 in s.times_us and i
        ]
        ratio = ratio_interval(predict_speedup(against, seed)) if against else None
        taken = tuple(t for s in repetitions for t in s.times_us[i])
        note = f"busy machine: waited {load.wait_share:.0%}" if load.is_busy else ""
        rows.append(
            BenchRow(
                lane.model,
                lane.runtime,
                median_latency(taken, threads, lane.runtime, here),
                ratio,
                note,
            )
        )
    return rows
