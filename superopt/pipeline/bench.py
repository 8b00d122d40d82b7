"""`bench`: time models against each other and in other runtimes, interleaved; medians and
confidence intervals."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from superopt import guard, openvino, ort, torch
from superopt.check.inputs import feeds
from superopt.cost.clock import Sitting, predict
from superopt.cost.load import Load, LoadMeter, heaviest
from superopt.cost.machine import machine
from superopt.errors import OutOfTime, SuperoptError, UsageError
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.ort.timing import SPINNING, interleave, prepare
from superopt.pipeline import cuda
from superopt.pipeline.allowed import Allowed
from superopt.pipeline.compile import compile as compile_
from superopt.pipeline.outside import readable
from superopt.pipeline.reporting import interval, latency
from superopt.pipeline.rewritten import rewritten
from superopt.pipeline.shapes import chosen, representative
from superopt.report.data import BenchRow, Event

RUNTIMES = ("ort", "openvino", "torch", "superopt")
ROUNDS = 40
SITTINGS = 5
TELL_EVERY = 0.5  # seconds between two events, which disturb the caches


@dataclass(frozen=True, slots=True)
class On:
    """The target of superopt and torch, and the precision of floats; see `superopt.compile`."""

    target: str = "cpu"
    precision: str = "fp32"
    vendor: bool = True
    float_class: str = "E2"


@dataclass(frozen=True, slots=True)
class _Lane:
    """One model in one runtime."""

    model: str
    runtime: str
    load: Callable[[], Callable[[], object]]  # loads the model and returns a function that runs it
    note: str  # why it does not run; empty if it does


@dataclass(frozen=True, slots=True)
class _Sat:
    """One repetition: the rounds of every model that runs, and the load during it."""

    times: Mapping[int, Sequence[float]]
    load: Load


def bench(
    models: Sequence[Path],
    *,
    vs: Sequence[str] = ("ort",),
    threads: int = 1,
    seconds: float = 10.0,
    shapes: Mapping[str, int] | None = None,
    seed: int = 0,
    progress: Callable[[Event], None] = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
    on: On = On(),
) -> tuple[BenchRow, ...]:
    """Time every model in every runtime, one run of each in every round, for `seconds` in total.

    All models take the same inputs if their inputs agree. The speedup is relative to the first
    model in the first runtime. Raises UsageError for an unknown runtime.
    """
    for name in vs:
        if name not in RUNTIMES:
            raise UsageError(
                f"no runtime {name}", f"runtimes are {', '.join(RUNTIMES)}", "use one of them"
            )
    lanes: list[_Lane] = []
    own: list[str] = []
    first: Mapping[str, np.ndarray] | None = None
    for path in models:
        model = import_model(readable(read_model(path), threads).source)
        try:
            made = next(feeds(model.graph, representative(model, shapes or {}), seed)).arrays
        except (TypeError, KeyError, MemoryError) as e:
            raise UsageError(
                f"{path.name} cannot be timed", f"no inputs can be drawn: {e}", "omit it"
            ) from None
        own.append(chosen(model, shapes or {}))
        arrays = dict(made)
        if first is not None and _fits(first, made):
            arrays = {name: first[name] for name in made}
        first = arrays if first is None else first
        for runtime in vs:
            progress(Event("load", f"{path.name} in {runtime}"))
            lanes.append(_lane(path, runtime, arrays, threads, on, seconds))
    if all(lane.note for lane in lanes):
        raise UsageError(
            "no model was timed",
            "; ".join(dict.fromkeys(f"{lane.model}: {lane.note}" for lane in lanes)),
            f"name a model and a runtime that runs it; see `superopt doctor`{_others(own)}",
        )
    sat = _times(lanes, seconds, threads, seed, stop, progress)
    return tuple(_rows(lanes, sat, threads, seed))


def _others(own: Sequence[str]) -> str:
    """Return a hint about sizes that superopt chose; empty if it chose none."""
    some = ", ".join(dict.fromkeys(filter(None, own)))
    return f"; superopt chose {some}: set other sizes by --shape NAME=N" if some else ""


def _fits(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> bool:
    """True if two models take the same inputs."""
    return {n: (x.shape, x.dtype) for n, x in a.items()} == {
        n: (x.shape, x.dtype) for n, x in b.items()
    }


def _as_declared(session: ort.Session, found: Mapping[str, object]) -> bool:
    """True if the outputs have the shapes that the model declares."""
    for port in session.raw.get_outputs():
        shape = getattr(found[port.name], "shape", port.shape)
        said = [m if isinstance(m, int) else n for m, n in zip(port.shape, shape, strict=False)]
        if said != [*shape]:
            return False
    return True


def _lane(
    path: Path,
    runtime: str,
    arrays: Mapping[str, np.ndarray],
    threads: int,
    on: On,
    seconds: float,
) -> _Lane:
    """Load a model in a runtime. The result has a note if the model does not run, or if one run
    takes longer than `seconds`."""

    def in_ort() -> Callable[[], object]:
        session = ort.session(path, threads=threads)
        with guard.limited(seconds):
            found = ort.run(session, arrays)  # raises a readable error for unfit inputs
        if _as_declared(session, found):
            return prepare(session, arrays)
        # outputs of other shapes cannot be bound
        return lambda: session.raw.run(None, dict(arrays))

    def in_openvino() -> Callable[[], object]:
        return openvino.prepare(path, arrays, threads)

    def in_torch() -> Callable[[], object]:
        device = "cuda" if on.target == "cuda" else "cpu"
        return torch.prepare(path, arrays, threads, device, on.precision)

    def compiled() -> Callable[[], object]:
        if on.target == "cuda":
            made = cuda.compile(read_model(path), on.precision, on.float_class, vendor=on.vendor)
            return made.prepared(arrays)
        allowed = Allowed(on.float_class)
        exe = compile_(read_model(path), threads=threads, rewrite=rewritten, allowed=allowed)
        return lambda: exe.run(arrays)

    loads = {"ort": in_ort, "openvino": in_openvino, "torch": in_torch, "superopt": compiled}
    load = loads[runtime]
    try:
        run = load()
        with guard.limited(seconds):
            run()
    except OutOfTime:
        return _Lane(path.name, runtime, load, f"one run takes longer than {seconds:g} s")
    except SuperoptError as e:
        return _Lane(path.name, runtime, load, f"{e.what}: {e.why}")
    except MemoryError as e:
        return _Lane(path.name, runtime, load, f"out of memory: {e}")
    return _Lane(path.name, _called(runtime, on), load, "")


def _called(runtime: str, on: On) -> str:
    """Return the name of a runtime with its version."""
    there = f" on the GPU, in {on.precision}" if on.target == "cuda" else ""
    if there and runtime == "superopt" and os.environ.get("TRITON_INTERPRET") == "1":
        there = f" in Triton's interpreter, in {on.precision}"
    match runtime:
        case "ort":
            return f"onnxruntime {ort.available()}"
        case "openvino":
            return f"openvino {openvino.version()}"
        case "torch":
            return f"torch {torch.version()}{there}"
    return f"superopt (compiled){there}"


def _times(
    lanes: Sequence[_Lane],
    seconds: float,
    threads: int,
    seed: int,
    stop: Callable[[], bool],
    progress: Callable[[Event], None],
) -> list[_Sat]:
    """Return the times of every model in every round, in microseconds: the median of a burst of
    runs, as in service, where one model runs repeatedly. The order of bursts within a round is
    random.

    Models are loaded again for each repetition, because memory addresses affect the times.
    """
    begin = told = time.monotonic()

    def enough(times: list[list[float]]) -> bool:
        nonlocal told
        if time.monotonic() - told > TELL_EVERY:
            told = time.monotonic()
            progress(Event("time", "models, interleaved", min(1.0, (told - begin) / seconds)))
        return stop()

    live = [i for i, lane in enumerate(lanes) if not lane.note]
    sat: list[_Sat] = []
    pause = SPINNING if threads > 1 else 0.0
    for n in range(SITTINGS):
        runs = [lanes[i].load() for i in live]
        meter = LoadMeter.start([os.getpid()])
        more = interleave(
            runs, seconds / SITTINGS, ROUNDS // SITTINGS, seed + n, enough, pause=pause
        )
        sat.append(_Sat(dict(zip(live, more, strict=True)), meter.stop()))
    return sat


def _rows(lanes: Sequence[_Lane], sat: Sequence[_Sat], threads: int, seed: int) -> list[BenchRow]:
    here, load = machine().text, heaviest([s.load for s in sat])
    if load.busy:
        guard.current().note(str(load))
    rows: list[BenchRow] = []
    for i, lane in enumerate(lanes):
        if lane.note:
            rows.append(BenchRow(lane.model, lane.runtime, None, None, lane.note))
            continue
        against = [Sitting(s.times[0], s.times[i], s.load) for s in sat if 0 in s.times and i]
        ratio = interval(predict(against, seed)) if against else None
        taken = tuple(t for s in sat for t in s.times[i])
        note = f"busy machine: waited {load.waited:.0%}" if load.busy else ""
        rows.append(
            BenchRow(
                lane.model, lane.runtime, latency(taken, threads, lane.runtime, here), ratio, note
            )
        )
    return rows
