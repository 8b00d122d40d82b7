#!/usr/bin/env python3
"""Random graphs of 8-bit integers, compiled, and compared with ONNX's definition in numpy.

    scripts/fuzz_integers.py [--graphs 1000] [--seed 0] [--kind exact] [--target-cpu x86-64-v3]

exact: chains of integer products (MatMulInteger, ConvInteger, QLinearMatMul, QLinearConv, QGemm,
MatMulIntegerToFloat, DynamicQuantizeLinear) and requantizations with operands of the whole range;
each element must be equal, bit for bit, but for results of QuantizeLinear of computed floats, which
may be one step off. qdq: float operators between DequantizeLinear and
QuantizeLinear; each element must be within one step of the definition in float64.

--instructions chooses among those of this processor: the fastest is the default. Exit 1 if an
element was wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import superopt
from superopt.kernels.processor import AMX_INT8, AVX512_VNNI
from superopt.kernels.runtime import amx
from superopt.kernels.runtime.engine import host
from superopt.kernels.runtime.target_cpu import LEVELS, VARIABLE
from tests.support.onnx_io.integer_graph_builder import IntegerGraph
from tests.support.onnx_io.integer_graphs import draw_exact_graph
from tests.support.onnx_io.qdq_graphs import draw_qdq_graph

MAX_FAILURES_SHOWN = 20
REPORT_SECONDS = 60


@dataclass(slots=True)
class Counts:
    """graphs: compared; fallbacks: of these, run in onnxruntime at least in part; wrong: seeds by
    kind; off_by_one: elements that differ by one step, which they may."""

    graphs: int = 0
    fallbacks: int = 0
    elements: int = 0
    wrong_elements: int = 0
    off_by_one: int = 0
    largest: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def line(self) -> str:
        share = self.off_by_one / max(1, self.elements)
        return (
            f"{self.graphs} graphs ({self.fallbacks} with nodes in onnxruntime), "
            f"{self.elements} elements, {self.wrong_elements} wrong, largest difference "
            f"{self.largest:g}, off by one step: {share:.2e} of all"
        )


def differences(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Return the differences of elements; of types or shapes: infinity."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return np.array([np.inf])
    same = (got == want) | ((got != got) & (want != want))
    with np.errstate(all="ignore"):
        return np.where(same, 0, np.abs(got.astype(np.float64) - want.astype(np.float64)))


def count_graph(counts: Counts, kind: str, seed: int) -> None:
    """Compile and compare the graph of a seed."""
    if kind == "exact":
        g: IntegerGraph = draw_exact_graph(seed)
    else:
        drawn = draw_qdq_graph(seed)
        g = drawn.graph
    exe = superopt.compile(g.model(), threads=1, specialize="never")
    got = {n: np.array(a) for n, a in exe.run(g.feeds).items()}
    want = g.outputs if kind == "exact" else drawn.wanted_results(g.feeds, got)
    wrong = 0
    for name, array in want.items():
        d = differences(got[name], array)
        counts.elements += d.size
        tolerance = g.tolerances.get(name, int(kind == "qdq"))
        wrong += int((d > tolerance).sum())
        counts.largest = max(counts.largest, float(d.max(initial=0)))
        counts.off_by_one += int((d == 1).sum()) if tolerance else 0
    counts.graphs += 1
    counts.fallbacks += bool(exe.fallback_nodes({}))
    counts.wrong_elements += wrong
    if wrong:
        ops = " ".join(n.op_type for n in g.nodes)
        counts.wrong.append(f"{kind} seed {seed}: {wrong} wrong elements: {ops}")
    exe.close()


def choose_instructions(target: str | None, instructions: str | None) -> str:
    """Compile for a level of x86-64, or without AMX. Return the instructions of products."""
    if target is not None:
        os.environ[VARIABLE] = target
    if instructions == AVX512_VNNI:
        amx.request_amx = lambda: False  # type: ignore[assignment]
    return amx.integer_instructions(host())


def main(argv: Sequence[str]) -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--graphs", type=int, default=1000, help="of each kind")
    p.add_argument("--seed", type=int, default=0, help="of the first graph")
    p.add_argument("--kind", choices=("exact", "qdq"), help="by default both")
    p.add_argument("--target-cpu", choices=[*LEVELS, "native"])
    p.add_argument("--instructions", choices=(AMX_INT8, AVX512_VNNI))
    args = p.parse_args(argv)
    name = choose_instructions(args.target_cpu, args.instructions)
    failed = False
    for kind in [args.kind] if args.kind else ["exact", "qdq"]:
        counts, told = Counts(), time.monotonic()
        for seed in range(args.seed, args.seed + args.graphs):
            try:
                count_graph(counts, kind, seed)
            except Exception as e:
                said = traceback.format_exception_only(e)[-1].strip()
                counts.wrong.append(f"{kind} seed {seed}: {said}")
            if time.monotonic() - told > REPORT_SECONDS:
                told = time.monotonic()
                print(f"... {kind}: {counts.line()}", file=sys.stderr, flush=True)
        print(f"{kind}, {name or 'general kernels'}: {counts.line()}")
        print(*counts.wrong[:MAX_FAILURES_SHOWN], sep="\n")
        failed |= bool(counts.wrong)
    return int(failed)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:  # no model is compiled twice
        os.environ["XDG_CACHE_HOME"] = folder
        sys.exit(main(sys.argv[1:]))
