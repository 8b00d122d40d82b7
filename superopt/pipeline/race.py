"""Interleaved timing of whole models in their runtime: is a candidate faster beyond noise?

First the best few candidates are compared roughly. Then the best of these runs against the original
once more, and only this second race counts: among several candidates the luckiest one always looks
faster than it is. The race has up to MAX_REPETITIONS repetitions, each with both models loaded
again: one and the same file was measured 2 % slower than itself for as long as it stayed loaded,
because of its memory addresses. The width of the interval follows from the variation between
repetitions and from the machine's load.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from superopt import ort
from superopt.check.inputs import Feeds
from superopt.cost.clock import LEAST_ROUNDS, Ratio, Sitting, compare, faster, predict
from superopt.cost.load import Load, LoadMeter, heaviest
from superopt.cost.store import Store, Target, Times
from superopt.pipeline.candidate import Candidate
from superopt.pipeline.original import Note, Original
from superopt.pipeline.request import Deadline, Request
from superopt.pipeline.runtime import Session
from superopt.report.data import Event

MOST_SECONDS = 20.0
PART = 0.12  # of the budget, at most
LEAST_SECONDS = 1.0
ROUNDS = 60
TIMED = 3  # candidates that are checked and timed as whole models, at most
ROUGH = 0.35  # of the time, for the rough comparison of several candidates
SITTINGS = 4
TOGETHER_BYTES = 256 << 20  # of models in the worker at once; larger models are timed in pairs

# A race may be decided early: frequent tests make a lucky decision likelier, so the interval must
# be wide.
EARLY_ROUNDS = 15
LEAST_SITTINGS = 2
EARLY_CONFIDENCE = 0.999
CLEAR = 1.05  # significantly faster than this: more rounds change nothing
HOPELESS = 1.01  # significantly not faster than this


def entrants(original: Original, budget: float) -> int:
    """Return how many candidates a race has time for: of slow models only the cheapest is timed."""
    seconds = ROUGH * min(MOST_SECONDS, PART * budget)
    runs = seconds * 1e6 / max(original.us, 1.0)
    fit = int(runs / (LEAST_ROUNDS + 2)) - 1  # each round runs the original, too; two warm-up runs
    return max(1, min(TIMED, fit))


@dataclass(frozen=True, slots=True)
class Raced:
    """The times in microseconds, paired by round, of the original and of the best candidate, and
    the machine's load during the race."""

    best: Candidate
    times: Times
    ratio: Ratio
    load: Load

    @property
    def won(self) -> bool:
        return faster(self.ratio)


def decided(times: Sequence[Sequence[float]], seed: int) -> bool:
    """True if a race can end early: every candidate is significantly faster, or is not.

    times_us: of the original and of each candidate, by round.
    """
    rounds = len(times[0])
    if rounds < EARLY_ROUNDS or rounds % 5:
        return False
    ratios = [compare(times[0], t, seed, EARLY_CONFIDENCE) for t in times[1:]]
    return all(r.low > CLEAR or r.high < HOPELESS for r in ratios)


def race(
    original: Original,
    passed: Sequence[Candidate],
    request: Request,
    deadline: Deadline,
    known: Store,
    target: Target,
    note: Note,
) -> Raced | None:
    """Race the best candidate against the original; None if whole models cannot be timed."""
    if not passed or not original.runs:
        return None
    timing = _Timing(original, request, deadline, known, target, note)
    most = min(MOST_SECONDS, PART * request.budget)
    seconds = max(LEAST_SECONDS, min(most, 0.8 * deadline.left()))
    raced = _raced(timing, passed, seconds)
    if raced is not None and raced.load.busy:
        note(str(raced.load))
    return raced


