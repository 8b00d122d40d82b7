"""`optimize`: search, fold constants, check and time whole models, keep the fastest that passed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from superopt import guard
from superopt.cost.graph_cost import GraphCosts, roofline_cost_model
from superopt.cost.machine import Machine, this_machine
from superopt.cost.speedup import SpeedupInterval
from superopt.cost.store import Store, Times
from superopt.errors import CheckFailed, OutOfTime
from superopt.loading.array_files import check_inputs
from superopt.loading.cost_clock import CostClock, cost_target, measured_clock
from superopt.loading.model import LoadedModel
from superopt.loading.request import Deadline, Request
from superopt.onnx_io.export.scratch_folder import ScratchFolder
from superopt.onnx_io.import_.model import Model
from superopt.optimization.admit_rules import AdmittedRules, admit_rules
from superopt.optimization.attribution import attribute_speed
from superopt.optimization.bisect_error import find_worst_step
from superopt.optimization.candidate import Candidate, is_large
from superopt.optimization.certificate import make_certificate
from superopt.optimization.check_variants import MAX_OVERRUN_PART, VariantCheck
from superopt.optimization.optimization_result import OptimizationResult
from superopt.optimization.race import race_candidates, refused_optimization_level
from superopt.optimization.search_costs import make_costs, reason_for_estimates
from superopt.optimization.stage_times import (
    check_seconds,
    finish_seconds,
    levels_seconds,
    race_seconds,
)
from superopt.report.data.certificate import Certificate
from superopt.report.data.report import Event, WorstStep
from superopt.report.formatting.phrases import count_text
from superopt.rulegen.model_mutants import add_mutant_rules
from superopt.rules.lang.rule import Rule
from superopt.search.backtrack import Limits, StopReason
from superopt.search.improve import Outcome, improve, replay_decisions
from superopt.search.move import Refusals, Step
from superopt.verification.input_probe import AddNote
from superopt.verification.original import Original, prepare_original

LOG = logging.getLogger("superopt.optimize")
MAX_SEARCH_PART = 0.45  # of the budget; checks and whole-model timings take the rest
MIN_SEARCH_PART = 0.08  # of the budget, also where no check fits after it, ...
RESERVED_RACE_PART = 0.1  # ... and of the race
MAX_LATE_PART = 0.2  # of the budget, for measuring costs where reading the model took most of it
MAX_SEARCHES = 4  # each from the graph before the step whose rounding errors are too large


def optimize(
    loaded: LoadedModel,
    request: Request,
    elapsed_seconds: float = 0.0,
    load_error: OutOfTime | MemoryError | None = None,
) -> OptimizationResult:
    """Return the fastest checked model that the rules reach from a model within the budget.

    elapsed_seconds: of the budget, for reading the model; load_error: why the rules could not be
    read; then nothing is changed. Raises CheckFailed if a rewritten model disagrees with the
    original (a rule is wrong; no file is written), UsageError if it does not run on the user's
    inputs.
    """
    deadline = Deadline.for_request(request, elapsed_seconds)
    model = loaded.model
    check_inputs(model, request.inputs)
    scratch = ScratchFolder()
    try:
        with Store.open(request.store) as store:
            earlier_notes = loaded.notes
            if request.use_mutants:
                request, deadline, more = add_mutant_rules(
                    model, request, deadline, store, this_machine()
                )
                earlier_notes = (*earlier_notes, *more)
            job = _OptimizationJob(
                model, request, deadline, scratch, store, this_machine(), earlier_notes
            )
            try:
                if load_error is not None:
                    raise load_error
                return job.run()
            except (OutOfTime, MemoryError) as e:
                return job.unchanged_result(f"the model is unchanged: {' '.join(str(e).split())}")
    except BaseException:
        scratch.remove()
        raise


@dataclass(frozen=True, slots=True)
class _OptimizationJob:
    """One call of `optimize` after the model was read."""

    model: Model
    request: Request
    deadline: Deadline
    scratch: ScratchFolder
    store: Store
    machine: Machine
    earlier_notes: tuple[str, ...]  # notes of the steps before

    def run(self) -> OptimizationResult:
        request, model = self.request, self.model
        notes = [*self.store.notes, *self.earlier_notes]

        def add_note(text: str) -> None:
            LOG.info(text)
            notes.append(text)

        request.progress(Event("load", "running the original", 0.02))
        original = prepare_original(model, request, self.scratch.path, add_note)
        passed: list[Candidate] = []
        try:
            clock = self.cost_clock(original, add_note)
            costs = make_costs(request, original.sizes, clock)
            refusals = Refusals()
            request.progress(Event("search", "pricing the original", 0.05))
            cost_before = costs.run_cost(model.graph)
            before = self.deadline.elapsed()
            allowed = admit_rules(request, model.opset, add_note)
            LOG.info(
                "%s: estimated cost %.4g us, %d of %d rules apply", model.source.label, cost_before,
                len(allowed.rules), len(request.rules),
            )  # fmt: skip
            outcome, found = self.search_and_check(
                original, costs, refusals, allowed.rules, add_note
            )
            passed += found
            cost_before = costs.run_cost(model.graph)  # more of it may have been measured
            if outcome.stop is StopReason.SECONDS and not outcome.visited:
                add_note(
                    f"the budget of {request.budget:g} s was too short for a search:"
                    f" {MAX_SEARCH_PART:.0%} is for reading, running and pricing the model, which"
                    f" took {before:.1f} s, and for the search"
                )
            winner, best, times, ratio = self.choose_winner(original, passed, add_note)
        finally:
            for session in (original.session, *(c.session for c in passed)):
                session.drop()
        LOG.info("result: %s", winner.variant.label if winner else "unchanged")
        worst = self.find_worst_step(original, winner)
        attribution = attribute_speed(
            original, winner, request, costs, self.store, self.deadline, self.scratch.path / "parts"
        )
        if clock is not None and clock.estimated_count:
            add_note(
                f"{count_text(clock.estimated_count, 'operator has', 'operators have')} an "
                "estimated cost"
            )
        return OptimizationResult(
            model.source, model, request, self.machine, outcome, refusals, winner, best, times,
            ratio, cost_before, winner.variant.cost if winner else cost_before, costs, clock,
            tuple(dict.fromkeys((*notes, *guard.current_guard().take_notes()))), self.scratch,
            allowed, worst, attribution,
        )  # fmt: skip

    def unchanged_result(self, reason: str) -> OptimizationResult:
        """Return the result of a run that ran out of time or memory before it found a candidate."""
        costs = GraphCosts({}, roofline_cost_model(self.request.threads))
        cost = costs.graph_cost(self.model.graph)
        nothing = Outcome((), 0, self.deadline.elapsed(), StopReason.SECONDS, 0)
        notes = dict.fromkeys(
            (*self.store.notes, *self.earlier_notes, *guard.current_guard().take_notes(), reason)
        )
        return OptimizationResult(
            self.model.source, self.model, self.request, self.machine, nothing, Refusals(), None,
            None, (), None, cost, cost, costs, None, tuple(notes), self.scratch,
            AdmittedRules((), ()), reason,
        )  # fmt: skip

    def cost_clock(self, original: Original, add_note: AddNote) -> CostClock | None:
        """Return the clock that measures costs; None if costs are estimated."""
        request = self.request
        reason = reason_for_estimates(request, original)
        if reason:
            add_note(reason)
        if reason and not request.is_predicted:
            return None
        part = self.deadline.elapsed() / request.budget + MAX_LATE_PART if request.budget else 0.0
        return measured_clock(
            self.model, request, self.deadline, self.store, self.machine,
            max(MAX_SEARCH_PART, part), original.sizes,
        )  # fmt: skip

    def search_and_check(
        self,
        original: Original,
        costs: GraphCosts,
        refusals: Refusals,
        rules: Sequence[Rule],
        add_note: AddNote,
    ) -> tuple[Outcome, list[Candidate]]:
        """Search and check. If rounding errors left no candidate, search on from the graph before
        the step that made them too large, without its rule."""
        left_out: set[str] = set()
        steps: tuple[Step, ...] = ()
        seconds = self.search_seconds(original)
        for attempt in range(MAX_SEARCHES):
            some = [r for r in rules if r.name not in left_out]
            outcome = self.search(costs, refusals, some, seconds, steps)
            LOG.info("searched %d graphs: %s", outcome.visited, outcome.stop.value)
            for v in outcome.variants:
                LOG.debug("%s: cost %.4g us by %s", v.label, v.cost, [s.rule for s in v.steps])
            check = VariantCheck(
                self.model, self.request, self.deadline, self.scratch, original,
                costs.run_cost(self.model.graph),
            )  # fmt: skip
            passed = check.check_variants(outcome.variants, add_note)
            again = self.request.replay is None and attempt + 1 < MAX_SEARCHES
            if passed or not check.culprits or not again or self.deadline.is_over():
                break
            lossy = {c.step.rule for c in check.culprits}
            left_out |= lossy
            cheapest = min(check.culprits, key=lambda c: costs.run_cost(c.graph_before))
            is_cheaper = costs.run_cost(cheapest.graph_before) < costs.run_cost(self.model.graph)
            steps = cheapest.steps_before if is_cheaper else ()
            seconds = MAX_SEARCH_PART * self.deadline.remaining()
            kept = f", from the graph after step {len(steps)}" if steps else ""
            add_note(f"searched again without {', '.join(sorted(lossy))}{kept}")
        return outcome, passed

    def search(
        self,
        costs: GraphCosts,
        refusals: Refusals,
        rules: Sequence[Rule],
        seconds: float,
        steps: tuple[Step, ...],
    ) -> Outcome:
        """Search from the graph after `steps`, which the variants' steps begin with."""
        request, model = self.request, self.model
        if request.replay is not None:
            return replay_decisions(request.replay, model.graph, rules, costs, model.source.sha256)
        found = improve(
            steps[-1].after if steps else model.graph,
            rules,
            costs,
            seconds=max(0.0, seconds),
            limits=Limits(alpha=request.alpha, seconds=MAX_SEARCH_PART * request.budget),
            refusals=refusals,
            stop=request.stop,
            progress=lambda text, cost: request.progress(Event("search", text, 0.3, cost)),
        )
        if not steps:
            return found
        start = f"the first {count_text(len(steps), 'step')}"
        longer = tuple(
            replace(v, steps=(*steps, *v.steps), label=v.label if v.steps else start)
            for v in found.variants
        )
        return replace(found, variants=longer)

    def choose_winner(
        self, original: Original, passed: list[Candidate], add_note: AddNote
    ) -> tuple[Candidate | None, Candidate | None, Times, SpeedupInterval | None]:
        """Return the winner, the timed (or cheapest) candidate, its times, and their ratio."""
        target = cost_target(self.request, self.machine)
        while passed:
            raced = None
            best = min(passed, key=lambda c: c.variant.cost)
            if original.is_runnable and not self.request.is_untimed:
                raced = race_candidates(
                    original, passed, self.request, self.deadline, self.store, target, add_note
                )
                if raced is None:
                    return None, best, (), None
                best = raced.candidate
                LOG.info("race: %s is %s times as fast", best.variant.label, raced.ratio)
                if not raced.is_faster:
                    return None, best, raced.times_us, raced.ratio
            refused = ""
            if original.is_runnable and self.has_time_for_levels(original, add_note):
                refused = refused_optimization_level(original, best, self.store, target)
            if refused:
                why = f"onnxruntime rejects it at optimization level {refused}"
            else:
                self.request.progress(Event("certify", f"the graph of {best.variant.label}", 0.95))
                found = self.certify(best)
                LOG.info("certificate: %s", found if isinstance(found, str) else "replayed")
                if not isinstance(found, str):
                    done = replace(best, certificate=found)
                    return (done, done, *((raced.times_us, raced.ratio) if raced else ((), None)))
                why = found
            add_note(f"the graph of {best.variant.label} was not used: {why}")
            passed = [c for c in passed if c is not best]
        return None, None, (), None

    def has_time_for_levels(self, original: Original, add_note: AddNote) -> bool:
        """Return whether there is time to run a candidate at ONNX Runtime's other levels."""
        left = max(self.deadline.remaining(), MAX_OVERRUN_PART * self.request.budget)
        left -= finish_seconds(self.model.source.size_bytes)
        if levels_seconds(original) < left and not is_large(self.model.source):
            return True
        add_note(
            "the result was run at ONNX Runtime's highest optimization level only: for others there"
            " is no time, or no memory"
        )
        return False

    def search_seconds(self, original: Original) -> float:
        """Return the seconds for the search: a part of the budget, but so that a check fits after
        it, if that leaves enough for one."""
        budget, elapsed = self.request.budget, self.deadline.elapsed()
        later = check_seconds(original, self.model.graph)
        later += max(RESERVED_RACE_PART * budget, race_seconds(original))
        later += finish_seconds(self.model.source.size_bytes)
        end = min(MAX_SEARCH_PART * budget, budget - later)
        return max(end - elapsed, MIN_SEARCH_PART * budget)

    def find_worst_step(self, original: Original, winner: Candidate | None) -> WorstStep | str:
        """Return the winner's step that adds the largest error, or why there is none."""
        if winner is None:
            return "the model was not rewritten"
        again = check_seconds(original, self.model.graph)
        if is_large(self.model.source) and 2 * again > self.deadline.remaining():
            return "no time was left to search for it"
        self.request.progress(Event("check", "searching for the least accurate step", 0.97))
        folder, threads = self.scratch.path / "worst", self.request.threads
        try:
            return find_worst_step(original, winner, folder, threads, self.deadline)
        except OutOfTime:
            return "no time was left to search for it"

    def certify(self, candidate: Candidate) -> Certificate | str:
        """Return the certificate of a candidate, or why there is none."""
        try:
            steps, rules = candidate.variant.steps, self.request.rules
            return make_certificate(self.model, candidate.source, steps, rules)
        except CheckFailed as e:
            return f"{e.what}: {e.why}"
