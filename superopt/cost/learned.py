"""Learn from measurements which options of a problem to measure first: gradient-boosted trees
(Friedman, Greedy function approximation, 2001) on features of problems and options, and simulated
annealing over a problem's options by the predictions (Chen et al., Learning to optimize tensor
programs, arXiv:1805.08166, section 3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from superopt.cost.tuned import Timed
from superopt.kernels.loops.option import Option

LEAST = 200  # fewer measurements are not enough to learn from
ALGORITHMS = (
    "direct",
    "winograd",
    "strassen",
    "along",
    "across",
    "loops",
    "turning",
    "rows",
    "flat",
)
KNOBS = ("rows", "vectors", "deep", "m", "levels", "apart", "block", "columns", "wide", "lanes")
Describe = Callable[[tuple[int, ...], Option], list[float]]
ROUNDS, STEPS, HOT, COLD = 80, 60, 0.3, 0.01


class Ranking:
    """Predicts the logarithm of an option's time relative to its problem's best option."""

    def __init__(self, trees: Any, describe: Describe) -> None:
        self.trees, self.describe = trees, describe

    @classmethod
    def learned(cls, some: Sequence[Timed], describe: Describe | None = None) -> Ranking | None:
        """Train a ranking; None if there are too few measurements, or the extra `learn` is missing.

        describe: returns the features of a problem's numbers and an option; None: those of a CPU.
        """
        describe = describe or features
        if len(some) < LEAST:
            return None
        try:
            import lightgbm
        except ImportError:
            return None
        best: dict[str, float] = {}
        for t in some:
            best[t.problem] = min(t.seconds, best.get(t.problem, math.inf))
        rows = np.array([describe(t.numbers, t.option) for t in some])
        wanted = np.array([math.log(t.seconds / best[t.problem]) for t in some])
        data = lightgbm.Dataset(rows, np.minimum(wanted, 1.0), free_raw_data=False)
        about = {
            "objective": "regression", "num_leaves": 31, "learning_rate": 0.1, "verbose": -1,
            "min_data_in_leaf": 10, "num_threads": 1, "seed": 0, "deterministic": True,
        }  # fmt: skip
        return cls(lightgbm.train(about, data, num_boost_round=ROUNDS), describe)

    def predicted(self, numbers: tuple[int, ...], options: Sequence[Option]) -> np.ndarray:
        rows = np.array([self.describe(numbers, o) for o in options])
        return np.asarray(self.trees.predict(rows), np.float64)

    def ordered(self, numbers: tuple[int, ...], options: Sequence[Option]) -> list[Option]:
        """Return the options in the order in which to measure them: first those that chains of
        simulated annealing visited, the best first, then the rest."""
        cost = self.predicted(numbers, options)
        found = _annealed(options, cost, np.random.default_rng(0))
        rest = sorted(set(range(len(options))) - set(found), key=lambda n: cost[n])
        return [options[n] for n in (*sorted(found, key=lambda n: cost[n]), *rest)]


def features(numbers: tuple[int, ...], option: Option) -> list[float]:
    """Return the features of an option on a CPU. numbers: of its problem."""
    elements, terms, fixed, other, second, last, width = numbers
    knobs = dict(option.knobs)
    lanes = max(width // 4, 1)
    wide = knobs.get("vectors", 0) * lanes or knobs.get("wide", 0) or knobs.get("lanes", 0) or 1
    rows = knobs.get("rows", 1) * knobs.get("columns", 1)
    logs = [math.log2(n + 1) for n in (elements, terms, fixed, other, second, last)]
    used = [_waste(last, wide), _waste(second, rows), float(rows * wide), rows / wide]
    kind = [float(option.algorithm == a) for a in ALGORITHMS]
    return [*logs, *used, *kind, *(float(knobs.get(k, -1)) for k in KNOBS)]


def _waste(extent: int, step: int) -> float:
    """Return the ratio of computed to needed elements, for steps that do not divide an extent."""
    return -(-extent // step) * step / max(extent, 1)


def _annealed(
    options: Sequence[Option], cost: np.ndarray, rng: np.random.Generator, chains: int = 8
) -> list[int]:
    """Return the indices of the options that the chains visited. A step changes few numbers."""
    near = _near(options)
    at = [0, *(int(n) for n in rng.integers(0, len(options), chains - 1))]
    stood = dict.fromkeys(at)
    for step in range(STEPS):
        heat = HOT * (COLD / HOT) ** (step / STEPS)
        for k, here in enumerate(at):
            there = int(rng.choice(near[here])) if len(near[here]) else here
            if cost[there] <= cost[here] or rng.random() < math.exp(
                (cost[here] - cost[there]) / heat
            ):
                at[k] = there
                stood[there] = None
    return list(stood)


def _near(options: Sequence[Option]) -> list[np.ndarray]:
    """Return for each option the others of its algorithm that differ in at most two numbers."""
    names = sorted({name for o in options for name, _ in o.knobs})
    knobs = [dict(o.knobs) for o in options]
    numbers = np.array([[k.get(name, -1) for name in names] for k in knobs]).reshape(len(knobs), -1)
    kinds = np.array([o.algorithm for o in options])
    out = []
    for n, (own, kind) in enumerate(zip(numbers, kinds, strict=True)):
        near = ((numbers != own).sum(-1) <= 2) & (kinds == kind)
        near[n] = False
        out.append(np.flatnonzero(near))
    return out
