"""How long products with 4-bit weights (MatMulNBits) take beside onnxruntime, and beside reading
the weights:

    python scripts/bench_nbits.py [--threads 1] [--rounds 9] [-o docs/benchmarks/bench_nbits.md]

A model is a chain of products K x N and N x K, long enough that its weights do not fit in a cache.
Runtimes are called in turns; a row has the least time of all rounds: processor time of this process
on one thread, else wall time. *read*: as many bytes as weights, scales and zero points have are
read, in the same turns and on one thread.
"""

from __future__ import annotations

import argparse
import gc
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import superopt
from superopt.cost.machine import this_machine
from superopt.kernels.runtime.cpu_peak import memory_reader
from superopt.kernels.runtime.engine import host

SHAPES = ((768, 3072), (2048, 2048), (2048, 5632), (4096, 4096), (4096, 11008))
ROWS = (1, 4, 16, 128)
LEVELS = {"float32": 1, "int8": 4}  # accuracy_level: the type of products
UNIT_BYTES = 512  # of which `memory_reader` reads a multiple
# Of the largest element, for chains of products; rounded ones are compared with float32 results.
RTOL = {"float32": 1e-3, "int8": 0.2}


@dataclass(frozen=True, slots=True)
class Case:
    """Rows times chained products K x N and N x K; zero: with zero points."""

    rows: int
    k: int
    n: int
    block: int
    zero: bool
    weight_bytes: int

    @property
    def pairs(self) -> int:
        return max(1, round(self.weight_bytes / (2 * self.product_bytes)))

    @property
    def product_bytes(self) -> int:
        """Bytes of the weights, scales and zero points of one product."""
        blocks = self.k * self.n // self.block
        return self.k * self.n // 2 + blocks * 4 + blocks // 2 * self.zero

    def model(self, level: int) -> onnx.ModelProto:
        rng = np.random.default_rng(0)
        nodes, constants, x = [], [], "x"
        for number in range(2 * self.pairs):
            k, n = (self.k, self.n) if number % 2 == 0 else (self.n, self.k)
            blocks = k // self.block
            arrays = {
                "b": rng.integers(0, 256, (n, blocks, self.block // 2), np.uint8),
                "s": rng.uniform(0.5, 1, (n, blocks)).astype(np.float32) / (4 * k**0.5),
            }
            if self.zero:
                arrays["z"] = rng.integers(0, 256, (n, blocks // 2), np.uint8)
            names = [f"{key}{number}" for key in arrays]
            constants += map(numpy_helper.from_array, arrays.values(), names)
            nodes.append(helper.make_node(
                "MatMulNBits", [x, *names], [f"y{number}"], domain="com.microsoft", K=k, N=n,
                bits=4, block_size=self.block, accuracy_level=level,
            ))  # fmt: skip
            x = f"y{number}"
        shape = [self.rows, self.k]
        given, made = (
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)] for name in ("x", x)
        )
        graph = helper.make_graph(nodes, "g", given, made, constants)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def session(m: onnx.ModelProto, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return ort.InferenceSession(m.SerializeToString(), options, ["CPUExecutionProvider"])


def measure_case(case: Case, threads: int, rounds: int) -> dict[str, float]:
    """Seconds of a product by each runtime, and of reading its weights."""
    x = np.random.default_rng(1).standard_normal((case.rows, case.k)).astype(np.float32)
    feeds = {"x": x}
    runs: dict[str, Callable[[], object]] = {}
    for name, level in LEVELS.items():
        exe = superopt.compile(case.model(level), threads=threads)
        own = session(case.model(level), threads)
        runs[f"superopt {name}"] = lambda exe=exe: exe.run(feeds)  # type: ignore[misc]
        runs[name] = lambda own=own: own.run(None, feeds)  # type: ignore[misc]
        (got,), (want,) = exe.run(feeds).values(), own.run(None, feeds)
        assert exe.fallback_nodes({}) == []
        np.testing.assert_allclose(got, want, rtol=0, atol=RTOL[name] * np.abs(want).max())
    count, read = 2 * case.pairs, memory_reader(host())
    weights = np.ones(count * case.product_bytes // UNIT_BYTES * UNIT_BYTES, np.uint8)
    runs["read"] = lambda: read(weights)
    clock = time.process_time if threads == 1 else time.perf_counter
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for name, run in runs.items():
            begin = clock()
            run()
            best[name] = min(best[name], (clock() - begin) / count)
    return best


def cases(weight_bytes: int, shapes: Iterator[tuple[int, int]]) -> Iterator[Case]:
    for k, n in shapes:
        for rows in ROWS:
            yield Case(rows, k, n, 32, False, weight_bytes)
        yield Case(1, k, n, 128, False, weight_bytes)
        yield Case(1, k, n, 32, True, weight_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--megabytes", type=int, default=256, help="weights of a model")
    parser.add_argument("--shapes", default=",".join(f"{k}x{n}" for k, n in SHAPES))
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    gc.disable()
    lines = [
        "# Products with 4-bit weights",
        "",
        f"Written by `python scripts/bench_nbits.py --threads {args.threads}` on"
        f" {time.strftime('%Y-%m-%d')}: {this_machine().text}.",
        f"onnxruntime {ort.__version__}, Python {platform.python_version()}; microseconds of a"
        f" product, the least of {args.rounds} rounds in turns. *read*: to read as many bytes as",
        "weights, scales and zero points have, on one thread. *int8*: `accuracy_level` 4, with",
        "activations rounded to 8 bits.",
        "",
        "| K x N | block | rows | superopt | read | time / read | onnxruntime | times as fast"
        " | superopt, int8 | onnxruntime, int8 | times as fast |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    print("\n".join(lines), flush=True)
    shapes = (tuple(map(int, s.split("x"))) for s in args.shapes.split(","))
    for case in cases(args.megabytes << 20, shapes):  # type: ignore[arg-type]
        us = {k: 1e6 * v for k, v in measure_case(case, args.threads, args.rounds).items()}
        block = f"{case.block}, zero points" if case.zero else f"{case.block}"
        lines.append(
            f"| {case.k} x {case.n} | {block} | {case.rows} | {us['superopt float32']:.0f}"
            f" | {us['read']:.0f} | {us['superopt float32'] / us['read']:.2f}"
            f" | {us['float32']:.0f} | {us['float32'] / us['superopt float32']:.2f}"
            f" | {us['superopt int8']:.0f} | {us['int8']:.0f}"
            f" | {us['int8'] / us['superopt int8']:.2f} |"
        )
        print(lines[-1], flush=True)
    if args.output is not None:
        args.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
