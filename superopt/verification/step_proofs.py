"""Proofs that quantized outputs of two models are equal within quantization steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from superopt.check.quantization_steps import NO_PROOF, StepAllowance
from superopt.check.quantizers import depends_on_quantizer
from superopt.ir import graph as ir_graph
from superopt.report.data.report import OutputVerdict
from superopt.report.formatting.phrases import steps_text
from superopt.verification.output_proofs import OutputProofs
from superopt.verifier.rounding.compare_steps import are_layers_near, compare_within_steps
from superopt.verifier.rounding.graph_steps import WithinSteps
from superopt.verifier.rounding.rule_steps import STEPS_NOTE

MAX_STEPS_PART = 0.3  # of the time
DEFAULT_MAX_STEPS = 1  # more are not called equal unless the caller says how many are
NOT_QUANTIZED = "not quantized"
SHARED_NOTE = "what both models share is computed alike"


def prove_steps(
    first: ir_graph.Graph,
    second: ir_graph.Graph,
    names: Sequence[str],
    seconds: float,
    seed: int,
    stop: Callable[[], bool],
) -> tuple[WithinSteps | str, ...]:
    """Return for each output by how many steps it differs at most, or why that is not known.
    `second` is over the inputs of `first`."""
    if not any(map(depends_on_quantizer, first.outputs)):
        return (NOT_QUANTIZED,) * len(names)
    found = compare_within_steps(first, second, seconds, seed, stop)
    return tuple(f if isinstance(f, WithinSteps) else f.reason for f in found)


def step_allowances(found: Sequence[WithinSteps | str]) -> tuple[StepAllowance, ...]:
    """Return what the comparison of results may allow by these proofs: one step, as larger ones
    would hide what a runtime does wrong."""
    return tuple(
        StepAllowance(f.steps)
        if isinstance(f, WithinSteps) and f.steps <= DEFAULT_MAX_STEPS
        else NO_PROOF
        for f in found
    )


def prove_allowances(
    first: ir_graph.Graph,
    second: ir_graph.Graph,
    seconds: float,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[StepAllowance, ...]:
    """Return what is proved of the outputs' steps: by how many they may differ, or else that every
    layer is within a step for equal operands."""
    names = [""] * len(first.outputs)
    found = prove_steps(first, second, names, seconds / 2, 0, stop)
    allowances = step_allowances(found)
    if NO_PROOF not in allowances or all(f == NOT_QUANTIZED for f in found):
        return allowances
    near = are_layers_near(first, second, seconds / 2, stop)
    return tuple(replace(a, has_near_layers=near) for a in allowances)


def with_step_proofs(
    proof: OutputProofs, found: Sequence[WithinSteps | str], max_steps: int | None
) -> OutputProofs:
    """Return the proofs with those of steps: what was not proved otherwise is proved by them, if
    they are at most `max_steps`, by default DEFAULT_MAX_STEPS."""
    limit = DEFAULT_MAX_STEPS if max_steps is None else max_steps
    outputs: list[OutputVerdict] = []
    only_steps = False
    for o, steps in zip(proof.outputs, found, strict=True):
        if isinstance(steps, str):
            more = o.decision != "proved" and steps != NOT_QUANTIZED
            outputs.append(replace(o, reason=f"{o.reason}; by steps: {steps}") if more else o)
            continue
        said = f"in float32 within {steps_text(steps.steps)}"
        if o.decision == "proved":
            outputs.append(replace(o, reason=f"{o.reason}; {said}") if steps.steps else o)
        elif steps.steps <= limit:
            only_steps = True
            bound = f"before rounding the difference is below {steps.error:.2g}"
            outputs.append(replace(o, decision="proved", reason=f"{said}: {bound}"))
        else:
            outputs.append(replace(o, reason=f"{o.reason}; proved {said}"))
    known = [steps.steps for steps in found if isinstance(steps, WithinSteps)]
    if not known:
        return replace(proof, outputs=outputs)
    assumed = dict.fromkeys((*proof.assumptions, STEPS_NOTE, SHARED_NOTE))
    return replace(
        proof, outputs=outputs, assumptions=tuple(assumed), steps=max(known), only_steps=only_steps
    )
