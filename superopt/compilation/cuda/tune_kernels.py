"""Tuning on a GPU: measure options of a model's kernels, use the fastest, and store the
measurements.

The machine model selects the options to measure, or a ranking learned from earlier measurements of
this GPU (cost/learned_ranking.py with cost/gpu_features.py), including those of this tuning. Ranked
options are measured in batches for as long as a batch brings a speedup.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import prod
from textwrap import shorten

from superopt.cost import gpu_features
from superopt.cost import tuning_records as kept
from superopt.cost.learned_ranking import MIN_MEASUREMENTS, LearnedRanking
from superopt.cost.store import Store, Target
from superopt.cost.tuning_records import TimedOption
from superopt.kernels.algorithms.gpu.vendor_gemm import VENDOR
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.gpu_device import device_name
from superopt.plan.program.program import Program
from superopt.plan.timing.gpu import COMPILE_THREADS, finalists, measure_options
from superopt.report.compilation.compile_report import TunedKernel, TuningReport

ListOptions = Callable[[Problem], Iterator[Option]]
OnResult = Callable[[Problem, Mapping[Option, float]], None]
LOG = logging.getLogger("superopt.tune")
MIN_ROUND_SPEEDUP = 1.02  # speedup that a batch must bring for the next one to be measured
RELEARN_GROWTH = 1.5  # the ranking is learned again after this growth of the measurements
MAX_FAILURE_CHARS = 200  # characters of the reason for a failed measurement
INTERPRETER_NOTE = "kernels are not measured in Triton's interpreter, only on a GPU"


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The chosen options, by problem key, and the report."""

    options: Mapping[str, Option]
    report: TuningReport


@dataclass(slots=True)
class Learner:
    """The measurements, and the ranking learned from them; it is learned again when there are many
    more."""

    times: list[TimedOption]
    ranking: LearnedRanking | None = None
    learned_count: int = 0

    def current_ranking(self) -> LearnedRanking | None:
        if len(self.times) >= max(MIN_MEASUREMENTS, RELEARN_GROWTH * self.learned_count):
            self.ranking = LearnedRanking.train(self.times, gpu_features.gpu_option_features)
            self.learned_count = len(self.times)
        return self.ranking


@dataclass(slots=True)
class TunedProblem:
    """A problem: the options to measure, in order, and the measured times."""

    key: str
    problem: Problem
    ordered_options: list[Option]
    times: dict[Option, float] = field(default_factory=dict)

    @property
    def best_option(self) -> Option:
        return min(self.times, key=lambda o: self.times[o])

    def min_seconds(self) -> float:
        return min(self.times.values(), default=float("inf"))


def stored_options(
    store: Store, device: str, dot_precision: str, vendor: bool
) -> dict[str, Option]:
    """Return the fastest options measured on this GPU before. vendor: include vendor libraries. (A
    tuning without these does not apply to one with them.)"""
    best: dict[str, TimedOption] = {}
    for t in kept.measured_options(store, kept.gpu_target(device_name(device), dot_precision)):
        before = best.get(t.problem, t)
        if (vendor or not _uses_vendor_library(t.option)) and t.seconds <= before.seconds:
            best[t.problem] = t
    return {problem: t.option for problem, t in best.items()}


def _uses_vendor_library(o: Option) -> bool:
    """True if a vendor library computes a part of it."""
    return o.algorithm == VENDOR or VENDOR in dict(o.knobs)


