"""What each part of a result gains: the result is timed without it, and the parts are added to the
original one by one.

A part is the steps of a rule, folding, or a kind of kernel decision. Steps that depend on those
that are left out are left out, too (search/partial_replay.py). The models are timed in turns with
the result; they were not checked, and are not written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from superopt.cost.graph_cost import GraphCosts
from superopt.cost.speedup import SpeedupInterval
from superopt.cost.store import Store
from superopt.errors import OutOfTime
from superopt.ir import graph as ir_graph
from superopt.ir.constant_folding import fold_constants
from superopt.loading.request import Request
from superopt.onnx_io.export.exporter import ExportError
from superopt.optimization.ablation_timing import TimedRatios, time_beside
from superopt.optimization.candidate import Candidate, write_graph
from superopt.optimization.interleaved import TimedModel, timing_inputs
from superopt.optimization.predicted_stages import costs_without
from superopt.optimization.step_groups import FOLDING_TITLE, StepGroup
from superopt.report.data.attribution import AblatedPart, Ablation, PartKind
from superopt.report.data.report import Event
from superopt.report.formatting.phrases import count_text
from superopt.search.partial_replay import PartialReplay, StepReplay
from superopt.verification.original import Original
from superopt.verification.ort_session import OrtSession

MAX_NAMES = 3  # of dependent rules
Model = tuple[Path, frozenset[str]]  # a file, and the kernel decisions that are not made for it


@dataclass(frozen=True, slots=True)
class MeasuredStage:
    """A stage of a waterfall: how many times as long as the result it takes; None if it is the
    result."""

    name: str
    kind: PartKind
    steps: int
    ratio: SpeedupInterval | None


@dataclass(frozen=True, slots=True)
class AblationResult:
    """The table, and the stages; these are empty if not all of them were timed."""

    table: Ablation
    stages: tuple[MeasuredStage, ...] = ()


@dataclass(slots=True)
class _Part:
    """A part that is left out, or a stage; model: None if there is none, and `note` says why."""

    name: str
    kind: PartKind
    steps: int
    dependent: int = 0
    model: Model | None = None
    note: str = ""
    graph: ir_graph.Graph | None = None


def measure_ablation(
    original: Original,
    winner: Candidate | None,
    replay: StepReplay | None,
    groups: Sequence[StepGroup],
    request: Request,
    costs: GraphCosts,
    store: Store,
    folder: Path,
) -> AblationResult | str:
    """Return what each part of the result gains, or why nothing can be left out. replay: of the
    winner's steps. Models are written to `folder`. Takes up to `request.ablation_seconds`."""
    is_untimed = request.is_untimed or not original.is_runnable
    if winner is None and (request.timers is None or is_untimed):
        return "the model was not rewritten, so there is nothing to leave out"
    job = _AblationJob(original, winner, replay, groups, request, folder)
    return AblationResult(job.predict(costs, store)) if is_untimed else job.measure()


