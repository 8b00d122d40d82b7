"""Differences of quantized results, counted in quantization steps.

A value near the middle of two steps may become either, by a difference of 1e-7, and steps spread
through later layers. So two quantized models that are equal over the real numbers differ by whole
steps, as the original does from its own float64 definition. The step of an output is 1 for
integers, and the scale for the floats behind a DequantizeLinear:

QuantizeLinear -> MaxPool                          1
QuantizeLinear -> DequantizeLinear(s) -> Reshape   s
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from superopt.check.quantizers import constant_array, is_quantizer
from superopt.check.random_inputs import concrete_type
from superopt.ir import graph as ir_graph
from superopt.ir.evaluate import evaluate
from superopt.ir.substitute import replace_all
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64, DType, to_numpy

# Operators whose results are, up to the sign, elements of the operand.
_SELECTING_OPS = frozenset(
    ("MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "Relu", "Neg", "Abs", "Gather",
     "GatherElements", "GatherND")
)  # fmt: skip
MAX_QUANTIZED_BITS = 16
# A difference in float32 is a multiple of the step to within 2^16 * 2^-24 steps.
MAX_FRACTION_OF_STEP = 1 / 64
NEAR_TIE_FRACTION = 1e-3  # of the elements may differ by a step where the original's own do not
NEAR_TIE_ELEMENTS = 3  # in small outputs
MAX_COUNT_GROWTH = 3.0  # of the number of elements that differ in the original itself
MAX_STEP_GROWTH = 2.0  # of the original's own largest difference, beyond one step

Step = float | np.ndarray  # of an output: of all elements, or of each


@dataclass(frozen=True, slots=True)
class StepDifference:
    """steps: the largest difference, in whole steps; count: of elements that differ;
    original_steps: the original's own largest difference from float64; failure: empty if rounding
    explains the difference."""

    steps: int
    count: int
    original_steps: int
    failure: str


@dataclass(frozen=True, slots=True)
class StepAllowance:
    """What is proved of an output of a quantization. steps: by which it may differ in any number of
    elements; has_near_layers: each layer before it is within a step for equal operands, so that its
    steps are those of ties in layers: then the whole of the tolerance in steps may be used."""

    steps: int = 0
    has_near_layers: bool = False

    def scale(self, tolerance_scale: float) -> float:
        """Return the factor of the tolerance in steps, which is at least that of floats."""
        return max(tolerance_scale, 1.0) if self.has_near_layers else tolerance_scale


NO_PROOF = StepAllowance()


def output_step(v: ir_graph.Value, sizes: Mapping[str, int]) -> Step | None:
    """Return the quantization step of a value at `sizes`; None if it is not of a quantization with
    a constant scale."""
    leaves: dict[ir_graph.Value, None] = {}
    if not _collect_quantized(v, leaves):
        return None
    if v.type.dtype is not None and v.type.dtype.is_int:
        return 1.0
    scales = [constant_array(n.inputs[1]) for n in map(ir_graph.producer, leaves) if n is not None]
    if any(s is None for s in scales):
        return None
    flat = [s.reshape(-1) for s in scales if s is not None]
    if all(s.size == 1 and s[0] == flat[0][0] for s in flat):
        return float(flat[0][0])
    return _element_steps(v, list(leaves), sizes)


def _collect_quantized(v: ir_graph.Value, leaves: dict[ir_graph.Value, None]) -> bool:
    """Add the values that `v` selects elements of: of integers the quantized ones, of floats the
    dequantized ones. False if it is not made of such values alone."""
    stack = [v]
    seen: set[ir_graph.Value] = set()
    while stack:
        x = stack.pop()
        if x in seen:
            continue
        seen.add(x)
        n, dtype = ir_graph.producer(x), x.type.dtype
        if n is None or dtype is None:
            return False
        if is_quantizer(n) and x == ir_graph.result(n, 0) and _is_quantized(dtype):
            leaves[x] = None
        elif n.op.name == "DequantizeLinear" and dtype.is_float:
            source = n.inputs[0]
            if source is None or not _collect_quantized(source, {}):
                return False
            leaves[x] = None
        elif "data" in n.op.laws or n.op.name in _SELECTING_OPS:
            stack += [i for i in n.inputs if i is not None and i.type.dtype == dtype]
        else:
            return False
    return True


def _is_quantized(dtype: DType) -> bool:
    return dtype.is_int and dtype.bits <= MAX_QUANTIZED_BITS


def _element_steps(
    v: ir_graph.Value, leaves: Iterable[ir_graph.Value], sizes: Mapping[str, int]
) -> np.ndarray | None:
    """Return the step of each element of `v`: what it selects of the scales of `leaves`."""
    change: dict[ir_graph.Value, ir_graph.Value] = {}
    feeds: dict[str, np.ndarray] = {}
    for k, leaf in enumerate(leaves):
        n = ir_graph.producer(leaf)
        assert n is not None
        scale = constant_array(n.inputs[1])
        try:
            t = concrete_type(leaf.type, sizes)
        except KeyError:
            return None
        if scale is None or t.shape is None or t.dtype is None or n.attr("block_size"):
            return None
        if scale.size > 1:
            axis = n.attr("axis")
            assert isinstance(axis, int)
            scale = scale.reshape([-1 if d == axis else 1 for d in range(len(t.shape))])
        change[leaf] = made = ir_graph.Input(f"step {k}", t)
        feeds[made.name] = np.broadcast_to(scale.astype(to_numpy(t.dtype)), t.shape)  # type: ignore[arg-type]
    moved = replace_all(ir_graph.Graph((), (v,)), change)
    inputs = tuple(i for i in change.values() if isinstance(i, ir_graph.Input))
    try:
        (steps,) = evaluate(ir_graph.Graph(inputs, moved.outputs), feeds, Reals(F64))
    except ValueError:  # it needs other inputs, or sizes
        return None
    found: np.ndarray = np.abs(np.asarray(steps))
    return found


def step_difference(
    step: Step,
    reference: np.ndarray,
    original: np.ndarray,
    candidate: np.ndarray,
    tolerance_scale: float = 1.0,
    proved_steps: int = 0,
) -> StepDifference:
    """Compare finite results of one shape in steps. reference: in float64; original: in the model's
    own types.

    An element's difference is the lesser one, from the reference or the original. The largest may
    be one step more than twice the original's own, and as many elements may differ as explained by
    ties: three times as many as of the original, and a few more. tolerance_scale: a factor of both.
    proved_steps: by which results may differ in any number of elements, as is proved.
    """
    ref, own, c = (a.astype(np.float64) for a in (reference, original, candidate))
    with np.errstate(divide="ignore", invalid="ignore"):
        from_both = np.minimum(np.abs(c - ref), np.abs(c - own)) / step
        own_steps = np.abs(own - ref) / step
    distance, own_distance = (np.where(np.isnan(d), 0.0, d) for d in (from_both, own_steps))
    whole = np.rint(distance)
    count, own_count = (int(np.count_nonzero(np.rint(d))) for d in (distance, own_distance))
    most, own_most = (int(min(d.max(initial=0), 1e9)) for d in (whole, np.rint(own_distance)))
    allowed = 1 + int(MAX_STEP_GROWTH * tolerance_scale * own_most)
    near_ties = NEAR_TIE_FRACTION * c.size + NEAR_TIE_ELEMENTS + MAX_COUNT_GROWTH * own_count
    worst = tuple(int(i) for i in np.unravel_index(int(distance.argmax()), distance.shape))
    failure = ""
    if most > max(allowed, proved_steps):
        place = list(worst)
        failure = f"{most} quantization steps at {place}, of which rounding explains {allowed}"
    elif (np.abs(distance - whole) > MAX_FRACTION_OF_STEP).any():
        part = np.abs(distance - whole)
        at = [int(i) for i in np.unravel_index(int(part.argmax()), part.shape)]
        failure = f"{distance[tuple(at)]:.3g} quantization steps at {at}: not a whole number"
    elif most > proved_steps and count > tolerance_scale * near_ties:
        failure = (
            f"{count} of {c.size} elements differ by quantization steps, of which rounding "
            f"explains {int(tolerance_scale * near_ties)}"
        )
    return StepDifference(most, count, own_most, failure)
