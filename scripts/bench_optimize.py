#!/usr/bin/env python3
"""What `optimize` gains in onnxruntime: each model optimized, then timed twice beside the original.

    scripts/bench_optimize.py MODEL.onnx ... [--budget 60] [--jobs N] [--seconds 5] [--output DIR]

A model is optimized in a process of its own, by default with 60 s. The result is timed in turns
with the original in two more processes, on the inputs of the check, by the time of the thread: the
median of the ratios of rounds. A gain counts if both medians are at least 1.03. jobs: models at a
time, each on a processor.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

GAIN = 1.03
MIN_ROUNDS = 20
WARM_RUNS = 3


def measure(original: Path, optimized: Path, seconds: float) -> dict[str, float]:
    """Return milliseconds of both models, and the ratio, of rounds in turns."""
    from superopt import ort
    from superopt.loading.request import Request
    from superopt.onnx_io.import_.importer import import_model
    from superopt.onnx_io.read.source import read_model
    from superopt.verification.original import prepare_original

    with tempfile.TemporaryDirectory() as folder:
        model = import_model(read_model(str(original)))
        held = prepare_original(model, Request(), Path(folder), lambda line: None)
        arrays = next(s.feed.arrays for s in held.sets if s.results is not None)
    sessions = [ort.load_session(str(p), 1) for p in (original, optimized)]

    def run_ms(session: ort.Session) -> float:
        begin = time.thread_time()
        session.raw.run(None, arrays)
        return 1e3 * (time.thread_time() - begin)

    for session in sessions:
        for _ in range(WARM_RUNS):
            run_ms(session)
    rng = np.random.default_rng(0)
    rows: list[tuple[float, float]] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(rows) < MIN_ROUNDS:
        order = rng.permutation(2)
        times = {int(n): run_ms(sessions[int(n)]) for n in order}
        rows.append((times[0], times[1]))
    before, after = (statistics.median(r[n] for r in rows) for n in (0, 1))
    return {"before": before, "after": after, "ratio": statistics.median(a / b for a, b in rows)}


def optimize_file(path: Path, out: Path, budget: float) -> dict[str, str]:
    """Optimize a model into a file; return the claimed speed-up and the rules."""
    import superopt

    result = superopt.optimize(path, budget=budget)
    result.save(out)
    r = result.report.speedup
    rules = Counter(s.rule for s in result.report.steps).most_common(4) if result.changed else []
    return {
        "claim": f"{r[1]:.2f} ({r[0]:.2f} to {r[2]:.2f})" if r and result.changed else "none",
        "rules": ", ".join(f"{n} {rule}" for rule, n in rules),
    }


def call(*args: str, seconds: float) -> dict[str, object]:
    """Run a part of this script in another process, and return what it prints."""
    command = [sys.executable, __file__, "--part", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1][:120] if done.stderr else "failed"}
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def bench(path: Path, folder: Path, budget: float, seconds: float) -> str:
    """Return the table's row of a model."""
    out = folder / f"{path.stem}.optimized.onnx"
    made = call("optimize", str(path), str(out), str(budget), seconds=4 * budget + 120)
    if "error" in made:
        return f"| {path.stem} | {made['error']} | | | | | |"
    rows = [call("measure", str(path), str(out), str(seconds), seconds=300) for _ in range(2)]
    if errors := [r["error"] for r in rows if "error" in r]:
        return f"| {path.stem} | {errors[0]} | | | | | |"
    first, again = (float(str(r["ratio"])) for r in rows)
    gains = "yes" if min(first, again) >= GAIN else ""
    print(
        f"{path.stem}: {first:.3f}, {again:.3f}; claimed {made['claim']}",
        file=sys.stderr,
        flush=True,
    )
    before = float(str(rows[0]["before"]))
    return (
        f"| {path.stem} | {before:.3g} | {made['claim']} | {first:.3f} | {again:.3f} | {gains} |"
        f" {made['rules']} |"
    )


def part(args: Sequence[str]) -> None:
    """Do a part of a benchmark in this process, and print its result."""
    match args:
        case "measure", original, optimized, seconds:
            print(json.dumps(measure(Path(original), Path(optimized), float(seconds))))
        case "optimize", path, out, budget:
            print(json.dumps(optimize_file(Path(path), Path(out), float(budget))))


def main() -> None:
    if sys.argv[1:2] == ["--part"]:
        part(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(args.jobs) as pool:
        folder = args.output or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        rows = list(pool.map(lambda p: bench(p, folder, args.budget, args.seconds), args.models))
    print("| model | ms | claimed | measured | again | gains 3 % | rewrites |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    ratios = [float(r.split("|")[4]) for r in rows if r.split("|")[4].strip()]
    if ratios:
        mean = math.exp(statistics.mean(map(math.log, ratios)))
        print(f"\n{sum('| yes |' in r for r in rows)} of {len(rows)} gain; mean {mean:.3f}")


if __name__ == "__main__":
    main()
