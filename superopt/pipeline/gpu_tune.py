"""Tuning on a GPU: measure options of a model's kernels, use the fastest, and store the
measurements.

The machine model selects the options to measure, or a ranking learned from earlier measurements of
this GPU (cost/learned.py with cost/gpu_features.py), including those of this tuning. Ranked options
are measured in batches for as long as a batch brings a speedup.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from math import prod
from textwrap import shorten

from superopt.cost import gpu_features
from superopt.cost import tuned as kept
from superopt.cost.learned import LEAST, Ranking
from superopt.cost.store import Store, Target
from superopt.cost.tuned import Timed
from superopt.kernels.algorithms.gpu.vendor_gemm import ALGORITHM as VENDORS
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.gpu_device import device_name
from superopt.plan.program.program import Program
from superopt.plan.timing.gpu import COMPILE_THREADS, finalists, measure_options
from superopt.report.compiled import Tuned, TunedKernel

Options = Callable[[Problem], Iterator[Option]]
Seen = Callable[[Problem, Mapping[Option, float]], None]
GAIN = 1.02  # speedup that a batch must bring for the next one to be measured
MORE = 1.5  # the ranking is learned again after this growth of the measurements
SAID = 200  # characters of the reason for a failed measurement
UNTIMED = "kernels are not measured in Triton's interpreter, only on a GPU"


@dataclass(frozen=True, slots=True)
class Found:
    """The chosen options, by problem key, and the report."""

    chosen: Mapping[str, Option]
    report: Tuned


@dataclass(slots=True)
class Learner:
    """The measurements, and the ranking learned from them; it is learned again when there are many
    more."""

    times: list[Timed]
    ranking: Ranking | None = None
    learned: int = 0

    def now(self) -> Ranking | None:
        if len(self.times) >= max(LEAST, MORE * self.learned):
            self.ranking = Ranking.learned(self.times, gpu_features.features)
            self.learned = len(self.times)
        return self.ranking


@dataclass(slots=True)
class Kernel:
    """A problem: the options to measure, in order, and the measured times."""

    key: str
    problem: Problem
    order: list[Option]
    times: dict[Option, float] = field(default_factory=dict)

    @property
    def best(self) -> Option:
        return min(self.times, key=lambda o: self.times[o])

    def least(self) -> float:
        return min(self.times.values(), default=float("inf"))


def known(store: Store, device: str, dots: str, vendor: bool) -> dict[str, Option]:
    """Return the fastest options measured on this GPU before. vendor: include vendor libraries. (A
    tuning without these does not apply to one with them.)"""
    best: dict[str, Timed] = {}
    for t in kept.measured(store, kept.gpu(device_name(device), dots)):
        before = best.get(t.problem, t)
        if (vendor or not _theirs(t.option)) and t.seconds <= before.seconds:
            best[t.problem] = t
    return {problem: t.option for problem, t in best.items()}


def _theirs(o: Option) -> bool:
    """True if a vendor library computes a part of it."""
    return o.algorithm == VENDORS or VENDORS in dict(o.knobs)


def tuned(
    programs: Sequence[Program], options: Options, device: str, dots: str, store: Store | None,
    budget: float, most: int, seen: Seen, stop: Callable[[], bool],
) -> Found:  # fmt: skip
    """Measure up to `max_options` of the most promising options of each problem, problems with the
    most work first, for at most `budget` seconds. If the store has all of these, nothing is
    measured; else they are measured beside the best stored ones."""
    begin = time.monotonic()
    problems = {key: p for made in programs for key, p in made.problems.items()}
    calls = [key for made in programs for key in made.call_problems]
    on = kept.gpu(device_name(device), dots)
    before = [] if store is None else kept.measured(store, on)
    learner = Learner(gpu_features.usable(before))
    how: dict[str, Option] = {}
    rows, failed = [], list[str]()
    by_work = sorted(problems, key=lambda k: -prod(problems[k].features()[:2]) * calls.count(k))
    for key in by_work if device == "cuda" else ():
        if stop() or time.monotonic() - begin > budget:
            break
        p = problems[key]
        ranking = learner.now()
        k = Kernel(key, p, _order(p, options, ranking, most))
        k.times = {t.option: t.seconds for t in before if t.problem == key and t.option in k.order}
        there, first = len(k.order), k.order[0]
        new = [o for o in k.order[:most] if o not in k.times]
        # Of ranked options, later ones brought no speedup before, if the first are known.
        look = most if ranking is None else min(most, 2 * COMPILE_THREADS)
        timed: Mapping[Option, float] = {}
        if there > 1 and not {*k.order[:look]} <= {*k.times}:
            # Times of another session are not comparable: the best options are measured again.
            k.order = list(dict.fromkeys((first, *finalists(k.times), *new)))
            known, k.times = k.times, {}
            clock = partial(measure_options, p, dot_precision=dots, timers={}, failed=failed)
            measure(k, clock, len(k.order), ranking is not None)
            timed, k.times = k.times, k.times or known
        if not k.times:
            continue
        numbers = gpu_features.numbers(p)
        learner.times += [Timed(key, numbers, o, t) for o, t in timed.items() if o in new]
        if store is not None:
            _keep(store, on, key, numbers, timed)
        how[key] = k.best
        first = first if first in k.times else k.best
        shown, count = f"{p.tensor.type}", len(k.times)
        rows.append(
            TunedKernel(
                shown, calls.count(key), k.times[first], k.least(), str(first), str(k.best),
                count, there,
            )
        )  # fmt: skip
        seen(p, k.times)
    notes = [] if device == "cuda" else [UNTIMED]
    if failed:
        why = shorten(failed[0], SAID)
        notes.append(f"{len(failed)} options could not be measured, first {why}")
    return Found(how, Tuned(tuple(rows), time.monotonic() - begin, notes=tuple(notes)))


def _order(p: Problem, options: Options, ranking: Ranking | None, most: int) -> list[Option]:
    """Return the options of a problem; the first is the unmeasured default. Ranked: all of them,
    vendor libraries first, then by expected time. Unranked: as many as are measured."""
    if ranking is None:
        return list(islice(options(p), most))
    first, *rest = dict.fromkeys(options(p))
    # Times of our kernels do not predict those of vendor libraries.
    theirs, ours = ([o for o in rest if _theirs(o) == x] for x in (True, False))
    if len(ours) > 1:
        ours = ranking.ordered(gpu_features.numbers(p), ours)
    return [first, *theirs, *ours]


def measure(
    k: Kernel, clock: Callable[[list[Option]], Mapping[Option, float]], most: int, ranked: bool
) -> None:
    """Measure those of the first `max_options` that are unknown. is_ranked: measure batches of as
    many as compile in parallel, until a batch brings no speedup. measure_batch: returns the seconds
    of options that run, and may repeat earlier ones."""
    size = COMPILE_THREADS if ranked else most
    for at in range(0, min(most, len(k.order)), size):
        before = k.least()
        some = [o for o in k.order[at : min(at + size, most)] if o not in k.times]
        if some:
            k.times |= clock(some)
        if at and k.least() * GAIN > before:
            break


def _keep(
    store: Store, on: Target, key: str, numbers: tuple[int, ...],
    times: Mapping[Option, float],
) -> None:  # fmt: skip
    if times:
        kept.keep(store, on, key, numbers, {o: (t, t, t, 1) for o, t in times.items()})
