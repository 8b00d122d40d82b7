"""`verify`: decide whether two models are equal: by structure, by definition, or on many inputs."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from superopt.check.numeric_check import OWN_METHOD, RUNTIME_METHOD, CheckOutcome, PlaceResult
from superopt.check.opaque_regions import opaque_nodes
from superopt.check.quantization_steps import StepAllowance
from superopt.check.quantizers import quantization_grids
from superopt.ir.constant_folding import fold_constants
from superopt.loading.array_files import check_inputs
from superopt.loading.model import load_model
from superopt.loading.request import Request
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.report.data.report import Event, OutputVerdict, Verdict
from superopt.report.formatting.phrases import count_text, steps_text
from superopt.verification.check_summary import summarize_check
from superopt.verification.model_interface import graph_on_inputs_of, interface_mismatch
from superopt.verification.original import Original, original_file, prepare_original
from superopt.verification.ort_session import OrtSession
from superopt.verification.output_comparison import ComparedModel, compare_outputs, output_reference
from superopt.verification.output_proofs import OutputProofs, prove_by_chains, prove_by_definition
from superopt.verification.special_trials import sensitivities, try_special_inputs
from superopt.verification.step_proofs import (
    MAX_STEPS_PART,
    prove_steps,
    step_allowances,
    with_step_proofs,
)
from superopt.verifier.rounding.graph_steps import WithinSteps

LOG = logging.getLogger("superopt.verify")
RUNTIME_ONLY_METHOD = "onnxruntime on both: some nodes have no value in float64"


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """The arguments of `superopt.api.functions.verify`."""

    inputs: Mapping[str, np.ndarray] | None = None
    shapes: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    method: str = "auto"
    max_seconds: float = 60.0
    progress: Callable[[Event], None] = lambda event: None
    stop: Callable[[], bool] = lambda: False
    max_steps: int | None = None


def verify(a: Source, b: Source, request: VerifyRequest) -> Verdict:
    """Compare model `b` with model `a`, output by output.

    `proved`: both are the same graph after constant folding, or each output is proved equal from
    the operators' tensor expressions, for all inputs, or a quantized one within `proved_steps`.
    `differs`: with the first disagreement on
    many inputs. `agrees`: there is no disagreement. `within_steps`: quantized outputs differ by
    steps, as rounding explains, and by at most `max_steps`. `unknown`: nothing could be compared,
    or only proofs were requested and none was found.
    """
    end = time.monotonic() + request.max_seconds
    request.progress(Event("load", f"{a.label} and {b.label}", 0.0))
    first = load_model(a)
    one = first.model
    if a.sha256 == b.sha256:
        return _proved_verdict(one, "both are the same file")
    second = load_model(b)
    verdict = _compare_models(one, second.model, request, end)
    LOG.info("%s: %s", verdict.decision, verdict.reason)
    return replace(verdict, notes=(*verdict.notes, *first.notes, *second.notes))


def _compare_models(
    first: Model, second: Model, request: VerifyRequest, deadline: float
) -> Verdict:
    mismatch = interface_mismatch(first, second)
    if mismatch:
        return Verdict("differs", mismatch, None)
    request.progress(Event("compare", "structure", 0.1))
    other = graph_on_inputs_of(first, second)
    if other is not None:
        if other.outputs == first.graph.outputs:
            return _proved_verdict(first, "both are the same graph")
        whole = not (opaque_nodes(first.graph) or opaque_nodes(other))
        if (
            whole
            and fold_constants(first.graph).graph.outputs == fold_constants(other).graph.outputs
        ):
            return _proved_verdict(first, "both are the same graph once constants are folded")
    why = OTHER_SIZE_NAMES if other is None else "not tried"
    names = _output_names(first)
    proof = OutputProofs([OutputVerdict(name, "unknown", why) for name in names])
    within: tuple[WithinSteps | str, ...] = ("not tried",) * len(names)
    if other is not None and request.method in ("auto", "index"):
        request.progress(Event("compare", "quantized outputs, by steps", 0.1))
        seconds = MAX_STEPS_PART * (deadline - time.monotonic())
        within = prove_steps(first.graph, other, names, seconds, request.seed, request.stop)
        request.progress(Event("compare", "each output, by definition", 0.1))
        share = MAX_DEFINITION_PART if request.method == "auto" else 1.0
        seconds = share * (deadline - time.monotonic())
        proof = prove_by_definition(first.graph, other, names, seconds, request.seed, request.stop)
        proof = with_step_proofs(proof, within, request.max_steps)
        _log_outputs("definition", proof)
    numeric = None
    if request.method in ("auto", "numeric"):
        numeric = _compare_numerically(first, second, request, deadline, step_allowances(within))
        LOG.info("numeric comparison: %s: %s", numeric.decision, numeric.reason)
    chains = other is not None and request.method in ("auto", "rules")
    if chains and (numeric is None or numeric.decision != "differs"):
        assert other is not None
        proof = prove_by_chains(
            first.graph,
            other,
            proof,
            deadline,
            lambda name: request.progress(Event("compare", f"output {name}, by rules", 0.9)),
            request.stop,
        )
        _log_outputs("rules", proof)
    verdict = proof.verdict() if numeric is None else proof.verdict_with_trials(numeric)
    if verdict.decision != "proved":
        return verdict
    assert other is not None
    request.progress(Event("compare", "NaN, infinities and ties", 0.95))
    levels = sensitivities(fold_constants(first.graph).graph, fold_constants(other).graph)
    return try_special_inputs(
        first, second, levels, verdict, request.shapes, request.seed, deadline
    )


MAX_DEFINITION_PART = 0.6  # of the time, if other methods are tried, too
OTHER_SIZE_NAMES = "the symbolic sizes of the models have different names"


def _log_outputs(method: str, proof: OutputProofs) -> None:
    proved = sum(o.decision == "proved" for o in proof.outputs)
    LOG.info("proofs by %s: %d of %d outputs", method, proved, len(proof.outputs))
    for o in proof.outputs:
        LOG.debug("output %s: %s: %s", o.name, o.decision, o.reason)


def _output_names(model: Model) -> list[str]:
    return [v.name or "" for v in model.source.model.graph.outputs]


def _proved_verdict(model: Model, reason: str) -> Verdict:
    outputs = tuple(OutputVerdict(name, "proved", reason) for name in _output_names(model))
    return Verdict("proved", reason, None, (), outputs)


def _compare_numerically(
    first: Model,
    second: Model,
    question: VerifyRequest,
    deadline: float,
    allowances: Sequence[StepAllowance],
) -> Verdict:
    notes: list[str] = []
    check_inputs(first, question.inputs)
    request = Request(
        inputs=question.inputs, shapes=question.shapes, seed=question.seed, stop=question.stop,
        exact_integers=True,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="superopt-") as folder:
        question.progress(Event("compare", f"running {first.source.label}", 0.2))
        original = prepare_original(first, request, Path(folder, "a"), notes.append)
        file = original_file(second.source, Path(folder, "b"))
        with OrtSession(file, 1, exact_integers=True) as held, original.session:
            if held.refusal and original.is_runnable:
                notes.append(f"onnxruntime does not run {second.source.label}: {held.refusal}")
            tally = _NumericComparison(
                original, ComparedModel(second.source.label, second.source, second.graph, held)
            )
            tally.max_steps = question.max_steps
            tally.allowances = allowances
            for n, s in enumerate(original.sets):
                if n and (question.stop() or time.monotonic() > deadline):
                    notes.append("stopped: not all inputs were compared")
                    break
                done = 0.2 + 0.8 * n / len(original.sets)
                question.progress(Event("compare", f"{s.feed.kind} inputs", done))
                tally.compare_set(n)
                if any(r.compared.failure for r in tally.results):
                    break
    return _with_grids_compared(tally.verdict(notes), first, second)


def _with_grids_compared(verdict: Verdict, first: Model, second: Model) -> Verdict:
    """Return the verdict; `unknown` if quantized models agree that round to other grids: where
    values saturate, they may differ, and few inputs make all of them saturate."""
    if verdict.decision not in ("agrees", "within_steps"):
        return verdict
    grids = [quantization_grids(m.graph) for m in (first, second)]
    if None in grids or grids[0] == grids[1]:
        return verdict
    reason = (
        f"{verdict.reason}, but the models quantize to other scales or zero points, so that "
        "results may differ where values saturate"
    )
    return replace(verdict, decision="unknown", reason=reason)


@dataclass(slots=True)
class _NumericComparison:
    """Compares two models one input set after the other, and keeps the results.

    is_rounded: whether some set had no float64 reference. max_steps: that quantized outputs may
    differ by; None: as many as rounding explains. allowances: what is proved of the outputs' steps.
    """

    original: Original
    second: ComparedModel
    is_rounded: bool = False
    max_steps: int | None = None
    allowances: Sequence[StepAllowance] = ()
    results: list[PlaceResult] = field(default_factory=list)
    skipped: dict[str, None] = field(default_factory=dict)
    compared_sets: list[str] = field(default_factory=list)

    def compare_set(self, n: int) -> None:
        """Compare on set number `n`."""
        ref = output_reference(self.original, n)
        if isinstance(ref, str):
            self.skipped[ref] = None
            return
        found = compare_outputs(
            self.original,
            ref,
            self.second,
            tolerance_part=1.0,
            compare_float64=not self.compared_sets,
            allowances=self.allowances,
        )
        if isinstance(found, str):
            self.skipped[found] = None
            return
        self.is_rounded |= ref.is_rounded
        self.compared_sets.append(ref.feed.kind)
        for r in found:
            if isinstance(r, str):
                self.skipped[r] = None
            else:
                self.results.append(self._limit_steps(r))

    def _limit_steps(self, r: PlaceResult) -> PlaceResult:
        """Return the result, failed if it differs by more than the allowed steps."""
        c, limit = r.compared, self.max_steps
        if c.failure or limit is None or c.steps is None or c.steps <= limit:
            return r
        why = f"{steps_text(c.steps)}, {limit} allowed"
        return replace(r, compared=replace(c, failure=why))

    def verdict(self, notes: list[str]) -> Verdict:
        method = (
            RUNTIME_ONLY_METHOD
            if self.is_rounded
            else OWN_METHOD
            if self.second.session.refusal
            else RUNTIME_METHOD
        )
        checked = CheckOutcome(
            tuple(self.results), tuple(self.skipped), (), tuple(self.compared_sets), method
        )
        result = summarize_check(checked)
        counted = [r for r in self.results if r.compared.steps is not None]
        steps = max((r.compared.steps or 0 for r in counted), default=None)
        if checked.failures:
            bad = checked.failures[0]
            reason = f"output {bad.place}: {bad.compared.failure} (inputs: {bad.kind})"
            return Verdict("differs", reason, result, tuple(notes), steps=steps)
        compared = {r.place for r in self.results}
        missing = [
            p.name for p in self.original.regions.observed if p.is_output and p.name not in compared
        ]
        if missing:
            why = next(iter(self.skipped), f"output {missing[0]} could not be compared")
            return Verdict("unknown", why, result if self.results else None, tuple(notes))
        sets = count_text(len(self.compared_sets), "set")
        if steps:
            reason = f"equal within {steps_text(steps)} on {sets} of inputs"
            return Verdict("within_steps", reason, result, tuple(notes), steps=steps)
        return Verdict("agrees", f"equal on {sets} of inputs", result, tuple(notes), steps=steps)
