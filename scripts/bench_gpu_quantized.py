#!/usr/bin/env python3
"""Models of 8-bit integers on a GPU, beside the same models of floats.

    scripts/bench_gpu_quantized.py --models FOLDER [--only NAME,...] [--batch 1,32] [--out FILE.md]

Models are quantized as scripts/bench_quantized.py does. Times are medians of events around some
replays of a CUDA graph, in ms. The error is the largest difference from the same quantized model on
the processor, by the output's rms.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import onnx
from bench_gpu import batched
from gpu_checks import drawn, event_ms, far
from quantized_models import DYNAMIC, STATIC, folder_models

import superopt
from superopt.compilation.cuda import load_compiler
from superopt.kernels.runtime.gpu_device import device_name, execution_device
from superopt.onnx_io.read.source import read_model

PRECISIONS = ("tf32", "fp16")  # of the models of floats
NAMES = [*STATIC, *DYNAMIC]


def measure(quantized: Path, floats: Path, count: int) -> Iterator[str]:
    """Yield the cells of a model's row. count: of inputs at a time."""
    times = []
    for path, precision in ((quantized, "tf32"), *((floats, x) for x in PRECISIONS)):
        exe = load_compiler.compile_model(read_model(batched(onnx.load(path), count)), precision)
        feeds = drawn(exe, np.random.default_rng(0))
        got = list(exe.run(feeds).values())
        variant = exe.variant(exe.infer_sizes(exe.input_arrays(feeds)))
        times.append(event_ms(variant.only_step.gpu_program))
        if path is quantized:
            wanted = superopt.compile(batched(onnx.load(path), count)).run(feeds).values()
            error = max(far(a, np.asarray(b)) for a, b in zip(got, wanted, strict=True))
    yield from (f"{t:.3f}" for t in times)
    yield f"**{min(times[1:]) / times[0]:.2f}**"
    yield f"{error:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--only", default=",".join(NAMES))
    parser.add_argument("--batch", default="1,32")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    columns = ("model", "batch", "int8", *PRECISIONS, "ratio", "error")
    lines = [
        f"Models of 8-bit integers on {device_name(execution_device())}, ms; *ratio*: of the time "
        "of the faster model of floats to that of integers.\n",
        f"| {' | '.join(columns)} |",
        "|---|" + "---:|" * (len(columns) - 1),
    ]
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for made in folder_models(given.models, Path(folder)):
            if isinstance(made, ValueError):
                print(f"left out: {made}", file=sys.stderr)
                continue
            name, quantized = made.name, made.path
            if name not in given.only.split(","):
                continue
            source = given.models / f"{name}.onnx"
            for count in map(int, given.batch.split(",")):
                try:
                    cells = " | ".join(measure(quantized, source, count))
                except (RuntimeError, KeyError, ValueError, NotImplementedError) as e:
                    cells = f"{type(e).__name__}: {' '.join(str(e).split())[:200]} | | | |"
                lines.append(f"| {name} | {count} | {cells} |")
                print(lines[-1], flush=True)
    if given.out is not None:
        given.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
