#!/usr/bin/env python3
"""What a search adds to the compiler: the table of docs/benchmarks/search.md.

    scripts/bench_search.py --models ../shared/models [--only resnet18,...] [--search 60]
        [--batch 16]

Weights are drawn. After the models of the folder come the nets of image_nets.py. For each model
`superopt.tune` searches in a new store, as `superopt.compile(search=SECONDS)` does. Then four
programs run in turns in one process: by the default call, with the rewrites of the graph alone,
with the schedules of kernels alone, and with both. Times are of this thread, medians of the ratio
in each round; the interval holds the middle 90 % of means of blocks of rounds that are drawn again
(block bootstrap).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_gpu import batched
from image_nets import NETS
from json_rows import json_rows
from peers import geometric_mean

import superopt
from superopt.compilation.cpu.load_compiler import compile_model
from superopt.compilation.model.executable import Executable
from superopt.compilation.node_timing import random_inputs
from superopt.cost import tuning_records
from superopt.cost.machine import this_machine
from superopt.cost.store import Store
from superopt.jobs.graph_rewrites import apply_rewrite_log
from superopt.onnx_io.read.source import Source, read_model
from superopt.onnx_io.read.weightless import draw_weights

WAYS = ("default", "graph", "schedules", "both")
ROUNDS, BLOCK, RESAMPLES = 80, 8, 400
HEAD = """# What a search adds

By `scripts/bench_search.py --search {seconds:g}`, on {machine}, one thread, {date};
the compiler without a search is 1. Weights are drawn.

- *graph*: with the rewrites that the search found and default schedules; *schedules*: the graph as
  it is, with the schedules that it found; *both*: what `superopt.compile(path, search={seconds:g})`
  returns. Times of the thread, in turns in one process, medians of the ratio in a round; in
  brackets the middle 90 % of a block bootstrap.
- *rewrites*: how many, and the most frequent rules.

| model | default ms | graph | schedules | both | rewrites |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Row:
    """model: its name. seconds: of the default program. ratios: of each way, with the interval.
    rules: of the rewrites, how often each was applied."""

    model: str
    seconds: float
    ratios: dict[str, tuple[float, float, float]]
    rules: dict[str, int]


def time_ways(ready: Sequence[Executable]) -> list[np.ndarray]:
    """Return the seconds of each executable in each round; they run in turns."""
    feeds = [random_inputs(exe) for exe in ready]
    for exe, given in zip(ready, feeds, strict=True):
        exe.run(given)
    times = np.zeros((len(ready), ROUNDS))
    rng = np.random.default_rng(0)
    for n in range(ROUNDS):
        for k in rng.permutation(len(ready)):
            begin = time.thread_time()
            ready[k].run(feeds[k])
            times[k, n] = time.thread_time() - begin
    return list(times)


def ratio(default: np.ndarray, other: np.ndarray) -> tuple[float, float, float]:
    """Return the median ratio of the rounds, and the middle 90 % of those of drawn blocks."""
    each = default / other
    rng = np.random.default_rng(0)
    blocks = each.reshape(-1, BLOCK)
    drawn = rng.integers(0, len(blocks), (RESAMPLES, len(blocks)))
    low, high = np.percentile(np.median(blocks[drawn].reshape(RESAMPLES, -1), axis=1), [5, 95])
    return float(np.median(each)), float(low), float(high)


def _batched_file(path: Path, batch: int) -> onnx.ModelProto:
    model = draw_weights(path)
    return model if batch == 1 else batched(model, batch)


def measure(name: str, source: Source, path: Path, seconds: float, folder: Path) -> Row:
    """Search, and time the four ways."""
    store, empty = folder / "searched", folder / "empty"
    superopt.tune(path, budget=seconds, store=store)
    with Store.open(store) as held:
        log = tuning_records.stored_rewrites(
            held, tuning_records.cpu_target(1), lambda: source.sha256
        )
    changed = source if log is None else apply_rewrite_log(source, log)
    ready = [
        compile_model(source, store=empty),
        compile_model(changed, store=empty),
        compile_model(source, store=store),
        compile_model(changed, store=store),
    ]
    times = time_ways(ready)
    steps = json.loads(log)["steps"] if log is not None else []
    rules = Counter(s["rule"] for s in steps)
    found = {way: ratio(times[0], t) for way, t in zip(WAYS[1:], times[1:], strict=True)}
    return Row(name, statistics.median(times[0]), found, dict(rules.most_common()))


def table(rows: Sequence[Row], seconds: float) -> str:
    """Return the page."""
    lines = []
    for r in rows:
        cells = [
            f"{r.ratios[w][0]:.3f} ({r.ratios[w][1]:.3f} to {r.ratios[w][2]:.3f})" for w in WAYS[1:]
        ]
        some = ", ".join(f"{name} {n}" for name, n in list(r.rules.items())[:4])
        about = f"{sum(r.rules.values())}: {some}" if r.rules else "none"
        lines.append(f"| {r.model} | {1e3 * r.seconds:.2f} | {' | '.join(cells)} | {about} |")
    means = {w: geometric_mean([r.ratios[w][0] for r in rows]) for w in WAYS[1:]}
    least = min(rows, key=lambda r: r.ratios["both"][0])
    summary = (
        f"\nGeometric means of {len(rows)}: graph {means['graph']:.3f}, schedules "
        f"{means['schedules']:.3f}, both {means['both']:.3f} (1.10 wanted); the least of both is "
        f"{least.model}'s, {least.ratios['both'][0]:.3f} (1.0 wanted).\n"
    )
    head = HEAD.format(seconds=seconds, machine=this_machine().text, date=time.strftime("%Y-%m-%d"))
    return head + "\n".join(lines) + "\n" + summary


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--search", type=float, default=60.0)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--out", type=Path, help="the .json file; rows of earlier runs stay in it")
    given = parser.parse_args()
    known = json.loads(given.out.read_text()) if given.out and given.out.exists() else []
    rows = {r["model"]: Row(**r) for r in known}
    wanted = [x for x in given.only.split(",") if x]
    models: dict[str, Callable[[], onnx.ModelProto]] = {
        path.stem: partial(_batched_file, path, given.batch)
        for path in sorted(given.models.glob("*.onnx"))
    }
    models |= {name: partial(net, given.batch) for name, net in NETS.items()}
    for name, make in models.items():
        if wanted and name not in wanted:
            continue
        shown = name if given.batch == 1 else f"{name} x {given.batch}"
        with tempfile.TemporaryDirectory() as place:
            full = Path(place) / f"{name}.onnx"
            full.write_bytes(make().SerializeToString())
            row = measure(shown, read_model(full), full, given.search, Path(place))
            rows[shown] = row
        print(row, flush=True)
        if given.out:
            given.out.write_text(json_rows([asdict(r) for r in rows.values()], 2))
    page = table(list(rows.values()), given.search)
    if given.out:
        given.out.with_suffix(".md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
