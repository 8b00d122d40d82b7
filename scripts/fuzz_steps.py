#!/usr/bin/env python3
"""Random pairs of quantized graphs: what is proved of their steps, against what is computed.

    scripts/fuzz_steps.py [--pairs 1000] [--seed 0]

A graph is drawn, and another one of it: by the compiler's passes, or by a change that may be wrong
(an offset, a step more, a larger scale, another weight). Of each pair that is proved to be within k
steps, both graphs are evaluated in float32, with sums in several orders, and in exact rational
arithmetic, on inputs that have extremes and, found among many, values next to ties. It is wrong if

    results differ by more than k steps, also from those of exact arithmetic;
    the errors before rounding, of both graphs together, exceed the bound.

Prints how many pairs were proved, and the largest share of a bound that was reached. Exit 1 if a
proof was wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from superopt.ir import graph as ir_graph
from superopt.ir.evaluate import evaluate
from superopt.ir.op import Attr
from superopt.ops import OPS
from superopt.plan.graph.quantization.products import lower_quantized_products
from superopt.plan.graph.quantization.requantize import merge_requantization
from superopt.te.expr.dtype import F32, I8, U8, DType, to_numpy
from superopt.te.expr.tensor import TensorType
from superopt.verifier.rounding.graph_steps import StepProver, WithinSteps
from superopt.verifier.rounding.quantized_results import match_result
from tests.support.te.exact_rationals import ExactRationals, OrderedFloat32

Value = ir_graph.Value
Feeds = Mapping[str, np.ndarray]
ROWS = 4096  # rows of inputs, of which those next to ties are kept
KEPT_ROWS = 12
ORDERS = (
    OrderedFloat32(order="first"),
    OrderedFloat32(order="last"),
    OrderedFloat32(order=5, fused=True),
)
KINDS = ("matmul", "gemm", "add", "mul", "requantize", "affine", "two layers")
CHANGES = ("passes", "products", "offset", "step", "scale", "weight", "merged")


def make(op: str, inputs: list[Value | None], **attrs: Attr) -> ir_graph.Node:
    return ir_graph.node(OPS[op], inputs, **attrs)


def number(value: float | np.ndarray, dtype: type = np.float32) -> ir_graph.Constant:
    return ir_graph.constant(np.asarray(value, dtype))


@dataclass(slots=True)
class Pair:
    """Two graphs over the same inputs of `ROWS` rows. is_equal: False if the second is another
    function, which may still be within steps."""

    kind: str
    change: str
    inputs: tuple[ir_graph.Input, ...]
    first: Value
    second: Value
    is_equal: bool


@dataclass(slots=True)
class Draw:
    """Draws a graph: rows of integers, and what is computed of each."""

    rng: np.random.Generator
    rows: int = ROWS
    inputs: list[ir_graph.Input] = field(default_factory=list)

    def scale(self) -> float:
        return float(np.float32(2.0 ** self.rng.uniform(-12, 4)))

    def dtype(self) -> DType:
        return (U8, I8)[int(self.rng.integers(2))]

    def zero(self, dtype: DType) -> ir_graph.Constant:
        low, high = (0, 255) if dtype == U8 else (-128, 127)
        z = int(self.rng.choice([low, high, 0, int(self.rng.integers(low, high + 1))]))
        return number(z, to_numpy(dtype).type)

    def draw_quantized(self, columns: int) -> Value:
        dtype = self.dtype()
        t = TensorType(dtype, (self.rows, columns))
        x = ir_graph.Input(f"x{len(self.inputs)}", t)
        self.inputs.append(x)
        return make("DequantizeLinear", [x, number(self.scale()), self.zero(dtype)])

    def weights(self, k: int, n: int) -> Value:
        w = self.rng.integers(-128, 128, (k, n))
        zero = number(int(self.rng.choice([0, 0, 0, 3])), np.int8)
        if self.rng.random() < 0.5:
            return make("DequantizeLinear", [number(w, np.int8), number(self.scale()), zero])
        scales = [self.scale() for _ in range(n)]
        zeros = number(np.zeros(n), np.int8)
        return make("DequantizeLinear", [number(w, np.int8), number(np.array(scales)), zeros],
                    axis=1)  # fmt: skip

    def value(self, kind: str) -> Value:
        """Return floats computed of dequantized integers."""
        n = int(self.rng.integers(1, 5))
        k = int(self.rng.choice([1, 3, 8, 24]))
        match kind:
            case "matmul":
                return make("MatMul", [self.draw_quantized(k), self.weights(k, n)])
            case "gemm":
                bias = number(self.rng.normal(size=n) * self.scale())
                return make("Gemm", [self.draw_quantized(k), self.weights(k, n), bias])
            case "add":
                op = "Add" if self.rng.random() < 0.7 else "Sub"
                return make(op, [self.draw_quantized(n), self.draw_quantized(n)])
            case "mul":
                return make("Mul", [self.draw_quantized(n), number(self.scale())])
            case "affine":
                x = make("MatMul", [self.draw_quantized(k), self.weights(k, n)])
                scaled = make("Mul", [x, number(np.array([self.scale() for _ in range(n)]))])
                return make("Add", [scaled, number(self.rng.normal(size=n))])
            case "two layers":
                x = self.result("matmul", U8)
                width = x.type.shape[1] if x.type.shape else 1
                assert isinstance(width, int)
                dequantized = make(
                    "DequantizeLinear", [x, number(self.scale()), number(7, np.uint8)]
                )
                return make("MatMul", [dequantized, self.weights(width, n)])
            case _:
                return self.draw_quantized(n)

    def result(self, kind: str, dtype: DType) -> Value:
        """Return the value quantized by a scale that its results fill, or that is extreme."""
        x = self.value(kind)
        if self.rng.random() < 0.3:
            x = make("Relu", [x])
        elif self.rng.random() < 0.2:
            top = float(np.float32(self.rng.uniform(0.5, 8)))
            x = make("Clip", [x, number(0.0), number(top)])
        feeds = draw_feeds(tuple(self.inputs), np.random.default_rng(0))
        (some,) = evaluate(ir_graph.Graph(tuple(self.inputs), (x,)), feeds)
        size = float(np.abs(some).max()) or 1.0
        fill = 255.0 * 2.0 ** float(self.rng.choice([0, 0, 0, 1, -3, 6]))
        return make("QuantizeLinear", [x, number(max(size / fill, 1e-9)), self.zero(dtype)])


def draw_pair(seed: int) -> Pair | None:
    """Return a pair of graphs; None if the change applies to none of it."""
    rng = np.random.default_rng(seed)
    draw = Draw(rng)
    kind, change = KINDS[int(rng.integers(len(KINDS)))], CHANGES[int(rng.integers(len(CHANGES)))]
    first = draw.result(kind, draw.dtype())
    graph = ir_graph.Graph(tuple(draw.inputs), (first,))
    n = ir_graph.producer(first)
    assert n is not None
    x, scale, zero = n.inputs
    assert isinstance(scale, ir_graph.Constant)
    s = float(scale.load())
    second: Value
    match change:
        case "passes":
            second = merge_requantization(lower_quantized_products(graph)).outputs[0]
        case "products":
            second = lower_quantized_products(graph).outputs[0]
        case "offset":  # equal over the reals; float32 cancels
            much = number(s * 2.0 ** int(rng.integers(4, 30)))
            moved = make("Sub", [make("Add", [x, much]), much])
            second = make("QuantizeLinear", [moved, scale, zero])
        case "step":  # never equal
            second = make("QuantizeLinear", [make("Add", [x, number(s)]), scale, zero])
        case "scale":
            second = make("QuantizeLinear", [x, number(s * 1.01), zero])
        case "merged":
            by = number(draw.scale())
            second = make("QuantizeLinear", [make("Mul", [make("Div", [x, by]), by]), scale, zero])
        case _:
            second = _with_other_weight(first, rng)
    if second is first:
        return None
    is_equal = change in ("passes", "products", "offset", "merged")
    return Pair(kind, change, tuple(draw.inputs), first, second, is_equal)


def _with_other_weight(root: Value, rng: np.random.Generator) -> Value:
    """Return a graph with another weight, by one."""
    for c in ir_graph.constants([root]):
        w = c.load()
        if w.dtype == np.int8 and w.ndim == 2:
            other = w.copy()
            at = tuple(int(rng.integers(d)) for d in w.shape)
            other[at] += -1 if other[at] > 0 else 1
            change: dict[Value, Value] = {c: ir_graph.constant(other)}
            return ir_graph.replace(ir_graph.Graph((), (root,)), change).outputs[0]
    return root


def draw_feeds(
    inputs: tuple[ir_graph.Input, ...], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return integers of the whole range; an eighth of the rows are of extremes only."""
    feeds = {}
    for i in inputs:
        assert i.type.dtype is not None
        low, high = (0, 256) if i.type.dtype == U8 else (-128, 128)
        x = rng.integers(low, high, i.type.shape)  # type: ignore[arg-type]
        rows = len(x) // 8
        x[:rows] = rng.choice([low, high - 1], x[:rows].shape)
        feeds[i.name] = x.astype(to_numpy(i.type.dtype))
    return feeds


