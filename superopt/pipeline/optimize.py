"""`optimize`: search, fold constants, check and time whole models, keep the fastest that passed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from superopt import guard, ort
from superopt.cost.clock import Ratio
from superopt.cost.fusion import compiled_away, fused_away
from superopt.cost.machine import Machine, machine
from superopt.cost.measured import MeasuredClock
from superopt.cost.model import Costs, by_roofline
from superopt.cost.store import Store, Target, Times
from superopt.errors import CheckFailed, OutOfTime
from superopt.ir.constant_folding import fold_constants
from superopt.onnx_io.export.exporter import export_model
from superopt.onnx_io.export.model_file import copy_unchanged, write_model
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source, read_model
from superopt.pipeline.admit import Admitted, admitted
from superopt.pipeline.blame import ProvedButOff, blame, lossy_step
from superopt.pipeline.candidate import Candidate, examine
from superopt.pipeline.certify import certificate
from superopt.pipeline.checking import Dropped, Wrong
from superopt.pipeline.clocks import measured, target
from superopt.pipeline.inputs import check_inputs
from superopt.pipeline.load import Loaded
from superopt.pipeline.original import Note, Original, prepare
from superopt.pipeline.own_mutants import with_mutants
from superopt.pipeline.race import entrants, race, refused_at, together
from superopt.pipeline.request import Deadline, Request
from superopt.pipeline.scratch import Scratch
from superopt.pipeline.user_rules import try_user_rules, user_rules
from superopt.pipeline.worst import worst_step
from superopt.report.certificate import Certificate
from superopt.report.data import Event, WorstStep
from superopt.report.words import count
from superopt.rules.lang.rule import Rule
from superopt.search.backtrack import Limits, StopReason
from superopt.search.decision_log import decisions_json, replay
from superopt.search.improve import Outcome, Variant, improve
from superopt.search.move import Refusals

SEARCH_PART = 0.45  # of the budget; checks and whole-model timings take the rest
EVALUATION = 30.0  # estimated duration of a check, in runs of the original in ONNX Runtime
PATIENCE = 5.0  # a check may exceed the budget by so many seconds
MOST_LOSSY_RULES = 3  # are excluded from the search, one search after the other
SLOW_PART = 0.08  # of the budget: if one check takes longer, only the cheapest variant is checked


@dataclass(frozen=True, slots=True)
class Done:
    """The result of an optimization. `winner` is None if no faster candidate passed.

    best: the candidate that was timed; times, ratio: of it and the original; costs: the cost model;
    clock: None if costs are estimates; worst_step: adds the largest error, or why there is none.
    """

    source: Source
    model: Model
    request: Request
    machine: Machine
    outcome: Outcome
    refusals: Refusals
    winner: Candidate | None
    best: Candidate | None
    times: Times
    ratio: Ratio | None
    cost_before: float
    cost_after: float
    costs: Costs
    clock: MeasuredClock | None
    notes: tuple[str, ...]
    scratch: Scratch
    admitted: Admitted
    worst: WorstStep | str


def optimize(
    loaded: Loaded,
    request: Request,
    read_seconds: float = 0.0,
    late: OutOfTime | MemoryError | None = None,
) -> Done:
    """Return the fastest checked model that the rules reach from a model within the budget.

    elapsed_seconds: of the budget, for reading the model; load_error: why the rules could not be
    read; then nothing is changed. Raises CheckFailed if a rewritten model disagrees with the
    original (a rule is wrong; no file is written), UsageError if it does not run on the user's
    inputs.
    """
    deadline = Deadline.of(request, read_seconds)
    model = loaded.model
    check_inputs(model, request.inputs)
    scratch = Scratch()
    try:
        with Store.open(request.store) as store:
            told = loaded.notes
            if request.mutants:
                request, deadline, more = with_mutants(model, request, deadline, store, machine())
                told = (*told, *more)
            job = _Job(model, request, deadline, scratch, store, machine(), told)
            try:
                if late is not None:
                    raise late
                return job.run()
            except (OutOfTime, MemoryError) as e:
                return job.unchanged(f"the model is unchanged: {' '.join(str(e).split())}")
    except BaseException:
        scratch.remove()
        raise


@dataclass(frozen=True, slots=True)
class _Job:
    """One call of `optimize` after the model was read."""

    model: Model
    request: Request
    deadline: Deadline
    scratch: Scratch
    store: Store
    machine: Machine
    told: tuple[str, ...]  # notes of the steps before

    def run(self) -> Done:
        request, model = self.request, self.model
        notes = [*self.store.notes, *self.told]
        request.progress(Event("load", "running the original", 0.02))
        original = prepare(model, request, self.scratch.path, notes.append)
        passed: list[Candidate] = []
        try:
            clock = self.clock(original, notes.append)
            fused = compiled_away if request.target == "cpu" else fused_away
            costs = Costs(original.sizes, clock or by_roofline(request.threads), fused)
            refusals = Refusals()
            request.progress(Event("search", "pricing the original", 0.05))
            cost_before = costs.of_graph(model.graph)
            before = self.deadline.spent()
            allowed = admitted(request, model.opset, notes.append)
            outcome, found = self.checked(original, costs, refusals, allowed.rules, notes.append)
            passed += found
            if outcome.stop is StopReason.SECONDS and not outcome.visited:
                notes.append(
                    f"the budget of {request.budget:g} s was too short for a search:"
                    f" {SEARCH_PART:.0%} is for reading, running and pricing the model, which took"
                    f" {before:.1f} s, and for the search"
                )
            winner, best, times, ratio = self.winner(original, passed, notes.append)
        finally:
            for session in (original.session, *(c.session for c in passed)):
                session.drop()
        worst = self.worst(original, winner)
        if clock is not None and clock.estimated:
            notes.append(
                f"{count(clock.estimated, 'operator has', 'operators have')} an estimated cost"
            )
        return Done(
            model.source, model, request, self.machine, outcome, refusals, winner, best, times,
            ratio, cost_before, winner.variant.cost if winner else cost_before, costs, clock,
            tuple(dict.fromkeys((*notes, *guard.current().said()))), self.scratch, allowed, worst,
        )  # fmt: skip

    def unchanged(self, why: str) -> Done:
        """Return the result of a run that ran out of time or memory before it found a candidate."""
        costs = Costs({}, by_roofline(self.request.threads))
        cost = costs.of_graph(self.model.graph)
        nothing = Outcome((), 0, self.deadline.spent(), StopReason.SECONDS, 0)
        notes = dict.fromkeys((*self.store.notes, *self.told, *guard.current().said(), why))
        return Done(
            self.model.source, self.model, self.request, self.machine, nothing, Refusals(), None,
            None, (), None, cost, cost, costs, None, tuple(notes), self.scratch, Admitted((), ()),
            why,
        )  # fmt: skip

    def clock(self, original: Original, note: Note) -> MeasuredClock | None:
        """Return the clock that measures costs; None if costs are estimated."""
        if ort.available() is None:
            note("onnxruntime is not installed: costs are estimates and nothing was timed")
        elif self.request.cost == "roofline":
            note("costs are estimates and nothing was timed, as requested")
        elif self.request.replay is not None:
            note("decisions were replayed: nothing was searched, measured or timed")
        elif original.refused and self.request.cost != "measured":
            why = original.refused.replace(str(original.path), self.model.source.label)
            note(
                "costs are estimates and nothing was timed: onnxruntime does not run the original:"
                f" {why}"
            )
        else:
            request, model = self.request, self.model
            return measured(model, request, self.deadline, self.store, self.machine, SEARCH_PART)
        return None

    def target(self) -> Target:
        return target(self.request, self.machine)

    def checked(
        self,
        original: Original,
        costs: Costs,
        refusals: Refusals,
        rules: Sequence[Rule],
        note: Note,
    ) -> tuple[Outcome, list[Candidate]]:
        """Search and check; repeat without the rules whose rounding errors left no candidate."""
        left_out: set[str] = set()
        seconds = SEARCH_PART * self.request.budget - self.deadline.spent()
        while True:
            some = [r for r in rules if r.name not in left_out]
            outcome = self.search(costs, refusals, some, seconds)
            lossy: set[str] = set()
            passed = self.candidates(original, outcome.variants, note, lossy)
            again = self.request.replay is None and len(left_out) < MOST_LOSSY_RULES
            if passed or not lossy or not again or self.deadline.over():
                return outcome, passed
            left_out |= lossy
            seconds = SEARCH_PART * self.deadline.left()
            note(f"searched again without {', '.join(sorted(lossy))}")

    def search(
        self, costs: Costs, refusals: Refusals, rules: Sequence[Rule], seconds: float
    ) -> Outcome:
        request, model = self.request, self.model
        if request.replay is not None:
            return _replayed(request.replay, model, rules, costs)
        return improve(
            model.graph,
            rules,
            costs,
            seconds=max(0.0, seconds),
            limits=Limits(alpha=request.alpha, seconds=SEARCH_PART * request.budget),
            refusals=refusals,
            stop=request.stop,
            progress=lambda text, cost: request.progress(Event("search", text, 0.3, cost)),
        )

    def candidates(
        self, original: Original, variants: Sequence[Variant], note: Note, lossy: set[str]
    ) -> list[Candidate]:
        """Return the variants that passed the check, cheapest first; at least one is checked. Add
        rules whose rounding errors are too large to `lossy_rules`. Raises CheckFailed if a variant
        is wrong, unless the rule to blame is proved."""
        new = [v for v in variants if v.graph != self.model.graph]
        if self.request.untimed or not original.runs:
            cheap = min((v.cost for v in variants if v not in new), default=float("inf"))
            new = [v for v in new if v.cost < cheap or self.request.replay is not None]
        if not original.sets:
            return []
        timed = original.runs and not self.request.untimed
        most = entrants(original, self.request.budget) if timed else 1
        passed: list[Candidate] = []
        slowest = 0.0
        for number, variant in enumerate(new):
            if len(passed) == most:
                break
            if lossy.intersection(s.rule for s in variant.steps):
                continue
            expected = EVALUATION * original.us * 1e-6
            if not passed and expected > 2 * max(self.deadline.left(), 0.0) + PATIENCE:
                note(
                    f"{variant.label}: not checked and not used: the check would take about"
                    f" {expected:.0f} s, far more than the budget of {self.request.budget:g} s"
                )
                break
            if passed and self.deadline.left() < 2 * slowest:
                more = count(len(new) - number, "more graph was", "more graphs were")
                note(f"{more} found but not checked: no time left")
                break
            if passed and slowest > SLOW_PART * self.request.budget:
                more = count(len(new) - number, "more graph,", "more graphs,")
                note(f"{more} of higher estimated cost not checked: each takes {slowest:.0f} s")
                break
            self.request.progress(
                Event("check", f"the graph of {variant.label}", 0.6, variant.cost)
            )
            if passed and not together(original, len(passed) + 1):
                passed[-1].session.drop()
            begin = time.monotonic()
            folder = self.scratch.path / f"candidate{number}"
            try:
                found = examine(original, variant, folder, self.request.threads, self.deadline)
            except (OutOfTime, MemoryError) as e:
                note(f"the graph of {variant.label} was not used: {' '.join(str(e).split())}")
                break
            slowest = max(slowest, time.monotonic() - begin)
            match found:
                case Candidate():
                    untried = try_user_rules(self.request, variant, self.model.source.label)
                    if untried:
                        note(f"the graph of {variant.label} was not used: {untried}")
                    else:
                        passed.append(found)
                case Dropped(reason, on):
                    note(f"the graph of {variant.label} was not used: {reason}")
                    if on is not None and not self.deadline.over():
                        step = lossy_step(original, variant.steps, on, folder)
                        lossy.update(() if step is None else (step.step.rule,))
                case Wrong(_, _, _, bad) if bad.compared.exceptional and not user_rules(
                    self.request, variant
                ):
                    note(
                        f"the graph of {variant.label} was not used: {bad.place}:"
                        f" {bad.compared.failure} (inputs: {bad.kind})"
                    )
                case Wrong():
                    rules: Mapping[str, Rule] = {r.name: r for r in self.request.rules}
                    self.request.progress(Event("check", "searching for the wrong step"))
                    error = blame(
                        original, variant.steps, found, rules, folder, self.request.threads
                    )
                    if not isinstance(error, ProvedButOff):
                        raise error
                    said = error.what.removesuffix("; nothing was written")
                    note(f"the graph of {variant.label} was not used: {said}; {error.why}")
        return passed

    def winner(
        self, original: Original, passed: list[Candidate], note: Note
    ) -> tuple[Candidate | None, Candidate | None, Times, Ratio | None]:
        """Return the winner, the timed (or cheapest) candidate, its times, and their ratio."""
        while passed:
            raced = None
            best = min(passed, key=lambda c: c.variant.cost)
            if original.runs and not self.request.untimed:
                raced = race(
                    original, passed, self.request, self.deadline, self.store, self.target(), note
                )
                if raced is None:
                    return None, best, (), None
                best = raced.best
                if not raced.won:
                    return None, best, raced.times, raced.ratio
            refused = ""
            if original.runs:
                refused = refused_at(original, best, self.store, self.target())
            if refused:
                why = f"onnxruntime rejects it at optimization level {refused}"
            else:
                self.request.progress(Event("certify", f"the graph of {best.variant.label}", 0.95))
                found = self.certified(best)
                if not isinstance(found, str):
                    done = replace(best, certificate=found)
                    return (done, done, *((raced.times, raced.ratio) if raced else ((), None)))
                why = found
            note(f"the graph of {best.variant.label} was not used: {why}")
            passed = [c for c in passed if c is not best]
        return None, None, (), None

    def worst(self, original: Original, winner: Candidate | None) -> WorstStep | str:
        """Return the winner's step that adds the largest error, or why there is none."""
        if winner is None:
            return "the model was not rewritten"
        self.request.progress(Event("check", "searching for the least accurate step", 0.97))
        folder, threads = self.scratch.path / "worst", self.request.threads
        try:
            return worst_step(original, winner, folder, threads, self.deadline)
        except OutOfTime:
            return "no time was left to search for it"

    def certified(self, best: Candidate) -> Certificate | str:
        """Return the certificate of a candidate, or why there is none."""
        try:
            steps, rules = best.variant.steps, self.request.rules
            return certificate(self.model, read_model(best.path), steps, rules)
        except CheckFailed as e:
            return f"{e.what}: {e.why}"


