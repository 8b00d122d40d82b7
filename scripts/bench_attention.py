#!/usr/bin/env python3
"""Attention on the CPU against onnxruntime and OpenVINO: docs/benchmarks/attention.md.

    scripts/bench_attention.py [--lengths 128,512,1024,2048,4096] [--sizes 64,128] [--batches 1,4]
        [--threads 1] [--seconds 1] [--out FILE]

Each case is softmax(q k^T / sqrt(d) + mask) v as exporters write it, with and without a causal mask
(`--heads` heads of q, fewer of k and v with `--kv-heads`). It is compiled by the default call and
runs in turns with both peers and a loop of FMAs in one process (OpenVINO in float32). The share is
of the rate of that loop, of one thread, in the same round (times the threads). It counts the
products that the mask leaves: 4 d operations for each pair of a query and a key that it sees, and
none for the softmax.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import onnx
from kernel_cases import attention, model
from peers import ROUNDS, difference, drawn

import superopt
from superopt import ort
from superopt.baselines import openvino
from superopt.kernels.runtime.cpu_peak import fma_run
from superopt.kernels.runtime.engine import host
from superopt.ort.timing import SPIN_SECONDS, bind_run, interleave

HEADER = (
    "| heads | d | length | batch | mask | superopt | onnxruntime | OpenVINO |"
    " better peer / superopt | % of FMA peak | error |"
)


def visible_pairs(length: int, causal: bool) -> int:
    return length * (length + 1) // 2 if causal else length * length


def measure(
    length: int, width: int, batch: int, causal: bool, heads: int, kv_heads: int, threads: int,
    seconds: float, work: Path,
) -> str:  # fmt: skip
    """Return a row of the table: medians in ms."""
    path = work / "kernel.onnx"
    onnx.save(model(attention(length, causal, heads, width, batch, kv_heads)), path)
    session = ort.load_session(path, threads)
    feeds = drawn(session, 0, {})
    exe = superopt.compile(path, threads=threads, shapes=())
    wanted, got = ort.run(session, feeds), exe.run(feeds)
    error = max(difference(got[n], np.asarray(w)) for n, w in wanted.items())
    spin, spin_operations = fma_run(host())
    runs = [
        lambda: exe.run(feeds), bind_run(session, feeds), openvino.prepare(path, feeds, threads),
        spin,
    ]  # fmt: skip
    pause = SPIN_SECONDS if threads > 1 else 0.0
    ours, *peers, spun = interleave(runs, seconds, ROUNDS, 0, pause=pause)
    ratio = median(min(pair) / x for x, *pair in zip(ours, *peers, strict=True))
    operations = 4 * width * heads * batch * visible_pairs(length, causal)
    peak = [threads * spin_operations / us for us in spun]
    share = median(operations / x / rate for x, rate in zip(ours, peak, strict=True))
    ms = " | ".join(f"{median(times) / 1e3:.2f}" for times in (ours, *peers))
    shown = f"{heads}" if kv_heads == heads else f"{heads} of {kv_heads}"
    return (
        f"| {shown} | {width} | {length} | {batch} | {'causal' if causal else ''} | {ms} |"
        f" {ratio:.2f} | {100 * share:.0f} | {error:.0e} |"
    )


def main() -> None:
    def integers(text: str) -> list[int]:
        return [int(n) for n in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=integers, default=[128, 512, 1024, 2048, 4096])
    parser.add_argument("--sizes", type=integers, default=[64, 128], help="of a head")
    parser.add_argument("--batches", type=integers, default=[1, 4])
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--kv-heads", type=int, default=0, help="of k and v; --heads if 0")
    parser.add_argument("--masks", default="full,causal")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--out", type=Path, help="for the table")
    args = parser.parse_args()
    lines = [HEADER, "|" + "---|" * (HEADER.count("|") - 1)]
    print("\n".join(lines), flush=True)
    cases = itertools.product(
        args.batches, args.sizes, [mask == "causal" for mask in args.masks.split(",")], args.lengths
    )
    for batch, width, causal, length in cases:
        with tempfile.TemporaryDirectory() as folder:
            lines.append(
                measure(
                    length, width, batch, causal, args.heads, args.kv_heads or args.heads,
                    args.threads, args.seconds, Path(folder),
                )
            )  # fmt: skip
        print(lines[-1], flush=True)
    if args.out is not None:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
