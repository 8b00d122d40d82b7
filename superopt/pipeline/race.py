"""Whole models against each other in onnxruntime, in turns: what is faster beyond noise.

The best few are compared roughly first; the best of these runs against the original once more, and
only this second race counts: of several candidates the luckiest always looks faster than it is.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from superopt import ort
from superopt.check.inputs import Feeds
from superopt.cost.clock import Ratio, compare, faster
from superopt.cost.store import Store, Target, Times
from superopt.pipeline.candidate import Candidate
from superopt.pipeline.original import Note, Original
from superopt.pipeline.request import Deadline, Request
from superopt.report.data import Event

MOST_SECONDS = 20.0
LEAST_SECONDS = 1.0
ROUNDS = 60
ROUGH = 0.35  # part of the time for comparing several candidates
TOGETHER_BYTES = 256 << 20  # of models in the worker at once; larger ones are timed in pairs


@dataclass(frozen=True, slots=True)
class Raced:
    """The times (microseconds, paired by round) of the original and of the best candidate."""

    best: Candidate
    times: Times
    ratio: Ratio

    @property
    def won(self) -> bool:
        return faster(self.ratio)


def race(
    original: Original,
    passed: Sequence[Candidate],
    request: Request,
    deadline: Deadline,
    known: Store,
    target: Target,
    note: Note,
) -> Raced | None:
    """The best candidate against the original; None where whole models cannot be timed."""
    if not passed or not original.runs:
        return None
    timing = _Timing(original, request, deadline, known, target, note)
    seconds = min(MOST_SECONDS, max(LEAST_SECONDS, 0.8 * deadline.left()))
    if len(passed) == 1:
        return timing.duel(passed[0], seconds)
    rough = timing.all(passed, ROUGH * seconds)
    if rough is None:
        return None
    best = max(range(len(passed)), key=lambda i: rough[i].ratio.mid)
    found = timing.duel(passed[best], max(LEAST_SECONDS, (1 - ROUGH) * seconds))
    return found or rough[best]


@dataclass(frozen=True, slots=True)
class _Timing:
    original: Original
    request: Request
    deadline: Deadline
    known: Store
    target: Target
    note: Note

    def duel(self, candidate: Candidate, seconds: float) -> Raced | None:
        """The candidate against the original."""
        times = self._times([candidate], seconds)
        return None if times is None else self._raced(candidate, times[0], times[1])

    def all(self, passed: Sequence[Candidate], seconds: float) -> list[Raced] | None:
        """All candidates, each against the original; None where none could be timed."""
        size = self.original.model.source.size_bytes
        if (len(passed) + 1) * size > TOGETHER_BYTES:
            found = [self.duel(c, seconds / len(passed)) for c in passed]
            return None if any(f is None for f in found) else [f for f in found if f is not None]
        times = self._times(passed, seconds)
        if times is None:
            return None
        return [self._raced(c, times[0], t) for c, t in zip(passed, times[1:], strict=True)]

    def _raced(self, candidate: Candidate, a: Sequence[float], b: Sequence[float]) -> Raced:
        return Raced(candidate, (tuple(a), tuple(b)), compare(a, b, self.request.seed))

    def _times(self, passed: Sequence[Candidate], seconds: float) -> Times | None:
        """The original's times and each candidate's; from the store where it knows them."""
        feed = self._feed()
        at = ",".join(f"{name}={n}" for name, n in sorted(feed.sizes.items()))
        digests = [
            f"{digest} at {at or 'fixed sizes'}"
            for digest in (self.original.model.source.sha256, *(c.sha256 for c in passed))
        ]
        found = self.known.get_graphs(self.target, digests)
        if found is not None:
            self.note("times of whole models are from the cost store: this machine's, but earlier")
            return found
        paths = [self.original.path, *(c.path for c in passed)]
        begin = time.monotonic()

        def enough() -> bool:
            done = min(1.0, (time.monotonic() - begin) / seconds)
            text = f"{len(paths)} models in turns"
            self.request.progress(Event("time", text, 0.8 + 0.2 * done))
            return self.deadline.stop()

        times = ort.time_interleaved(
            paths, dict(feed.arrays), threads=self.request.threads, seconds=seconds,
            rounds=ROUNDS, seed=self.request.seed, stop=enough,
        )  # fmt: skip
        if isinstance(times, ort.Failed):
            self.note(f"whole models were not timed: {times.message}")
            return None
        if not self.deadline.stop():
            self.known.put_graphs(self.target, digests, times, time.time())
        return tuple(tuple(row) for row in times)

    def _feed(self) -> Feeds:
        """Inputs to time on: normal ones at the representative sizes."""
        ran = [s.feed for s in self.original.sets if s.got is not None]
        return next((f for f in ran if f.kind != "given"), ran[0])


def refused_at(original: Original, candidate: Candidate, threads: int) -> str:
    """Why onnxruntime does not run the candidate at some optimization level at which it runs the
    original; empty where it does.

    Its own optimizer refuses some valid graphs.
    """
    feeds: Mapping[str, ort.Value] = dict(
        next(s.feed.arrays for s in original.sets if s.got is not None)
    )
    tried = ort.runs_everywhere(candidate.path, feeds, threads=threads)
    bad = [t for t in tried if not t.ok]
    if not bad:
        return ""
    before = {t.level: t.ok for t in ort.runs_everywhere(original.path, feeds, threads=threads)}
    return next((f"{t.level}: {t.message}" for t in bad if before[t.level]), "")
