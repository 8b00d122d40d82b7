#!/usr/bin/env python3
"""Products of 8-bit integers by constants, as a share of the peak rate of this processor's
instructions, beside onnxruntime and OpenVINO.

    scripts/bench_integer_gemm.py [--threads 1] [--rounds 15] [--out FILE.md]
                                  [--target-cpu x86-64-v3] [--instructions avx512_vnni]

The peak is that of a loop of products in registers (kernels/runtime/dot_product_peak.py), which is
timed in the same turns. --target-cpu measures processors without AMX and VNNI, --instructions
avx512_vnni one without AMX; ONEDNN_MAX_CPU_ISA limits OpenVINO. On one thread times are processor
times.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import onnx
from fuzz_integers import choose_instructions
from onnx import numpy_helper, parser

import superopt
from superopt import ort
from superopt.baselines import openvino
from superopt.cost.machine import this_machine
from superopt.kernels.processor import AMX_INT8, AVX512_VNNI
from superopt.kernels.runtime.cpu import host
from superopt.kernels.runtime.cpu_peak import dot_product_run

SHAPES = (
    (128, 768, 768),
    (128, 768, 3072),
    (128, 3072, 768),
    (512, 1024, 1024),
    (1024, 1024, 1024),
)
MIN_BLOCK_SECONDS = 0.02  # of calls between two readings of the clock


def product_model(m: int, k: int, n: int) -> onnx.ModelProto:
    """Return a requantized product of uint8 by int8."""
    text = f"""g (uint8[{m}, {k}] x) => (uint8[{m}, {n}] y)
        <float s = {{0.02}}, uint8 z = {{0}}, float t = {{0.01}}, int8 v = {{0}}, float u = {{0.9}}>
        {{ y = QLinearMatMul(x, s, z, w, t, v, u, z) }}"""
    out = onnx.ModelProto(ir_version=10)
    out.opset_import.add(domain="", version=21)
    out.graph.CopyFrom(parser.parse_graph(text))
    w = np.random.default_rng(0).integers(-127, 128, (k, n)).astype(np.int8)
    out.graph.initializer.append(numpy_helper.from_array(w, "w"))
    return out


def measure_blocks(runs: list[Callable[[], object]], rounds: int, threads: int) -> list[float]:
    """Return the least seconds of a call of each."""
    clock = time.process_time if threads == 1 else time.perf_counter
    counts = []
    for run in runs:
        run()
        begin = clock()
        run()
        counts.append(max(1, round(MIN_BLOCK_SECONDS / max(clock() - begin, 1e-6))))
    best = [float("inf")] * len(runs)
    for _ in range(rounds):
        for k, (run, count) in enumerate(zip(runs, counts, strict=True)):
            begin = clock()
            for _ in range(count):
                run()
            best[k] = min(best[k], (clock() - begin) / count)
    return best


def main() -> None:
    parser_ = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser_.add_argument("--threads", type=int, default=1)
    parser_.add_argument("--rounds", type=int, default=15)
    parser_.add_argument("--target-cpu")
    parser_.add_argument("--instructions", choices=(AMX_INT8, AVX512_VNNI))
    parser_.add_argument("--out", type=Path)
    given = parser_.parse_args()
    how = choose_instructions(given.target_cpu, given.instructions)
    machine = host()
    lines = [
        f"Products of uint8 by int8 by {how} on {this_machine()}, {given.threads} thread(s), "
        f"{date.today()}. Gop/s; *share*: of the peak.\n",
        "| m, k, n | superopt | share | onnxruntime | OpenVINO | peak |",
        "|---|" + "---:|" * 5,
    ]
    print("\n".join(lines))
    folder = Path(tempfile.mkdtemp(prefix="bench_integer_gemm_"))
    spin, operations = dot_product_run(machine, how)
    for m, k, n in SHAPES:
        path = folder / f"{m}x{k}x{n}.onnx"
        onnx.save(product_model(m, k, n), path)
        feeds = {"x": np.random.default_rng(1).integers(0, 256, (m, k)).astype(np.uint8)}
        exe = superopt.compile(path, threads=given.threads)
        session = ort.load_session(path, given.threads)
        runs = [
            lambda exe=exe, feeds=feeds: exe.run(feeds),
            lambda s=session, feeds=feeds: ort.run(s, feeds),
            openvino.prepare(path, feeds, given.threads),
            spin,
        ]
        ours, *peers, loop = measure_blocks(runs, given.rounds, given.threads)
        peak = given.threads * operations / loop
        rates = [2 * m * k * n / t for t in (ours, *peers)]
        lines.append(
            f"| {m}, {k}, {n} | {rates[0] / 1e9:.0f} | **{rates[0] / peak:.2f}** | "
            f"{rates[1] / 1e9:.0f} | {rates[2] / 1e9:.0f} | {peak / 1e9:.0f} |"
        )
        print(lines[-1], flush=True)
    if given.out is not None:
        given.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
