"""How often the interval of a speedup contains what is measured later.

    python scripts/bench_calibration.py --claims 100 --seconds 1

Pairs of small models, some of them twice the same, are timed by `superopt.bench`: a claim is the
interval of the speedup. After all claims each pair is timed again. Half of the claims, and of the
later measurements, are made while as many processes as the machine has cores multiply matrices.
Prints how many intervals contain the later measurement, and how many of the models that would have
been used (claimed faster beyond noise) are faster later.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import superopt
from superopt.cost.machine import this_machine
from superopt.cost.speedup import MIN_SPEEDUP


def products(width: int, count: int) -> onnx.ModelProto:
    """A chain of `count` products of (64, width) with square matrices, each followed by a Relu."""
    rng = np.random.default_rng(0)
    nodes, weights, before = [], [], "x"
    for n in range(count):
        array = (rng.standard_normal((width, width)) / math.sqrt(width)).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"w{n}"))
        nodes.append(helper.make_node("MatMul", [before, f"w{n}"], [f"p{n}"]))
        nodes.append(helper.make_node("Relu", [f"p{n}"], [f"r{n}"]))
        before = f"r{n}"
    return model(nodes, weights, [64, width], before)


def elementwise(length: int, count: int) -> onnx.ModelProto:
    """A chain of `count` Exp and Tanh of a vector."""
    nodes, before = [], "x"
    for n in range(count):
        nodes.append(helper.make_node("Tanh" if n % 2 else "Exp", [before], [f"e{n}"]))
        before = f"e{n}"
    return model(nodes, [], [length], before)


def model(
    nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], shape: list[int], last: str
) -> onnx.ModelProto:
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    kind = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", kind[:1], kind[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


PAIRS = {
    "the same products": (products(256, 4), products(256, 4)),
    "5 products and 4": (products(256, 5), products(256, 4)),
    "21 products and 20": (products(128, 21), products(128, 20)),
    "the same elementwise chain": (elementwise(100_000, 6), elementwise(100_000, 6)),
    "9 elementwise nodes and 8": (elementwise(100_000, 9), elementwise(100_000, 8)),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """A measurement of a pair: its interval and middle, and whether other processes ran."""

    pair: str
    loaded: bool
    low: float
    mid: float
    high: float


def spin() -> None:
    a = np.random.default_rng(0).standard_normal((512, 512))
    while True:
        a = a @ a
        a /= np.abs(a).max()


@contextmanager
def load(processes: int) -> Iterator[None]:
    """So many processes that multiply matrices meanwhile."""
    context = multiprocessing.get_context("spawn")
    running = [context.Process(target=spin, daemon=True) for _ in range(processes)]
    for process in running:
        process.start()
    try:
        if running:
            time.sleep(1.0)
        yield
    finally:
        for process in running:
            process.kill()
            process.join()


def measure(folder: Path, orders: list[tuple[str, bool]], seconds: float) -> list[Measured]:
    """A measurement for each order, a pair and whether under load; in the order given, but those
    that follow one another under the same load share its processes."""
    found: list[Measured] = []
    names = list(PAIRS)
    at = 0
    while at < len(orders):
        loaded = orders[at][1]
        with load((os.cpu_count() or 1) if loaded else 0):
            while at < len(orders) and orders[at][1] == loaded:
                pair = orders[at][0]
                files = [folder / f"{names.index(pair)}{x}.onnx" for x in "ab"]
                row = superopt.bench(files, seconds=seconds)[1]
                assert row.speedup is not None
                found.append(Measured(pair, loaded, *row.speedup))
                at += 1
    return found


def orders(rng: random.Random, claims: int) -> list[tuple[str, bool]]:
    """Every pair equally often; half of it under load, in blocks of one round over all pairs."""
    rounds = -(-claims // len(PAIRS))
    loads = [n % 2 == 1 for n in range(rounds)]
    rng.shuffle(loads)
    return [(pair, loaded) for loaded in loads for pair in PAIRS][:claims]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--claims", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    first, again = orders(rng, options.claims), orders(rng, options.claims)
    begin, before = time.monotonic(), os.getloadavg()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for n, pair in enumerate(PAIRS.values()):
            for x, made in zip("ab", pair, strict=True):
                (folder / f"{n}{x}.onnx").write_bytes(made.SerializeToString())
        claims = measure(folder, first, options.seconds)
        later = measure(folder, again, options.seconds)
    if options.json:
        options.json.write_text(json.dumps([[asdict(m) for m in x] for x in (claims, later)]))
    minutes = (time.monotonic() - begin) / 60
    print(
        f"{this_machine().text}; load average {before[0]:.1f} before, "
        f"{os.getloadavg()[0]:.1f} after"
    )
    print(
        f"{len(claims)} claims and later measurements of {options.seconds:g} s, {minutes:.1f} min"
    )
    print(summary(claims, later))


def summary(claims: list[Measured], later: list[Measured]) -> str:
    """A line for each condition: claims, intervals that hold, their median width, models used."""
    rows = [("claims", "made", "hold", "median interval", "used", "faster later")]
    kinds = {
        "all": lambda c: True,
        "nothing else started": lambda c: not c.loaded,
        "under load": lambda c: c.loaded,
        **{pair: (lambda c, pair=pair: c.pair == pair) for pair in PAIRS},
    }
    for kind, chosen in kinds.items():
        both = [(c, m) for c, m in zip(claims, later, strict=True) if chosen(c)]
        if not both:
            continue
        hold = sum(c.low <= m.mid <= c.high for c, m in both)
        used = [(c, m) for c, m in both if c.low > 1 and c.mid >= MIN_SPEEDUP]
        width = float(np.median([c.high / c.low for c, _ in both]))
        rows.append(
            (
                kind,
                str(len(both)),
                str(hold),
                f"x{width:.3f} from end to end",
                str(len(used)),
                str(sum(m.mid > 1 for _, m in used)),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows
    )


if __name__ == "__main__":
    main()
