#!/usr/bin/env python3
"""Models of 8-bit integers and of 4-bit weights in superopt, onnxruntime and OpenVINO, in turns.

    scripts/bench_quantized.py [QUANTIZED.onnx ...] [--models FOLDER] [--drawn [NAME]]
                               [--threads 1,16] [--seconds 10] [--out FILE.md]

models: float models of scripts/bench_compile.py, which onnxruntime's tools quantize: vision to QDQ
with int8 weights of channels, calibrated on drawn inputs; transformers dynamically. drawn: models
of quantized_models.py whose names contain NAME, by default all. Weights and inputs are drawn, so
that accuracies are of arithmetic only. Errors are differences from onnxruntime without
optimizations, which computes each operator by its definition, by the output's rms. OpenVINO rounds
activations to 8 bits before products with weights of 4 bits only in models that allow it
(accuracy_level 4).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from peers import ROUNDS, difference, drawn, geometric_mean
from quantized_models import QuantizedModel, drawn_models, folder_models

import superopt
from superopt import ort
from superopt.baselines import openvino
from superopt.cost.machine import this_machine
from superopt.ort.timing import SPIN_SECONDS, bind_run, interleave

NAMES = ("superopt", "onnxruntime", "OpenVINO")
HEAD = """# Models of 8-bit integers

By `scripts/bench_quantized.py`, on {machine}, {date}; onnxruntime {ort},
OpenVINO {openvino}. Batch 1; medians of {rounds} rounds, in turns in one process, ms.

- *ratio*: of the better peer's time to superopt's, the median of rounds.
- *error*: the largest difference from onnxruntime without optimizations, by the output's rms.
"""
COLUMNS = ("ratio", "error", "onnxruntime's error", "OpenVINO's error")


def reference_outputs(path: Path, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of onnxruntime without optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    plain = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [v.name for v in plain.get_outputs()]
    return dict(zip(names, plain.run(names, feeds), strict=True))


def measure(m: QuantizedModel, threads: int, seconds: float) -> list[float]:
    """Return the medians of NAMES in ms, and the values of COLUMNS."""
    path = m.path
    session = ort.load_session(path, threads)
    feeds = drawn(session, 0, m.sizes)
    wanted = reference_outputs(path, feeds)
    exe = superopt.compile(path, threads=threads, specialize="eager")
    peer = openvino.prepare(path, feeds, threads, rounds_activations=m.rounds_activations)
    runs: list[Callable[[], object]] = [lambda: exe.run(feeds), bind_run(session, feeds), peer]
    theirs = dict(zip(wanted, peer().values(), strict=True))  # type: ignore[attr-defined]
    errors = [
        max(difference(np.asarray(got[n]), x) for n, x in wanted.items())
        for got in (exe.run(feeds), ort.run(session, feeds), theirs)
    ]
    times = interleave(runs, seconds, ROUNDS, 0, pause=SPIN_SECONDS if threads > 1 else 0.0)
    best = [min(pair) for pair in zip(*times[1:], strict=True)]
    ratio = statistics.median(b / a for a, b in zip(times[0], best, strict=True))
    return [*(statistics.median(t) / 1e3 for t in times), ratio, *errors]


def table(models: list[QuantizedModel], threads: list[int], seconds: float) -> Iterator[str]:
    """Yield the lines of the tables."""
    for count in threads:
        yield f"## {count} thread{'s' if count > 1 else ''}\n"
        yield "| model | " + " | ".join((*NAMES, *COLUMNS)) + " |"
        yield "|---|" + "---:|" * len((*NAMES, *COLUMNS))
        ratios = []
        for m in models:
            try:
                *times, ratio, ours, first, second = measure(m, count, seconds)
            except (RuntimeError, KeyError, ValueError) as e:
                yield f"| {m.name} | {' '.join(str(e).split())[:80]} | | | | | | |"
                continue
            ratios.append(ratio)
            cells = [f"{t:.3g}" for t in times]
            cells += [f"**{ratio:.2f}**", *(f"{x:.1e}" for x in (ours, first, second))]
            yield f"| {m.name} | " + " | ".join(cells) + " |"
        yield f"\nGeometric mean of ratios: {geometric_mean(ratios):.2f}.\n" if ratios else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("quantized", nargs="*", type=Path)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--drawn", nargs="?", const="", metavar="NAME")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    head = HEAD.format(
        machine=this_machine(), date=date.today(), ort=ort.installed_version(),
        openvino=openvino.version(), rounds=ROUNDS,
    )  # fmt: skip
    print(head)
    lines = [head]
    with tempfile.TemporaryDirectory() as folder:
        models = [QuantizedModel(f.stem, f) for f in given.quantized]
        for found in folder_models(given.models, Path(folder)) if given.models else ():
            if isinstance(found, ValueError):
                print(f"left out: {found}", file=sys.stderr)
            else:
                models.append(found)
        if given.drawn is not None:
            models += drawn_models(Path(folder), given.drawn)
        for line in table(models, [int(t) for t in given.threads.split(",")], given.seconds):
            print(line, flush=True)
            lines.append(line)
    if given.out is not None:
        given.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
