"""Time compiled models in rounds, in each of which all run once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from superopt.cost.speedup import MIN_ROUNDS


def time_interleaved(
    clocks: Sequence[Callable[[], float]],
    seconds: float,
    rounds: int,
    seed: int,
    stop: Callable[[list[list[float]]], bool],
) -> list[list[float]]:
    """Return what each clock says in each round: it runs something and returns its time. They are
    called in random order, until the time is over or `stop(times)`, at least MIN_ROUNDS times."""
    times: list[list[float]] = [[] for _ in clocks]
    rng = np.random.default_rng(seed)
    end = time.monotonic() + seconds
    while len(times[0]) < rounds:
        enough = time.monotonic() > end or stop(times)
        if enough and len(times[0]) >= MIN_ROUNDS:
            break
        for n in rng.permutation(len(clocks)):
            times[n].append(clocks[n]())
    return times
