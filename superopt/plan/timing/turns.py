"""Timing beside other processes: kernels in turns with a fixed product, on this thread's own time.

What slows down the product, as the other hardware thread of a core does, slows down the kernel as
well; time in which another process has the core does not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from superopt.cost import tuning_records
from superopt.cost.store import Store
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.algorithms.space import best_option
from superopt.kernels.runtime.cpu import Machine
from superopt.plan.timing.cpu import build_runnable
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType, compute, placeholder, reduce_sum

REFERENCE_SIZE = 128  # of the matrices of the product
ROUNDS = 9  # in each of which everything is timed once
FIRST_TURNS = 60  # of the product, when a machine is first used
MIN_TURN_SECONDS = 0.0005  # of a kernel in a round
PYTHON_SECONDS = 1.5e-6  # of calling a kernel from here
MIN_KERNEL_PART = 0.2  # of a call, at least


@dataclass(slots=True)
class TimedKernel:
    """A kernel that is timed again and again. clock: returns seconds. repeats: runs of a turn."""

    run: Callable[[], object]
    clock: Callable[[], float]
    repeats: int = 1

    def seconds(self) -> float:
        """Return the seconds of a run now."""
        run = self.run
        begin = self.clock()
        for _ in range(self.repeats):
            run()
        return (self.clock() - begin) / self.repeats


@dataclass(slots=True)
class TurnTimer:
    """Times kernels on this machine, with the fixed product beside them. reference_seconds: what
    the product takes; all times are relative to it, so that those of other days are comparable."""

    machine: Machine
    threads: int
    reference_seconds: float
    reference: TimedKernel | None = None

    @classmethod
    def open(cls, machine: Machine, threads: int, store: Store) -> TurnTimer:
        """Return a timer with the seconds that the product took when this machine was first used
        with this store."""
        target = tuning_records.cpu_target(threads)
        known = tuning_records.reference_seconds(store, target)
        made = cls(machine, threads, known or 0.0)
        if known is None:
            made.reference = made._make_reference()
            made.reference_seconds = min(made.reference.seconds() for _ in range(FIRST_TURNS))
            tuning_records.store_reference_seconds(store, target, made.reference_seconds)
        return made

    def prepare(self, run: Callable[[], object]) -> TimedKernel:
        """Return the kernel after it ran once. On several threads the wall clock counts."""
        made = TimedKernel(run, time.thread_time if self.threads == 1 else time.perf_counter)
        run()
        least = min(made.seconds() for _ in range(2))
        made.repeats = max(1, int(MIN_TURN_SECONDS / max(least, 1e-9)))
        return made

    def measure(self, run: Callable[[], object]) -> float:
        """Return the seconds that a run takes where the product takes `reference_seconds`."""
        if self.reference is None:
            self.reference = self._make_reference()
        kernel, ratios = self.prepare(run), []
        for _ in range(ROUNDS):
            before = self.reference.seconds()
            own = kernel.seconds()
            ratios.append(2 * own / (before + self.reference.seconds()))
        return _kernel_seconds(statistics.median(ratios) * self.reference_seconds)

    def _make_reference(self) -> TimedKernel:
        """Return a product of matrices that stay in the cache."""
        size, machine = REFERENCE_SIZE, self.machine
        square = TensorType(F32, (size, size))
        a, b = placeholder("a", square), placeholder("b", square)
        c = compute((size, size), lambda i, j: reduce_sum(size, lambda k: a[i, k] * b[k, j]))
        p = Problem(c, {}, {b}, machine.width, processor=machine.processor)
        return self.prepare(build_runnable(p, best_option(p), machine, self.threads))


def ratio_in_turns(
    old: Sequence[tuple[TimedKernel, int]], new: Sequence[tuple[TimedKernel, int]], rounds: int
) -> float:
    """Return the time of the new kernels over that of the old ones, each so many runs."""
    ratios = []
    for _ in range(rounds):
        before = sum(n * _kernel_seconds(k.seconds()) for k, n in old)
        after = sum(n * _kernel_seconds(k.seconds()) for k, n in new)
        ratios.append(after / before)
    return statistics.median(ratios)


def _kernel_seconds(call_seconds: float) -> float:
    """Return the seconds of a kernel within a program, from those of a call."""
    return max(call_seconds - PYTHON_SECONDS, MIN_KERNEL_PART * call_seconds)
