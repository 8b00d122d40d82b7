#!/usr/bin/env python3
"""Compiled models against onnxruntime and OpenVINO: the table of docs/benchmarks/bench_compile.md.

    scripts/bench_compile.py --models ../shared/models [--only resnet18,...] [--threads 1,2]
                             [--brief]

Weights are drawn. Each model is compiled by the default call, `superopt.compile(path, threads=n)`,
with an empty cache of object files and again with the full one; then it runs in turns with both
peers in one process (OpenVINO in float32): medians of rounds, and the ratio to the faster peer.
Outputs are compared with onnxruntime's: the largest difference by the output's rms. Beside them
runs what `superopt.optimize` makes of the graph, in both peers, so that what the graph gains and
what kernels gain are told apart. `--brief` leaves all but the times of compiled models and peers
out. `bench_models.py --compiled` is the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from json_rows import json_rows
from peers import GRAPHS, RUNTIMES, drawn, geometric_mean, in_turns

from superopt import ort
from superopt.baselines import openvino
from superopt.cost.machine import this_machine
from superopt.onnx_io.read.weightless import draw_weights

HEAD = """# Compiled models against onnxruntime and OpenVINO

By `scripts/bench_compile.py`, on {machine}; onnxruntime {ort}, OpenVINO {openvino} in
float32.{note}
Batch 1, weights drawn; medians of runs in turns in one process. The compiled model is that of the
default call, `superopt.compile(path, threads=n)`.

{columns}
"""
COLUMNS = """\
- *graph in ...*: what `superopt.optimize(path, budget={budget})` makes of the model, run by that
  peer; *the same* where it left the model as it was.
- *roofline %*: the least time by this machine's measured peaks, of all kernels, by the time that
  they take. Operations are those of the model as it is, so that convolutions in tiles and products
  of matrices by parts, which take fewer, may be above 100 %; rows of tables are counted as if none
  stayed in a cache.
- *error / rms*: the largest difference from onnxruntime's output, by the output's rms.
- *compile s*: what the call takes in a new process, from an empty and from a full cache of object
  files.
