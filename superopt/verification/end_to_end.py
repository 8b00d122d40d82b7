"""Comparison of a rewritten model's outputs with the original's, as `verify` compares them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.check.numeric_check import PlaceResult
from superopt.check.quantization_steps import StepAllowance
from superopt.verification.original import Original
from superopt.verification.output_comparison import (
    ComparedModel,
    compare_outputs,
    output_reference,
    runtime_reference,
)

# The part of `verify`'s tolerances that a rewritten model may use up: on other inputs, or on
# another machine, its error relative to the original differs.
ACCEPTED_TOLERANCE_PART = 0.5


@dataclass(frozen=True, slots=True)
class RejectedCandidate:
    """Why a graph is not used, though it is not known to be wrong.

    lossy_set: the number of the input set on which its rounding errors are too large, if they are.
    """

    reason: str
    lossy_set: int | None = None


def compare_with_runtime(
    original: Original, n: int, compared_model: ComparedModel
) -> RejectedCandidate | str | None:
    """Return why the compared model is not used, if its outputs are not near the original's results
    in ONNX Runtime on set number `n`; a text if these cannot be compared. This needs no float64
    evaluation: outputs within ACCEPTED_TOLERANCE_PART of the original's own results are within the
    tolerances of float64, too."""
    s = original.sets[n]
    if s.results is None:
        return f"{s.feed.kind} inputs: no time was left"
    ref = runtime_reference(s.feed, original.output_names, s.results)
    found = compare_outputs(
        original, ref, compared_model, tolerance_part=ACCEPTED_TOLERANCE_PART, compare_float64=False
    )
    return found if isinstance(found, str) else _rounding_rejection(found, n)


def compare_end_to_end(
    original: Original,
    n: int,
    compared_model: ComparedModel,
    compare_float64: bool,
    allowances: Sequence[StepAllowance],
) -> list[PlaceResult] | RejectedCandidate | str | None:
    """Compare the file's outputs on set number `n` with the float64 values of the whole model.
    Return the results of the rewritten outputs; a rejection if `verify` would refute the model, or
    nearly; a text if nothing can be compared; None if there are no float64 values."""
    ref = output_reference(original, n)
    if isinstance(ref, str):
        return ref
    found = compare_outputs(
        original,
        ref,
        compared_model,
        tolerance_part=ACCEPTED_TOLERANCE_PART,
        compare_float64=compare_float64,
        allowances=allowances,
    )
    if isinstance(found, str):
        return found
    lossy = _rounding_rejection(found, n)
    if lossy is not None or ref.is_rounded:
        return lossy
    rows = zip(found, original.model.graph.outputs, compared_model.graph.outputs, strict=True)
    return [r for r, old, new in rows if isinstance(r, PlaceResult) and old is not new]


def _rounding_rejection(results: Sequence[PlaceResult | str], n: int) -> RejectedCandidate | None:
    for r in results:
        if isinstance(r, PlaceResult) and r.compared.failure:
            why = f"{r.compared.failure} (inputs: {r.kind})"
            return RejectedCandidate(f"rounding errors grow too large at {r.place}: {why}", n)
    return None
