"""Interleaved timing of whole models in their runtime: is a candidate faster beyond noise?

First the best few candidates are compared roughly. Then the best of these runs against the original
once more, and only this second race counts: among several candidates the luckiest one always looks
faster than it is. The race has up to MAX_REPETITIONS repetitions, each with both models loaded
again: one and the same file was measured 2 % slower than itself for as long as it stayed loaded,
because of its memory addresses. The width of the interval follows from the variation between
repetitions and from the machine's load.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from superopt import ort
from superopt.check.random_inputs import Feeds
from superopt.cost.machine_load import Load, max_load
from superopt.cost.speedup import (
    MIN_ROUNDS,
    SpeedupInterval,
    TimingSession,
    compare_times,
    is_faster,
    predict_speedup,
)
from superopt.cost.store import Store, Target, Times
from superopt.loading.request import Deadline, Request
from superopt.optimization.candidate import Candidate
from superopt.optimization.interleaved import (
    TimedModel,
    TimedRounds,
    time_models,
    timing_inputs,
)
from superopt.optimization.stage_times import race_seconds
from superopt.report.data.report import Event
from superopt.verification.input_probe import AddNote
from superopt.verification.original import Original
from superopt.verification.ort_session import OrtSession

MAX_RACE_SECONDS = 20.0
MAX_BUDGET_PART = 0.12  # of the budget, at most
MIN_RACE_SECONDS = 1.0
MAX_LATE_PART = 0.05  # of the budget, by which a race may exceed it
MAX_TIMED_CANDIDATES = 3  # candidates that are checked and timed as whole models, at most
ROUGH_RACE_PART = 0.35  # of the time, for the rough comparison of several candidates
MAX_REPETITIONS = 4
MAX_RESIDENT_BYTES = 256 << 20  # of models in the worker at once; larger models are timed in pairs

# A race may be decided early: frequent tests make a lucky decision likelier, so the interval must
# be wide.
MIN_EARLY_ROUNDS = 15
MIN_REPETITIONS = 2
EARLY_CONFIDENCE = 0.999
CLEARLY_FASTER_RATIO = 1.05  # significantly faster than this: more rounds change nothing
NOT_FASTER_RATIO = 1.01  # significantly not faster than this


def max_candidates(original: Original, budget: float) -> int:
    """Return how many candidates a race has time for: of slow models only the cheapest is timed."""
    seconds = ROUGH_RACE_PART * min(MAX_RACE_SECONDS, MAX_BUDGET_PART * budget)
    runs = seconds * 1e6 / max(original.run_us, 1.0)
    fit = int(runs / (MIN_ROUNDS + 2)) - 1  # each round runs the original, too; two warm-up runs
    return max(1, min(MAX_TIMED_CANDIDATES, fit))


@dataclass(frozen=True, slots=True)
class RaceResult:
    """The times in microseconds, paired by round, of the original and of the best candidate, and
    the machine's load during the race."""

    candidate: Candidate
    times_us: Times
    ratio: SpeedupInterval
    load: Load

    @property
    def is_faster(self) -> bool:
        return is_faster(self.ratio)


def is_decided(times_us: Sequence[Sequence[float]], seed: int) -> bool:
    """True if a race can end early: every candidate is significantly faster, or is not.

    times_us: of the original and of each candidate, by round.
    """
    rounds = len(times_us[0])
    if rounds < MIN_EARLY_ROUNDS or rounds % 5:
        return False
    ratios = [compare_times(times_us[0], t, seed, EARLY_CONFIDENCE) for t in times_us[1:]]
    return all(r.low > CLEARLY_FASTER_RATIO or r.high < NOT_FASTER_RATIO for r in ratios)


