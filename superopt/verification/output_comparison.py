"""Comparison of the outputs of two models on one set of inputs.

`verify` decides by it and `optimize` accepts a file by it, so `verify` does not refute on the same
inputs what `optimize` wrote.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from superopt import ort
from superopt.check.compare import (
    ROUNDED_TOLERANCE,
    compare_exact,
    compare_output,
    failed_comparison,
)
from superopt.check.near_ties import compare_near_ties
from superopt.check.numeric_check import (
    NotEvaluable,
    PlaceResult,
    Reference,
    Values,
    evaluate_outputs,
)
from superopt.check.opaque_regions import opaque_nodes
from superopt.check.quantization_steps import NO_PROOF, Step, StepAllowance, output_step
from superopt.check.random_inputs import Feeds
from superopt.errors import OutOfTime
from superopt.ir import graph as ir_graph
from superopt.onnx_io.read.source import Source
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64
from superopt.verification.opaque_nodes import OpaqueNodeEvaluator
from superopt.verification.original import Original
from superopt.verification.ort_session import OrtSession, Results
from superopt.verification.quantized_outputs import QuantizedOutputs, quantized_outputs


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """The model that is compared with the original.

    label: its name in messages; source: where its opaque nodes were read from; graph: as in the
    file; session: the file in ONNX Runtime.
    """

    label: str
    source: Source
    graph: ir_graph.Graph
    session: OrtSession


def output_reference(original: Original, n: int) -> Reference | str:
    """Return the outputs of the whole original on set number `n`; a text if they cannot be
    compared. `exact` is float64 if every opaque node has a float64 value."""
    if not opaque_nodes(original.model.graph):
        return original.region_reference(n)
    known = original.output_references.get(n)
    if known is None:
        begin = time.monotonic()
        known = original.output_references[n] = _reference_with_opaque(
            original, original.sets[n].feed
        )
        took = time.monotonic() - begin
        original.evaluation_seconds += took
        original.slowest_evaluation_seconds = max(original.slowest_evaluation_seconds, took)
    return known


def _reference_with_opaque(original: Original, feed: Feeds) -> Reference | str:
    names = original.output_names
    first, second = original.session.run(feed), original.session.run(feed)
    if isinstance(first, ort.Failure) or isinstance(second, ort.Failure):
        return f"{feed.kind} inputs: onnxruntime does not run both models"
    random = [n for n in names if not _are_equal(first.get(n), second.get(n))]
    if random:
        return f"output {random[0]} is random: two runs of one model differ"
    rounded = runtime_reference(feed, names, first)
    try:
        exact = _evaluate_float64(original.model.graph, original.model.source, feed)
    except NotEvaluable:
        return rounded
    except MemoryError as e:
        return f"{feed.kind} inputs: no memory to evaluate the original: {e}"
    except OutOfTime as e:
        return f"{feed.kind} inputs: {e.what}: {e.why}"
    return replace(rounded, exact=exact, is_rounded=False)


def runtime_reference(feed: Feeds, names: Sequence[str], results: Results) -> Reference:
    """Return the results of a run at the outputs `names`; they stand for the exact values, too."""
    own = tuple(_if_array(results.get(name)) for name in names)
    exact = tuple(a.astype(np.float64) if a is not None and _is_float(a) else a for a in own)
    return Reference(feed, {}, exact, own, is_rounded=True)


def compare_outputs(
    original: Original,
    ref: Reference,
    compared_model: ComparedModel,
    *,
    tolerance_part: float,
    compare_float64: bool,
    allowances: Sequence[StepAllowance] = (),
) -> list[PlaceResult | str] | str:
    """Compare the outputs of `compared_model` with `ref`. Return, for each output, a result or a
    text that says why there is none; or one text if nothing can be compared.

    tolerance_part: the allowed part of the tolerances of `compare`; compare_float64: compare in
    float64, too, if both models have float64 values; allowances: what is proved of the outputs'
    steps.
    """
    found = _compared_results(original, ref, compared_model)
    if isinstance(found, str):
        return found
    names = original.output_names
    exact: Values | None = None
    if compare_float64 and not ref.is_rounded:
        with contextlib.suppress(NotEvaluable, MemoryError):
            exact = _evaluate_float64(compared_model.graph, compared_model.source, ref.feed)
    float64 = _Float64Comparison(
        quantized_outputs(original.model.graph),
        QuantizedOutputs(
            original.model.graph, compared_model.graph, ref.feed, original.unrounded_results
        ),
        tolerance_part,
    )
    results: list[PlaceResult | str] = []
    for k, name in enumerate(names):
        r, o, c = ref.exact[k], ref.native[k], found.get(name)
        if r is None or o is None:
            results.append(f"{name}: the original's output is not a tensor")
            continue
        value = original.regions.observed[k].value
        step = output_step(value, ref.feed.sizes)
        allowance = allowances[k] if allowances else NO_PROOF
        if not isinstance(c, np.ndarray):
            compared = failed_comparison("it is not a tensor, or has no value there")
        else:
            compared = compare_output(value.type.dtype, r, o, c, tolerance_part, step, allowance)
            dtype = value.type.dtype
            if compared.failure and step is None and not ref.is_rounded and _is_float(r):
                near = float64.near_ties(k, r)
                if near is not None and dtype is not None:
                    near = near.astype(c.dtype)
                    excused = compare_near_ties(dtype, r, near, c, tolerance_part)
                    compared = excused or compared
        own = None if exact is None else exact[k]
        if not compared.failure and own is not None and r.shape == own.shape:
            why = float64.difference(k, step, r, o, own, allowance)
            if why and step is None:
                compared = failed_comparison(why, r, own)
            compared = replace(compared, failure=why)
        results.append(PlaceResult(name, ref.feed.kind, compared))
    return results


@dataclass(frozen=True, slots=True)
class _Float64Comparison:
    """quantized: of each output, whether it is computed from results of quantization."""

    quantized: tuple[bool, ...]
    outputs: QuantizedOutputs
    tolerance_part: float

    def near_ties(self, k: int, first: np.ndarray) -> np.ndarray | None:
        """Return the first model's output `k` with values quantized to their neighbours near ties;
        None if it has none, or no such value."""
        return self.outputs.near_ties(k, first) if self.quantized[k] else None

    def difference(
        self,
        k: int,
        step: Step | None,
        first: np.ndarray,
        native: np.ndarray,
        second: np.ndarray,
        allowance: StepAllowance,
    ) -> str:
        """Return how the float64 results of output `k` differ; empty if they do not, or are of
        integers that are not quantized."""
        if step is None and not _is_float(first):
            return ""
        if self.quantized[k]:
            return self.outputs.difference(
                k, step, first, native, second, self.tolerance_part, allowance
            )
        return compare_exact(first, second, ROUNDED_TOLERANCE)


def _compared_results(
    original: Original, ref: Reference, compared_model: ComparedModel
) -> Results | str:
    kind = ref.feed.kind
    refused = compared_model.session.refusal
    got = None if refused else compared_model.session.run(ref.feed)
    if isinstance(got, ort.Failure):
        if ref.opaque_results or got.kind != "error":
            return f"{kind} inputs: {compared_model.label}: {got.message}"
        return {}  # it fails where the original does not: a difference
    if got is not None:
        return got
    if opaque_nodes(original.model.graph) or opaque_nodes(compared_model.graph):
        return f"{kind} inputs: onnxruntime does not run both models"
    try:
        found = evaluate_outputs(compared_model.graph, ref.feed, {}, Reals())
    except NotEvaluable:
        return {}
    return {n: a for n, a in zip(original.output_names, found, strict=True) if a is not None}


def _evaluate_float64(graph: ir_graph.Graph, source: Source, feed: Feeds) -> Values:
    """Return the outputs of a graph in float64. Raises Unrunnable if they have no value."""
    return evaluate_outputs(graph, feed, {}, Reals(F64), opaque=OpaqueNodeEvaluator(source))


def _if_array(v: object) -> np.ndarray | None:
    return v if isinstance(v, np.ndarray) else None


def _is_float(a: np.ndarray) -> bool:
    return a.dtype.kind == "f" or a.dtype.kind == "V" or "float" in a.dtype.name


def _are_equal(a: object, b: object) -> bool:
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return True  # non-tensors are not compared
    return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))
