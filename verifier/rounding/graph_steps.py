"""Quantized results of two graphs that are equal within k steps, for all inputs.

Both results are taken apart into zero + rint(y), limited alike (`quantized_results.py`). If y1 and
y2 differ by at most D over the real numbers, and their float32 rounding errors are E1 and E2, then
the results differ by at most floor(D + E1 + E2) + 1 steps (the argument is in `rule_steps.py`).

D is 0 if the prover shows y1 = y2, and a sum over the constants' numbers if both are sums of scaled
integers (`affine_sums.py`). What both graphs share is computed alike: it is any value of its range
for both. Results that were shown to be within k steps before are shared, too, with an error of k
steps in the second graph.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from superopt.ir import graph as ir_graph
from superopt.ir.constant_values import is_constant
from superopt.ir.op import InferError
from superopt.ir.stand_ins import numbered_input
from superopt.ir.substitute import replace_all
from superopt.verifier.compare.regions import compare_graphs
from superopt.verifier.prove import Limits
from superopt.verifier.rounding.affine_sums import AffineReader
from superopt.verifier.rounding.error_bounds import (
    SAFETY,
    Bounds,
    Unbounded,
    is_infinite,
)
from superopt.verifier.rounding.error_bounds import Limits as BoundLimits
from superopt.verifier.rounding.graph_bounds import (
    GraphBounds,
    as_array,
    computed_range,
    is_small_integer,
)
from superopt.verifier.rounding.quantized_results import (
    QuantizedResult,
    match_result,
    whole_result,
)
from superopt.verifier.verdict import Unknown

Value = ir_graph.Value
MAX_STEPS = 64  # more is not worth a proof: 8 bits have 255
MAX_EQUALITY_SECONDS = 2.0  # of one proof over the real numbers
MAX_REAL_DIFFERENCE = 0.1  # steps; constants in float32 explain less, another function has more
MAX_ERROR_OF_WHOLE = 0.4  # of a quotient that is a whole number: it is rounded to that


@dataclass(frozen=True, slots=True)
class WithinSteps:
    """Two results differ by at most `steps`. error: the bound of the difference before rounding, in
    steps."""

    steps: int
    error: float

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Partner:
    """The value of the first graph that one of the second is within steps of."""

    first: Value
    within: WithinSteps

    @property
    def steps(self) -> int:
        return self.within.steps


@dataclass(slots=True)
class StepProver:
    """Proves results of graphs equal within steps. partners: values of the second graph that were
    shown to be within steps of the first one's. deadline: of time.monotonic(). equal_operands: take
    these to be equal, to prove one layer and not those before it."""

    deadline: float = math.inf
    partners: dict[Value, Partner] = field(default_factory=dict)
    reader: AffineReader = field(default_factory=AffineReader)
    ranges: dict[Value, Bounds] = field(default_factory=dict)
    stop: Callable[[], bool] = lambda: False
    equal_operands: bool = False

    def prove(self, a: Value, b: Value, numbers_only: bool = False) -> WithinSteps | Unknown:
        """Prove that `b` is within steps of `a`. numbers_only: only as sums of integers."""
        begin = time.thread_time()

        def unknown(why: str) -> Unknown:
            return Unknown(why, time.thread_time() - begin)

        if a is b:
            return WithinSteps(0, 0.0)
        reasons: list[str] = []
        for one, two in _matched_pairs(a, b):
            if (one.dtype, one.zero, one.low, one.high) != (two.dtype, two.zero, two.low, two.high):
                reasons.append("other zero points or limits")
                continue
            if one.value.type.shape != two.value.type.shape:
                reasons.append("other shapes")
                continue
            found = self.prove_results(one, two, numbers_only)
            if isinstance(found, WithinSteps):
                return found
            reasons.append(found)
        return unknown(reasons[0] if reasons else "not a quantization of float32 by constants")

    def prove_results(
        self, one: QuantizedResult, two: QuantizedResult, numbers_only: bool
    ) -> WithinSteps | str:
        """Return by how many steps two results differ, or why that is not known."""
        reason = "no time was left"
        for integers_only in (False, True):
            if time.monotonic() > self.deadline or self.stop():
                break
            pair = self.shared_pair(one, two, integers_only)
            try:
                error = self.largest_difference(pair, numbers_only)
            except (Unbounded, InferError) as e:
                reason = str(e)
                continue
            if error is None:
                reason = "not shown equal over the real numbers"
                continue
            found = _steps_of_error(error, one, two)
            if found is not None:
                return found
            reason = f"rounding errors are up to {error.total:.3g} steps"
        return reason

    def shared_pair(
        self, one: QuantizedResult, two: QuantizedResult, integers_only: bool
    ) -> _SharedPair:
        """Return both quotients with stand-ins for what they share. integers_only: only for
        integers and inputs, not for floats that are computed from them."""
        change: dict[Value, Value] = {}
        leaves: dict[Value, Bounds] = {}
        errors: dict[Value, float] = {}
        y, other = one.in_steps(), two.in_steps()
        known = {v: p for v, p in self.partners.items() if p.first is not v}
        back: dict[Value, Value] = {v: p.first for v, p in known.items()}
        moved = replace_all(ir_graph.Graph((), (other,)), back).outputs[0] if back else other
        differing = {p.first for p in known.values() if p.steps and not self.equal_operands}
        for v in _shared_values(y, moved, integers_only, differing):
            leaf = numbered_input(len(change), v.type, "shared")
            change[v] = leaf
            leaves[leaf] = self.range_of(v)
            steps = [p.steps for p in known.values() if p.first is v and v in differing]
            errors[leaf] = max(steps, default=0)
        both = replace_all(ir_graph.Graph((), (y, moved)), change).outputs
        return _SharedPair(both[0], both[1], leaves, errors)

    def largest_difference(self, pair: _SharedPair, numbers_only: bool) -> _Error | None:
        """Return bounds of the difference of the computed quotients, in steps; None if they are
        not shown to be equal over the real numbers."""
        limits = BoundLimits()
        errors = [
            pair.bounds(limits, with_errors).total_error(y)
            for y, with_errors in ((pair.first, False), (pair.second, True))
        ]
        if any(is_infinite(e) for e in errors):
            raise Unbounded("rounding errors of floats of any size")
        for amount, most in limits.amounts:
            if not float(np.max(as_array(amount))) * SAFETY <= most:
                raise Unbounded("float32 may overflow, or sums are too long")
        over_reals = self.affine_difference(pair)
        if over_reals is None:
            if numbers_only or not self.are_equal(pair):
                return None
            over_reals = 0.0
        one, two = (over_reals + as_array(e) for e in errors)
        total = over_reals + as_array(errors[0]) + as_array(errors[1])
        return _Error(*(float(np.max(e)) * SAFETY for e in (one, two, total)))

    def affine_difference(self, pair: _SharedPair) -> np.ndarray | float | None:
        """Return the largest difference over the real numbers of two sums of the same integers;
        None if they are none, or other sums."""
        a, b = (self.reader.read(y) for y in (pair.first, pair.second))
        if a is None or b is None or a.terms.keys() != b.terms.keys():
            return None
        if a.selected != b.selected:
            return None
        total = a.offset.distance(b.offset)
        bounds = pair.bounds(BoundLimits(), False)
        for x, c in a.terms.items():
            size = as_array(bounds.bounds_of(x).size)
            total = total + c.distance(b.terms[x]) * size
        return total if np.max(total) <= MAX_REAL_DIFFERENCE else None

    def are_equal(self, pair: _SharedPair) -> bool:
        """True if the prover shows both quotients equal for all values of what they share."""
        seconds = min(MAX_EQUALITY_SECONDS, self.deadline - time.monotonic())
        if seconds <= 0:
            return False
        limits = Limits(seconds=seconds, has_exact_casts=True)
        inputs = tuple(v for v in pair.leaves if isinstance(v, ir_graph.Input))
        graphs = [ir_graph.Graph(inputs, (y,)) for y in (pair.first, pair.second)]
        found = compare_graphs(graphs[0], graphs[1], limits, seconds, stop=self.stop)
        return not isinstance(found.outputs[0], Unknown)

    def range_of(self, v: Value) -> Bounds:
        """Return the bounds of a value that both graphs compute alike, as one that is exact."""
        found = self.ranges.get(v)
        if found is None:
            found = self.ranges[v] = computed_range(v)
        return found


@dataclass(frozen=True, slots=True)
class _Error:
    """Bounds of errors in steps, with the difference over the real numbers: of the first quotient,
    of the second, and of both together."""

    first: float
    second: float
    total: float


def _steps_of_error(
    error: _Error, one: QuantizedResult, two: QuantizedResult
) -> WithinSteps | None:
    """Return by how many steps results differ; None for many. A quotient that is near a whole
    number, as it is equal to one over the real numbers, is rounded to that."""
    total = error.total
    if two.is_whole and error.first < MAX_ERROR_OF_WHOLE:
        steps = round(error.second)
        total = min(total, float(steps))
    elif one.is_whole and error.second < MAX_ERROR_OF_WHOLE:
        steps, total = 0, 0.0
    else:
        steps = math.floor(total) + 1
    return WithinSteps(steps, total) if steps <= MAX_STEPS else None


def _matched_pairs(a: Value, b: Value) -> Iterator[tuple[QuantizedResult, QuantizedResult]]:
    """Yield two results taken apart: also one of them as the integers that it is."""
    one, two = match_result(a), match_result(b)
    if one is not None and two is not None:
        yield one, two
    if one is not None and (whole := whole_result(b, one.zero)) is not None:
        yield one, whole
    if two is not None and (whole := whole_result(a, two.zero)) is not None:
        yield whole, two


@dataclass(frozen=True, slots=True)
class _SharedPair:
    """Two quotients over stand-ins for what they share, the stand-ins' bounds, and the steps by
    which they differ in the second graph."""

    first: Value
    second: Value
    leaves: Mapping[Value, Bounds]
    errors: Mapping[Value, float]

    def bounds(self, limits: BoundLimits, with_errors: bool) -> GraphBounds:
        leaves = dict(self.leaves)
        if with_errors:
            for v, steps in self.errors.items():
                if steps:
                    leaves[v] = Bounds(
                        leaves[v].size, error=float(steps), low=leaves[v].low,
                        high=leaves[v].high, is_relative=True,
                    )  # fmt: skip
        return GraphBounds(limits, leaves)


def _shared_values(
    y: Value, other: Value, integers_only: bool, differing: Collection[Value]
) -> list[Value]:
    """Return the values nearest to `y` that `other` is computed from, too, without constants.
    differing: values that are not equal in both graphs, so that what is computed from them is not
    shared, only they are."""
    theirs = set(_all_values(other))
    unequal = _computed_from(y, differing)
    found: dict[Value, None] = {}
    stack, seen = [y], {y}
    while stack:
        v = stack.pop()
        if is_constant(v, {}):
            continue
        kind = ir_graph.producer(v) is None or is_small_integer(v)
        if v in theirs and (v in differing or (v not in unequal and (kind or not integers_only))):
            found[v] = None
            continue
        for w in ir_graph.operands(v):
            if w not in seen:
                seen.add(w)
                stack.append(w)
    return list(found)


def _computed_from(y: Value, sources: Collection[Value]) -> set[Value]:
    """Return the values on the way to `y` that are computed from some of the sources."""
    out: set[Value] = set()
    for n in ir_graph.nodes([y]) if sources else ():
        if any(i in sources or i in out for i in n.inputs if i is not None):
            out.update(ir_graph.results(n))
    return out


def _all_values(v: Value) -> list[Value]:
    nodes = ir_graph.nodes([v])
    return [v, *(r for n in nodes for r in (*ir_graph.results(n), *n.inputs) if r is not None)]
