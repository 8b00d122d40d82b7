"""Tuning: measure options of a model's kernels, and store the fastest.

The cost model, or a ranking learned from earlier measurements, orders the options; measurements
decide. Measurements go into the store and are not repeated.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from superopt.cost import tuning_records
from superopt.cost.learned_ranking import LearnedRanking
from superopt.cost.store import Store
from superopt.cost.tuning_records import TimeSummary
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import options
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.cpu import Machine
from superopt.plan.program.program import Program
from superopt.plan.timing.cpu import build_runnable
from superopt.plan.timing.turns import ROUNDS, TurnTimer
from superopt.report.compilation.compile_report import TunedKernel, TuningReport
from superopt.report.data.report import Event

LOG = logging.getLogger("superopt.tune")
Progress = Callable[[Event], None]
OPTIONS_PER_ROUND = 8  # options of a kernel that are measured before the next kernel is chosen
MAX_FINALISTS = 3
FINAL_ROUNDS = 15  # interleaved timings of the finalists
MIN_SPEEDUP = 1.02  # a winner must be so many times as fast as the default


@dataclass(slots=True)
class _TunedProblem:
    """A problem of the program: how often it occurs, and what is known of its options."""

    key: str
    problem: Problem
    call_count: int
    ordered_options: list[Option]
    times: dict[Option, TimeSummary] = field(default_factory=dict)
    tried_count: int = 0

    @property
    def default(self) -> Option:
        return self.ordered_options[0]

    def min_seconds(self) -> float:
        return min((t[0] for t in self.times.values()), default=0.0)


def tune_program(
    program: Program,
    machine: Machine,
    threads: int,
    store: Store,
    budget: float,
    progress: Progress = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
) -> TuningReport:
    """Measure options of the program's kernels for `budget` seconds, and store the best."""
    begin = time.monotonic()

    def over() -> bool:
        return stop() or time.monotonic() - begin > budget

    timer = TurnTimer.open(machine, threads, store)
    kernels = _problems_to_tune(program, store, threads)
    for n, k in enumerate(kernels):
        if over():
            break
        _measure(k, [k.default], timer, store, over)
        progress(Event("tune", f"kernel {n + 1} of {len(kernels)}", None))
    kernels = [k for k in kernels if k.default in k.times]
    while not over():
        if not any(map(_expected_gain, kernels)):
            break
        k = max(kernels, key=_expected_gain)
        some = k.ordered_options[k.tried_count : k.tried_count + OPTIONS_PER_ROUND]
        k.tried_count += len(some)
        _measure(k, some, timer, store, over)
        spent = time.monotonic() - begin
        total_seconds = sum(k.call_count * k.min_seconds() for k in kernels)
        done = min(spent / budget, 1.0)
        progress(Event("tune", f"{k.problem.tensor.type}", done, total_seconds * 1e6))
    rows = []
    for k in kernels:
        winner = _choose_option(k, timer, store)
        before, after = k.times[k.default][0], k.times[winner][0]
        shown = f"{k.problem.tensor.type}"
        LOG.info(
            "kernel %s: %s, %.4g us; by default %.4g us", shown, winner, 1e6 * after, 1e6 * before
        )
        measured, all_ = len(k.times), len(k.ordered_options)
        rows.append(
            TunedKernel(
                shown, k.call_count, before, after, str(k.default), str(winner), measured, all_
            )
        )
    return TuningReport(tuple(rows), time.monotonic() - begin)


def _expected_gain(k: _TunedProblem) -> float:
    """Return the expected gain of another round; it decreases with each round."""
    if k.tried_count >= len(k.ordered_options):
        return 0.0
    return k.call_count * k.min_seconds() / (1 + k.tried_count / OPTIONS_PER_ROUND)


def _problems_to_tune(program: Program, store: Store, threads: int) -> list[_TunedProblem]:
    """Return the problems of the program, with the measurements that the store has."""
    some = tuning_records.measured_options(store, tuning_records.cpu_target(threads))
    ranking = LearnedRanking.train(some)
    known: dict[str, dict[Option, TimeSummary]] = {}
    for t in some:
        known.setdefault(t.problem, {})[t.option] = (t.seconds, t.seconds, t.seconds, 1)
    out = []
    for key, p in program.problems.items():
        first, *rest = options(p)
        if ranking is not None and len(rest) > 1:
            rest = ranking.order(p.features(), rest)
        order = [first, *rest]
        held = {o: s for o, s in known.get(key, {}).items() if o in order}
        out.append(_TunedProblem(key, p, program.solve_count(key), order, held))
    return out


def _measure(
    k: _TunedProblem,
    options: list[Option],
    timer: TurnTimer,
    store: Store,
    is_over: Callable[[], bool],
) -> None:
    new = {}
    for option in options:
        if option in k.times:
            continue
        if is_over():
            break
        seconds = timer.measure(build_runnable(k.problem, option, timer.machine, timer.threads))
        new[option] = (seconds, seconds, seconds, ROUNDS)
        LOG.debug("%s by %s: %.4g us", k.problem.tensor.type, option, 1e6 * new[option][0])
    k.times |= new
    tuning_records.store_times(
        store, tuning_records.cpu_target(timer.threads), k.key, k.problem.features(), new
    )


def _choose_option(k: _TunedProblem, timer: TurnTimer, store: Store) -> Option:
    """Return the fastest option. The best few are timed interleaved with the default, which is kept
    if none is clearly faster."""
    ranked = sorted(k.times, key=lambda o: k.times[o][0])[:MAX_FINALISTS]
    if ranked[0] != k.default:
        kernels = {
            o: timer.prepare(build_runnable(k.problem, o, timer.machine, timer.threads))
            for o in {k.default, *ranked}
        }
        rounds = [{o: x.seconds() for o, x in kernels.items()} for _ in range(FINAL_ROUNDS)]
        usual = k.times[k.default][0]
        for o in kernels:
            own = sorted(usual * r[o] / r[k.default] for r in rounds)
            k.times[o] = (own[FINAL_ROUNDS // 2], own[1], own[-2], FINAL_ROUNDS)
        ranked.sort(key=lambda o: k.times[o][0])
        if k.times[ranked[0]][0] * MIN_SPEEDUP > k.times[k.default][0]:
            ranked.insert(0, k.default)
    winner = ranked[0]
    numbers = k.problem.features()
    tuning_records.store_times(
        store,
        tuning_records.cpu_target(timer.threads),
        k.key,
        numbers,
        {winner: k.times[winner]},
        tuning_records.CHOSEN_KIND,
    )
    return winner
