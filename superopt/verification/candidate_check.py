"""The check of one rewritten graph and of the file that it was written to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from superopt import ort
from superopt.check.compare import Comparison, failed_comparison
from superopt.check.numeric_check import (
    END_TO_END_NOTE,
    OWN_METHOD,
    REGIONS_NOTE,
    RUNTIME_METHOD,
    CheckOutcome,
    NotEvaluable,
    PlaceResult,
    Reference,
    Values,
    are_near_ties,
    compare_candidate,
    first_exact_difference,
    is_rounding_only,
    reference_values,
)
from superopt.check.opaque_regions import UnmatchedOpaqueNode, cut_candidate, opaque_nodes
from superopt.check.quantization_steps import NO_PROOF, StepAllowance
from superopt.ir import graph as ir_graph
from superopt.loading.request import Deadline
from superopt.onnx_io.import_.model import file_node
from superopt.onnx_io.import_.subgraphs import captured_values
from superopt.verification.end_to_end import (
    RejectedCandidate,
    compare_end_to_end,
    compare_with_runtime,
)
from superopt.verification.original import Original, opaque_results
from superopt.verification.ort_session import (
    OrtSession,
    Results,
    WatchedFile,
    value_array,
    write_watched_file,
)
from superopt.verification.output_comparison import ComparedModel
from superopt.verification.step_proofs import prove_allowances

# reserved for timing when it is decided whether there is time for another input set
RESERVED_TIMING_SECONDS = 2.0
MAX_STEPS_SECONDS = 20.0  # for proofs of steps


@dataclass(frozen=True, slots=True)
class WrongResult:
    """A graph that disagrees with the original: where, and what the search for the wrong step
    needs.

    graph: after constant folding; runtime_values: the values that the runtime computed at the
    compared places; None if it did not run.
    """

    graph: ir_graph.Graph
    reference: Reference
    runtime_values: Values | None
    result: PlaceResult


def check_candidate(
    original: Original,
    graph: ir_graph.Graph,
    folded: ir_graph.Graph,
    session: OrtSession,
    deadline: Deadline,
) -> CheckOutcome | RejectedCandidate | WrongResult:
    """Compare `folded`, which was written to the session's file, with the original on every input
    set.

    graph: the graph before constant folding. The file's outputs are compared with float64 values as
    `verify` compares them, within a part of its tolerances. On optional sets they are compared with
    the original's results in ONNX Runtime if float64 evaluation would take too much time.
    """
    try:
        regions, values = cut_candidate(original.regions, folded)
    except UnmatchedOpaqueNode as e:
        return RejectedCandidate(str(e))
    file: WatchedFile | None = None
    if original.is_runnable and session.path is not None:
        wanted = [v for n in opaque_nodes(folded) for v in ir_graph.results(n)]
        wanted += [v for v in values if v is not None]
        place = session.path.parent / "watched" / session.path.name
        file = write_watched_file(original.model, folded, wanted, place, session.path)
    compared = ComparedModel("the rewritten model", original.model.source, folded, session)
    check = _CandidateCheck(original, graph, folded, regions, values, compared, deadline)
    if file is None:
        found = check.run(None, None)
    elif file.path == session.path:
        found = check.run(file, session)
    else:
        with OrtSession(file.path, session.threads, session.level) as held:
            found = check.run(file, held)
    return found or check.outcome()


@dataclass(slots=True)
class _CandidateCheck:
    """The check of one candidate on all input sets; the lists grow from set to set.
    compared_end_to_end: whether outputs were compared with float64 values of the whole model;
    allowances: what is proved of outputs' steps, once one was rejected."""

    original: Original
    graph: ir_graph.Graph
    folded: ir_graph.Graph
    regions: ir_graph.Graph
    values: Sequence[ir_graph.Value | None]
    compared: ComparedModel
    deadline: Deadline
    results: list[PlaceResult] = field(default_factory=list)
    skipped: dict[str, None] = field(default_factory=dict)
    checked_sets: list[str] = field(default_factory=list)
    untimed_sets: list[str] = field(default_factory=list)
    used_own_evaluation: bool = False
    compared_end_to_end: bool = False
    allowances: tuple[StepAllowance, ...] = ()

    def run(
        self, file: WatchedFile | None, session: OrtSession | None
    ) -> RejectedCandidate | WrongResult | None:
        """Check all sets; return what ends the check early, if anything does."""
        if session is not None and session.refusal:
            return RejectedCandidate(f"onnxruntime rejects it: {session.refusal}")
        # What a subgraph reads affects an output only if the subgraph runs.
        nodes = opaque_nodes(self.original.model.graph)
        lazy = any(captured_values(file_node(n)) for n in nodes)
        for n in range(len(self.original.sets)):
            failure = self.check_set(n, file, session, lazy)
            if failure is not None:
                return failure
        return None

    def check_set(
        self, n: int, file: WatchedFile | None, session: OrtSession | None, lazy: bool
    ) -> RejectedCandidate | WrongResult | None:
        original, s = self.original, self.original.sets[n]
        if not s.is_required and self.results and not _has_time_for(original, n, self.deadline):
            far = compare_with_runtime(original, n, self.compared)
            if isinstance(far, str):
                self.skipped[far] = None
                return None
            if far is None:
                self.untimed_sets.append(s.feed.kind)
                return None
            if self.deadline.is_over():
                return far
        exact = not self.checked_sets and self.graph != self.folded
        whole = self.compare_end_to_end(n, exact)
        if original.regions.opaque_results and isinstance(whole, list):
            self.results += whole
            self.compared_end_to_end = True
            if self.checked_sets and not lazy:  # others reveal nothing more about the regions
                self.checked_sets.append(s.feed.kind)
                return None
        ref = original.region_reference(n)
        if isinstance(ref, str):
            self.skipped[ref] = None
            return None
        failure = self.check_regions(n, ref, file, session)
        if failure is not None:
            return failure
        if isinstance(whole, RejectedCandidate):
            return whole
        if isinstance(whole, str):
            self.skipped[whole] = None
        self.checked_sets.append(s.feed.kind)
        return None

    def compare_end_to_end(
        self, n: int, exact: bool
    ) -> list[PlaceResult] | RejectedCandidate | str | None:
        """Compare the outputs on set number `n`; by what is proved of their steps, if they are
        rejected without."""
        found = compare_end_to_end(self.original, n, self.compared, exact, self.allowances)
        if not isinstance(found, RejectedCandidate) or self.allowances:
            return found
        seconds = min(MAX_STEPS_SECONDS, self.deadline.remaining() / 4)
        self.allowances = prove_allowances(self.original.model.graph, self.graph, seconds)
        if set(self.allowances) <= {NO_PROOF}:
            return found
        return compare_end_to_end(self.original, n, self.compared, exact, self.allowances)

    def check_regions(
        self, n: int, ref: Reference, file: WatchedFile | None, session: OrtSession | None
    ) -> RejectedCandidate | WrongResult | None:
        """Compare the regions between opaque nodes: the runtime's values, or our own."""
        original, s = self.original, self.original.sets[n]
        found: Values | None = None
        if file is None or session is None or s.results is None:
            self.used_own_evaluation = True
        else:
            got = session.run(s.feed)
            if isinstance(got, ort.Failure):
                return RejectedCandidate(
                    f"onnxruntime fails on {s.feed.kind} inputs, but runs the original on them:"
                    f" {got.message}"
                )
            found, ref = _values_and_reference(original, self.folded, self.values, file, got, ref)
        wrong = self.compare_regions(ref, found)
        if isinstance(wrong, RejectedCandidate):
            return replace(wrong, lossy_set=n)
        if wrong is not None or self.checked_sets:
            return wrong
        different = _float64_difference(original, self.graph, ref)
        return None if different is None else WrongResult(self.folded, ref, found, different)

    def compare_regions(
        self, ref: Reference, runtime_values: Values | None
    ) -> RejectedCandidate | WrongResult | None:
        """Add the comparison on one input set to the self. Return WrongResult if it failed,
        RejectedCandidate if it failed by rounding alone."""
        try:
            names = self.original.output_names if self.allowances else ()
            known = dict(zip(names, self.allowances, strict=True))
            judged = compare_candidate(
                ref, self.original.regions, self.regions, runtime_values, known
            )
        except NotEvaluable as e:
            bad = PlaceResult(
                "the graph", ref.feed.kind, failed_comparison(f"it cannot be evaluated: {e}")
            )
            return WrongResult(self.folded, ref, runtime_values, bad)
        failures = [r for r in judged if isinstance(r, PlaceResult) and r.compared.failure]
        if failures and not _is_near_tie(self.original, self.graph, ref, runtime_values, failures):
            bad = min(failures, key=lambda r: r.compared.nonfinite_only)
            if _is_rounding_only(self.original, self.graph, ref, failures):
                return RejectedCandidate(
                    f"rounding errors grow too large at {bad.place}: {bad.compared.failure};"
                    " float64 is equal"
                )
            return WrongResult(self.folded, ref, runtime_values, bad)
        for r in judged:
            if isinstance(r, str):
                self.skipped[r] = None
            elif r.compared.failure:
                self.skipped[
                    f"{r.place}: on {r.kind} inputs rounding changes a choice in a few elements; in"
                    f" float64 all elements are equal"
                ] = None
                self.results.append(replace(r, compared=Comparison(0, 0, 0, 0, 0, 0, "")))
            else:
                self.results.append(r)
        return None

    def outcome(self) -> CheckOutcome:
        if self.untimed_sets:
            self.skipped[
                f"{', '.join(self.untimed_sets)} inputs: no time was left for float64; outputs are"
                " close to those of the original in onnxruntime"
            ] = None
        method = OWN_METHOD if self.used_own_evaluation else RUNTIME_METHOD
        if self.original.regions.opaque_results:
            method += REGIONS_NOTE + (END_TO_END_NOTE if self.compared_end_to_end else "")
        compared = {r.place for r in self.results}
        rows = zip(
            self.original.regions.observed,
            self.original.regions.graph.outputs,
            self.regions.outputs,
            strict=True,
        )
        unchecked = tuple(
            p.name for p, old, new in rows if old is not new and p.name not in compared
        )
        return CheckOutcome(
            tuple(self.results), tuple(self.skipped), unchecked, tuple(self.checked_sets), method
        )