def tune_programs(
    programs: Sequence[Program], list_options: ListOptions, device: str, dot_precision: str,
    store: Store | None, budget: float, max_options: int, on_result: OnResult,
    stop: Callable[[], bool],
) -> TuningResult:  # fmt: skip
    """Measure up to `max_options` of the most promising options of each problem, problems with the
    most work first, for at most `budget` seconds. If the store has all of these, nothing is
    measured; else they are measured beside the best stored ones."""
    begin = time.monotonic()
    problems = {key: p for made in programs for key, p in made.problems.items()}
    calls = [key for made in programs for key in made.call_problems]
    on = kept.gpu_target(device_name(device), dot_precision)
    before = [] if store is None else kept.measured_options(store, on)
    learner = Learner(gpu_features.with_current_numbers(before))
    how: dict[str, Option] = {}
    rows, failed = [], list[str]()
    by_work = sorted(problems, key=lambda k: -prod(problems[k].features()[:2]) * calls.count(k))
    for key in by_work if device == "cuda" else ():
        if stop() or time.monotonic() - begin > budget:
            break
        p = problems[key]
        ranking = learner.current_ranking()
        k = TunedProblem(key, p, _ordered_options(p, list_options, ranking, max_options))
        k.times = {
            t.option: t.seconds
            for t in before
            if t.problem == key and t.option in k.ordered_options
        }
        there, first = len(k.ordered_options), k.ordered_options[0]
        new = [o for o in k.ordered_options[:max_options] if o not in k.times]
        # Of ranked options, later ones brought no speedup before, if the first are known.
        look = max_options if ranking is None else min(max_options, 2 * COMPILE_THREADS)
        timed: Mapping[Option, float] = {}
        if there > 1 and not {*k.ordered_options[:look]} <= {*k.times}:
            # Times of another session are not comparable: the best options are measured again.
            k.ordered_options = list(dict.fromkeys((first, *finalists(k.times), *new)))
            known, k.times = k.times, {}
            clock = partial(
                measure_options, p, dot_precision=dot_precision, timers={}, failed=failed
            )
            measure_options_in_batches(k, clock, len(k.ordered_options), ranking is not None)
            timed, k.times = k.times, k.times or known
        if not k.times:
            continue
        numbers = gpu_features.problem_numbers(p)
        learner.times += [TimedOption(key, numbers, o, t) for o, t in timed.items() if o in new]
        if store is not None:
            _store_times(store, on, key, numbers, timed)
        how[key] = k.best_option
        first = first if first in k.times else k.best_option
        shown, count = f"{p.tensor.type}", len(k.times)
        rows.append(
            TunedKernel(
                shown, calls.count(key), k.times[first], k.min_seconds(), str(first),
                str(k.best_option), count, there,
            )
        )  # fmt: skip
        LOG.info("kernel %s: %s, %.4g us", shown, k.best_option, 1e6 * k.min_seconds())
        for option, seconds in timed.items():
            LOG.debug("kernel %s, option %s: %.4g us", shown, option, 1e6 * seconds)
        on_result(p, k.times)
    notes = [] if device == "cuda" else [INTERPRETER_NOTE]
    if failed:
        why = shorten(failed[0], MAX_FAILURE_CHARS)
        notes.append(f"{len(failed)} options could not be measured, first {why}")
    return TuningResult(
        how, TuningReport(tuple(rows), time.monotonic() - begin, notes=tuple(notes))
    )


def _ordered_options(
    p: Problem, list_options: ListOptions, ranking: LearnedRanking | None, max_options: int
) -> list[Option]:
    """Return the options of a problem; the first is the unmeasured default. Ranked: all of them,
    vendor libraries first, then by expected time. Unranked: as many as are measured."""
    if ranking is None:
        return list(islice(list_options(p), max_options))
    first, *rest = dict.fromkeys(list_options(p))
    # Times of our kernels do not predict those of vendor libraries.
    theirs, ours = ([o for o in rest if _uses_vendor_library(o) == x] for x in (True, False))
    if len(ours) > 1:
        ours = ranking.order(gpu_features.problem_numbers(p), ours)
    return [first, *theirs, *ours]


def measure_options_in_batches(
    k: TunedProblem,
    measure_batch: Callable[[list[Option]], Mapping[Option, float]],
    max_options: int,
    is_ranked: bool,
) -> None:
    """Measure those of the first `max_options` that are unknown. is_ranked: measure batches of as
    many as compile in parallel, until a batch brings no speedup. measure_batch: returns the seconds
    of options that run, and may repeat earlier ones."""
    size = COMPILE_THREADS if is_ranked else max_options
    for at in range(0, min(max_options, len(k.ordered_options)), size):
        before = k.min_seconds()
        some = [o for o in k.ordered_options[at : min(at + size, max_options)] if o not in k.times]
        if some:
            k.times |= measure_batch(some)
        if at and k.min_seconds() * MIN_ROUND_SPEEDUP > before:
            break


def _store_times(
    store: Store, target: Target, key: str, features: tuple[int, ...],
    times: Mapping[Option, float],
) -> None:  # fmt: skip
    if times:
        kept.store_times(store, target, key, features, {o: (t, t, t, 1) for o, t in times.items()})
