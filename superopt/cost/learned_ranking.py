"""Learn from measurements which options of a problem to measure first: gradient-boosted trees
(Friedman, Greedy function approximation, 2001) on features of problems and options, and simulated
annealing over a problem's options by the predictions (Chen et al., Learning to optimize tensor
programs, arXiv:1805.08166, section 3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from superopt.cost.tuning_records import TimedOption
from superopt.kernels.loops.option import Option

MIN_MEASUREMENTS = 200  # fewer measurements are not enough to learn from
FEATURE_ALGORITHMS = (
    "gemm",
    "winograd",
    "strassen",
    "vertical_reduction",
    "horizontal_reduction",
    "elementwise",
    "transpose",
    "row_wise",
    "collapsed_gemm",
)
FEATURE_KNOBS = (
    "rows",
    "vectors",
    "k_block",
    "m",
    "levels",
    "separate",
    "block",
    "block_rows",
    "columns",
    "width",
    "score_vectors",
    "lanes",
)
FeatureFunction = Callable[[tuple[int, ...], Option], list[float]]
BOOSTING_ROUNDS, ANNEALING_STEPS, START_TEMPERATURE, END_TEMPERATURE = 80, 60, 0.3, 0.01


class LearnedRanking:
    """Predicts the logarithm of an option's time relative to its problem's best option."""

    def __init__(self, trees: Any, describe: FeatureFunction) -> None:
        self.trees, self.describe = trees, describe

    @classmethod
    def train(
        cls, measurements: Sequence[TimedOption], describe: FeatureFunction | None = None
    ) -> LearnedRanking | None:
        """Train a ranking; None if there are too few measurements, or the extra `learn` is missing.

        describe: returns the features of a problem's numbers and an option; None: those of a CPU.
        """
        describe = describe or cpu_option_features
        if len(measurements) < MIN_MEASUREMENTS:
            return None
        try:
            import lightgbm
        except ImportError:
            return None
        best: dict[str, float] = {}
        for t in measurements:
            best[t.problem] = min(t.seconds, best.get(t.problem, math.inf))
        rows = np.array([describe(t.numbers, t.option) for t in measurements])
        wanted = np.array([math.log(t.seconds / best[t.problem]) for t in measurements])
        data = lightgbm.Dataset(rows, np.minimum(wanted, 1.0), free_raw_data=False)
        about = {
            "objective": "regression", "num_leaves": 31, "learning_rate": 0.1, "verbose": -1,
            "min_data_in_leaf": 10, "num_threads": 1, "seed": 0, "deterministic": True,
        }  # fmt: skip
        return cls(lightgbm.train(about, data, num_boost_round=BOOSTING_ROUNDS), describe)

    def predict(self, numbers: tuple[int, ...], options: Sequence[Option]) -> np.ndarray:
        rows = np.array([self.describe(numbers, o) for o in options])
        return np.asarray(self.trees.predict(rows), np.float64)

    def order(self, numbers: tuple[int, ...], options: Sequence[Option]) -> list[Option]:
        """Return the options in the order in which to measure them: first those that chains of
        simulated annealing visited, the best first, then the rest."""
        cost = self.predict(numbers, options)
        found = _anneal(options, cost, np.random.default_rng(0))
        rest = sorted(set(range(len(options))) - set(found), key=lambda n: cost[n])
        return [options[n] for n in (*sorted(found, key=lambda n: cost[n]), *rest)]


def cpu_option_features(numbers: tuple[int, ...], option: Option) -> list[float]:
    """Return the features of an option on a CPU. numbers: of its problem."""
    elements, terms, fixed, other, second, last, width = numbers
    knobs = dict(option.knobs)
    lanes = max(width // 4, 1)
    wide = knobs.get("vectors", 0) * lanes or knobs.get("width", 0) or knobs.get("lanes", 0) or 1
    rows = knobs.get("rows", 1) * knobs.get("columns", 1)
    logs = [math.log2(n + 1) for n in (elements, terms, fixed, other, second, last)]
    used = [
        _padding_ratio(last, wide),
        _padding_ratio(second, rows),
        float(rows * wide),
        rows / wide,
    ]
    kind = [float(option.algorithm == a) for a in FEATURE_ALGORITHMS]
    return [*logs, *used, *kind, *(float(knobs.get(k, -1)) for k in FEATURE_KNOBS)]


def _padding_ratio(extent: int, step: int) -> float:
    """Return the ratio of computed to needed elements, for steps that do not divide an extent."""
    return -(-extent // step) * step / max(extent, 1)


def _anneal(
    options: Sequence[Option], cost: np.ndarray, rng: np.random.Generator, chains: int = 8
) -> list[int]:
    """Return the indices of the options that the chains visited. A step changes few numbers."""
    near = _neighbours(options)
    at = [0, *(int(n) for n in rng.integers(0, len(options), chains - 1))]
    stood = dict.fromkeys(at)
    for step in range(ANNEALING_STEPS):
        heat = START_TEMPERATURE * (END_TEMPERATURE / START_TEMPERATURE) ** (step / ANNEALING_STEPS)
        for k, here in enumerate(at):
            there = int(rng.choice(near[here])) if len(near[here]) else here
            if cost[there] <= cost[here] or rng.random() < math.exp(
                (cost[here] - cost[there]) / heat
            ):
                at[k] = there
                stood[there] = None
    return list(stood)


def _neighbours(options: Sequence[Option]) -> list[np.ndarray]:
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
