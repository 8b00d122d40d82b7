"""What is learned of a GPU's kernels: features of options, a ranking from measurements, and how
many measurements it saves, by a law in place of a device."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from superopt.compilation.cuda import tune_kernels
from superopt.cost import gpu_features, tuning_records
from superopt.cost.gpu_features import PROBLEM_LENGTH, block_tiling, gpu_option_features
from superopt.cost.learned_ranking import MIN_MEASUREMENTS, LearnedRanking
from superopt.cost.machine import Machine
from superopt.cost.store import Store
from superopt.cost.tuning_records import TimedOption
from superopt.kernels.loops.option import Option
from tests.support.paths import SCRIPTS

Numbers = tuple[int, ...]


def problem(rows: int, columns: int, depth: int) -> Numbers:
    """Of a product of halves by a constant."""
    fixed, other = 2 * depth * columns, 2 * rows * depth
    return (rows * columns, depth, fixed, other, rows, columns, depth, 1, depth, 2, 1, 0)


SPACE = [
    Option.make("gemm" if parts == 1 else "split_k_gemm", rows=h, columns=w, k_block=64,
                warps=warps, stages=s, parts=parts)
    for h, w, parts, s, warps in product((16, 32, 64, 128), (16, 32, 64, 128), (1, 2, 4), (3, 4),
                                         (4, 8))
]  # fmt: skip


def law(given: Numbers, o: Option) -> float:
    """Seconds: whole waves of blocks, each in steps that wait for memory; and what the features do
    not say outright: few warps spill where blocks are large, and eight are idle where small."""
    b = block_tiling(given, o)
    near = max(
        1, min(227_000 // b.shared_bytes, 64 // o["warps"], 20_000 // (b.rows * b.columns), 16)
    )
    waves = math.ceil(b.count / (132 * near))
    spilled = 1.6 if b.rows * b.columns > 8192 and o["warps"] == 4 else 1.0
    idle = 1.3 if b.rows * b.columns < 2048 and o["warps"] == 8 else 1.0
    step = max(150.0, near * b.rows * b.columns * b.depth / 2500) * (
        1.1 if o["stages"] == 3 else 1.0
    )
    return 1e-9 * (1500 * (1 + (o["parts"] > 1)) + waves * b.steps * step * spilled * idle)


def problems(count: int, seed: int) -> list[Numbers]:
    rng = np.random.default_rng(seed)
    sizes = [tuple(int(2 ** rng.uniform(5, 12)) for _ in range(3)) for _ in range(count)]
    return [problem(r, c, max(d // 64, 1) * 64) for r, c, d in sizes]


def timed(some: list[Numbers]) -> list[TimedOption]:
    return [TimedOption(f"p{n}", p, o, law(p, o)) for n, p in enumerate(some) for o in SPACE]


def test_features_are_numbers_of_one_kind() -> None:
    others = [
        Option.make("vendor"),
        Option.make("vendor", autotuned=1),
        Option.make("block_reduction", rows=4, k_block=512, warps=4),
        Option.make("elementwise", elements=256, warps=4),
        Option.make("transpose", rows=64, columns=64, warps=4),
        Option.make("row_wise", warps=8),
        Option.make("online_attention", rows=64, keys=128, warps=4, stages=3),
        Option.make("something else", n=3),
    ]
    given = [*problems(5, 1), (1, 1, 0, 0, 1, 1, 1, 1, 1, 4, 0, 2), (0,) * PROBLEM_LENGTH]
    found = [gpu_option_features(p, o) for p in given for o in (*SPACE, *others)]
    assert len({len(f) for f in found}) == 1
    assert np.isfinite(np.array(found)).all()
    assert len({tuple(gpu_option_features(given[0], o)) for o in (*SPACE, *others)}) == len(
        SPACE
    ) + len(others)


@pytest.mark.parametrize(
    ("option", "count", "steps"),
    [
        (Option.make("gemm", rows=64, columns=128, k_block=64, stages=4), 8 * 2, 16),
        (Option.make("split_k_gemm", rows=64, columns=128, k_block=64, stages=4, parts=4), 64, 4),
        (Option.make("elementwise", elements=256), 512 * 256 // 256, 1024),
        (Option.make("block_reduction", rows=8, k_block=256), 512 * 256 // 8, 4),
    ],
)
def test_blocks_of_an_option(option: Option, count: int, steps: int) -> None:
    found = block_tiling(problem(512, 256, 1024), option)
    assert (found.count, found.steps) == (count, steps)


@pytest.mark.slow
def test_a_ranking_saves_measurements() -> None:
    """Of problems that it has not seen: what is measured until one is within 2 % of the best."""
    pytest.importorskip("lightgbm")
    seen = timed(problems(20, 2))
    assert LearnedRanking.train(seen[: MIN_MEASUREMENTS - 1], gpu_option_features) is None
    ranking = LearnedRanking.train(seen, gpu_option_features)
    assert ranking is not None
    rng = np.random.default_rng(3)
    learned, chance = [], []
    for p in problems(15, 4):
        best = min(law(p, o) for o in SPACE)

        def first(order: list[Option], p: Numbers = p, best: float = best) -> int:
            return next(n for n, o in enumerate(order, 1) if law(p, o) <= 1.02 * best)

        order = ranking.order(p, SPACE)
        assert sorted(map(str, order)) == sorted(map(str, SPACE))
        learned.append(first(order))
        chance += [first([SPACE[k] for k in rng.permutation(len(SPACE))]) for _ in range(20)]
    assert np.median(learned) <= 3
    assert np.mean(learned) < np.mean(chance) / 3


class Clock:
    """By the law; asked: how many options at a time."""

    def __init__(self, given: Numbers, broken: frozenset[Option] = frozenset()) -> None:
        self.given, self.broken = given, broken
        self.asked: list[int] = []

    def __call__(self, some: list[Option]) -> Mapping[Option, float]:
        self.asked.append(len(some))
        return {o: law(self.given, o) for o in some if o not in self.broken}


def kernel(p: Numbers, order: list[Option], known: Mapping[Option, float] | None = None) -> Any:
    return tune_kernels.TunedProblem("p", None, order, dict(known or {}))  # type: ignore[arg-type]


def test_what_is_measured() -> None:
    """All that is asked for where nothing was learned; else until it brings nothing; never what is
    known; and what does not run is passed over."""
    p = problem(512, 512, 512)
    best_first = sorted(SPACE, key=lambda o: law(p, o))
    clock, k = Clock(p), kernel(p, SPACE)
    tune_kernels.measure_options_in_batches(k, clock, 40, is_ranked=False)
    assert (clock.asked, len(k.times)) == ([40], 40)
    clock, k = Clock(p), kernel(p, best_first)
    tune_kernels.measure_options_in_batches(k, clock, 40, is_ranked=True)
    assert clock.asked == [8, 8]
    assert k.best_option == best_first[0]
    clock, k = Clock(p), kernel(p, best_first[::-1])
    tune_kernels.measure_options_in_batches(k, clock, 20, is_ranked=True)
    assert clock.asked == [8, 8, 4] or len(clock.asked) == 2
    clock, k = Clock(p), kernel(p, best_first, {o: law(p, o) for o in best_first[:8]})
    tune_kernels.measure_options_in_batches(k, clock, 12, is_ranked=True)
    assert clock.asked == [4]
    clock = Clock(p, frozenset(best_first[:8]))
    k = kernel(p, best_first)
    tune_kernels.measure_options_in_batches(k, clock, 24, is_ranked=True)
    assert k.best_option == best_first[8]


def test_a_learner_learns_from_what_is_measured_meanwhile() -> None:
    pytest.importorskip("lightgbm")
    some = timed(problems(4, 5))
    learner = tune_kernels.Learner(some[: MIN_MEASUREMENTS - 1])
    assert learner.current_ranking() is None
    learner.times += some[MIN_MEASUREMENTS - 1 : MIN_MEASUREMENTS + 10]
    first = learner.current_ranking()
    assert first is not None
    learner.times += some[MIN_MEASUREMENTS + 10 : MIN_MEASUREMENTS + 20]
    assert learner.current_ranking() is first
    learner.times += some[MIN_MEASUREMENTS + 20 :]
    assert learner.current_ranking() is not first


HERE, THERE = (Machine(cpu, "f", 2, 0, "Linux") for cpu in ("a processor", "another"))


def test_a_gpus_measurements_are_of_any_machine(tmp_path: Path) -> None:
    """They are found by the GPU's name, and taken from a file that another machine wrote."""
    on = tuning_records.gpu_target("a GPU", "ieee")
    p = problem(64, 64, 64)
    times = {o: (law(p, o), law(p, o), law(p, o), 1) for o in SPACE[:5]}
    with Store.open(tmp_path / "a") as store:
        tuning_records.store_times(store, on, "k", p, times)
        tuning_records.store_times(
            store, on, "k", p, {SPACE[2]: times[SPACE[2]]}, tuning_records.CHOSEN_KIND
        )
        store.export(tmp_path / "file")
    for machine in (HERE, THERE):
        with Store.open(tmp_path / machine.cpu.split()[0]) as store:
            assert store.import_(tmp_path / "file", machine) in (0, 6)
            found = tuning_records.measured_options(store, on)
            assert {(t.problem, t.numbers, t.option) for t in found} == {
                ("k", p, o) for o in SPACE[:5]
            }
            assert tuning_records.chosen_options(store, on) == {"k": SPACE[2]}
            assert (
                tuning_records.measured_options(store, tuning_records.gpu_target("a GPU", "tf32"))
                == []
            )
            assert (
                tuning_records.measured_options(
                    store, tuning_records.gpu_target("another GPU", "ieee")
                )
                == []
            )


def test_the_report_of_what_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightgbm")
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_tuning

    with Store.open(tmp_path / "store") as store:
        for n, p in enumerate(problems(12, 6)):
            times = {o: (law(p, o), law(p, o), law(p, o), 1) for o in SPACE}
            tuning_records.store_times(
                store, tuning_records.gpu_target("a GPU", "ieee"), f"p{n}", p, times
            )
    page = tmp_path / "page.md"
    given = ["bench_tuning.py", "--store", str(tmp_path / "store"), "--gpu", "--md", str(page)]
    monkeypatch.setattr(sys, "argv", given)
    bench_tuning.main()
    text = page.read_text()
    assert "a GPU, ieee; 2304 measurements of kernels; 12 problems" in text
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
    means = {r[1].strip(): float(r[2]) for r in rows[1:]}
    assert means["learned"] < means["at random"] / 2 < means["exhaustive"] / 2
    assert gpu_features.with_current_numbers([TimedOption("old", (1,) * 7, SPACE[0], 1.0)]) == []
