"""`verify`: are two models equal? By structure, by definition, else on many inputs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from superopt import ort
from superopt.check.compare import ROUNDED_TOLERANCE, compare, compare_exact, failed
from superopt.check.inputs import Feeds
from superopt.check.numeric import OWN, RUNTIME, Checked, Reference, Result, Unrunnable, values_at
from superopt.check.regions import opaque_nodes
from superopt.ir.fold import fold
from superopt.onnx_io.model import Model
from superopt.onnx_io.source import Source
from superopt.pipeline.inputs import check_inputs
from superopt.pipeline.interface import interface, joined
from superopt.pipeline.load import load_model
from superopt.pipeline.original import Original, original_file, prepare
from superopt.pipeline.proofs import Proofs, by_definition, with_chains
from superopt.pipeline.reporting import check_result
from superopt.pipeline.request import Request
from superopt.pipeline.runtime import Got, Session
from superopt.pipeline.special_trials import sensitivities, tried
from superopt.report.data import Event, OutputVerdict, Verdict
from superopt.te.domain import Reals
from superopt.te.dtype import F64

WHOLE = "onnxruntime on both: some nodes have no tensor expression"


@dataclass(frozen=True, slots=True)
class Question:
    """What the caller asked; see `superopt.api.verify`."""

    inputs: Mapping[str, np.ndarray] | None = None
    shapes: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    method: str = "auto"
    limit: float = 60.0
    progress: Callable[[Event], None] = lambda event: None
    stop: Callable[[], bool] = lambda: False


def verify(a: Source, b: Source, question: Question) -> Verdict:
    """Compare model `b` with model `a`, output by output.

    `proved` when both are the same graph after folding constants, or each output is proved to be
    the same from the operators' tensor expressions, for all inputs; `differs` with the first
    disagreement on many inputs, `agrees` where there is none, `unknown` where nothing could be
    compared, or only proofs are asked and there is none.
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
        if whole and fold(one.graph).graph.outputs == fold(other).graph.outputs:
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
    levels = sensitivities(fold(one.graph).graph, fold(other).graph)
    return tried(one, two, levels, verdict, question.shapes, question.seed, end)


DEFINITIONS = 0.6  # of the time, where other ways are tried, too
OTHER_SIZES = "the symbolic sizes of both models have other names"


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
        opaque = bool(opaque_nodes(one.graph) or opaque_nodes(two.graph))
        with Session(file, 1) as held, original.session as again:
            if held.refused and original.runs:
                notes.append(f"onnxruntime does not run {two.source.label}: {held.refused}")
            tally = _Tally(original, two, held, again, opaque)
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
    """Compares set by set, and keeps what it found."""

    original: Original
    two: Model
    held: Session
    again: Session
    opaque: bool
    results: list[Result] = field(default_factory=list)
    skipped: dict[str, None] = field(default_factory=dict)
    sets: list[str] = field(default_factory=list)

    def on(self, n: int) -> None:
        """Compare on set number `n`."""
        s = self.original.sets[n]
        ref = self._of_runtime(s.feed) if self.opaque else self.original.reference(n)
        if isinstance(ref, str):
            self.skipped[ref] = None
            return
        found = self._found(s.feed, ref)
        if isinstance(found, str):
            self.skipped[found] = None
            return
        exact = {} if self.sets or self.opaque else self._exactly(s.feed)
        self.sets.append(s.feed.kind)
        outputs = [p for p in self.original.regions.places if p.output]
        for k, place in enumerate(outputs):
            r, o, c = ref.exact[k], ref.own[k], found.get(place.name)
            if r is None or o is None:
                self.skipped[f"{place.name}: the original gives no tensor"] = None
                continue
            compared = (
                compare(place.value.type.dtype, r, o, c)
                if isinstance(c, np.ndarray)
                else failed("it is no tensor, or has no value there")
            )
            e = exact.get(place.name)
            if not compared.failure and e is not None and r.shape == e.shape and _floating(r):
                why = compare_exact(r, e, ROUNDED_TOLERANCE)
                compared = failed(why) if why else compared
            self.results.append(Result(place.name, s.feed.kind, compared))

    def _exactly(self, feed: Feeds) -> dict[str, np.ndarray]:
        """The second model's outputs in float64, where it has any."""
        try:
            found = values_at(self.two.graph, feed, {}, Reals(F64))
        except (Unrunnable, MemoryError):
            return {}
        names = [v.name or "" for v in self.two.source.model.graph.outputs]
        return {n: a for n, a in zip(names, found, strict=True) if a is not None}

    def _of_runtime(self, feed: Feeds) -> Reference | str:
        """What the first model gives in onnxruntime; a line where that is nothing, or random."""
        names = [p.name for p in self.original.regions.places if p.output]
        first, second = self.again.run(feed), self.again.run(feed)
        if isinstance(first, ort.Failed) or isinstance(second, ort.Failed):
            return f"{feed.kind} inputs: onnxruntime does not run both models"
        random = [n for n in names if not _same(first.get(n), second.get(n))]
        if random:
            return f"output {random[0]} is random: two runs of one model differ"
        own = tuple(_array(first.get(n)) for n in names)
        exact = tuple(a.astype(np.float64) if a is not None and _floating(a) else a for a in own)
        return Reference(feed, {}, exact, own)

    def _found(self, feed: Feeds, ref: Reference) -> Got | str:
        got = self.held.run(feed) if not self.held.refused else None
        if isinstance(got, ort.Failed):
            if ref.free or got.kind != "error":
                return f"{feed.kind} inputs: {self.two.source.label}: {got.message}"
            return {}  # it fails where the original does not: that is a difference
        if got is not None:
            return got
        if self.opaque:
            return f"{feed.kind} inputs: onnxruntime does not run both models"
        try:
            found = values_at(self.two.graph, feed, {}, Reals())
        except Unrunnable:
            return {}
        names = [v.name or "" for v in self.two.source.model.graph.outputs]
        return {n: a for n, a in zip(names, found, strict=True) if a is not None}

    def verdict(self, notes: list[str]) -> Verdict:
        method = WHOLE if self.opaque else OWN if self.held.refused else RUNTIME
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


def _array(v: object) -> np.ndarray | None:
    return v if isinstance(v, np.ndarray) else None


def _floating(a: np.ndarray) -> bool:
    return a.dtype.kind == "f" or a.dtype.kind == "V" or "float" in a.dtype.name


def _same(a: object, b: object) -> bool:
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return True  # no tensor: not compared
    return a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))
