"""`simplify`: fold constants and apply the rules that remove nodes, without a search or timings.

load -> rewrite until no rule removes a node -> fold -> check -> certify
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from superopt import guard
from superopt.cost.machine import this_machine
from superopt.errors import CheckFailed, OutOfTime
from superopt.ir import graph as ir_graph
from superopt.ir.constant_folding import MAX_CONSTANT_GROWTH, FoldResult, fold_constants
from superopt.loading.array_files import check_inputs
from superopt.loading.model import LoadedModel
from superopt.loading.request import Deadline, Request
from superopt.onnx_io.export.scratch_folder import ScratchFolder
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.optimization.admit_rules import AdmittedRules, admit_rules
from superopt.optimization.candidate import Candidate, examine_variant
from superopt.optimization.certificate import make_certificate
from superopt.optimization.check_variants import VariantCheck
from superopt.optimization.optimization_result import OptimizationResult
from superopt.optimization.simplification.node_count_rules import NodeCounts, node_counts
from superopt.optimization.simplification.provenance import export_with_provenance
from superopt.report.data.report import Event
from superopt.rules.lang.rule import Rule
from superopt.search.backtrack import StopReason
from superopt.search.hill_climb import hill_climb
from superopt.search.improve import Outcome, Variant
from superopt.search.move import Refusals
from superopt.search.rule_set import rule_set
from superopt.verification.original import prepare_original

LOG = logging.getLogger("superopt.simplify")
NOTHING_APPLIED = Outcome((), 0, 0.0, StopReason.EXHAUSTED, 0)
NO_RULES = AdmittedRules((), ())
ROOM_BYTES = 1 << 20  # that folded constants may add, beside growth by a factor
MAX_ATTEMPTS = 6  # without places or rules at fault, before only bit-exact rules are left
MAX_PLACE_ATTEMPTS = 4  # of these: without the places at fault


def fold_with_room(graph: ir_graph.Graph) -> FoldResult:
    """Return the graph with constants folded; small models may grow more than by folding in
    `optimize`, because what is computed from a few numbers often sets up a filter."""
    sizes = (c.nbytes for c in ir_graph.constants(graph))
    return fold_constants(graph, limit_bytes=int(MAX_CONSTANT_GROWTH * sum(sizes)) + ROOM_BYTES)


def keep_constants(graph: ir_graph.Graph) -> FoldResult:
    """Return the graph unfolded."""
    return FoldResult(graph, 0, 0, 0, ())


def simplify(
    loaded: LoadedModel, request: Request, elapsed_seconds: float = 0.0, may_fold: bool = True
) -> OptimizationResult:
    """Return the model after folding and the rules of the request, if it passed its check.

    If the rewritten model does not pass, the one that is only folded is tried. elapsed_seconds: of
    the budget, for reading the model. may_fold: False: no constant is folded. Raises CheckFailed if
    a rewritten model disagrees with the original, UsageError if the original does not run on the
    user's inputs.
    """
    deadline = Deadline.for_request(request, elapsed_seconds)
    model = loaded.model
    check_inputs(model, request.inputs)
    scratch = ScratchFolder()
    notes = [*loaded.notes]

    def add_note(text: str) -> None:
        LOG.info(text)
        notes.append(text)

    job = _SimplifyJob(model, request, deadline, scratch, may_fold, add_note)
    try:
        try:
            job.run()
        except (OutOfTime, MemoryError) as e:
            add_note(f"the model is unchanged: {' '.join(str(e).split())}")
    except BaseException:
        scratch.remove()
        raise
    winner = job.winner
    before = job.costs.run_cost(model.graph)
    taken = tuple(dict.fromkeys((*notes, *guard.current_guard().take_notes())))
    return OptimizationResult(
        model.source, model, request, this_machine(), job.outcome, job.refusals, winner, winner, (),
        None, before, winner.variant.cost if winner else before, job.costs, None, taken, scratch,
        job.admitted, "no step was searched for",
    )  # fmt: skip


@dataclass(slots=True)
class _SimplifyJob:
    """One call of `simplify` after the model was read, and what it has found."""

    model: Model
    request: Request
    deadline: Deadline
    scratch: ScratchFolder
    may_fold: bool
    add_note: Callable[[str], None]
    costs: NodeCounts = field(default_factory=lambda: node_counts({}))
    refusals: Refusals = field(default_factory=Refusals)
    outcome: Outcome = NOTHING_APPLIED
    admitted: AdmittedRules = NO_RULES
    winner: Candidate | None = None

    def run(self) -> None:
        """Rewrite and check; without the steps or rules at fault where a check fails."""
        original = prepare_original(self.model, self.request, self.scratch.path, self.add_note)
        check = VariantCheck(
            self.model, self.request, self.deadline, self.scratch, original, float("inf")
        )
        try:
            self.costs = node_counts(original.sizes)
            self.admitted = admit_rules(self.request, self.model.opset, self.add_note)
            for attempt, rules in enumerate(self._rule_sets(check)):
                variant = self._rewrite(rules)
                is_last = not variant.steps
                reason = self._examine(check, variant, attempt)
                if not reason or is_last or self.deadline.is_over():
                    break
        finally:
            original.session.drop()

    def _rule_sets(self, check: VariantCheck) -> Iterator[tuple[Rule, ...]]:
        """Yield the rules of each attempt: all, those without the rules at fault, those that are
        bit-exact, none. Before a rule is left out, it is at the places where it was at fault."""
        rules = self.admitted.rules
        yield rules
        for attempt in range(MAX_ATTEMPTS):
            if not check.culprits:
                break
            at_fault = [c.step for c in check.culprits]
            check.culprits.clear()
            if attempt < MAX_PLACE_ATTEMPTS:
                self.costs.kept_values.update(v for s in at_fault for v in s.change)
            else:
                names = {s.rule for s in at_fault}
                rules = tuple(r for r in rules if r.name not in names)
            yield rules
        yield tuple(r for r in rules if r.float_class == "E0")
        yield ()

    def _rewrite(self, rules: tuple[Rule, ...]) -> Variant:
        """Return the graph after the rules, applied until none removes a node."""
        begin = self.deadline.elapsed()
        graph, steps, priced = hill_climb(
            self.model.graph, rule_set(rules), self.costs, self.refusals, stop=self.deadline.is_over
        )
        label = "the rules" if steps else "folding alone"
        variant = Variant(label, graph, self.costs.run_cost(graph), tuple(steps))
        stop = StopReason.SECONDS if self.deadline.is_over() else StopReason.EXHAUSTED
        self.outcome = Outcome((variant,), priced, self.deadline.elapsed() - begin, stop, 0)
        return variant

    def _examine(self, check: VariantCheck, variant: Variant, attempt: int) -> str:
        """Make a variant the winner if it has fewer nodes and passes its check; return why it does
        not, or ""."""
        self.request.progress(Event("check", f"the graph of {variant.label}", 0.5, variant.cost))
        folder = self.scratch.path / f"candidate{attempt}"
        fold = fold_with_room if self.may_fold else keep_constants
        found = examine_variant(
            check.original, variant, folder, self.request.threads, self.deadline, fold,
            export_with_provenance,
        )  # fmt: skip
        try:
            reason = check.reason_to_reject(variant, found, folder)
            if not reason and isinstance(found, Candidate):
                made = found.source
                if len(made.model.graph) >= len(self.model.source.model.graph):
                    return ""
                self.winner = self._certify(found, made)
                return ""
        finally:
            if isinstance(found, Candidate):
                found.session.drop()
        self.add_note(f"the graph of {variant.label} was not used: {reason}")
        return reason

    def _certify(self, found: Candidate, made: Source) -> Candidate:
        """Return a checked candidate with its certificate; without one, and with a note, if the
        file's graph cannot be matched with the rewritten one."""
        try:
            steps, rules = found.variant.steps, self.request.rules
            return replace(found, certificate=make_certificate(self.model, made, steps, rules))
        except CheckFailed as e:
            self.add_note(f"the result is checked but has no certificate: {e.why}")
            return found