def race_candidates(
    original: Original,
    candidates: Sequence[Candidate],
    request: Request,
    deadline: Deadline,
    store: Store,
    target: Target,
    add_note: AddNote,
) -> RaceResult | None:
    """Race the best candidate against the original; None if whole models cannot be timed."""
    if not candidates or not original.is_runnable:
        return None
    left = max(deadline.remaining(), 0.0) + MAX_LATE_PART * request.budget
    if race_seconds(original) > left:
        add_note(f"whole models were not timed: {max(deadline.remaining(), 0):.1f} s were left")
        return None
    timing = _Race(original, request, deadline, store, target, add_note)
    most = min(MAX_RACE_SECONDS, MAX_BUDGET_PART * request.budget)
    seconds = max(MIN_RACE_SECONDS, min(most, 0.8 * deadline.remaining()))
    raced = _race_in_two_stages(timing, candidates, seconds)
    if raced is not None and raced.load.is_busy:
        add_note(str(raced.load))
    return raced


def _race_in_two_stages(
    timing: _Race, candidates: Sequence[Candidate], seconds: float
) -> RaceResult | None:
    if len(candidates) == 1:
        return timing.race_one(candidates[0], seconds)
    rough = timing.race_all(candidates, ROUGH_RACE_PART * seconds)
    if rough is None:
        return None
    best = max(range(len(candidates)), key=lambda i: rough[i].ratio.mid)
    if rough[best].ratio.high < NOT_FASTER_RATIO:
        return rough[best]
    return (
        timing.race_one(candidates[best], max(MIN_RACE_SECONDS, (1 - ROUGH_RACE_PART) * seconds))
        or rough[best]
    )


@dataclass(frozen=True, slots=True)
class _Race:
    original: Original
    request: Request
    deadline: Deadline
    store: Store
    target: Target
    add_note: AddNote

    def race_one(self, candidate: Candidate, seconds: float) -> RaceResult | None:
        """Race the candidate against the original."""
        sat = self._time_repetitions([candidate], seconds, MAX_REPETITIONS)
        return None if sat is None else self._race_result(candidate, 1, sat)

    def race_all(self, candidates: Sequence[Candidate], seconds: float) -> list[RaceResult] | None:
        """Race each candidate against the original; None if one of them could not be timed."""
        if not fits_in_worker(self.original, len(candidates)):
            pairs: list[RaceResult] = []
            for c in candidates:
                found = self.race_one(c, seconds / len(candidates))
                c.session.drop()
                if found is None:
                    return None
                pairs.append(found)
            return pairs
        sat = self._time_repetitions(candidates, seconds, 1)
        if sat is None:
            return None
        return [self._race_result(c, n, sat) for n, c in enumerate(candidates, 1)]

    def _race_result(
        self, candidate: Candidate, model_number: int, sat: Sequence[TimedRounds]
    ) -> RaceResult:
        """Return the result of the model with this number against the original, which is the first
        one."""
        ratio = _speedup(sat, model_number, self.request.seed)
        times = tuple(tuple(t for s in sat for t in s.times_us[n]) for n in (0, model_number))
        return RaceResult(candidate, times, ratio, max_load([s.load for s in sat]))

    def _time_repetitions(
        self, candidates: Sequence[Candidate], seconds: float, repetitions: int
    ) -> list[TimedRounds] | None:
        """Return the times of the original and of each candidate, by repetition; from the store if
        it has them. None if a model cannot be timed."""
        feed = timing_inputs(self.original)
        digests = [
            f"{sha256}, {sizes_key(feed)}"
            for sha256 in (self.original.model.source.sha256, *(c.sha256 for c in candidates))
        ]
        found = self._stored_repetitions(digests, repetitions)
        if found:
            self.add_note(
                "times of whole models are from the cost store: this machine, earlier run"
            )
            return found
        sessions = [self.original.session, *(c.session for c in candidates)]
        sat: list[TimedRounds] = []
        begin = time.monotonic()
        for n in range(repetitions):
            if n:
                if self.deadline.remaining() < (time.monotonic() - begin) / n or self._is_clear(
                    sat
                ):
                    break
                for session in sessions:
                    session.drop()
            more = self._time_repetition(sessions, feed, seconds / repetitions)
            if isinstance(more, ort.Failure):
                self.add_note(f"whole models were not timed: {more.message}")
                return None
            sat.append(more)
        if not self.deadline.stop():
            for n, s in enumerate(sat):
                keys = [*digests, f"sitting {n} of {repetitions}: waited, others"]
                rows = [*s.times_us, (s.load.wait_share, s.load.others_share)]
                self.store.put_graphs(self.target, keys, rows, time.time())
        return sat

    def _stored_repetitions(self, digests: Sequence[str], repetitions: int) -> list[TimedRounds]:
        """Return the repetitions that the store has."""
        sat: list[TimedRounds] = []
        for n in range(repetitions):
            keys = [*digests, f"sitting {n} of {repetitions}: waited, others"]
            found = self.store.get_graphs(self.target, keys)
            if found is None:
                break
            *times, (waited, others) = found
            sat.append(TimedRounds(tuple(times), Load(waited, others)))
        return sat

    def _is_clear(self, sat: Sequence[TimedRounds]) -> bool:
        """True if more repetitions change nothing: every candidate is significantly faster, or is
        not."""
        if len(sat) < MIN_REPETITIONS:
            return False
        ratios = [_speedup(sat, n, self.request.seed) for n in range(1, len(sat[0].times_us))]
        return all(r.low > CLEARLY_FASTER_RATIO or r.high < NOT_FASTER_RATIO for r in ratios)

    def _time_repetition(
        self, sessions: Sequence[OrtSession], feed: Feeds, seconds: float
    ) -> TimedRounds | ort.Failure:
        begin = time.monotonic()

        def enough(times: list[list[float]]) -> bool:
            done = min(1.0, (time.monotonic() - begin) / seconds)
            text = f"{len(sessions)} models, interleaved"
            self.request.progress(Event("time", text, 0.8 + 0.2 * done))
            return self.deadline.stop() or is_decided(times, self.request.seed)

        models = [TimedModel(s) for s in sessions]
        return time_models(models, feed, self.request, seconds, enough)


