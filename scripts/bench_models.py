#!/usr/bin/env python3
"""Optimize real models and measure them: the table of docs/benchmarks/bench_models.md.

    scripts/bench_models.py --models ../shared/models [--only nasrnn,resnet18] [--threads 1,2]

For each model, with weights drawn: `superopt optimize` in a process of its own, once with an empty
cost store and once with the store that this left (seconds, peak memory of the largest process);
then the original and the result in onnxruntime, all its optimizations on for both, in turns
(medians, 95 % bootstrap interval of the ratio). Where the result is a copy of the original its
ratio is 1, and what was measured shows the noise. The numbers lie in a JSON file beside the table;
models that are in it already are not measured again unless they are named by --only.

With --compiled, compiled models are measured instead (bench_compile.py, whose options it takes).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from json_rows import json_rows

from superopt.api.functions import bench
from superopt.cost.machine import this_machine
from superopt.onnx_io.read.weightless import draw_weights


def optimized(model: Path, out: Path, store: Path, budget: str, threads: int) -> dict[str, object]:
    """Run the command once: its report, seconds, peak memory in MB of its largest process."""
    command = [sys.executable, "-m", "superopt", "optimize", str(model), "-o", str(out), "--json"]
    command += ["--budget", budget, "--store", str(store), "--threads", str(threads), "--quiet"]
    begin = time.monotonic()
    watcher = [sys.executable, "-c", _WATCH, *command]
    done = subprocess.run(watcher, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - begin
    if done.returncode:
        raise SystemExit(f"{model.name}: exit {done.returncode}\n{done.stderr}")
    head, _, body = done.stdout.partition("\n")
    return {"seconds": seconds, "peak_mb": float(head), "report": json.loads(body)}


# Runs a command and prints the peak memory (MB) of its largest process before the command's output.
_WATCH = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, flush=True)
sys.stdout.buffer.write(done.stdout)
sys.exit(done.returncode)
"""


def measure(name: str, models: Path, work: Path, args: argparse.Namespace) -> dict[str, object]:
    """Everything about one model."""
    source, out = work / f"{name}.onnx", work / f"{name}.fast.onnx"
    source.write_bytes(draw_weights(models / f"{name}.onnx").SerializeToString())
    store = work / f"{name}.sqlite3"
    first = optimized(source, out, store, args.budget, 1)
    second = optimized(source, out, store, args.budget, 1)
    row: dict[str, object] = {
        "model": name,
        "nodes_before": first["report"]["nodes_before"],  # type: ignore[index]
        "nodes_after": second["report"]["nodes_after"],  # type: ignore[index]
        "seconds_empty": first["seconds"],
        "seconds_full": second["seconds"],
        "peak_mb": max(first["peak_mb"], second["peak_mb"]),  # type: ignore[type-var]
        "model_mb": source.stat().st_size / 2**20,
        "changed": second["report"]["changed"],  # type: ignore[index]
        "rules": sorted({s["rule"] for s in second["report"]["steps"]}),  # type: ignore[index]
    }
    for threads in args.threads:
        rows = bench([source, out], threads=threads, seconds=args.seconds)
        a, b = rows
        row[f"us_before_{threads}"] = a.latency.us_median if a.latency else None
        row[f"us_after_{threads}"] = b.latency.us_median if b.latency else None
        row[f"ratio_{threads}"] = b.speedup
    for path in (source, out, Path(f"{out}.data")):
        path.unlink(missing_ok=True)
    return row


def table(rows: list[dict[str, object]], threads: list[int]) -> str:
    """The rows as Markdown."""
    each = [f"{t} thread{'s' * (t > 1)}: ms before, after, ratio [95 %]" for t in threads]
    heads = ["model", "nodes", *each, "s to optimize, store empty / full", "peak MB / model MB"]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for r in rows:
        cells = [str(r["model"]), f"{r['nodes_before']} → {r['nodes_after']}"]
        for t in threads:
            low, mid, high = r[f"ratio_{t}"] or (1.0, 1.0, 1.0)  # type: ignore[misc]
            before, after = float(r[f"us_before_{t}"]) / 1e3, float(r[f"us_after_{t}"]) / 1e3  # type: ignore[arg-type]
            shown = f"**{mid:.3f}x** [{low:.3f}, {high:.3f}]"
            if not r["changed"]:
                shown = f"same file ({mid:.3f}x [{low:.3f}, {high:.3f}])"
            cells.append(f"{before:.3f}, {after:.3f}, {shown}")
        cells.append(f"{r['seconds_empty']:.1f} / {r['seconds_full']:.1f}")
        cells.append(f"{r['peak_mb']:.0f} / {r['model_mb']:.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    for t in threads:
        mids = [r[f"ratio_{t}"][1] if r["changed"] else 1.0 for r in rows]  # type: ignore[index]
        mean = math.exp(sum(map(math.log, mids)) / len(mids))  # type: ignore[arg-type]
        lines.append("")
        lines.append(
            f"Geometric mean, {t} thread{'s' * (t > 1)}: **{mean:.3f}x** over {len(mids)} models."
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    if "--compiled" in sys.argv:
        sys.argv.remove("--compiled")
        sys.path.insert(0, str(Path(__file__).resolve().parent))
        import bench_compile

        bench_compile.main()
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path, default=Path("../shared/models"))
    parser.add_argument("--only", help="names, comma-separated")
    parser.add_argument("--threads", type=lambda s: [int(t) for t in s.split(",")], default=[1, 2])
    parser.add_argument("--seconds", type=float, default=12.0, help="of timing for each model")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/bench_models.json"))
    args = parser.parse_args()
    known = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
    rows: dict[str, dict[str, object]] = {r["model"]: r for r in known}
    every = sorted(p.stem for p in args.models.glob("*.onnx"))
    names = args.only.split(",") if args.only else [n for n in every if n not in rows]
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            rows[name] = measure(name, args.models, Path(folder), args)
            print(json.dumps(rows[name]), file=sys.stderr, flush=True)
            found = {"machine": this_machine().text, "rows": [rows[n] for n in sorted(rows)]}
            args.out.write_text(json_rows(found, depth=2))
    text = table([rows[n] for n in sorted(rows)], args.threads)
    when = time.strftime("%Y-%m-%d")
    command = f"scripts/bench_models.py --budget {args.budget} --seconds {args.seconds:g}"
    head = f"Machine: {this_machine().text}. Command: `{command}`, {when}.\n\n"
    args.out.with_suffix(".md").write_text("# Models\n\n" + head + text)
    print(text)


if __name__ == "__main__":
    main()
