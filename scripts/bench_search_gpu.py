#!/usr/bin/env python3
"""What a search adds to the compiler on a GPU, and how well its costs are predicted without one.

    scripts/bench_search_gpu.py --models ../shared/models [--only resnet18,...] [--batch 1,16]
                                [--precision fp16] [--search 60] [--out FILE.json]
    scripts/bench_search_gpu.py --models ../shared/models --predict [--batch 1,16]
                                [--precision fp16,tf32]    (needs no GPU)

Weights are drawn. For each model `superopt.optimize(target="cuda")` searches with a new store; then
the model as it is and what was found run in turns in one process, each as a CUDA graph: medians of
the ratio in each round, and the middle 90 % of a block bootstrap. `--predict` plans the models, and
prints the predicted times beside those of docs/benchmarks/bench_gpu.md, and the rank correlation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_gpu import batched
from bench_plan_cost import rank_correlation
from bench_search import ROUNDS, ratio
from json_rows import json_rows
from peers import geometric_mean

import superopt
from superopt.compilation.cuda.graph_timing import gpu_timers
from superopt.compilation.cuda.load_compiler import compile_model
from superopt.compilation.node_timing import random_inputs
from superopt.cost.graph_cost import roofline_cost_model
from superopt.cost.interleaved_times import time_interleaved
from superopt.cost.store import Store
from superopt.loading.model import load_model
from superopt.onnx_io.read.source import read_model
from superopt.onnx_io.read.weightless import draw_weights
from superopt.search.plan_costs import PlanCosts

TABLES = Path(__file__).resolve().parents[1] / "docs" / "benchmarks" / "bench_gpu.md"
MAX_SECONDS = 30.0  # of a race


@dataclass(frozen=True, slots=True)
class Row:
    """model: its name, with the batch and precision. us: of the model as it is. ratio: of its time
    to that of what was found, with the interval; predicted: by the costs of the search. rules: how
    often each was applied."""

    model: str
    us: float
    ratio: tuple[float, float, float]
    predicted: float
    rules: dict[str, int]
    notes: tuple[str, ...]


def cases(given: Any) -> Iterator[tuple[Path, int, str]]:
    """Yield (model, batch, precision)."""
    wanted = [x for x in given.only.split(",") if x]
    for path in sorted(given.models.glob("*.onnx")):
        if not wanted or path.stem in wanted:
            for batch in map(int, given.batch.split(",")):
                for precision in given.precision.split(","):
                    yield path, batch, precision


def measure(path: Path, batch: int, precision: str, seconds: float, folder: Path) -> Row:
    """Search, and time what was found beside the model."""
    before, after = folder / "before.onnx", folder / "after.onnx"
    before.write_bytes(batched(draw_weights(path), batch).SerializeToString())
    store = folder / "store"
    found = superopt.optimize(
        before, target="cuda", precision=precision, budget=seconds, store=store
    )
    r = found.report
    rules = dict(Counter(s.rule for s in r.steps).most_common())
    name = f"{path.stem} {batch} {precision}"
    predicted = r.cost_before_us / max(r.cost_after_us, 1e-3)
    timers = gpu_timers(precision)
    if timers.is_predicted or not found.changed:
        return Row(name, r.cost_before_us, (1.0, 1.0, 1.0), predicted, rules, r.notes)
    found.save(after)
    feeds = random_inputs(compile_model(read_model(before), precision, store=store))
    clocks = [timers.make_clock(p, feeds, threads=1) for p in (before, after)]
    times = time_interleaved(clocks, MAX_SECONDS, ROUNDS, 0, lambda t: False)
    default, new = (np.array(t[: len(t) // 8 * 8]) for t in times)
    return Row(name, statistics.median(default), ratio(default, new), predicted, rules, r.notes)


def predict(path: Path, batch: int, precision: str) -> tuple[float, int]:
    """Return the predicted microseconds of a model, and its kernels."""
    model = load_model(read_model(batched(draw_weights(path), batch))).model
    with tempfile.TemporaryDirectory() as place, Store.open(Path(place) / "store") as store:
        plans = gpu_timers(precision, may_measure=False).make_planner(
            threads=1, sizes={}, float_class="E2", store=store, is_over=lambda: False
        )
    costs = PlanCosts({}, roofline_cost_model(1), planner=plans)
    return costs.run_cost(model.graph), sum(costs.kernels_of(model.graph).values())


def measured_ms() -> dict[tuple[str, int, str], float]:
    """Return the milliseconds of docs/benchmarks/bench_gpu.md by model, batch and precision, those
    of an H100."""
    out: dict[tuple[str, int, str], float] = {}
    at: tuple[int, str] | None = None
    for line in TABLES.read_text().splitlines():
        if line.startswith("#"):
            words = line.removeprefix("## Batch ").split(", ")
            at = (int(words[0]), words[1]) if line.startswith("## Batch ") else None
        cells = [x.strip() for x in line.split("|")]
        if at is not None and len(cells) > 4 and cells[2].replace(".", "").isdigit():
            out[cells[1], at[0], at[1]] = float(cells[2])
    return out


def show_predictions(some: Sequence[tuple[Path, int, str]]) -> None:
    """Print predicted times beside measured ones."""
    known, pairs = measured_ms(), []
    print("| model | batch | precision | kernels | predicted us | measured us | ratio |")
    print("|---|---|---|---|---|---|---|")
    for path, batch, precision in some:
        us, kernels = predict(path, batch, precision)
        ms = known.get((path.stem, batch, precision))
        cells = "| |"
        if ms is not None:
            pairs.append((us, 1e3 * ms))
            cells = f"{1e3 * ms:.0f} | {us / (1e3 * ms):.2f} |"
        print(f"| {path.stem} | {batch} | {precision} | {kernels} | {us:.0f} | {cells}", flush=True)
    if len(pairs) > 2:
        a, b = zip(*pairs, strict=True)
        print(f"\nrank correlation of {len(pairs)}: {rank_correlation(a, b):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--batch", default="1,16")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--search", type=float, default=60.0)
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--out", type=Path, help="the .json file; rows of earlier runs stay in it")
    given = parser.parse_args()
    if given.predict:
        show_predictions([*cases(given)])
        return
    known = json.loads(given.out.read_text()) if given.out and given.out.exists() else []
    rows = {r["model"]: Row(**r) for r in known}
    for path, batch, precision in cases(given):
        name = f"{path.stem} {batch} {precision}"
        if name in rows:
            continue
        with tempfile.TemporaryDirectory() as place:
            try:
                row = measure(path, batch, precision, given.search, Path(place))
            except Exception as e:  # the other models are measured
                print(f"{name}: {type(e).__name__}: {e}", flush=True)
                continue
        rows[name] = row
        print(row, flush=True)
        if given.out:
            given.out.write_text(json_rows([asdict(r) for r in rows.values()], 2))
    if rows:
        mean = geometric_mean([r.ratio[0] for r in rows.values()])
        print(f"geometric mean of {len(rows)}: {mean:.3f}")


if __name__ == "__main__":
    main()