def _raced(timing: _Timing, passed: Sequence[Candidate], seconds: float) -> Raced | None:
    if len(passed) == 1:
        return timing.duel(passed[0], seconds)
    rough = timing.all(passed, ROUGH * seconds)
    if rough is None:
        return None
    best = max(range(len(passed)), key=lambda i: rough[i].ratio.mid)
    if rough[best].ratio.high < HOPELESS:
        return rough[best]
    return timing.duel(passed[best], max(LEAST_SECONDS, (1 - ROUGH) * seconds)) or rough[best]


@dataclass(frozen=True, slots=True)
class _Sat:
    """One repetition of several models: a list of rounds for each, and the load during it."""

    times: Times
    load: Load


@dataclass(frozen=True, slots=True)
class _Timing:
    original: Original
    request: Request
    deadline: Deadline
    known: Store
    target: Target
    note: Note

    def duel(self, candidate: Candidate, seconds: float) -> Raced | None:
        """Race the candidate against the original."""
        sat = self._times([candidate], seconds, SITTINGS)
        return None if sat is None else self._raced(candidate, 1, sat)

    def all(self, passed: Sequence[Candidate], seconds: float) -> list[Raced] | None:
        """Race each candidate against the original; None if one of them could not be timed."""
        if not together(self.original, len(passed)):
            pairs: list[Raced] = []
            for c in passed:
                found = self.duel(c, seconds / len(passed))
                c.session.drop()
                if found is None:
                    return None
                pairs.append(found)
            return pairs
        sat = self._times(passed, seconds, 1)
        if sat is None:
            return None
        return [self._raced(c, n, sat) for n, c in enumerate(passed, 1)]

    def _raced(self, candidate: Candidate, number: int, sat: Sequence[_Sat]) -> Raced:
        """Return the result of the model with this number against the original, which is the first
        one."""
        ratio = _ratio(sat, number, self.request.seed)
        times = tuple(tuple(t for s in sat for t in s.times[n]) for n in (0, number))
        return Raced(candidate, times, ratio, heaviest([s.load for s in sat]))

    def _times(
        self, passed: Sequence[Candidate], seconds: float, sittings: int
    ) -> list[_Sat] | None:
        """Return the times of the original and of each candidate, by repetition; from the store if
        it has them. None if a model cannot be timed."""
        feed = self._feed()
        digests = [
            f"{sha256}, {sizes_text(feed)}"
            for sha256 in (self.original.model.source.sha256, *(c.sha256 for c in passed))
        ]
        found = self._known(digests, sittings)
        if found:
            self.note("times of whole models are from the cost store: this machine, earlier run")
            return found
        sessions = [self.original.session, *(c.session for c in passed)]
        sat: list[_Sat] = []
        begin = time.monotonic()
        for n in range(sittings):
            if n:
                if self.deadline.left() < (time.monotonic() - begin) / n or self._clear(sat):
                    break
                for session in sessions:
                    session.drop()
            more = self._sitting(sessions, feed, seconds / sittings)
            if isinstance(more, ort.Failed):
                self.note(f"whole models were not timed: {more.message}")
                return None
            sat.append(more)
        if not self.deadline.stop():
            for n, s in enumerate(sat):
                keys = [*digests, f"sitting {n} of {sittings}: waited, others"]
                rows = [*s.times, (s.load.waited, s.load.others)]
                self.known.put_graphs(self.target, keys, rows, time.time())
        return sat

    def _known(self, digests: Sequence[str], sittings: int) -> list[_Sat]:
        """Return the repetitions that the store has."""
        sat: list[_Sat] = []
        for n in range(sittings):
            keys = [*digests, f"sitting {n} of {sittings}: waited, others"]
            found = self.known.get_graphs(self.target, keys)
            if found is None:
                break
            *times, (waited, others) = found
            sat.append(_Sat(tuple(times), Load(waited, others)))
        return sat

    def _clear(self, sat: Sequence[_Sat]) -> bool:
        """True if more repetitions change nothing: every candidate is significantly faster, or is
        not."""
        if len(sat) < LEAST_SITTINGS:
            return False
        ratios = [_ratio(sat, n, self.request.seed) for n in range(1, len(sat[0].times))]
        return all(r.low > CLEAR or r.high < HOPELESS for r in ratios)

    def _sitting(
        self, sessions: Sequence[Session], feed: Feeds, seconds: float
    ) -> _Sat | ort.Failed:
        begin = time.monotonic()

        def enough(times: list[list[float]]) -> bool:
            done = min(1.0, (time.monotonic() - begin) / seconds)
            text = f"{len(sessions)} models, interleaved"
            self.request.progress(Event("time", text, 0.8 + 0.2 * done))
            return self.deadline.stop() or decided(times, self.request.seed)

        if self.request.timers is not None:
            paths = [s.path for s in sessions if s.path is not None]
            meter = LoadMeter.start([os.getpid()])
            times = self.request.timers.models(
                paths, dict(feed.arrays), threads=self.request.threads, seconds=seconds,
                rounds=ROUNDS, seed=self.request.seed, stop=enough,
            )  # fmt: skip
            return _Sat(tuple(map(tuple, times)), meter.stop())
        models: list[ort.Loaded] = []
        for session in sessions:
            held = session.load()
            if isinstance(held, ort.Failed):
                return held
            models.append(held)
        meter = LoadMeter.start(filter(None, [ort.shared().process]))
        found = ort.time_interleaved(
            models, dict(feed.arrays), threads=self.request.threads, seconds=seconds,
            rounds=ROUNDS, seed=self.request.seed, stop=enough,
        )  # fmt: skip
        if isinstance(found, ort.Failed):
            return found
        return _Sat(tuple(map(tuple, found)), meter.stop())

    def _feed(self) -> Feeds:
        """Return the inputs to time on: normally distributed ones at the representative sizes."""
        ran = [s.feed for s in self.original.sets if s.got is not None]
        return next((f for f in ran if f.kind != "given"), ran[0])


