"""How many measurements a ranking saves when kernels are tuned: docs/benchmarks/bench_tuning.md.

    superopt tune MODEL --budget 10m --store FOLDER     (for some models: the store is then asked)
    python scripts/bench_tuning.py --store FOLDER [--md docs/benchmarks/bench_tuning.md]
    python scripts/bench_tuning.py --store FOLDER --gpu    (of what was tuned with --target cuda)

Of each problem (a kernel to be made) whose options were all measured, or most of them: after how
many measurements was one within 2 % of the best found, in a random order and in the order learned
from the *other* problems (five folds: no problem is ranked by a model that has seen it)?
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np

from superopt.cost import gpu_features, tuning_records
from superopt.cost.learned_ranking import FeatureFunction, LearnedRanking, cpu_option_features
from superopt.cost.machine import this_machine
from superopt.cost.store import GPU_THREADS, Store
from superopt.cost.tuning_records import TimedOption

LEAST = 20  # measured options of a problem
NEAR = 1.02
FOLDS = 5
SHUFFLES = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--gpu", action="store_true", help="of each GPU in the store")
    parser.add_argument("--md", type=Path)
    args = parser.parse_args()
    with Store.open(args.store) as store:
        if args.gpu:
            on = [
                t
                for t in store.stats().targets
                if t.threads == GPU_THREADS and t.runtime == "superopt"
            ]
            some = {f"{t.cpu}, {t.flags_digest}": gpu_features.with_current_numbers(
                        tuning_records.measured_options(store, t))
                    for t in on}  # fmt: skip
        else:
            some = {
                this_machine().text: tuning_records.measured_options(
                    store, tuning_records.cpu_target(args.threads)
                )
            }
    describe = gpu_features.gpu_option_features if args.gpu else cpu_option_features
    text = "\n\n".join(saving_table(where, rows, describe) for where, rows in some.items())
    print(text)
    if args.md is not None:
        args.md.write_text(text + "\n", encoding="utf-8")


def saving_table(where: str, rows: list[TimedOption], describe: FeatureFunction) -> str:
    """The report of one target's measurements."""
    problems: dict[str, list[TimedOption]] = defaultdict(list)
    for t in rows:
        problems[t.problem].append(t)
    chosen = sorted(p for p, some in problems.items() if len(some) >= LEAST)
    found = [counts(problems, chosen, fold, describe) for fold in range(FOLDS)]
    return report(where, [c for some in found for c in some], len(rows))


def counts(
    problems: dict[str, list[TimedOption]], chosen: list[str], fold: int, describe: FeatureFunction
) -> list[tuple[int, float, float, float, float]]:
    """Of each problem of a fold: options, measurements at random and as learned, and how much
    slower than the best one the first option is, and the best of the first eight."""
    own = set(chosen[fold::FOLDS])
    others = [t for p, some in problems.items() if p not in own for t in some]
    ranking = LearnedRanking.train(others, describe)
    assert ranking is not None, "too little was measured, or the extra learn is not installed"
    rng = np.random.default_rng(fold)
    out = []
    for p in sorted(own):
        some = problems[p]
        best = min(t.seconds for t in some)
        good = {t.option for t in some if t.seconds <= NEAR * best}
        options = [t.option for t in some]
        by_chance = np.mean(
            [first([options[k] for k in rng.permutation(len(options))], good)
             for _ in range(SHUFFLES)]
        )  # fmt: skip
        learned = ranking.order(some[0].numbers, options)
        top = next(t.seconds for t in some if t.option == learned[0])
        out.append((len(some), float(by_chance), float(first(learned, good)), top / best,
                    min(t.seconds for t in some if t.option in learned[:8]) / best))  # fmt: skip
    return out


def first(order: list[object], good: set[object]) -> int:
    """Measurements until one of the good ones."""
    return next(n for n, o in enumerate(order, 1) if o in good)


def report(where: str, found: list[tuple[int, float, float, float, float]], rows: int) -> str:
    options, chance, learned, top, eight = (np.array(c) for c in zip(*found, strict=True))
    lines = [
        "# What a learned ranking saves",
        "",
        f"{where}; {rows} measurements of kernels; {len(found)} problems with at least"
        f" {LEAST} measured options each. Made by `scripts/bench_tuning.py`.",
        "",
        f"| order | measurements until within {NEAR - 1:.0%} of the best, mean | median | all |",
        "|---|---|---|---|",
        f"| exhaustive | {options.mean():.1f} | {np.median(options):.0f} | {options.sum():.0f} |",
        f"| at random | {chance.mean():.1f} | {np.median(chance):.1f} | {chance.sum():.0f} |",
        f"| learned | {learned.mean():.1f} | {np.median(learned):.0f} | {learned.sum():.0f} |",
        "",
        f"The option that is ranked first is {geo(top):.3f} times as slow as the best one"
        f" (geometric mean), the best of the first eight {geo(eight):.3f} times.",
    ]
    return "\n".join(lines)


def geo(x: np.ndarray) -> float:
    return float(np.exp(np.log(x).mean()))


if __name__ == "__main__":
    main()
