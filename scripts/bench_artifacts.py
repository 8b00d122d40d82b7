"""Measure saved models: their bytes relative to the model's file, and how long `superopt.load`
takes beside onnxruntime's session, each in a new process with an empty cache.

    python scripts/bench_artifacts.py shared/models/*.onnx [--rounds 5] [--markdown FILE]

Processes of both alternate. Times are the least of all rounds: of the processor, and of the clock;
with imports, and of the call alone. Models with symbolic sizes are saved for --sizes, one and two.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

OURS = """
import json, sys, time
c, t = time.process_time(), time.perf_counter()
import superopt
from superopt.api import open_model
from superopt.compilation.cpu import saved_code
c1, t1 = time.process_time(), time.perf_counter()
exe = superopt.load(sys.argv[1])
c2, t2 = time.process_time(), time.perf_counter()
print(json.dumps([c2 - c, t2 - t, c2 - c1, t2 - t1, exe.has_compiler]))
"""
THEIRS = """
import json, sys, time
c, t = time.process_time(), time.perf_counter()
import onnxruntime
c1, t1 = time.process_time(), time.perf_counter()
how = onnxruntime.SessionOptions()
how.intra_op_num_threads = 1
onnxruntime.InferenceSession(sys.argv[1], how, providers=["CPUExecutionProvider"])
c2, t2 = time.process_time(), time.perf_counter()
print(json.dumps([c2 - c, t2 - t, c2 - c1, t2 - t1, False]))
"""
SAVE = """
import json, sys
import superopt
model, folder, shapes, aot, export = json.loads(sys.argv[1])
found = {}
for count in (1, 2) if shapes else (1,):
    exe = superopt.compile(model, specialize="eager", shapes=shapes[:count] or None)
    exe.save(f"{folder}/{count}.superopt", aot=aot)
    exe.save(f"{folder}/plain{count}.superopt")
if export:
    exe = superopt.compile(model, specialize="eager", shapes=shapes[:1] or None)
    exe.export(f"{folder}/library", shapes=shapes[0] if shapes else None)
"""
HEADINGS = (
    "model", "MB", "without code", "with code", "two sizes", "exported weights",
    "load, call ms", "session, call ms", "ratio", "load, all ms", "session, all ms", "ratio",
    "by the clock",
)  # fmt: skip


def run_process(code: str, argument: str, cache: Path) -> str:
    """Return what a new process prints."""
    env = {**os.environ, "SUPEROPT_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [sys.executable, "-c", code, argument], env=env, check=True, text=True, capture_output=True
    )
    return found.stdout


def symbolic_sizes(model: Path, sizes: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
    """Return those of the sizes that the model has."""
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    names = {d.dim_param for i in graph.input for d in i.type.tensor_type.shape.dim} - {""}
    return [{n: v for n, v in each.items() if n in names} for each in sizes] if names else []


def measure_model(
    model: Path, sizes: Sequence[Mapping[str, int]], aot: str, rounds: int
) -> list[str]:
    """Return the row of a model."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shapes = symbolic_sizes(model, sizes)
        argument = json.dumps([str(model), str(folder), shapes, aot, True])
        run_process(SAVE, argument, folder / "cache")
        whole = model.stat().st_size

        def ratio(name: str) -> str:
            file = folder / name
            return f"{file.stat().st_size / whole:.3f}" if file.exists() else "-"

        ours, theirs = [], []
        for n in range(rounds):
            empty = folder / f"empty{n}"
            ours.append(json.loads(run_process(OURS, str(folder / "1.superopt"), empty)))
            theirs.append(json.loads(run_process(THEIRS, str(model), empty)))
        assert not any(each[-1] for each in ours), "the compiler was loaded"
        our, their = ([min(x) for x in zip(*some, strict=True)] for some in (ours, theirs))
        return [
            model.stem, f"{whole / 1e6:.1f}", ratio("plain1.superopt"), ratio("1.superopt"),
            ratio("2.superopt"), ratio("library.weights"),
            f"{1e3 * our[2]:.0f}", f"{1e3 * their[2]:.0f}", f"{our[2] / their[2]:.2f}",
            f"{1e3 * our[0]:.0f}", f"{1e3 * their[0]:.0f}", f"{our[0] / their[0]:.2f}",
            f"{our[1] / their[1]:.2f}",
        ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--aot", default="native")
    parser.add_argument(
        "--sizes", type=json.loads,
        default=[{"batch": 1, "sequence": 128}, {"batch": 4, "sequence": 64}],
    )  # fmt: skip
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    lines = ["| " + " | ".join(HEADINGS) + " |", "|---" * len(HEADINGS) + "|"]
    for model in args.models:
        row = measure_model(model, args.sizes, args.aot, args.rounds)
        lines.append("| " + " | ".join(row) + " |")
        print(lines[-1], flush=True)
    if args.markdown is not None:
        about = f"{platform.machine()}, {os.cpu_count()} cores, {date.today()}"
        args.markdown.write_text("\n".join([about, "", *lines, ""]))


if __name__ == "__main__":
    main()
