"""The check of the graphs that a search found: which may be timed and used."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from superopt.errors import OutOfTime
from superopt.loading.request import Deadline, Request
from superopt.onnx_io.export.scratch_folder import ScratchFolder
from superopt.onnx_io.import_.model import Model
from superopt.optimization.bisect_steps import (
    Culprit,
    ProvedButInaccurate,
    bisect_rounding,
    explain_wrong_result,
)
from superopt.optimization.candidate import Candidate, examine_variant
from superopt.optimization.race import fits_in_worker, max_candidates
from superopt.optimization.stage_times import check_seconds, finish_seconds, race_seconds
from superopt.optimization.user_rules import try_user_rules, used_user_rules
from superopt.report.data.report import Event
from superopt.report.formatting.phrases import count_text
from superopt.rules.lang.rule import Rule
from superopt.search.improve import Variant
from superopt.verification.candidate_check import WrongResult
from superopt.verification.end_to_end import RejectedCandidate
from superopt.verification.input_probe import AddNote
from superopt.verification.original import Original

LOG = logging.getLogger("superopt.optimize")
MAX_OVERRUN_PART = 0.05  # of the budget, by which a check may exceed it
MIN_PREDICTED_SPEEDUP = 1.03  # of a graph that is used though it was not timed
SLOW_CHECK_PART = 0.08  # of the budget; after a longer check no other variant is checked


@dataclass(slots=True)
class VariantCheck:
    """The check of the variants of one search, cheapest first.

    original_cost: estimated, in microseconds; culprits: the steps that made the rounding errors of
    a variant too large, of those that were found.
    """

    model: Model
    request: Request
    deadline: Deadline
    scratch: ScratchFolder
    original: Original
    original_cost: float
    culprits: list[Culprit] = field(default_factory=list)

    def check_variants(self, variants: Sequence[Variant], add_note: AddNote) -> list[Candidate]:
        """Return the variants that passed the check, cheapest first; at least one is checked.
        Raises CheckFailed if a variant is wrong, unless the rule to blame is proved."""
        original = self.original
        new = [v for v in variants if v.graph != self.model.graph]
        if self.request.is_untimed or not original.is_runnable:
            cheap = self.original_cost
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
            lossy = {c.step.rule for c in self.culprits}
            if lossy.intersection(s.rule for s in variant.steps):
                continue
            reason = self.reason_to_stop(variant, len(new) - number, bool(passed), slowest)
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
                    original, variant, folder, self.request.threads, self.check_deadline()
                )
            except (OutOfTime, MemoryError) as e:
                add_note(f"the graph of {variant.label} was not used: {' '.join(str(e).split())}")
                break
            slowest = max(slowest, time.monotonic() - begin)
            reason = self.reason_to_reject(variant, found, folder)
            if reason:
                add_note(f"the graph of {variant.label} was not used: {reason}")
            elif isinstance(found, Candidate):
                LOG.info("the graph of %s passed the check", variant.label)
                passed.append(found)
        return passed

    def check_deadline(self) -> Deadline:
        """Return the deadline of what a check may leave out: the race and the certificate come
        after it."""
        later = finish_seconds(self.model.source.size_bytes)
        later += 0.0 if self.request.is_untimed else race_seconds(self.original)
        return replace(self.deadline, seconds=self.deadline.seconds - later)

    def reason_to_stop(self, variant: Variant, left: int, has_passed: bool, slowest: float) -> str:
        """Return why the variants that are left are not checked, or "". slowest: seconds."""
        remaining = self.deadline.remaining()
        if not has_passed:
            expected = check_seconds(self.original, variant.graph)
            expected += finish_seconds(self.model.source.size_bytes)
            expected += 0.0 if self.request.is_untimed else race_seconds(self.original)
            budget = self.request.budget
            if expected > max(remaining, 0.0) + MAX_OVERRUN_PART * budget:
                return (
                    f"{variant.label}: not checked and not used: the check would take about"
                    f" {expected:.0f} s, and {max(remaining, 0.0):.0f} s of the budget of"
                    f" {budget:g} s are left; with {self.deadline.elapsed() + expected:.0f} s there"
                    " would be time"
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
        variant: Variant,
        checked: Candidate | RejectedCandidate | WrongResult,
        folder: Path,
    ) -> str:
        """Return why a checked variant is not used, or "". Raises CheckFailed if the variant is
        wrong, unless the rule to blame is proved."""
        original, request = self.original, self.request
        match checked:
            case Candidate():
                return try_user_rules(request, variant, self.model.source.label)
            case RejectedCandidate(reason, lossy_set):
                if lossy_set is not None and not self.deadline.is_over():
                    found = bisect_rounding(original, variant.steps, lossy_set, folder)
                    self.culprits += [] if found is None else [found]
                return reason
            case WrongResult(_, _, _, bad):
                if bad.compared.nonfinite_only and not used_user_rules(request, variant):
                    return f"{bad.place}: {bad.compared.failure} (inputs: {bad.kind})"
                rules: Mapping[str, Rule] = {r.name: r for r in request.rules}
                request.progress(Event("check", "searching for the wrong step"))
                error = explain_wrong_result(
                    original, variant.steps, checked, rules, folder, request.threads
                )
                if not isinstance(error, ProvedButInaccurate):
                    raise error
                self.culprits += [] if error.culprit is None else [error.culprit]
                return f"{error.what.removesuffix('; nothing was written')}; {error.why}"