def _ratio(sat: Sequence[_Sat], number: int, seed: int) -> Ratio:
    """Return how many times faster than the first model the model with this number is."""
    return predict([Sitting(s.times[0], s.times[number], s.load) for s in sat], seed)


def together(original: Original, candidates: int) -> bool:
    """True if the worker can hold the original and so many candidates at once."""
    return (candidates + 1) * original.model.source.size_bytes <= TOGETHER_BYTES


def sizes_text(feed: Feeds) -> str:
    """Return the symbolic sizes of a set of inputs as text for keys of the store."""
    return ", ".join(f"{name}={n}" for name, n in sorted(feed.sizes.items())) or "fixed sizes"


def refused_at(original: Original, candidate: Candidate, known: Store, target: Target) -> str:
    """Return why ONNX Runtime does not run the candidate at an optimization level at which it runs
    the original; empty if it does. The store remembers the digests of files that run at every
    level.

    ONNX Runtime's own optimizer rejects some valid graphs.
    """
    everywhere = [f"{candidate.sha256}, at every level"]
    if known.get_graphs(target, everywhere) is not None:
        return ""
    feed = next(s.feed for s in original.sets if s.got is not None)
    ran = candidate.session.run(feed)  # at the highest level; usually it ran before
    if isinstance(ran, ort.Failed):
        return f"all: {ran.message}"
    candidate.session.drop()
    begin = time.monotonic()
    tried = ort.runs_everywhere(
        candidate.path, dict(feed.arrays), threads=target.threads, skip=("all",)
    )
    bad = [t for t in tried if not t.ok]
    if not bad:
        us = (time.monotonic() - begin) * 1e6
        known.put_graphs(target, everywhere, [[us]], time.time())
        return ""
    before = {
        t.level: t.ok
        for t in ort.runs_everywhere(
            original.path, dict(feed.arrays), threads=target.threads, skip=("all",)
        )
    }
    return next((f"{t.level}: {t.message}" for t in bad if before[t.level]), "")