@dataclass(slots=True)
class Counts:
    """pairs, proved: by change; steps: proved ones; inputs: rows compared, differing: of these, by
    steps, exact: in exact arithmetic; share: the largest part of a bound that was reached; wrong:
    what was wrong, with its seed."""

    pairs: Counter[str] = field(default_factory=Counter)
    proved: Counter[str] = field(default_factory=Counter)
    steps: Counter[int] = field(default_factory=Counter)
    inputs: int = 0
    differing: int = 0
    exact: int = 0
    share: float = 0.0
    wrong: list[str] = field(default_factory=list)


def check_pair(seed: int, counts: Counts) -> None:
    """Draw a pair, prove it, and compare the proof with what is computed."""
    pair = draw_pair(seed)
    if pair is None:
        return
    counts.pairs[pair.change] += 1
    found = StepProver(time.monotonic() + 20).prove(pair.first, pair.second)
    if not isinstance(found, WithinSteps):
        return
    counts.proved[pair.change] += 1
    counts.steps[found.steps] += 1
    label = f"seed {seed}, {pair.kind}, {pair.change}, within {found.steps} ({found.error:.3g})"
    _check_results(pair, found, np.random.default_rng(seed + 1), counts, label)


def _check_results(
    pair: Pair, found: WithinSteps, rng: np.random.Generator, counts: Counts, label: str
) -> None:
    quotients = [q.in_steps() for v in (pair.first, pair.second) if (q := match_result(v))]
    feeds = draw_feeds(pair.inputs, rng)
    graph = ir_graph.Graph(pair.inputs, (pair.first, pair.second, *quotients))
    runs = [evaluate(graph, feeds, domain) for domain in ORDERS]
    results = [[r[k].astype(np.int64) for r in runs] for k in (0, 1)]
    counts.inputs += ROWS
    # what both graphs share is computed alike, in the same order
    either = zip(*results, strict=True) if pair.kind == "two layers" else product(*results)
    distance = max(int(np.abs(a - b).max()) for a, b in either)
    counts.differing += int((results[0][0] != results[1][0]).any(axis=1).sum())
    if distance > found.steps:
        counts.wrong.append(f"{label}: {distance} steps")
    if len(quotients) < 2:  # one of them is the operand, as scales cancel
        return
    rows = _rows_next_to_ties(runs[0][2])
    some = {name: x[rows] for name, x in feeds.items()}
    small = _with_rows(pair, len(rows), quotients)
    exact = evaluate(small, some, ExactRationals())
    counts.exact += len(rows)
    both = [
        max(np.abs(_fractions(r[2 + k][rows]) - exact[2 + k]).max() for r in runs) for k in (0, 1)
    ]
    if pair.kind != "two layers" and pair.is_equal:
        reached = float(both[0] + both[1]) / found.error
        counts.share = max(counts.share, reached)
        if reached > 1:
            counts.wrong.append(f"{label}: errors are {reached:.3g} of the bound")
    far = max(int(np.abs(results[k][0][rows] - exact[k].astype(np.int64)).max()) for k in (0, 1))
    if pair.kind != "two layers" and pair.is_equal and far > found.steps:
        counts.wrong.append(f"{label}: {far} steps from exact arithmetic")