def _speedup(sat: Sequence[TimedRounds], model_number: int, seed: int) -> SpeedupInterval:
    """Return how many times faster than the first model the model with this number is."""
    return predict_speedup(
        [TimingSession(s.times_us[0], s.times_us[model_number], s.load) for s in sat], seed
    )


def fits_in_worker(original: Original, candidate_count: int) -> bool:
    """True if the worker can hold the original and so many candidates at once."""
    return (candidate_count + 1) * original.model.source.size_bytes <= MAX_RESIDENT_BYTES


def sizes_key(feed: Feeds) -> str:
    """Return the symbolic sizes of a set of inputs as text for keys of the store."""
    return ", ".join(f"{name}={n}" for name, n in sorted(feed.sizes.items())) or "fixed sizes"


def refused_optimization_level(
    original: Original, candidate: Candidate, store: Store, target: Target
) -> str:
    """Return why ONNX Runtime does not run the candidate at an optimization level at which it runs
    the original; empty if it does. The store remembers the digests of files that run at every
    level.

    ONNX Runtime's own optimizer rejects some valid graphs.
    """
    everywhere = [f"{candidate.sha256}, at every level"]
    if store.get_graphs(target, everywhere) is not None:
        return ""
    feed = next(s.feed for s in original.sets if s.results is not None)
    ran = candidate.session.run(feed)  # at the highest level; usually it ran before
    if isinstance(ran, ort.Failure):
        return f"all: {ran.message}"
    candidate.session.drop()
    begin = time.monotonic()
    tried = ort.run_at_all_levels(
        candidate.path, dict(feed.arrays), threads=target.threads, skip=("all",)
    )
    bad = [t for t in tried if not t.ok]
    if not bad:
        us = (time.monotonic() - begin) * 1e6
        store.put_graphs(target, everywhere, [[us]], time.time())
        return ""
    before = {
        t.level: t.ok
        for t in ort.run_at_all_levels(
            original.path, dict(feed.arrays), threads=target.threads, skip=("all",)
        )
    }
    return next((f"{t.level}: {t.message}" for t in bad if before[t.level]), "")
