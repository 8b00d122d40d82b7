"""`verify`: decide whether two models are equal: by structure, by definition, or on many inputs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from superopt.check.numeric import OWN, RUNTIME, Checked, Result
from superopt.check.regions import opaque_nodes
from superopt.ir.constant_folding import fold_constants
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.pipeline.check_summary import check_result
from superopt.pipeline.comparison import Second, compare_outputs, output_reference
from superopt.pipeline.inputs import check_inputs
from superopt.pipeline.interface import interface, joined
from superopt.pipeline.load import load_model
from superopt.pipeline.original import Original, original_file, prepare
from superopt.pipeline.proofs import Proofs, by_definition, with_chains
from superopt.pipeline.request import Request
from superopt.pipeline.runtime import Session
from superopt.pipeline.special_trials import sensitivities, tried
from superopt.report.data import Event, OutputVerdict, Verdict

WHOLE = "onnxruntime on both: some nodes have no value in float64"


@dataclass(frozen=True, slots=True)
class Question:
    """The arguments of `superopt.api.verify`."""

    inputs: Mapping[str, np.ndarray] | None = None
    shapes: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    method: str = "auto"
    limit: float = 60.0
    progress: Callable[[Event], None] = lambda event: None
    stop: Callable[[], bool] = lambda: False


def verify(a: Source, b: Source, question: Question) -> Verdict:
    """Compare model `b` with model `a`, output by output.

    `proved`: both are the same graph after constant folding, or each output is proved equal from
    the operators' tensor expressions, for all inputs. `differs`: with the first disagreement on
    many inputs. `agrees`: there is no disagreement. `unknown`: nothing could be compared, or only
    proofs were requested and none was found.
    """
    end = time.monotonic() + question.limit
    question.progress(Event("load", f"{a.label} and {b.label}", 0.0))
    first = load_model(a)
    one = first.model
    if a.sha256 == b.sha256:
        return _all_proved(one, "both are the same file")
    second = load_model(b)
    verdict = _compared(one, second.model, question, end)
    return replace(verdict, notes=(*verdict.notes, *first.notes, *second.notes))


def _compared(one: Model, two: Model, question: Question, end: float) -> Verdict:
    mismatch = interface(one, two)
    if mismatch:
        return Verdict("differs", mismatch, None)
    question.progress(Event("compare", "structure", 0.1))
    other = joined(one, two)
    if other is not None:
        if other.outputs == one.graph.outputs:
            return _all_proved(one, "both are the same graph")
        whole = not (opaque_nodes(one.graph) or opaque_nodes(other))
        if whole and fold_constants(one.graph).graph.outputs == fold_constants(other).graph.outputs:
            return _all_proved(one, "both are the same graph once constants are folded")
    why = OTHER_SIZES if other is None else "not tried"
    names = _names(one)
    proof = Proofs([OutputVerdict(name, "unknown", why) for name in names])
    if other is not None and question.method in ("auto", "index"):
        question.progress(Event("compare", "each output, by definition", 0.1))
        share = DEFINITIONS if question.method == "auto" else 1.0
        seconds = share * (end - time.monotonic())
        proof = by_definition(one.graph, other, names, seconds, question.seed, question.stop)
    numeric = None
    if question.method in ("auto", "numeric"):
        numeric = _numeric(one, two, question, end)
    chains = other is not None and question.method in ("auto", "rules")
    if chains and (numeric is None or numeric.decision != "differs"):
        assert other is not None
        proof = with_chains(
            one.graph,
            other,
            proof,
            end,
            lambda name: question.progress(Event("compare", f"output {name}, by rules", 0.9)),
            question.stop,
        )
    verdict = proof.verdict() if numeric is None else proof.tried(numeric)
    if verdict.decision != "proved":
        return verdict
    assert other is not None
    question.progress(Event("compare", "NaN, infinities and ties", 0.95))
    levels = sensitivities(fold_constants(one.graph).graph, fold_constants(other).graph)
    return tried(one, two, levels, verdict, question.shapes, question.seed, end)


DEFINITIONS = 0.6  # of the time, if other methods are tried, too
OTHER_SIZES = "the symbolic sizes of the models have different names"


def _names(model: Model) -> list[str]:
    return [v.name or "" for v in model.source.model.graph.outputs]


def _all_proved(model: Model, reason: str) -> Verdict:
    outputs = tuple(OutputVerdict(name, "proved", reason) for name in _names(model))
    return Verdict("proved", reason, None, (), outputs)


def _numeric(one: Model, two: Model, question: Question, end: float) -> Verdict:
    notes: list[str] = []
    check_inputs(one, question.inputs)
    request = Request(
        inputs=question.inputs, shapes=question.shapes, seed=question.seed, stop=question.stop
    )
    with tempfile.TemporaryDirectory(prefix="superopt-") as folder:
        question.progress(Event("compare", f"running {one.source.label}", 0.2))
        original = prepare(one, request, Path(folder, "a"), notes.append)
        file = original_file(two.source, Path(folder, "b"))
        with Session(file, 1) as held, original.session:
            if held.refused and original.runs:
                notes.append(f"onnxruntime does not run {two.source.label}: {held.refused}")
            tally = _Tally(original, Second(two.source.label, two.source, two.graph, held))
            for n, s in enumerate(original.sets):
                if n and (question.stop() or time.monotonic() > end):
                    notes.append("stopped: not all inputs were compared")
                    break
                done = 0.2 + 0.8 * n / len(original.sets)
                question.progress(Event("compare", f"{s.feed.kind} inputs", done))
                tally.on(n)
                if any(r.compared.failure for r in tally.results):
                    break
    return tally.verdict(notes)


@dataclass(slots=True)
class _Tally:
    """Compares two models one input set after the other, and keeps the results.

    is_rounded: whether some set had no float64 reference.
    """

    original: Original
    two: Second
    rounded: bool = False
    results: list[Result] = field(default_factory=list)
    skipped: dict[str, None] = field(default_factory=dict)
    sets: list[str] = field(default_factory=list)

    def on(self, n: int) -> None:
        """Compare on set number `n`."""
        ref = output_reference(self.original, n)
        if isinstance(ref, str):
            self.skipped[ref] = None
            return
        found = compare_outputs(self.original, ref, self.two, part=1.0, exactly=not self.sets)
        if isinstance(found, str):
            self.skipped[found] = None
            return
        self.rounded |= ref.rounded
        self.sets.append(ref.feed.kind)
        for r in found:
            if isinstance(r, str):
                self.skipped[r] = None
            else:
                self.results.append(r)

    def verdict(self, notes: list[str]) -> Verdict:
        method = WHOLE if self.rounded else OWN if self.two.session.refused else RUNTIME
        checked = Checked(tuple(self.results), tuple(self.skipped), (), tuple(self.sets), method)
        result = check_result(checked)
        if checked.failures:
            bad = checked.failures[0]
            reason = f"output {bad.place}: {bad.compared.failure} (inputs: {bad.kind})"
            return Verdict("differs", reason, result, tuple(notes))
        compared = {r.place for r in self.results}
        missing = [
            p.name for p in self.original.regions.places if p.output and p.name not in compared
        ]
        if missing:
            why = next(iter(self.skipped), f"output {missing[0]} could not be compared")
            return Verdict("unknown", why, result if self.results else None, tuple(notes))
        return Verdict("agrees", f"equal on {len(self.sets)} sets of inputs", result, tuple(notes))
