#!/usr/bin/env python3
"""What `superopt.compile(path, target="cuda", search=SECONDS)` adds, and how fast it loads again.

    scripts/bench_compile_search_gpu.py --models ../shared/models [--only resnet18,...]
        [--batch 1,16] [--precision fp16] [--search 60] [--out FILE.json]

Weights are drawn. For each model `superopt.tune` searches in a new store, as
`superopt.compile(search=SECONDS)` does. Then four programs run in turns in one process, each as a
CUDA graph: by default, with the rewrites of the graph alone, with the schedules of kernels alone,
and with both: medians of the ratio in each round, and the middle 90 % of a block bootstrap. Two
processes then compile the model with the store of the search: the first fills the cache of
programs, the second reads it; the milliseconds are of `superopt.compile` and of the first call in
the second. Without a GPU (TRITON_INTERPRET=1) speedups are predicted, and nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench_gpu import batched
from bench_search import ROUNDS, WAYS, ratio
from bench_search_gpu import MAX_SECONDS, cases
from json_rows import json_rows
from peers import geometric_mean

import superopt
from superopt.compilation.cuda.device import open_gpu
from superopt.compilation.cuda.graph_timing import gpu_timers, run_clock
from superopt.compilation.cuda.load_compiler import compile_model
from superopt.compilation.node_timing import random_inputs
from superopt.cost import tuning_records
from superopt.cost.interleaved_times import time_interleaved
from superopt.cost.store import Store
from superopt.jobs.graph_rewrites import apply_rewrite_log
from superopt.kernels.runtime.gpu_device import device_name
from superopt.kernels.runtime.gpu_timer import warm_up
from superopt.onnx_io.read.source import Source, read_model
from superopt.onnx_io.read.weightless import draw_weights

LOAD = """
import sys, time
import numpy as np
import superopt
path, precision, store, feeds = sys.argv[1:]
given = dict(np.load(feeds))
begin = time.perf_counter()
exe = superopt.compile(path, target="cuda", precision=precision, store=store)
opened = time.perf_counter()
exe(**given)
print(1e3 * (opened - begin), 1e3 * (time.perf_counter() - opened))
"""


@dataclass(frozen=True, slots=True)
class Row:
    """model: its name, with the batch and precision. us: of the default program. ratios: of each
    way, with the interval; empty if nothing was timed. rewrites, faster: that the search found, and
    its speedup by the search's own times; cost_source: of these if they are predicted. load_ms,
    first_call_ms: of a second process."""

    model: str
    us: float
    ratios: dict[str, tuple[float, float, float]]
    rewrites: int
    faster: float
    cost_source: str
    load_ms: float = 0.0
    first_call_ms: float = 0.0


def measure(path: Path, batch: int, precision: str, seconds: float, folder: Path) -> Row:
    """Search, time the four ways, and load the result in another process."""
    file, searched, empty = folder / "model.onnx", folder / "searched", folder / "empty"
    file.write_bytes(batched(draw_weights(path), batch).SerializeToString())
    found = superopt.tune(file, target="cuda", precision=precision, budget=seconds, store=searched)
    name = f"{path.stem} {batch} {precision}"
    row = Row(name, 0.0, {}, found.rewrites, found.faster, found.cost_source)
    source = read_model(file)
    ready = [
        compile_model(source, precision, store=empty),
        compile_model(rewritten_source(source, precision, searched), precision, store=empty),
        compile_model(source, precision, store=searched),
        compile_model(source, precision, store=searched, rewrite=apply_rewrite_log),
    ]
    feeds = random_inputs(ready[0])
    if not gpu_timers(precision).is_predicted:
        ticks = [run_clock(exe, feeds) for exe in ready]
        for tick in ticks:
            warm_up(tick)
        times = time_interleaved(ticks, MAX_SECONDS, ROUNDS, 0, lambda t: False)
        default, *others = (np.array(t[: len(t) // 8 * 8]) for t in times)
        ratios = {way: ratio(default, t) for way, t in zip(WAYS[1:], others, strict=True)}
        row = replace(row, us=statistics.median(default), ratios=ratios)
    np.savez(folder / "feeds.npz", **feeds)
    given = [str(file), precision, str(searched), str(folder / "feeds.npz")]
    for _ in range(2):
        out = subprocess.run(
            [sys.executable, "-c", LOAD, *given], env=os.environ, check=True, text=True,
            stdout=subprocess.PIPE,
        ).stdout  # fmt: skip
    load_ms, first_call_ms = map(float, out.split())
    return replace(row, load_ms=load_ms, first_call_ms=first_call_ms)


def rewritten_source(source: Source, precision: str, store: Path) -> Source:
    """Return the model with the rewrites that the search stored."""
    target = tuning_records.gpu_models_target(
        device_name(open_gpu(precision).torch_device), precision
    )
    with Store.open(store) as held:
        log = tuning_records.stored_rewrites(held, target, lambda: source.sha256)
    return source if log is None else apply_rewrite_log(source, log)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--batch", default="1,16")
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--search", type=float, default=60.0)
    parser.add_argument("--out", type=Path, help="the .json file; rows of earlier runs stay in it")
    given = parser.parse_args()
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
    for way in WAYS[1:]:
        timed = [r.ratios[way][0] for r in rows.values() if r.ratios]
        if timed:
            print(f"{way}: geometric mean of {len(timed)} {geometric_mean(timed):.3f}")


if __name__ == "__main__":
    main()
