"""`optimize`: search, fold constants, check and time whole models, keep the fastest that passed."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import read_model
from superopt.optimization.admit_rules import AdmittedRules, admit_rules
from superopt.optimization.bisect_error import find_worst_step
from superopt.optimization.bisect_steps import (
    ProvedButInaccurate,
    bisect_rounding,
    explain_wrong_result,
)
from superopt.optimization.candidate import Candidate, examine_variant
from superopt.optimization.certificate import make_certificate
from superopt.optimization.optimization_result import OptimizationResult
from superopt.optimization.race import (
    fits_in_worker,
    max_candidates,
    race_candidates,
    refused_optimization_level,
)
from superopt.optimization.scratch_folder import ScratchFolder
from superopt.optimization.search_costs import make_costs, reason_for_estimates
from superopt.optimization.user_rules import try_user_rules, used_user_rules
from superopt.report.data.certificate import Certificate
from superopt.report.data.report import Event, WorstStep
from superopt.report.formatting.phrases import count_text
from superopt.rulegen.model_mutants import add_mutant_rules
from superopt.rules.lang.rule import Rule
from superopt.search.backtrack import Limits, StopReason
from superopt.search.improve import Outcome, Variant, improve, replay_decisions
from superopt.search.move import Refusals
from superopt.verification.candidate_check import RejectedCandidate, WrongResult
from superopt.verification.input_probe import AddNote
from superopt.verification.original import Original, prepare_original

LOG = logging.getLogger("superopt.optimize")
MAX_SEARCH_PART = 0.45  # of the budget; checks and whole-model timings take the rest
CHECK_RUN_RATIO = 30.0  # estimated duration of a check, in runs of the original in ONNX Runtime
MAX_OVERRUN_SECONDS = 5.0  # a check may exceed the budget by so many seconds
MAX_LOSSY_RULES = 3  # are excluded from the search, one search after the other
MIN_PREDICTED_SPEEDUP = 1.03  # of a graph that is used though it was not timed
SLOW_CHECK_PART = 0.08  # of the budget; after a longer check no other variant is checked


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
        if clock is not None and clock.estimated_count:
            add_note(
                f"{count_text(clock.estimated_count, 'operator has', 'operators have')} an "
                "estimated cost"
            )
        return OptimizationResult(
            model.source, model, request, self.machine, outcome, refusals, winner, best, times,
            ratio, cost_before, winner.variant.cost if winner else cost_before, costs, clock,
            tuple(dict.fromkeys((*notes, *guard.current_guard().take_notes()))), self.scratch,
            allowed, worst,
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
        return measured_clock(
            self.model, request, self.deadline, self.store, self.machine, MAX_SEARCH_PART,
            original.sizes,
        )  # fmt: skip

    def search_and_check(
        self,
        original: Original,
        costs: GraphCosts,
        refusals: Refusals,
        rules: Sequence[Rule],
        add_note: AddNote,
    ) -> tuple[Outcome, list[Candidate]]:
        """Search and check; repeat without the rules whose rounding errors left no candidate."""
        left_out: set[str] = set()
        seconds = MAX_SEARCH_PART * self.request.budget - self.deadline.elapsed()
        while True:
            some = [r for r in rules if r.name not in left_out]
            outcome = self.search(costs, refusals, some, seconds)
            LOG.info("searched %d graphs: %s", outcome.visited, outcome.stop.value)
            for v in outcome.variants:
                LOG.debug("%s: cost %.4g us by %s", v.label, v.cost, [s.rule for s in v.steps])
            lossy: set[str] = set()
            passed = self.check_variants(original, outcome.variants, add_note, lossy)
            again = self.request.replay is None and len(left_out) < MAX_LOSSY_RULES
            if passed or not lossy or not again or self.deadline.is_over():
                return outcome, passed
            left_out |= lossy
            seconds = MAX_SEARCH_PART * self.deadline.remaining()
            add_note(f"searched again without {', '.join(sorted(lossy))}")

    def search(
        self, costs: GraphCosts, refusals: Refusals, rules: Sequence[Rule], seconds: float
    ) -> Outcome:
        request, model = self.request, self.model
        if request.replay is not None:
            return replay_decisions(request.replay, model.graph, rules, costs, model.source.sha256)
        return improve(
            model.graph,
            rules,
            costs,
            seconds=max(0.0, seconds),
            limits=Limits(alpha=request.alpha, seconds=MAX_SEARCH_PART * request.budget),
            refusals=refusals,
            stop=request.stop,
            progress=lambda text, cost: request.progress(Event("search", text, 0.3, cost)),
        )

    def check_variants(
        self,
        original: Original,
        variants: Sequence[Variant],
        add_note: AddNote,
        lossy_rules: set[str],
    ) -> list[Candidate]:
        """Return the variants that passed the check, cheapest first; at least one is checked. Add
        rules whose rounding errors are too large to `lossy_rules`. Raises CheckFailed if a variant
        is wrong, unless the rule to blame is proved."""
        new = [v for v in variants if v.graph != self.model.graph]
        if self.request.is_untimed or not original.is_runnable:
            cheap = min((v.cost for v in variants if v not in new), default=float("inf"))
            if self.request.is_predicted:
                cheap /= MIN_PREDICTED_SPEEDUP
            new = [v for v in new if v.cost < cheap or self.request.replay is not None]
        if not original.sets:
            return []
        timed = original.is_runnable and not self.request.is_untimed
        most = max_candidates(original, self.request.budget) if timed else 1
        passed: list[Candidate] = []
        slowest = 0.0
        for number, variant in enumerate(new):
            if len(passed) == most:
                break
            if lossy_rules.intersection(s.rule for s in variant.steps):
                continue
            reason = self.reason_to_stop(
                original, variant, len(new) - number, bool(passed), slowest
            )
            if reason:
                add_note(reason)
                break
            self.request.progress(
                Event("check", f"the graph of {variant.label}", 0.6, variant.cost)
            )
            if passed and not fits_in_worker(original, len(passed) + 1):
                passed[-1].session.drop()
            begin = time.monotonic()
            folder = self.scratch.path / f"candidate{number}"
            try:
                found = examine_variant(
                    original, variant, folder, self.request.threads, self.deadline
                )
            except (OutOfTime, MemoryError) as e:
                add_note(f"the graph of {variant.label} was not used: {' '.join(str(e).split())}")
                break
            slowest = max(slowest, time.monotonic() - begin)
            reason = self.reason_to_reject(original, variant, found, folder, lossy_rules)
            if reason:
                add_note(f"the graph of {variant.label} was not used: {reason}")
            elif isinstance(found, Candidate):
                LOG.info("the graph of %s passed the check", variant.label)
                passed.append(found)
        return passed

    def reason_to_stop(
        self, original: Original, variant: Variant, left: int, has_passed: bool, slowest: float
    ) -> str:
        """Return why the variants that are left are not checked, or "". slowest: seconds."""
        expected = CHECK_RUN_RATIO * original.run_us * 1e-6
        remaining = self.deadline.remaining()
        if not has_passed and expected > 2 * max(remaining, 0.0) + MAX_OVERRUN_SECONDS:
            return (
                f"{variant.label}: not checked and not used: the check would take about"
                f" {expected:.0f} s, far more than the budget of {self.request.budget:g} s"
            )
        if has_passed and remaining < 2 * slowest:
            more = count_text(left, "more graph was", "more graphs were")
            return f"{more} found but not checked: no time left"
        if has_passed and slowest > SLOW_CHECK_PART * self.request.budget:
            more = count_text(left, "more graph,", "more graphs,")
            return f"{more} of higher estimated cost not checked: each takes {slowest:.0f} s"
        return ""

    def reason_to_reject(
        self,
        original: Original,
        variant: Variant,
        checked: Candidate | RejectedCandidate | WrongResult,
        folder: Path,
        lossy_rules: set[str],
    ) -> str:
        """Return why a checked variant is not used, or "". Add the rule whose rounding errors are
        too large. Raises CheckFailed if the variant is wrong, unless the rule to blame is
        proved."""
        match checked:
            case Candidate():
                return try_user_rules(self.request, variant, self.model.source.label)
            case RejectedCandidate(reason, lossy_set):
                if lossy_set is not None and not self.deadline.is_over():
                    step = bisect_rounding(original, variant.steps, lossy_set, folder)
                    lossy_rules.update(() if step is None else (step.step.rule,))
                return reason
            case WrongResult(_, _, _, bad):
                if bad.compared.nonfinite_only and not used_user_rules(self.request, variant):
                    return f"{bad.place}: {bad.compared.failure} (inputs: {bad.kind})"
                rules: Mapping[str, Rule] = {r.name: r for r in self.request.rules}
                self.request.progress(Event("check", "searching for the wrong step"))
                error = explain_wrong_result(
                    original, variant.steps, checked, rules, folder, self.request.threads
                )
                if not isinstance(error, ProvedButInaccurate):
                    raise error
                lossy_rules.update(filter(None, (error.rule,)))
                return f"{error.what.removesuffix('; nothing was written')}; {error.why}"

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
            if original.is_runnable:
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

    def find_worst_step(self, original: Original, winner: Candidate | None) -> WorstStep | str:
        """Return the winner's step that adds the largest error, or why there is none."""
        if winner is None:
            return "the model was not rewritten"
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
            return make_certificate(self.model, read_model(candidate.path), steps, rules)
        except CheckFailed as e:
            return f"{e.what}: {e.why}"
