#!/usr/bin/env python3
"""Products in bfloat16 beside float32 and OpenVINO: the table of docs/benchmarks/bench_bf16.md.

    scripts/bench_bf16.py --models FOLDER [--only bert_base_12l,resnet50] [--threads 1,16]
                          [--seconds 20] [--out FILE.md]

The models are those of scripts/bench_compile.py, with drawn or filled weights. In each round run,
one after another in one process: superopt in float32 and in bfloat16, onnxruntime in float32,
OpenVINO in float32 and with INFERENCE_PRECISION_HINT bf16. The processor needs AMX or AVX512-BF16.
OpenVINO 2026.4.1 ends the process (SIGFPE) in bf16 on llama_block, which is left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from peers import ROUNDS, difference, drawn, geometric_mean

import superopt
from superopt import ort
from superopt.baselines import openvino
from superopt.cost.machine import this_machine
from superopt.ort.timing import SPIN_SECONDS, bind_run, interleave

MODELS = (
    "bert_base_12l",
    "bert_2l_dynamic",
    "resnet50",
    "resnext50_32x4d",
    "inception_v3",
    "mobilenet_v2",
    "csrnet",
)
SIZES = {"batch": 1, "sequence": 128}
NAMES = ("superopt fp32", "superopt bf16", "onnxruntime fp32", "OpenVINO f32", "OpenVINO bf16")
HEAD = """# Products in bfloat16

By `scripts/bench_bf16.py`, on {machine}, {date}; onnxruntime {ort},
OpenVINO {openvino}. Batch 1; medians of {rounds} rounds, in turns in one process, ms.

- *fp32 / bf16*: of superopt, the median of rounds.
- *OpenVINO / superopt*: both in bf16, the median of rounds. OpenVINO keeps tensors between
  operators in bfloat16 as well; superopt rounds only operands of products.
- *error*: the largest difference from onnxruntime's outputs in float32, by the output's rms: of
  superopt in bf16, and of OpenVINO in bf16.
"""
COLUMNS = ("fp32 / bf16", "OpenVINO / superopt", "error", "OpenVINO's error")


def measure(path: Path, threads: int, seconds: float) -> list[float]:
    """Return the medians of NAMES in ms, and the values of COLUMNS."""
    session = ort.load_session(path, threads)
    feeds = drawn(session, 0, SIZES)
    wanted = {n: np.asarray(x) for n, x in ort.run(session, feeds).items()}
    plain, short = (
        superopt.compile(path, threads=threads, precision=p, specialize="eager")
        for p in ("fp32", "bf16")
    )
    peers = [openvino.prepare(path, feeds, threads, p) for p in ("f32", "bf16")]
    runs: list[Callable[[], object]] = [
        lambda: plain.run(feeds), lambda: short.run(feeds), bind_run(session, feeds), *peers,
    ]  # fmt: skip
    got = short.run(feeds)
    error = max(difference(got[n], x) for n, x in wanted.items())
    theirs = dict(zip(wanted, peers[1]().values(), strict=True))  # type: ignore[attr-defined]
    other = max(difference(np.asarray(theirs[n]), x) for n, x in wanted.items())
    times = interleave(runs, seconds, ROUNDS, 0, pause=SPIN_SECONDS if threads > 1 else 0.0)
    ours = [a / b for a, b in zip(times[0], times[1], strict=True)]
    peer = [a / b for a, b in zip(times[4], times[1], strict=True)]
    medians = [statistics.median(t) / 1e3 for t in times]
    return [*medians, statistics.median(ours), statistics.median(peer), error, other]


def table(models: list[Path], threads: list[int], seconds: float) -> Iterator[str]:
    """Yield the lines of the tables."""
    for count in threads:
        yield f"## {count} thread{'s' if count > 1 else ''}\n"
        yield "| model | " + " | ".join((*NAMES, *COLUMNS)) + " |"
        yield "|---|" + "---:|" * len((*NAMES, *COLUMNS))
        ratios = []
        for path in models:
            found = measure(path, count, seconds)
            *times, ours, peer, error, other = found
            ratios.append((ours, peer))
            cells = [f"{t:.2f}" for t in times]
            cells += [f"**{ours:.2f}**", f"{peer:.2f}", f"{error:.1e}", f"{other:.1e}"]
            yield f"| {path.stem} | " + " | ".join(cells) + " |"
        ours, peer = (geometric_mean([r[k] for r in ratios]) for k in (0, 1))
        yield f"\nGeometric means: fp32 / bf16 {ours:.2f}, OpenVINO / superopt {peer:.2f}.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--only", default=",".join(MODELS))
    parser.add_argument("--threads", default="1")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    models = [given.models / f"{name}.onnx" for name in given.only.split(",")]
    for path in (m for m in models if not m.exists()):
        print(f"left out: no file {path}", file=sys.stderr)
    models = [m for m in models if m.exists()]
    head = HEAD.format(
        machine=this_machine().text, date=date.today(), ort=ort.installed_version(),
        openvino=openvino.version(), rounds=ROUNDS,
    )  # fmt: skip
    lines = [head]
    print(head)
    for line in table(models, [int(t) for t in given.threads.split(",")], given.seconds):
        print(line, flush=True)
        lines.append(line)
    if given.out is not None:
        given.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
