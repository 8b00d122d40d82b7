#!/usr/bin/env python3
"""What a call costs besides its kernels, and how long a model takes until it can be called.

    scripts/bench_overhead.py [MODEL ...] [--threads 1] [--shape sequence=128 ...]

Models are files with weights, or without (of ../shared/models, which are filled); the default is
two_tower. Microseconds of `exe.run(feeds)`, of the generated code alone, called through its pointer
(loops of some calls in turns, medians), and the median of differences between neighbours. Seconds
are those of `superopt.compile` and `exe.variant` in a process of its own, from before `import
superopt` on: with an empty cache, and with the full one (the median and the least of five, and the
least of the processor's time, which a busy machine changes less).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import superopt
from superopt.compilation.cpu.load_compiler import tuned_compiler
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.compilation.model.executable import Executable
from superopt.errors import ModelError
from superopt.kernels.runtime.engine import host
from superopt.onnx_io.read.source import read_model
from superopt.onnx_io.read.weightless import draw_weights
from superopt.plan.program.image import pointer_table

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 3.0
WARM = 5
_COMPILE = """
import sys, time
begin, used = time.perf_counter(), time.process_time()
import superopt
exe = superopt.compile(sys.argv[1], threads=int(sys.argv[2]), shapes=())
exe.variant({k: int(v) for k, v in (p.split("=") for p in sys.argv[3:])})
print(time.perf_counter() - begin, time.process_time() - used)
"""


def compile_seconds(
    path: Path, threads: int, sizes: dict[str, int], cache: Path
) -> tuple[float, float]:
    """That pass, and that the process uses."""
    given = [f"{k}={v}" for k, v in sizes.items()]
    done = subprocess.run(
        [sys.executable, "-c", _COMPILE, str(path), str(threads), *given],
        capture_output=True, text=True, check=True,
        env={**os.environ, "SUPEROPT_CACHE": str(cache)},
    )  # fmt: skip
    passed, used = map(float, done.stdout.split())
    return passed, used


def overhead(exe: Executable, sizes: dict[str, int]) -> tuple[float, float, float]:
    """Microseconds of a call, of its code alone, and the difference."""
    feeds = {}
    for port in exe.input_ports:
        assert port.dtype is not None
        assert port.shape is not None
        shape = [d if isinstance(d, int) else sizes[d] for d in port.shape]
        feeds[port.name] = np.ones(shape, port.dtype)
    exe.run(feeds)
    (step,) = exe.variant(sizes)
    assert isinstance(step, NativeSegment)
    assert step.binding is not None, "parts of the model run in onnxruntime"
    code = step.code
    given = [feeds[exe.input_ports[n].name] for n in step.binding.input_numbers]
    out = [np.empty(shape, dtype) for shape, dtype in step.output_specs]
    context = code.make_context()
    fixed = pointer_table((*given, *out)), *context.addresses, code.thread_state(context)
    lanes: tuple[Callable[[], object], ...] = (lambda: exe.run(feeds), lambda: code.run(*fixed))
    # Loops are short, that most are not interrupted where others use the machine as well.
    count = max(1, int(0.0002 / each(lanes[1], 3)))
    times: list[list[float]] = []
    end = time.perf_counter() + SECONDS
    while len(times) < 20 or time.perf_counter() < end:
        times.append([1e6 * each(lane, count) for lane in lanes])
    found = np.array(times)
    call, kernels = np.median(found, axis=0)
    return float(call), float(kernels), float(np.median(found[:, 0] - found[:, 1]))


def each(run: Callable[[], object], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - begin) / count


def symbolic(path: Path, given: dict[str, int]) -> dict[str, int]:
    """The symbolic sizes of a model's inputs; 1 where none is given."""
    ports = tuned_compiler(read_model(path), 1, host(), None, "E2").input_ports()
    names = sorted({d for p in ports for d in p.shape or () if isinstance(d, str)})
    return {name: given.get(name, 1) for name in names}


def filled(model: Path) -> bytes:
    try:
        return bytes(draw_weights(model).SerializeToString())
    except ModelError:  # it has its weights
        return model.read_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=N")
    args = parser.parse_args()
    given = {k: int(v) for k, v in (s.split("=") for s in args.shape)}
    models = args.models or [ROOT.parent / "shared" / "models" / "two_tower.onnx"]
    print(f"{'model':20} {'call us':>10} {'code us':>10} {'diff us':>8}", end=" ")
    print(f"{'cold s':>7} {'warm s':>7} {'least s':>7} {'CPU s':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for number, model in enumerate(models):
            path = Path(folder) / f"{number}.onnx"
            path.write_bytes(filled(model))
            cache = Path(folder) / f"cache{number}"
            os.environ["SUPEROPT_CACHE"] = str(cache)
            sizes = symbolic(path, given)
            cold, *warm = (
                compile_seconds(path, args.threads, sizes, cache) for _ in range(WARM + 1)
            )
            exe = superopt.compile(path, threads=args.threads, shapes=())
            call, code, more = overhead(exe, sizes)
            print(f"{model.stem:20} {call:10.2f} {code:10.2f} {more:8.2f}", end=" ")
            passed, used = np.array(warm).T
            shown = cold[0], np.median(passed), min(passed), min(used)
            print(" ".join(f"{t:7.2f}" for t in shown), flush=True)


if __name__ == "__main__":
    main()