def _has_time_for(original: Original, n: int, deadline: Deadline) -> bool:
    """True if there is time to evaluate the original on set `n`, which is optional."""
    if original.is_evaluated(n):
        return not deadline.is_over()
    slowest = original.slowest_evaluation_seconds
    enough = original.evaluation_seconds + slowest <= original.max_optional_seconds
    return enough and deadline.remaining() > 2 * slowest + RESERVED_TIMING_SECONDS


def _values_and_reference(
    original: Original,
    graph: ir_graph.Graph,
    values: Sequence[ir_graph.Value | None],
    file: WatchedFile,
    results: Results,
    ref: Reference,
) -> tuple[Values, Reference]:
    """Return the graph's values at the compared places, and the original's values given what the
    opaque nodes computed in this very run: a random node never returns the same values twice."""
    found = tuple(
        None if v is None else value_array(file.output_names, results, ref.feed, v) for v in values
    )
    free = opaque_results(original.regions, graph, file.output_names, results, ref.feed)
    if all(_are_equal(a, ref.opaque_results.get(name)) for name, a in free.items()):
        return found, ref
    return found, reference_values(original.regions, ref.feed, {**ref.opaque_results, **free}, None)


def _are_equal(a: np.ndarray, b: np.ndarray | None) -> bool:
    if b is None or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))


def _float64_difference(
    original: Original, graph: ir_graph.Graph, ref: Reference
) -> PlaceResult | None:
    try:
        exact, _ = cut_candidate(original.regions, graph)
        return first_exact_difference(ref, original.regions, exact)
    except (UnmatchedOpaqueNode, NotEvaluable):
        return None  # the runtime's values decide there


def _is_rounding_only(
    original: Original, graph: ir_graph.Graph, ref: Reference, failures: Sequence[PlaceResult]
) -> bool:
    try:
        exact, _ = cut_candidate(original.regions, graph)
        return is_rounding_only(ref, original.regions, exact, failures)
    except (UnmatchedOpaqueNode, NotEvaluable):
        return False


def _is_near_tie(
    original: Original,
    graph: ir_graph.Graph,
    ref: Reference,
    runtime_values: Values | None,
    failures: Sequence[PlaceResult],
) -> bool:
    if runtime_values is None:
        return False
    try:
        exact, _ = cut_candidate(original.regions, graph)
        return are_near_ties(ref, original.regions, exact, runtime_values, failures)
    except (UnmatchedOpaqueNode, NotEvaluable):
        return False
