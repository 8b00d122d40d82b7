"""Many models timed in turns with one: as many at once as fit into memory, in several sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from superopt import ort
from superopt.check.random_inputs import Feeds
from superopt.cost.speedup import MIN_ROUNDS, SpeedupInterval, TimingSession, predict_speedup
from superopt.loading.request import Request
from superopt.optimization.interleaved import TimedModel, TimedRounds, time_models

MAX_SESSIONS = 3
TIMED_PART = 0.8  # of the seconds, for what is known to be needed: models may be slower
SLOWER = 1.5  # assumed time of a run of a model, in runs of the one that they are compared with
NO_TIME = "not timed: no time left"
MAX_RESIDENT_BYTES = 256 << 20  # of models in memory at once


@dataclass(frozen=True, slots=True)
class TimedRatios:
    """For each model how many times as long as another it takes, or why that is not known; and the
    least number of rounds and of sessions in which one was timed."""

    ratios: tuple[SpeedupInterval | str, ...]
    rounds: int
    sessions: int


def time_beside(
    reference: TimedModel,
    models: Sequence[TimedModel],
    model_bytes: int,
    feed: Feeds,
    request: Request,
    seconds: float,
    progress: Callable[[float], None],
) -> TimedRatios:
    """Time each model in turns with `reference`, for at most these seconds in all; the first ones
    count most if time is short. model_bytes: of a model's file. progress: gets the finished
    part."""
    begin = time.monotonic()
    end = begin + seconds
    probe, load_seconds = _time_loaded([reference], feed, request, 0.0)
    if isinstance(probe, ort.Failure):
        return TimedRatios((_reason(probe),) * len(models), 0, 0)
    wall_seconds = time.monotonic() - begin - load_seconds  # other processes have the core, too
    run_seconds = max(wall_seconds, sum(probe.times_us[0]) * 1e-6) / len(probe.times_us[0])
    needed = load_seconds + (MIN_ROUNDS + 2) * SLOWER * run_seconds
    count = min(len(models), int(TIMED_PART * max(end - time.monotonic(), 0.0) / needed))
    ratios: list[SpeedupInterval | str] = [NO_TIME] * len(models)
    size = max(1, MAX_RESIDENT_BYTES // max(model_bytes, 1) - 1)
    chunks = [range(at, min(at + size, count)) for at in range(0, count, size)]
    rounds, sessions = list[int](), list[int]()
    while chunks and not request.stop():
        chunk = chunks.pop(0)
        progress(chunk.start / count)
        share = (end - time.monotonic()) / (len(chunks) + 1)
        found = _time_chunk([reference, *(models[n] for n in chunk)], feed, request, share)
        if not isinstance(found, ort.Failure):
            rounds.append(sum(len(s.times_us[0]) for s in found))
            sessions.append(len(found))
            for k, n in enumerate(chunk, 1):
                timed = [TimingSession(s.times_us[k], s.times_us[0], s.load) for s in found]
                ratios[n] = predict_speedup(timed, request.seed)
        elif len(chunk) > 1:  # find the model that does not run
            middle = len(chunk) // 2
            chunks = [chunk[:middle], chunk[middle:], *chunks]
        else:
            ratios[chunk.start] = _reason(found)
    return TimedRatios(tuple(ratios), min(rounds, default=0), min(sessions, default=0))


def _time_chunk(
    models: Sequence[TimedModel], feed: Feeds, request: Request, seconds: float
) -> list[TimedRounds] | ort.Failure:
    """Return the times of models in sessions, in each of which they are loaded again."""
    end = time.monotonic() + seconds
    done: list[TimedRounds] = []
    load_seconds = 0.0
    for n in range(MAX_SESSIONS):
        begin = time.monotonic()
        share = (end - begin) / (MAX_SESSIONS - n)
        if done and (request.stop() or end - begin < 2 * load_seconds):
            break
        for m in models:
            m.session.drop()
        found, load_seconds = _time_loaded(models, feed, request, max(share - load_seconds, 0.0))
        if isinstance(found, ort.Failure):
            return found
        done.append(found)
    for m in models:
        m.session.drop()
    return done


def _time_loaded(
    models: Sequence[TimedModel], feed: Feeds, request: Request, seconds: float
) -> tuple[TimedRounds | ort.Failure, float]:
    """Return the times of models in turns, and the seconds before the first round."""
    begin = time.monotonic()
    starts: list[float] = []

    def stop(times: list[list[float]]) -> bool:
        starts.append(time.monotonic())
        return request.stop() or seconds <= 0

    found = time_models(models, feed, request, seconds, stop)
    return found, (starts or [begin])[0] - begin


def _reason(failure: ort.Failure) -> str:
    return f"not timed: {' '.join(failure.message.split())}"