"""
BRIEF_COLUMNS = (
    "*error / rms*: the largest difference from onnxruntime's output, by the output's rms.\n"
)
BUDGET = 30  # seconds
SIZES = {"batch": 1, "sequence": 128}

# In a process of its own, so that nothing is loaded: seconds of the call that compiles.
_COMPILE = """
import sys, time
import superopt
begin = time.monotonic()
exe = superopt.compile(sys.argv[1], threads=int(sys.argv[2]), shapes=())
exe.variant({k: int(v) for k, v in (p.split("=") for p in sys.argv[3:])})
print(time.monotonic() - begin)
"""


def compile_seconds(path: Path, threads: int, cache: Path) -> float:
    """What the call that compiles takes."""
    import superopt

    model = superopt.compile(path, threads=threads).model
    sizes = {our: SIZES.get(theirs, 8) for theirs, our in model.symbols.items()}
    given = [f"{k}={v}" for k, v in sizes.items() if k in model.size_bindings]
    own = {k: v for k, v in os.environ.items() if k != "SUPEROPT_CACHE"}  # it would be that one
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE, str(path), str(threads), *given],
        capture_output=True, text=True, check=True,
        env={**own, "XDG_CACHE_HOME": str(cache)},
    )  # fmt: skip
    return float(done.stdout)


def measure_times(path: Path, threads: int, seconds: float) -> dict[str, object]:
    """The times of the compiled model and of the peers, and the error."""
    import superopt

    session = ort.load_session(path, threads)
    exe = superopt.compile(path, threads=threads, shapes=())
    return in_turns(exe, session, path, drawn(session, 0, SIZES), threads, seconds)


def measure(path: Path, threads: int, seconds: float, work: Path) -> dict[str, object]:
    """Everything about one model."""
    import superopt

    cache = work / f"cache-{path.stem}-{threads}"
    cold, warm = (compile_seconds(path, threads, cache) for _ in range(2))
    session = ort.load_session(path, threads)
    feeds = drawn(session, 0, SIZES)
    exe = superopt.compile(path, threads=threads, shapes=())
    fast = optimized(path)
    found = in_turns(exe, session, path, feeds, threads, seconds, fast)
    p = exe.profile(feeds, seconds=seconds / 4)
    share = sum(x.roofline_seconds for x in p.parts) / p.seconds
    return {**found, "cold": cold, "warm": warm, "share": share, "changed": fast is not None}


@cache
def optimized(path: Path) -> Path | None:
    """The file of the optimized model; None where that is the same."""
    import superopt

    result = superopt.optimize(path, budget=BUDGET, threads=1)
    fast = path.with_suffix(".fast.onnx")
    result.save(fast)
    return fast if result.changed else None


def table(found: dict[str, dict[str, dict]]) -> str:
    """As Markdown."""
    lines = []
    for threads, models in found.items():
        lines += [
            f"## {threads} thread{'s' if threads != '1' else ''}",
            "",
            "| model | superopt ms | onnxruntime ms | OpenVINO ms | **better peer / superopt** |"
            " graph in onnxruntime ms | graph in OpenVINO ms | roofline % | error / rms |"
            " compile s | from the cache s |",
            "|" + "---|" * 11,
        ]
        is_brief = not all("cold" in m for m in models.values())
        if is_brief:
            lines[-2:] = [lines[-2].partition(" graph in")[0] + " error / rms |", "|" + "---|" * 6]
        for name, m in models.items():
            us = [m["us"][k] / 1e3 for k in RUNTIMES]
            shown = " | ".join(f"{t:.3f}" for t in us)
            if is_brief:
                lines.append(f"| {name} | {shown} | **{m['ratio']:.2f}** | {m['error']:.1e} |")
                continue
            graph = [m["us"].get(k) for k in GRAPHS]
            told = " | ".join("the same" if t is None else f"{t / 1e3:.3f}" for t in graph)
            lines.append(
                f"| {name} | {shown} | **{m['ratio']:.2f}** | {told} | {100 * m['share']:.0f} |"
                f" {m['error']:.1e} | {m['cold']:.1f} | {m['warm']:.2f} |"
            )
        mean = geometric_mean([m["ratio"] for m in models.values()])
        lines += ["", f"Geometric mean of the ratios: **{mean:.2f}**.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--only", default="", help="names of models, e.g. resnet18,bert")
    parser.add_argument("--threads", default="1", help="thread counts, e.g. 1,2")
    parser.add_argument(
        "--seconds", type=float, default=12.0, help="measuring time per model, in seconds"
    )
    parser.add_argument("--brief", action="store_true", help="only times, and no compile times")
    parser.add_argument("--note", default="", help="the date, and the load of the machine")
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/bench_compile.json"))
    args = parser.parse_args()
    names = sorted(p.stem for p in args.models.glob("*.onnx"))
    wanted = args.only.split(",") if args.only else names
    found = json.loads(args.out.read_text()) if args.out.exists() else {}
    found["machine"] = this_machine().text
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            path = Path(folder) / f"{name}.onnx"
            path.write_bytes(draw_weights(args.models / f"{name}.onnx").SerializeToString())
            for threads in args.threads.split(","):
                if args.brief:
                    got = measure_times(path, int(threads), args.seconds)
                else:
                    got = measure(path, int(threads), args.seconds, Path(folder))
                found.setdefault(threads, {})[name] = got
                print(threads, name, json.dumps(got), flush=True)
                args.out.write_text(json_rows(found, depth=2))
            for file in Path(folder).glob(f"{name}.*onnx*"):
                file.unlink()
    head = HEAD.format(
        machine=found["machine"],
        ort=ort.installed_version(),
        openvino=openvino.version(),
        note=f" {args.note}" if args.note else "",
        columns=BRIEF_COLUMNS if args.brief else COLUMNS.format(budget=BUDGET),
    )
    body = table({k: found[k] for k in sorted(found.keys() - {"machine"}, key=int)})
    args.out.with_suffix(".md").write_text(head + body)


if __name__ == "__main__":
    main()