def _with_rows(pair: Pair, rows: int, quotients: list[Value]) -> ir_graph.Graph:
    """Return the graph for another number of rows."""
    change: dict[Value, Value] = {}
    for i in pair.inputs:
        shape = (rows, *(i.type.shape or ())[1:])
        change[i] = ir_graph.Input(i.name, TensorType(i.type.dtype, shape))
    for n in ir_graph.nodes([pair.first, pair.second, *quotients]):
        inputs = [None if v is None else change.get(v, v) for v in n.inputs]
        if inputs != list(n.inputs):
            again = ir_graph.node(n.op, inputs, **dict(n.attrs))
            change.update(zip(ir_graph.results(n), ir_graph.results(again), strict=True))
    inputs = tuple(v for i in pair.inputs if isinstance(v := change[i], ir_graph.Input))
    roots = (pair.first, pair.second, *quotients)
    return ir_graph.Graph(inputs, tuple(change.get(v, v) for v in roots))


def _rows_next_to_ties(quotient: np.ndarray) -> np.ndarray:
    """Return the rows with values nearest to the middle of two steps, the first ones, too, which
    are extremes."""
    distance = np.abs(quotient - np.floor(quotient) - 0.5).min(axis=1)
    near = np.argsort(distance)[: KEPT_ROWS - 4]
    return np.unique(np.concatenate([np.arange(4), near]))


def _fractions(x: np.ndarray) -> np.ndarray:
    return ExactRationals().load(x, TensorType(F32, None))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    counts = Counts()
    for seed in range(args.seed, args.seed + args.pairs):
        check_pair(seed, counts)
        for w in counts.wrong:
            print(w, flush=True)
        if counts.wrong:
            return 1
    print(
        f"{sum(counts.pairs.values())} pairs, {sum(counts.proved.values())} proved within steps"
        f" {dict(sorted(counts.steps.items()))}, {counts.inputs:,} rows of inputs,"
        f" {counts.differing:,} of them differ; {counts.exact:,} in exact arithmetic;"
        f" at most {counts.share:.1%} of a bound is reached; none wrong"
    )
    for change in CHANGES:
        print(f"  {change}: {counts.proved[change]} of {counts.pairs[change]} proved")
    return 0


if __name__ == "__main__":
    sys.exit(main())
