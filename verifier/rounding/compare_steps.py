"""Outputs of two graphs that are equal within quantization steps: layer by layer."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from superopt.ir import graph as ir_graph
from superopt.ir.substitute import replace_all
from superopt.verifier.compare.sketches import candidate_pairs
from superopt.verifier.rounding.affine_sums import is_selection
from superopt.verifier.rounding.graph_bounds import is_small_integer
from superopt.verifier.rounding.graph_steps import (
    Partner,
    StepProver,
    WithinSteps,
)
from superopt.verifier.rounding.quantized_results import SELECTING, match_result, number_of
from superopt.verifier.verdict import Unknown

Value = ir_graph.Value
SKETCH_PART = 0.3  # of the time
MAX_CANDIDATES = 3  # results of one kind that are tried in order


def compare_within_steps(
    a: ir_graph.Graph,
    b: ir_graph.Graph,
    seconds: float,
    seed: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[WithinSteps | Unknown, ...]:
    """Prove that the outputs of `b` are within steps of those of `a`, for all inputs. Both graphs
    have the same inputs, and what they share is one value.

    Quantized results are proved in the order of the second graph, each from those before it: steps
    by which these differ are errors of what reads them.
    """
    a, b = map(without_zero_points, (a, b))
    work = _Comparison(a, b, StepProver(time.monotonic() + seconds, stop=stop), seconds, seed)
    work.prove_layers()
    return tuple(work.output(x, y) for x, y in zip(a.outputs, b.outputs, strict=True))


def are_layers_near(
    a: ir_graph.Graph,
    b: ir_graph.Graph,
    seconds: float,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """True if each quantized result that only `b` has is proved to be within a step of one of `a`,
    for equal operands: so `b` is `a` with steps at its quantized values."""
    a, b = map(without_zero_points, (a, b))
    prover = StepProver(time.monotonic() + seconds, stop=stop, equal_operands=True)
    work = _Comparison(a, b, prover, seconds, 0, stops_early=True)
    work.prove_layers()
    mine = set(ir_graph.walk(a))
    left = [v for v in _quantized_values(b) if v not in mine and v not in prover.partners]
    return not left and all(p.steps <= 1 for p in prover.partners.values())


def without_zero_points(g: ir_graph.Graph) -> ir_graph.Graph:
    """Return a graph without zero points of 0, which say nothing, bit by bit."""
    change: dict[Value, Value] = {}
    for n in ir_graph.nodes(g):
        is_dequantized = n.op.name == "DequantizeLinear" and not n.op.domain
        if is_dequantized and len(n.inputs) == 3 and number_of(n.inputs[2]) == 0:
            change[n] = ir_graph.node(n.op, n.inputs[:2], **dict(n.attrs))
    return replace_all(g, change) if change else g


@dataclass(slots=True)
class _Comparison:
    """stops_early: end at the first result without a partner."""

    a: ir_graph.Graph
    b: ir_graph.Graph
    prover: StepProver
    seconds: float
    seed: int
    sketches: dict[Value, Value] | None = field(default=None)
    stops_early: bool = False

    def prove_layers(self) -> None:
        """Find a partner for each quantized result that only the second graph has."""
        alike = defaultdict[object, list[Value]](list)
        shared = set(ir_graph.walk(self.a))
        for v in _quantized_values(self.a):
            alike[_kind_of(v)].append(v)
        seen = defaultdict[object, int](int)
        for v in _quantized_values(self.b):
            kind = _kind_of(v)
            if v in shared:
                if v in alike[kind]:
                    seen[kind] = alike[kind].index(v) + 1
                continue
            near = alike[kind][seen[kind] : seen[kind] + MAX_CANDIDATES]
            found = self.find_partner(v, near)
            if found is None and self.stops_early:
                return
            if found in alike[kind]:
                seen[kind] = alike[kind].index(found) + 1

    def find_partner(self, v: Value, near: Sequence[Value]) -> Value | None:
        """Return the partner of a result of the second graph: near ones by their numbers first,
        then the one that agrees on random inputs, and the next one, by the prover, too."""
        for first in near:
            if self.try_partner(first, v, numbers_only=True):
                return first
        if time.monotonic() > self.prover.deadline:
            return None
        other = self.sketch_partner(v)
        for first in dict.fromkeys((*([other] if other is not None else []), *near[:1])):
            if self.try_partner(first, v, numbers_only=False):
                return first
        return None

    def try_partner(self, first: Value, second: Value, numbers_only: bool) -> bool:
        """True if a value of the second graph is proved to be within steps of one of the first.
        numbers_only: as a sum of integers, without the prover."""
        found = self.prover.prove(first, second, numbers_only)
        if isinstance(found, WithinSteps):
            self.prover.partners[second] = Partner(first, found)
        return isinstance(found, WithinSteps)

    def sketch_partner(self, v: Value) -> Value | None:
        """Return the value of the first graph that agrees on random inputs."""
        if self.sketches is None:
            end = time.monotonic() + SKETCH_PART * self.seconds
            self.sketches = candidate_pairs(self.a, self.b, self.seed, end)
        return self.sketches.get(v)

    def output(self, x: Value, y: Value) -> WithinSteps | Unknown:
        """Return by how many steps one output differs: also of dequantized ones, and of moved
        ones."""
        if x is y:
            return WithinSteps(0, 0.0)
        partner = self.prover.partners.get(y)
        if partner is not None and partner.first is x:
            return partner.within
        pairs = _moved_operands(x, y)
        if pairs is None:
            return self.prover.prove(x, y)
        every = [self.output(*pair) for pair in pairs]
        failed = next((e for e in every if isinstance(e, Unknown)), None)
        proved = [e for e in every if isinstance(e, WithinSteps)]
        if failed is not None:
            return failed
        return max(proved, key=lambda e: (e.steps, e.error))


def _moved_operands(x: Value, y: Value) -> Sequence[tuple[Value, Value]] | None:
    """Return the operands whose elements two values are, moved, selected or dequantized alike;
    None for other values."""
    one, two = ir_graph.producer(x), ir_graph.producer(y)
    if one is None or two is None or (one.op, one.attrs) != (two.op, two.attrs):
        return None
    if len(one.inputs) != len(two.inputs) or one.types != two.types:
        return None
    if ir_graph.results(one).index(x) != ir_graph.results(two).index(y):
        return None
    pairs = [
        (v, w)
        for v, w in zip(one.inputs, two.inputs, strict=True)
        if v is not None or w is not None
    ]
    if any(v is None or w is None for v, w in pairs):
        return None
    known = [(v, w) for v, w in pairs if v is not None and w is not None]
    if one.op.name == "DequantizeLinear" and not one.op.domain:
        return known[:1] if all(v is w for v, w in known[1:]) else None
    if "data" in one.op.laws or one.op.name in SELECTING:
        moved = [(v, w) for v, w in known if v.type.dtype == x.type.dtype]
        others = [(v, w) for v, w in known if v.type.dtype != x.type.dtype]
        return moved if moved and all(v is w for v, w in others) else None
    return None


def _quantized_values(g: ir_graph.Graph) -> Iterator[Value]:
    """Yield the results that are quantized in a graph, operands first, and what is selected of
    them as integers."""
    for n in ir_graph.nodes(g):
        if n.op.name in ("QuantizeLinear", "Cast"):
            if match_result(n) is not None:
                yield n
        elif len(n.types) == 1 and is_selection(n) and is_small_integer(n):
            yield n


def _kind_of(v: Value) -> object:
    return v.type.dtype, v.type.shape
