"""Whether rounding alone explains that float64 results of two quantized models differ.

A folded constant, rounded to float32, may move a value across the middle of two quantization steps;
later layers spread that. So the float64 results of equal models may differ by steps. Equal models
are still equal without rounding (check/unrounded.py), and they quantize to the same grids.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field, replace

import numpy as np

from superopt.check.compare import ROUNDED_TOLERANCE, compare_exact
from superopt.check.near_ties import worst_near_ties
from superopt.check.numeric_check import NotEvaluable, Values, evaluate_outputs
from superopt.check.quantization_steps import NO_PROOF, Step, StepAllowance, step_difference
from superopt.check.quantizers import depends_on_quantizer, quantization_grids
from superopt.check.random_inputs import Feeds
from superopt.check.unrounded import Unrounded
from superopt.errors import OutOfTime
from superopt.ir import graph as ir_graph

# Of float64 results without rounding; constants may be folded to float32. See `compare_exact`.
UNROUNDED_TOLERANCE = (1e-4, 1e-5, 1e-9)


@dataclass(frozen=True, slots=True)
class QuantizedOutputs:
    """The comparison of two models' float64 results on one set of inputs.

    first_results: the first model's results without rounding, by the set's kind: it is compared
    with many models.
    """

    first: ir_graph.Graph
    second: ir_graph.Graph
    feed: Feeds
    first_results: MutableMapping[str, Values | None]
    second_results: dict[str, Values | None] = field(default_factory=dict)

    def difference(
        self,
        k: int,
        step: Step | None,
        first: np.ndarray,
        original: np.ndarray,
        second: np.ndarray,
        tolerance_scale: float,
        allowance: StepAllowance = NO_PROOF,
    ) -> str:
        """Return why output `k` differs by more than rounding; empty if it does not. first, second:
        the results in float64; original: of the first model in its own types; allowance: what is
        proved of the steps."""
        unrounded = self.unrounded_difference(k)
        if unrounded:
            return f"without rounding to quantization steps, {unrounded}"
        if np.array_equal(first, second, equal_nan=True):
            return ""
        if step is not None:
            scale = allowance.scale(tolerance_scale)
            found = step_difference(step, first, original, second, scale, allowance.steps)
            if found.failure:
                return f"in float64, {found.failure}"
            if not found.count or found.steps <= allowance.steps:
                return ""
        elif unrounded is None or not compare_exact(first, second, ROUNDED_TOLERANCE):
            return ""  # the results in the models' own types are compared, too
        grids = [quantization_grids(g) for g in (self.first, self.second)]
        if None not in grids and grids[0] != grids[1]:
            return "results in float64 differ by steps, and scales or zero points differ"
        return ""

    def near_ties(self, k: int, first: np.ndarray) -> np.ndarray | None:
        """Return the first model's output `k` with values quantized to their neighbours near ties,
        as far from `first`, its float64 result, as was found; None if it cannot be evaluated so."""
        if any(n.op.opaque for n in ir_graph.nodes(self.first)):
            return None
        one = replace(self.first, outputs=(self.first.outputs[k],))
        try:
            return next(worst_near_ties(lambda d: evaluate_outputs(one, self.feed, {}, d), [first]))
        except (NotEvaluable, MemoryError, OutOfTime):
            return None

    def unrounded_difference(self, k: int) -> str | None:
        """Return how output `k` differs without rounding; None if it cannot be evaluated so."""
        one = self.unrounded_values(self.first, self.first_results)
        other = None if one is None else self.unrounded_values(self.second, self.second_results)
        if one is None or other is None:
            return None
        a, b = one[k], other[k]
        if a is None or b is None or a.dtype != np.float64:
            return None
        if a.shape != b.shape:
            return f"shape {b.shape} instead of {a.shape}"
        return compare_exact(a, b, UNROUNDED_TOLERANCE)

    def unrounded_values(
        self, graph: ir_graph.Graph, known: MutableMapping[str, Values | None]
    ) -> Values | None:
        """Return the outputs of a graph without rounding, from `known` if they are there."""
        if self.feed.kind not in known:
            known[self.feed.kind] = _unrounded_values(graph, self.feed)
        return known[self.feed.kind]


def _unrounded_values(graph: ir_graph.Graph, feed: Feeds) -> Values | None:
    """Return the outputs without rounding; None if the graph rounds other than by quantizers, or
    cannot be evaluated so."""
    if any(n.op.opaque or n.op.name == "Round" for n in ir_graph.nodes(graph)):
        return None
    try:
        return evaluate_outputs(graph, feed, {}, Unrounded())
    except (NotEvaluable, MemoryError, OutOfTime):
        return None


def quantized_outputs(graph: ir_graph.Graph) -> tuple[bool, ...]:
    """Return, for each output, whether it is computed from results of quantization."""
    return tuple(map(depends_on_quantizer, graph.outputs))
