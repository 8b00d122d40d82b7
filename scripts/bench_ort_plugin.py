#!/usr/bin/env python3
"""superopt's kernels inside onnxruntime: the table of docs/benchmarks/onnxruntime_plugin.md.

    scripts/bench_ort_plugin.py --models FOLDER [--only resnet18,...] [--threads 1,2]
                                [--seconds 6] [--draw] [--jit] [--note TEXT]

Each model runs in turns in one process: in onnxruntime, exported for it (`superopt export --ort`),
with --jit compiled when the session is made (`superopt.ort_register`), and by `superopt.compile`.
Medians of rounds. Sessions are made three times, the least time counts. `--draw`: the models have
no weights, which are drawn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers import difference, drawn, geometric_mean

import superopt
from superopt import ort
from superopt.cost.machine import this_machine
from superopt.onnx_io.read.weightless import draw_weights
from superopt.ort.timing import SPIN_SECONDS, interleave

SIZES = {"batch": 1, "sequence": 128}
ROUNDS = 15
HEAD = """# In onnxruntime

By `scripts/bench_ort_plugin.py`, on {machine}; onnxruntime {version}. {note}
Medians of runs in turns in one process, batch 1 and 128 tokens. *exported*: a session with the
execution provider on the model that `superopt export --ort` wrote; *registered*: compiled when the
session is made (`superopt.ort_register`); *compiled*: `superopt.compile`. *share*: the exported
model's speed-up over onnxruntime by that of the compiled one. *session*: seconds to make a session,
the least of three. *error / rms*: the largest difference of the exported model's outputs from
onnxruntime's, by their rms.
"""


@dataclass(frozen=True)
class Row:
    """A model with a number of threads. ms: of each way to run it; session: seconds."""

    name: str
    threads: int
    ms: dict[str, float]
    session: dict[str, float]
    error: float

    def speedup(self, name: str) -> float:
        return self.ms["onnxruntime"] / self.ms[name]

    def line(self, names: list[str]) -> str:
        cells = [self.name, str(self.threads)]
        cells += [f"{self.ms[n]:.2f}" for n in ("onnxruntime", *names)]
        cells += [f"**{self.speedup('exported'):.2f}**", f"{self.share:.2f}"]
        cells += [f"{self.session[n]:.3f}" for n in ("onnxruntime", "exported")]
        return "| " + " | ".join([*cells, f"{self.error:.1e}"]) + " |"

    @property
    def share(self) -> float:
        return self.speedup("exported") / self.speedup("compiled")


def make_session(path: Path, threads: int, devices: list[Any]) -> tuple[Any, float]:
    """Return a session, and the seconds that it took."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if devices:
        options.add_provider_for_devices(devices, {})
    begin = time.perf_counter()
    made = onnxruntime.InferenceSession(str(path), options)
    return made, time.perf_counter() - begin


def measure(path: Path, threads: int, seconds: float, work: Path, jit: bool) -> Row:
    """Measure a model."""
    devices = superopt.ort_register(threads=threads)
    exported = work / f"exported-{threads}"
    superopt.export_for_onnxruntime(path, exported, threads=threads)
    context = exported / f"{path.stem}_ctx.onnx"
    ways: dict[str, tuple[Path, list[Any]]] = {
        "onnxruntime": (path, []),
        "exported": (context, devices),
    }
    if jit:
        ways["registered"] = path, devices
    sessions, took = {}, {}
    for name, (file, own) in ways.items():
        tries = [make_session(file, threads, own) for _ in range(3)]
        sessions[name], took[name] = tries[0][0], min(t for _, t in tries)
    feeds = drawn(ort.load_session(path, threads), 0, SIZES)
    exe = superopt.compile(path, threads=threads, shapes=())
    exe.run(feeds)
    calls: dict[str, Callable[[], Any]] = {
        name: (lambda s=s: s.run(None, feeds)) for name, s in sessions.items()
    }
    calls["compiled"] = lambda: exe.run(feeds)
    wait_until_compiled(calls, seconds)
    wanted, got = calls["onnxruntime"](), calls["exported"]()
    error = max(difference(np.asarray(g), np.asarray(w)) for g, w in zip(got, wanted, strict=True))
    pause = SPIN_SECONDS if threads > 1 else 0.0
    times = interleave([*calls.values()], seconds, ROUNDS, 0, pause=pause)
    ms = {n: statistics.median(t) / 1e3 for n, t in zip(calls, times, strict=True)}
    return Row(path.stem, threads, ms, took, error)


def wait_until_compiled(calls: dict[str, Callable[[], Any]], seconds: float) -> None:
    """Call what compiles in the background at sizes of a call, until it has had the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name in calls.keys() & {"registered", "compiled"}:
            calls[name]()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--only", default="", help="names of models, e.g. resnet18,bert")
    parser.add_argument("--threads", default="1", help="numbers of threads, e.g. 1,2")
    parser.add_argument("--seconds", type=float, default=6.0, help="measuring time of a model")
    parser.add_argument("--draw", action="store_true", help="draw weights")
    parser.add_argument("--jit", action="store_true", help="also measure ort_register")
    parser.add_argument("--one", action="store_true", help="one model; print its row")
    parser.add_argument("--note", default="", help="the date, and the load of the machine")
    parser.add_argument("--out", type=Path, help="write the table there")
    args = parser.parse_args()
    names = ["exported", *(["registered"] if args.jit else []), "compiled"]
    known = sorted(p.stem for p in args.models.glob("*.onnx"))
    wanted = args.only.split(",") if args.only else known
    if args.one:
        with tempfile.TemporaryDirectory() as folder:
            path = args.models / f"{wanted[0]}.onnx"
            if args.draw:
                filled = draw_weights(path).SerializeToString()
                path = Path(folder) / path.name
                path.write_bytes(filled)
            row = measure(path, int(args.threads), args.seconds, Path(folder), args.jit)
        print(json.dumps(asdict(row)))
        return
    columns = ["model", "threads", "onnxruntime ms", *(f"{n} ms" for n in names), "speed-up"]
    columns += ["share", "session onnxruntime s", "exported s", "error / rms"]
    lines = ["| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    print("\n".join(lines), flush=True)
    rows = []
    for name in wanted:
        for threads in args.threads.split(","):
            # A process for each: a net's memory and threads are not another's.
            own = [a for a in ("--draw", "--jit") if getattr(args, a[2:])]
            done = subprocess.run(
                [sys.executable, __file__, "--models", str(args.models), "--only", name,
                 "--threads", threads, "--seconds", str(args.seconds), "--one", *own],
                capture_output=True, text=True,
            )  # fmt: skip
            if done.returncode:
                print(name, threads, done.stderr.strip().splitlines()[-1:], flush=True)
                continue
            row = Row(**json.loads(done.stdout.strip().splitlines()[-1]))
            rows.append(row)
            lines.append(row.line(names))
            print(lines[-1], flush=True)
    for threads in sorted({r.threads for r in rows}):
        some = [r for r in rows if r.threads == threads]
        mean = geometric_mean([r.speedup("exported") for r in some])
        share = geometric_mean([r.share for r in some])
        lines.append(f"\nThreads {threads}: geometric mean of the speed-ups **{mean:.2f}**, ")
        lines[-1] += f"of the shares {share:.2f}."
        print(lines[-1], flush=True)
    if args.out is not None:
        head = HEAD.format(
            machine=this_machine().text, version=onnxruntime.__version__, note=args.note
        )
        args.out.write_text(head + "\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
