"""How long tree ensembles take beside onnxruntime, both on one thread:

    python scripts/bench_trees.py [--rounds 21] [-o docs/benchmarks/bench_trees.md]

Models are drawn: complete trees, trees that are not, several targets, classes, doubles. Both are
called in turns, each for some milliseconds, in processor time of this process; a row is the median
of the rounds, the ratio the median of the rounds' own ratios. Results are compared first.
"""

from __future__ import annotations

import argparse
import gc
import platform
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto

import superopt
from scripts.tree_models import forest, model, regressor
from superopt.cost.machine import this_machine

FEATURES = 20
BATCHES = (1, 64)
SECONDS = 5e-3  # of calls in a row
RTOL = 1e-4


def models() -> Iterator[tuple[str, onnx.ModelProto, np.dtype]]:
    """Names, models and the element types of their rows."""
    rng = np.random.default_rng(0)
    f32 = np.dtype(np.float32)
    for trees, depth in ((10, 3), (100, 6), (500, 8), (1000, 10)):
        made = regressor(forest(rng, trees, depth, FEATURES), FEATURES)
        yield f"{trees} complete trees of depth {depth}", made, f32
    for trees, depth, grow in ((100, 12, 0.8), (300, 20, 0.65)):
        made = regressor(forest(rng, trees, depth, FEATURES, grow=grow), FEATURES)
        yield f"{trees} trees of up to {depth} levels, unbalanced", made, f32
    missing = forest(rng, 100, 6, FEATURES, missing=True)
    yield "100 complete trees of depth 6, NaN tracked", regressor(missing, FEATURES), f32
    several = forest(rng, 100, 6, FEATURES, targets=5, each=True)
    yield "100 trees of depth 6, 5 targets in each leaf", regressor(several, FEATURES, 5), f32
    classes = forest(rng, 300, 5, FEATURES, targets=3, of="class")
    own = {**classes, "classlabels_int64s": [0, 1, 2], "post_transform": "SOFTMAX"}
    outputs = [("INT64", 0), ("FLOAT", 3)]
    made = model("TreeEnsembleClassifier", own, FEATURES, outputs=outputs)
    yield "3 classes, 100 trees of depth 5 for each", made, f32
    doubles = {**forest(rng, 100, 6, FEATURES), "n_targets": 1}
    made = model(
        "TreeEnsembleRegressor", doubles, FEATURES, outputs=[("FLOAT", 1)], dtype=TensorProto.DOUBLE
    )
    yield "100 complete trees of depth 6, doubles", made, np.dtype(np.float64)


def measured(
    made: onnx.ModelProto, x: np.ndarray, rounds: int
) -> tuple[float, float, float] | None:
    """Microseconds of a call here and in onnxruntime, and how much longer the latter takes; None
    where some node has no kernel."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(
        made.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    exe, feeds = superopt.compile(made, threads=1), {"x": x}
    got = list(exe.run(feeds).values())
    if exe.fallback_nodes({"n": len(x)}):
        return None
    for found, want in zip(got, session.run(None, feeds), strict=True):
        np.testing.assert_allclose(found, want, rtol=RTOL, atol=RTOL)
    ours, theirs = (lambda: exe.run(feeds)), (lambda: session.run(None, feeds))
    counts = [max(3, int(SECONDS / _seconds(call, 3))) for call in (ours, theirs)]
    times = [
        [_seconds(call, count) for call, count in zip((ours, theirs), counts, strict=True)]
        for _ in range(rounds)
    ]
    a, b = (median(t[k] for t in times) * 1e6 for k in (0, 1))
    return a, b, median(t[1] / t[0] for t in times)


def _seconds(call: Callable[[], object], count: int) -> float:
    begin = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - begin) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    gc.disable()
    lines = [
        "# Tree ensembles",
        "",
        f"Written by `python scripts/bench_trees.py` on {time.strftime('%Y-%m-%d')}:",
        f"{this_machine().text}.",
        f"onnxruntime {ort.__version__}, Python {platform.python_version()}, one thread each, rows",
        f"of {FEATURES} features; microseconds of processor time for a call, medians of",
        f"{args.rounds} rounds in turns.",
        "",
        "| model | rows | superopt | onnxruntime | times as fast |",
        "|---|---:|---:|---:|---:|",
    ]
    print("\n".join(lines), flush=True)
    rng = np.random.default_rng(1)
    for name, made, dtype in models():
        for n in BATCHES:
            x = rng.standard_normal((n, FEATURES)).astype(dtype)
            found = measured(made, x, args.rounds)
            text = (
                "in onnxruntime | | "
                if found is None
                else "{:.1f} | {:.1f} | {:.2f}".format(*found)
            )
            lines.append(f"| {name} | {n} | {text} |")
            print(lines[-1], flush=True)
    if args.output is not None:
        args.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