def _replayed(text: str, model: Model, rules: Sequence[Rule], costs: Costs) -> Outcome:
    """Return the outcome of an earlier run: repeat its decisions without pricing or timing."""
    begin = time.monotonic()
    steps = tuple(replay(text, model.graph, rules, model.source.sha256))
    graph = steps[-1].after if steps else model.graph
    variant = Variant("replay", graph, costs.of_graph(graph), steps)
    return Outcome((variant,), len(steps), time.monotonic() - begin, StopReason.EXHAUSTED, 0)


def save(done: Done, path: Path) -> Certificate | None:
    """Write the checked file by an atomic rename, or a byte-identical copy of the input. Return the
    file's certificate; None for a copy.

    A model with external data is written again: its data file is named after the model file.
    """
    if done.winner is None:
        copy_unchanged(done.source, path)
        return None
    assert done.winner.certificate is not None
    made = read_model(done.winner.path)
    if not made.has_external_data:
        copy_unchanged(made, path)
        return done.winner.certificate
    folded = fold_constants(done.winner.variant.graph)
    write_model(export_model(done.model, folded.graph), path, original=done.source)
    return replace(done.winner.certificate, optimized=read_model(path).sha256)


def decisions(done: Done) -> str:
    """Return the decision log, which `replay` takes; it has no rounds if nothing changed."""
    steps = done.winner.variant.steps if done.winner else ()
    return decisions_json(steps, done.request.rules, done.source.sha256)
