"""The numerical check of a rewritten model: every output against the original in float64.

The original's values are computed once for each set of inputs (`reference_values`), and every
candidate is compared with them (`compare_candidate`). An output that is the same value in both
graphs is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from superopt.check.compare import (
    Comparison,
    compare_exact,
    compare_output,
    count_differences,
    failed_comparison,
    root_mean_square,
)
from superopt.check.opaque_regions import Regions
from superopt.check.quantization_steps import (
    NO_PROOF,
    StepAllowance,
    output_step,
    step_difference,
)
from superopt.check.random_inputs import Feeds
from superopt.ir import graph as ir_graph
from superopt.ir.evaluate import OpaqueEvaluator, evaluate
from superopt.te.eval.domain import Domain, Reals
from superopt.te.expr.dtype import F64

Values = tuple[
    np.ndarray | None, ...
]  # one for each observed value; None if it cannot be evaluated
Arrays = Mapping[str, np.ndarray]
OnValue = Callable[[ir_graph.Value, np.ndarray], None]

RUNTIME_METHOD = "onnxruntime against float64 evaluation of the original"
OWN_METHOD = "superopt's evaluation against float64: onnxruntime did not run it"
REGIONS_NOTE = ", region by region around opaque nodes"
END_TO_END_NOTE = ", and end to end"


class NotEvaluable(ValueError):
    """The original has no value on these inputs."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The original's values on one set of inputs.

    opaque_results: of its opaque nodes, by the names of the regions' inputs; exact: the observed
    values in float64; native: in the model's own dtypes, by the runtime if it runs; is_rounded:
    `exact` equals `native`, because no float64 evaluation was possible.
    """

    feed: Feeds
    opaque_results: Arrays
    exact: Values
    native: Values
    is_rounded: bool = False


@dataclass(frozen=True, slots=True)
class PlaceResult:
    """The comparison of one observed value on one set of inputs."""

    place: str
    kind: str
    compared: Comparison


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """All results; what could not be compared; values that were rewritten and never compared."""

    results: tuple[PlaceResult, ...]
    skipped: tuple[str, ...]
    unchecked: tuple[str, ...]
    input_sets: tuple[str, ...]
    method: str

    @property
    def failures(self) -> tuple[PlaceResult, ...]:
        return tuple(r for r in self.results if r.compared.failure)


def evaluate_outputs(
    graph: ir_graph.Graph,
    feed: Feeds,
    opaque_results: Arrays,
    domain: Domain,
    on_value: OnValue | None = None,
    opaque: OpaqueEvaluator | None = None,
) -> Values:
    """Evaluate the outputs of a graph; None for those that need an input without a value.

    opaque: evaluates the opaque nodes of a graph that is not cut at them. Raises NotEvaluable on
        failure, such as an index out of range.
    """
    given = {**feed.arrays, **opaque_results}
    missing = [i for i in graph.inputs if i.name not in given]
    known = [not ir_graph.depends_on((v,), missing) for v in graph.outputs] if missing else None
    wanted = [v for n, v in enumerate(graph.outputs) if known is None or known[n]]
    try:
        part = ir_graph.Graph(graph.inputs, tuple(wanted))
        found = iter(evaluate(part, given, domain, opaque, on_value))
    except (ValueError, TypeError, LookupError, ArithmeticError) as e:
        raise NotEvaluable(f"{type(e).__name__}: {e}") from e
    if known is None:
        return tuple(found)
    return tuple(next(found) if there else None for there in known)


def reference_values(
    regions: Regions,
    feed: Feeds,
    opaque_results: Arrays,
    runtime_outputs: Sequence[np.ndarray | None] | None,
    on_value: OnValue | None = None,
) -> Reference:
    """Return the original's values on one set of inputs. Raises NotEvaluable if it has none.

    runtime_outputs: the runtime's results of the observed values, if it ran.
    """
    exact = evaluate_outputs(regions.graph, feed, opaque_results, Reals(F64), on_value)
    if runtime_outputs is not None and all(
        r is not None or e is None for r, e in zip(runtime_outputs, exact, strict=True)
    ):
        return Reference(feed, opaque_results, exact, tuple(runtime_outputs))
    own = evaluate_outputs(regions.graph, feed, opaque_results, Reals(), on_value)
    if runtime_outputs is not None:
        own = tuple(o if r is None else r for r, o in zip(runtime_outputs, own, strict=True))
    return Reference(feed, opaque_results, exact, own)


def compare_candidate(
    ref: Reference,
    regions: Regions,
    candidate: ir_graph.Graph,
    candidate_values: Values | None,
    allowances: Mapping[str, StepAllowance] = MappingProxyType({}),
) -> list[PlaceResult | str]:
    """Compare a cut candidate on the inputs of `ref`: a result for each rewritten value, or a line
    that says why it has none.

    candidate_values: the runtime's results; None: evaluate the candidate here. allowances: what is
        proved of places' steps. Raises NotEvaluable if the candidate has no value though the
        original has.
    """
    if candidate_values is None:
        candidate_values = evaluate_outputs(candidate, ref.feed, ref.opaque_results, Reals())
    out: list[PlaceResult | str] = []
    rows = zip(regions.observed, regions.graph.outputs, candidate.outputs, strict=True)
    for n, (place, old, new) in enumerate(rows):
        if old is new:
            continue
        r, o, c = ref.exact[n], ref.native[n], candidate_values[n]
        if r is None or o is None or c is None:
            out.append(f"{place.name}: it depends on a node whose results are unknown")
            continue
        step = output_step(place.value, ref.feed.sizes)
        allowance = allowances.get(place.name, NO_PROOF)
        compared = compare_output(place.value.type.dtype, r, o, c, step=step, allowance=allowance)
        out.append(PlaceResult(place.name, ref.feed.kind, compared))
    return out


def first_exact_difference(
    ref: Reference, regions: Regions, candidate: ir_graph.Graph
) -> PlaceResult | None:
    """Return the first rewritten float output at which the candidate, in float64 without folded
    constants, differs from the original; None if none does.

    The float32 tolerances are relative to an output as a whole: large elements, or a large error of
    the original, would hide a wrong small element.
    """
    found = evaluate_outputs(candidate, ref.feed, ref.opaque_results, Reals(F64))
    rows = zip(regions.observed, regions.graph.outputs, candidate.outputs, strict=True)
    for n, (place, old, new) in enumerate(rows):
        r, c, dtype = ref.exact[n], found[n], place.value.type.dtype
        if old is new or r is None or c is None or dtype is None or not dtype.is_float:
            continue
        why = compare_exact(r, c) if r.shape == c.shape else f"shape {c.shape}, not {r.shape}"
        if why and r.shape == c.shape:
            step = output_step(place.value, ref.feed.sizes)
            ties = None if step is None else step_difference(step, r, r, c)
            why = why if ties is None else ties.failure  # a tie may become either step
        if why:
            return PlaceResult(place.name, ref.feed.kind, failed_comparison(why, r, c))
    return None


MIN_EXPLAINED_FRACTION = 0.1  # fraction of the found error that rounding must explain
EXACT_RTOL = 1e-6  # relative error of a correct rewrite in float64: weights are float32


def is_rounding_only(
    ref: Reference, regions: Regions, candidate: ir_graph.Graph, failures: Sequence[PlaceResult]
) -> bool:
    """True if rounding alone explains the failures.

    That is, at every failed float value the candidate equals the original in float64, and
    superopt's own evaluation in the model's dtypes is nearly as far off as the error that was
    found. Then the rules are correct and amplify rounding (say, by reassociating terms that
    cancel). If only the runtime is off, something else is wrong.
    """
    bad = {r.place: r.compared for r in failures}
    exact = evaluate_outputs(candidate, ref.feed, ref.opaque_results, Reals(F64))
    rounded = evaluate_outputs(candidate, ref.feed, ref.opaque_results, Reals())
    for n, place in enumerate(regions.observed):
        if place.name not in bad:
            continue
        r, o, e, c = ref.exact[n], ref.native[n], exact[n], rounded[n]
        dtype = place.value.type.dtype
        if dtype is None or not dtype.is_float or r is None or o is None or e is None or c is None:
            return False
        if r.shape != e.shape:
            return False
        again = compare_output(dtype, r, o, c)
        if (
            not again.failure
            and again.max_error < MIN_EXPLAINED_FRACTION * bad[place.name].max_error
        ):
            return False
        rms = root_mean_square(r[np.isfinite(r)])
        if not np.allclose(e, r, rtol=EXACT_RTOL, atol=EXACT_RTOL * rms, equal_nan=True):
            return False
    return True


def are_near_ties(
    ref: Reference,
    regions: Regions,
    candidate: ir_graph.Graph,
    candidate_values: Values,
    failures: Sequence[PlaceResult],
) -> bool:
    """True if all failures are integers or bools decided by rounding: the candidate in float64
    equals the original, and at most one in a thousand elements differs.

    The argmax of two scores that are equal up to rounding may be either.
    """
    bad = {r.place for r in failures}
    exact = evaluate_outputs(candidate, ref.feed, ref.opaque_results, Reals(F64))
    for n, place in enumerate(regions.observed):
        if place.name not in bad:
            continue
        r, o, c, e = ref.exact[n], ref.native[n], candidate_values[n], exact[n]
        dtype = place.value.type.dtype
        if dtype is None or dtype.is_float or r is None or o is None or c is None or e is None:
            return False
        if (
            c.shape != o.shape
            or count_differences(r, e)
            or count_differences(o, c) > o.size // 1000
        ):
            return False
    return True