@dataclass(slots=True)
class _AblationJob:
    original: Original
    winner: Candidate | None
    replay: StepReplay | None
    groups: Sequence[StepGroup]
    request: Request
    folder: Path
    _files: dict[object, Path | str] = field(default_factory=dict)
    _replayed: dict[frozenset[int], PartialReplay] = field(default_factory=dict)

    @property
    def result(self) -> Model:
        path = self.original.path if self.winner is None else self.winner.path
        return path, frozenset()

    @property
    def decisions(self) -> Mapping[str, str]:
        timers = self.request.timers
        return {} if timers is None else timers.decisions

    def measure(self) -> AblationResult:
        """Time the result without each part, and each stage."""
        parts = [*self.rule_parts(), *self.decision_parts()]
        stages = self.stages()
        ordered = [*sorted(parts, key=lambda p: p.kind == "folding"), *stages]
        distinct = dict.fromkeys(p.model for p in ordered if p.model is not None)
        models = [m for m in distinct if m != self.result]
        timed = self._time(models)
        ratios = dict(zip(models, timed.ratios, strict=True))
        rows = [self._row(p, ratios) for p in parts]
        table = Ablation(tuple(_most_first(rows)), timed.rounds, timed.sessions, self.notes())
        found = [(p, None if p.model is None else ratios.get(p.model)) for p in stages]
        if any(isinstance(r, str) or p.note for p, r in found):
            return AblationResult(table)
        made = (
            MeasuredStage(p.name, p.kind, p.steps, r) for p, r in found if not isinstance(r, str)
        )
        return AblationResult(table, tuple(made))

    def predict(self, costs: GraphCosts, store: Store) -> Ablation:
        """Return the table by the costs of the plan."""
        assert self.winner is not None
        result, own = self.winner.variant.graph, costs
        if self.decisions:
            own = costs_without(frozenset(), self.request, costs, store)
        whole, rows = own.run_cost(result), list[AblatedPart]()
        for p in self.rule_parts():
            ratio = None if p.graph is None else own.run_cost(p.graph) / whole
            rows.append(AblatedPart(p.name, p.kind, p.steps, p.dependent, None, ratio, p.note))
        for name, title in self.decisions.items():
            some = costs_without(frozenset((name,)), self.request, costs, store)
            ratio = some.run_cost(result) / whole
            rows.append(AblatedPart(title, "decision", 0, 0, None, ratio))
        return Ablation(tuple(_most_first(rows)), 0, 0, self.notes())

    def notes(self) -> tuple[str, ...]:
        """Return what cannot be left out alone."""
        if self.decisions:
            return ("constants are always folded, and each kernel has a schedule",)
        return ("onnxruntime's own optimizations are in all of them",)

    def _dependents_text(self, found: PartialReplay) -> str:
        """Return which steps cannot do without those that were left out."""
        if not found.dependent:
            return ""
        assert self.winner is not None
        steps = self.winner.variant.steps
        rules = Counter(steps[n].rule for n in found.dependent)
        names = ", ".join(rule for rule, _ in rules.most_common(MAX_NAMES))
        more = ", ..." if len(rules) > MAX_NAMES else ""
        return f"with {count_text(len(found.dependent), 'dependent step')}: {names}{more}"

    def _time(self, models: Sequence[Model]) -> TimedRatios:
        request = self.request
        threads, feed = request.threads, timing_inputs(self.original)

        def load_timed(m: Model) -> TimedModel:
            return TimedModel(OrtSession(m[0], threads), m[1])

        def show(done: float) -> None:
            request.progress(Event("ablate", "the result without each part", done))

        size = self.original.model.source.size_bytes
        some = [load_timed(m) for m in models]
        return time_beside(
            load_timed(self.result), some, size, feed, request, request.ablation_seconds, show
        )

    def _row(self, p: _Part, ratios: Mapping[Model, SpeedupInterval | str]) -> AblatedPart:
        ratio = None if p.model is None else ratios.get(p.model)
        found = (
            None if not isinstance(ratio, SpeedupInterval) else (ratio.low, ratio.mid, ratio.high)
        )
        note = ratio if isinstance(ratio, str) else p.note
        return AblatedPart(p.name, p.kind, p.steps, p.dependent, found, None, note)

    def rule_parts(self) -> list[_Part]:
        """Return the result without the steps of each group, and without folding."""
        out = []
        for g in self.groups:
            found = self._leave_out(g.numbers)
            part = _Part(g.name, g.kind, len(g.numbers), len(found.dependent), graph=found.graph)
            part.model, part.note = self._model(found.graph)
            part.note = part.note or self._dependents_text(found)
            out.append(part)
        if self.winner is not None and self.request.timers is None:
            part = _Part("constant folding", "folding", 0)
            part.model, part.note = self._model(self.winner.variant.graph, is_folded=False)
            out.append(part)
        return out

    def decision_parts(self) -> list[_Part]:
        """Return the result compiled without each kind of kernel decision."""
        path, _ = self.result
        return [
            _Part(title, "decision", 0, model=(path, frozenset((name,))))
            for name, title in self.decisions.items()
        ]

    def stages(self) -> list[_Part]:
        """Return the stages between the original and the result, both included."""
        original, out = self.original.path, list[_Part]()
        left = list(self.decisions.items())
        if self.decisions:
            everything = frozenset(self.decisions)
            out.append(_Part("kernels alone", "original", 0, model=(original, everything)))
            while left:
                _, title = left.pop(0)
                later = frozenset(name for name, _ in left)
                out.append(_Part(title, "decision", 0, model=(original, later)))
        else:
            out.append(_Part("original", "original", 0, model=(original, frozenset())))
            part = _Part(FOLDING_TITLE, "folding", 0)
            part.model, part.note = self._model(self.original.model.graph)
            out.append(part)
        kept, steps = frozenset[int](), 0
        every = frozenset(n for g in self.groups for n in g.numbers)
        for g in self.groups:
            kept |= g.numbers
            found = self._leave_out(every - kept)
            now = len(kept) - len(found.dependent)
            part = _Part(g.name, g.kind, now - steps)
            if kept == every:
                part.model = self.result
            else:
                part.model, part.note = self._model(found.graph)
            steps = now
            out.append(part)
        return out

    def _leave_out(self, numbers: frozenset[int]) -> PartialReplay:
        assert self.replay is not None
        if numbers not in self._replayed:
            self._replayed[numbers] = self.replay.leave_out(numbers)
        return self._replayed[numbers]

    def _model(self, graph: ir_graph.Graph, is_folded: bool = True) -> tuple[Model | None, str]:
        """Return the file of a graph, or why there is none."""
        key = graph, is_folded
        if key not in self._files:
            path = self.folder / str(len(self._files)) / "model.onnx"
            try:
                written = fold_constants(graph).graph if is_folded else graph
                write_graph(self.original.model, written, path)
                self._files[key] = path
            except (ExportError, OutOfTime) as e:
                self._files[key] = f"it cannot be written: {' '.join(str(e).split())}"
        found = self._files[key]
        return (None, found) if isinstance(found, str) else ((found, frozenset()), "")


def _most_first(rows: Sequence[AblatedPart]) -> list[AblatedPart]:
    def weight(row: AblatedPart) -> float:
        return row.predicted or 0.0 if row.ratio is None else row.ratio[1]

    return sorted(rows, key=weight, reverse=True)
