#!/usr/bin/env python3
"""Ways to compute products on a GPU, each timed; and how well the ranking knows them.

These are products of matrices, and convolutions; the ranking is that of
kernels/algorithms/gpu/gemm_cost_model.py. It needs no GPU.

    scripts/bench_gpu_ways.py --product 2048x768x3072,... [--precision fp16,tf32] [--first N]
                              [--way "gemm rows=192 columns=64 k_block=64 warps=4 stages=3"]
                              --out FILE
    scripts/bench_gpu_ways.py --model MODEL.onnx ...      all such problems of a model
    scripts/bench_gpu_ways.py --rank FILE.json [--rank FILE.json]

The first ways of the ranking, and those that are given, are compiled, and timed in turns: medians
of events around graphs of ten calls, in us. `--rank`: what is taken untuned, by the best one that
was measured, and the best of the first 24; problems of which that was not measured are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

KINDS = {"fp16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}  # else float32
COMPILERS, TURNS, TUNED = 12, 5, 24


@dataclass(frozen=True)
class Case:
    """A problem, and how often a model has it."""

    name: str
    precision: str
    count: int
    problem: Any


def product(text: str, precision: str) -> Any:
    """A model of one product: rows x columns x terms."""
    rows, columns, terms = map(int, text.split("x"))
    kind = KINDS.get(precision, TensorProto.FLOAT)
    drawn = np.random.default_rng(0).standard_normal((terms, columns), np.float32) * terms**-0.5
    w = numpy_helper.from_array(drawn.astype(helper.tensor_dtype_to_np_dtype(kind)), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "product",
        [helper.make_tensor_value_info("x", kind, (rows, terms))],
        [helper.make_tensor_value_info("y", kind, (rows, columns))], [w],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def cases(name: str, model: Any, precision: str) -> Iterator[Case]:
    """The model's products of matrices, those of the most work first."""
    from superopt.compilation.cuda import load_compiler
    from superopt.kernels.algorithms.gpu.matrix_product import match_matrix_product
    from superopt.onnx_io.read.source import read_model
    from superopt.plan.graph.partition import partition_by_cost

    c = load_compiler.compile_model(read_model(model), precision, vendor=False).compiler
    found: dict[str, list[Any]] = {}
    for s in partition_by_cost(c.model.graph, lambda n: not c.fallback_reason(n, {}), {}):
        made = c.plan_segment(s, {}) if s.native else None
        for key in made.call_problems if made is not None else ():
            p = made.problems[key]
            if not p.row_axes and match_matrix_product(p) is not None:
                found.setdefault(key, [p, 0])[1] += 1
    work = {key: n * prod(match_matrix_product(p).sizes) for key, (p, n) in found.items()}
    for key in sorted(found, key=lambda key: -work[key]):
        yield Case(name, precision, found[key][1], found[key][0])


def measured(case: Case, first: int, given: Sequence[str]) -> dict[str, Any]:
    import bench_gpu_kernels as timing

    from superopt.compilation.cuda.device import DOT_PRECISIONS
    from superopt.kernels.algorithms import space
    from superopt.kernels.algorithms.gpu.matrix_product import match_matrix_product
    from superopt.kernels.loops.option import Option
    from superopt.plan.timing.gpu import build_running

    p, dots = case.problem, DOT_PRECISIONS[case.precision]
    m = match_matrix_product(p)
    ways = [*islice(space.options(p, "cuda", vendor=False), first), *map(Option.parse, given)]

    def made(way: Option) -> Any:
        try:
            r, _ = build_running(p, way, dots)
            r.compile(1)
        except Exception as e:
            return f"{type(e).__name__}: {str(e)[:100]}"
        return r

    some = list(dict.fromkeys(ways))
    with ThreadPoolExecutor(COMPILERS) as pool:
        ready = dict(zip(some, pool.map(made, some), strict=True))
    graphs = {}
    for way, r in ready.items():
        try:
            graphs[str(way)] = timing.captured(r.launch)
        except Exception as e:
            print(f"   {way}: {r if isinstance(r, str) else e}"[:160], flush=True)
    times: dict[str, list[float]] = {way: [] for way in graphs}
    for _ in range(TURNS):
        for way, graph in graphs.items():
            times[way].append(timing.ms_of(graph) * 1e3)
    return {
        "case": case.name, "precision": case.precision, "count": case.count,
        "batch": prod(a.size for a in m.batch), "sizes": m.sizes, "last": m.reduction_axes[-1].size,
        "half": m.is_narrow, "ends": m.epilogue_cost, "beside": m.reads_each_row,
        "us": {way: round(float(np.median(t)), 2) for way, t in times.items()},
    }  # fmt: skip


def ranked(found: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Of each problem whose first way was measured: that, and the best of those that are tuned, by
    the best of all."""
    from superopt.kernels.algorithms.gpu import gemm_cost_model
    from superopt.kernels.triton.dot_limits import MIN_DOT_EXTENT

    first, tuned = [], []
    for x in found:
        # What the ranking asks of a Matrix.
        m: Any = SimpleNamespace(
            sizes=tuple(x["sizes"]), batch=[SimpleNamespace(size=x["batch"])],
            reduction_axes=[SimpleNamespace(size=x["last"])], operand_bytes=2 if x["half"] else 4,
            is_narrow=x["half"], min_dot_terms=MIN_DOT_EXTENT,
            epilogue_cost=x["ends"], reads_each_row=x["beside"],
            window_size=x["sizes"][2] // x["last"],
        )  # fmt: skip
        m.contraction = SimpleNamespace(
            b=SimpleNamespace(dtype=SimpleNamespace(bits=16 if x["half"] else 32))
        )
        order = list(map(str, islice(gemm_cost_model.rank_options(m), TUNED)))
        best = min(x["us"].values())
        if order[0] in x["us"]:
            first.append(x["us"][order[0]] / best)
            tuned.append(min(x["us"][way] for way in order if way in x["us"]) / best)
    return first, tuned


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--product", default="")
    given.add_argument("--model", type=Path, action="append", default=[])
    given.add_argument("--precision", default="fp16,tf32")
    given.add_argument("--first", type=int, default=8)
    given.add_argument("--way", action="append", default=[])
    given.add_argument("--rank", type=Path, action="append", default=[])
    given.add_argument("--out", type=Path)
    how = given.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    for path in how.rank:
        found = json.loads(path.read_text())
        first, tuned = ranked(found)
        if not first:
            print(f"{path}: of none of {len(found)} problems the first way was measured")
            continue
        mean, least = (float(np.exp(np.mean(np.log(x)))) for x in (first, tuned))
        print(f"{path}: {len(first)} of {len(found)} problems: the first way takes {mean:.3f} of "
              f"the best (at most {max(first):.2f}), the best of {TUNED} {least:.3f}")  # fmt: skip
    found = []
    for precision in how.precision.split(","):
        some = [(text, product(text, precision)) for text in how.product.split(",") if text]
        for name, model in (*some, *((path.stem, onnx.load(path)) for path in how.model)):
            for case in cases(name, model, precision):
                found.append(measured(case, how.first, how.way))
                us = sorted(found[-1]["us"].items(), key=lambda x: x[1])
                print(precision, name, "x".join(map(str, found[-1]["sizes"])), flush=True)
                print(*(f"   {t:8.2f} us, {way}" for way, t in us), sep="\n", flush=True)
                if how.out is not None:
                    how.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
