"""Tuning: measure options of a model's kernels, and store the fastest.

The cost model, or a ranking learned from earlier measurements, orders the options; measurements
decide. Measurements go into the store and are not repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from superopt.cost import tuned
from superopt.cost.learned import Ranking
from superopt.cost.store import Store
from superopt.cost.tuned import Seconds
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import options
from superopt.kernels.loops.option import Option
from superopt.kernels.runtime.cpu import Machine
from superopt.plan.program.program import Program
from superopt.plan.timing.cpu import build_runnable, measure_seconds
from superopt.report.compiled import Tuned, TunedKernel
from superopt.report.data import Event

Progress = Callable[[Event], None]
ROUND = 8  # options of a kernel that are measured before the next kernel is chosen
FINALISTS = 3
TURNS = 15  # interleaved timings of the finalists
GAIN = 1.02  # a winner must be so many times as fast as the default


@dataclass(slots=True)
class _Kernel:
    """A problem of the program: how often it occurs, and what is known of its options."""

    key: str
    problem: Problem
    calls: int
    order: list[Option]
    times: dict[Option, Seconds] = field(default_factory=dict)
    tried: int = 0

    @property
    def default(self) -> Option:
        return self.order[0]

    def least(self) -> float:
        return min((t[0] for t in self.times.values()), default=0.0)


def tune(
    program: Program,
    machine: Machine,
    threads: int,
    store: Store,
    budget: float,
    progress: Progress = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
) -> Tuned:
    """Measure options of the program's kernels for `budget` seconds, and store the best."""
    begin = time.monotonic()

    def over() -> bool:
        return stop() or time.monotonic() - begin > budget

    kernels = _kernels(program, store, threads)
    for n, k in enumerate(kernels):
        if over():
            break
        _measure(k, [k.default], machine, threads, store, over)
        progress(Event("tune", f"kernel {n + 1} of {len(kernels)}", None))
    kernels = [k for k in kernels if k.default in k.times]
    while not over():
        if not any(map(_promise, kernels)):
            break
        k = max(kernels, key=_promise)
        some = k.order[k.tried : k.tried + ROUND]
        k.tried += len(some)
        _measure(k, some, machine, threads, store, over)
        spent = time.monotonic() - begin
        told = sum(k.calls * k.least() for k in kernels)
        progress(Event("tune", f"{k.problem.tensor.type}", min(spent / budget, 1.0), told * 1e6))
    rows = []
    for k in kernels:
        winner = _decided(k, machine, threads, store)
        before, after = k.times[k.default][0], k.times[winner][0]
        shown = f"{k.problem.tensor.type}"
        measured, all_ = len(k.times), len(k.order)
        rows.append(
            TunedKernel(shown, k.calls, before, after, str(k.default), str(winner), measured, all_)
        )
    return Tuned(tuple(rows), time.monotonic() - begin)


def _promise(k: _Kernel) -> float:
    """Return the expected gain of another round; it decreases with each round."""
    if k.tried >= len(k.order):
        return 0.0
    return k.calls * k.least() / (1 + k.tried / ROUND)


def _kernels(program: Program, store: Store, threads: int) -> list[_Kernel]:
    """Return the problems of the program, with the measurements that the store has."""
    some = tuned.measured(store, tuned.target(threads))
    ranking = Ranking.learned(some)
    known: dict[str, dict[Option, Seconds]] = {}
    for t in some:
        known.setdefault(t.problem, {})[t.option] = (t.seconds, t.seconds, t.seconds, 1)
    out = []
    for key, p in program.problems.items():
        first, *rest = options(p)
        if ranking is not None and len(rest) > 1:
            rest = ranking.ordered(p.features(), rest)
        order = [first, *rest]
        held = {o: s for o, s in known.get(key, {}).items() if o in order}
        out.append(_Kernel(key, p, program.solve_count(key), order, held))
    return out


def _measure(
    k: _Kernel,
    some: list[Option],
    machine: Machine,
    threads: int,
    store: Store,
    over: Callable[[], bool],
) -> None:
    new = {}
    for option in some:
        if option in k.times:
            continue
        if over():
            break
        new[option] = measure_seconds(build_runnable(k.problem, option, machine, threads))
    k.times |= new
    tuned.keep(store, tuned.target(threads), k.key, k.problem.features(), new)


def _decided(k: _Kernel, machine: Machine, threads: int, store: Store) -> Option:
    """Return the fastest option. The best few are timed interleaved with the default, which is kept
    if none is clearly faster."""
    ranked = sorted(k.times, key=lambda o: k.times[o][0])[:FINALISTS]
    if ranked[0] != k.default:
        runs = {o: build_runnable(k.problem, o, machine, threads) for o in {k.default, *ranked}}
        rounds = [
            {o: measure_seconds(run, 0.0)[0] for o, run in runs.items()} for _ in range(TURNS)
        ]
        for o in runs:
            own = sorted(r[o] for r in rounds)
            k.times[o] = (own[TURNS // 2], own[1], own[-2], TURNS)
        ranked.sort(key=lambda o: k.times[o][0])
        if k.times[ranked[0]][0] * GAIN > k.times[k.default][0]:
            ranked.insert(0, k.default)
    winner = ranked[0]
    numbers = k.problem.features()
    tuned.keep(
        store, tuned.target(threads), k.key, numbers, {winner: k.times[winner]}, tuned.CHOSEN
    )
    return winner
