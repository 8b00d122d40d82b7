"""Models timed in interleaved rounds: in onnxruntime's worker, or compiled in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from superopt import ort
from superopt.check.random_inputs import Feeds
from superopt.cost.interleaved_times import time_interleaved
from superopt.cost.machine_load import Load, LoadMeter
from superopt.cost.store import Times
from superopt.errors import ModelError
from superopt.loading.request import Request
from superopt.verification.original import Original
from superopt.verification.ort_session import OrtSession

MAX_ROUNDS = 60


@dataclass(frozen=True, slots=True)
class TimedRounds:
    """Times in microseconds of several models: a list of rounds for each, and the load
    meanwhile."""

    times_us: Times
    load: Load


@dataclass(frozen=True, slots=True)
class TimedModel:
    """A model to be timed. left_out: kernel decisions that are not made when it is compiled."""

    session: OrtSession
    left_out: frozenset[str] = frozenset()


def timing_inputs(original: Original) -> Feeds:
    """Return the inputs to time on: normally distributed ones at the representative sizes."""
    ran = [s.feed for s in original.sets if s.results is not None]
    return next((f for f in ran if f.kind != "given"), ran[0])


def time_models(
    models: Sequence[TimedModel],
    feed: Feeds,
    request: Request,
    seconds: float,
    stop: Callable[[list[list[float]]], bool],
) -> TimedRounds | ort.Failure:
    """Time models in turns for so many seconds, without what loading them takes."""
    if request.timers is None:
        return _time_in_onnxruntime(models, feed, request, seconds, stop)
    make_clock, arrays = request.timers.make_clock, dict(feed.arrays)
    try:
        clocks = [
            make_clock(m.session.path, arrays, threads=request.threads, **_left_out(m))
            for m in models
        ]
    except (ModelError, NotImplementedError) as e:
        return ort.Failure("error", " ".join(str(e).split()))
    meter = LoadMeter.start([os.getpid()])
    times = time_interleaved(clocks, seconds, MAX_ROUNDS, request.seed, stop)
    return TimedRounds(tuple(map(tuple, times)), meter.stop())


def _left_out(m: TimedModel) -> dict[str, frozenset[str]]:
    return {"left_out": m.left_out} if m.left_out else {}


def _time_in_onnxruntime(
    models: Sequence[TimedModel],
    feed: Feeds,
    request: Request,
    seconds: float,
    stop: Callable[[list[list[float]]], bool],
) -> TimedRounds | ort.Failure:
    loaded: list[ort.LoadedModel] = []
    for m in models:
        held = m.session.load()
        if isinstance(held, ort.Failure):
            return held
        loaded.append(held)
    meter = LoadMeter.start(filter(None, [ort.shared_worker().process]))
    found = ort.time_interleaved(
        loaded, dict(feed.arrays), threads=request.threads, seconds=seconds,
        rounds=MAX_ROUNDS, seed=request.seed, stop=stop,
    )  # fmt: skip
    if isinstance(found, ort.Failure):
        return found
    return TimedRounds(tuple(map(tuple, found)), meter.stop())
