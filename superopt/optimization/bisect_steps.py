"""Which step made a rewritten graph wrong: bisection of a search's steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from superopt import ort
from superopt.check.compare import compare_exact, compare_output
from superopt.check.numeric_check import (
    NotEvaluable,
    PlaceResult,
    Reference,
    compare_candidate,
    evaluate_outputs,
)
from superopt.check.opaque_regions import UnmatchedOpaqueNode, cut_candidate
from superopt.errors import CheckFailed
from superopt.ir import graph as ir_graph
from superopt.ir.constant_folding import fold_constants
from superopt.ir.substitute import ReplacementCycle
from superopt.loading.value_names import ValueNames
from superopt.onnx_io.export.exporter import ExportError
from superopt.optimization.candidate import write_graph
from superopt.rules.lang.rule import Rule
from superopt.rules.library.records import tier
from superopt.search.cost_delta import apply_together
from superopt.search.move import Step
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64
from superopt.verification.candidate_check import WrongResult
from superopt.verification.end_to_end import ACCEPTED_TOLERANCE_PART
from superopt.verification.original import Original
from superopt.verification.ort_session import OrtSession, value_array
from superopt.verification.output_comparison import ComparedModel, compare_outputs, output_reference

MAX_SHOWN_DEPTH = 2  # operators deep, in messages
IsWrong = Callable[[ir_graph.Graph], bool]


NEAR_ERRORS = 16.0  # times the original's largest error: a graph that is right when it runs again


@dataclass(frozen=True, slots=True)
class Culprit:
    """The step after which the graph is wrong, its number (from 1), and the right graph before it
    with the steps that lead there."""

    step: Step
    number: int
    graph_before: ir_graph.Graph
    steps_before: tuple[Step, ...]


def find_culprit(steps: Sequence[Step], is_wrong: IsWrong) -> Culprit | None:
    """Return a step, found by bisection, whose graph is wrong while the one before it is right.

    The last step's graph should be wrong and the first one's start right; None if neither the
    rounds of the search nor the steps of a round tell.
    """
    rounds = [list(group) for _, group in groupby(steps, key=lambda s: id(s.before))]
    if not rounds or not is_wrong(rounds[-1][-1].after):
        return None
    n = _first_true(len(rounds), lambda k: is_wrong(rounds[k][-1].after))
    before, some = rounds[n][0].before, rounds[n]

    def partly(k: int) -> bool:
        if k == len(some) - 1:
            return True  # the whole round
        try:
            return is_wrong(apply_together(before, [s.change for s in some[: k + 1]]))
        except ReplacementCycle:
            return True

    k = _first_true(len(some), partly)
    earlier = [s for group in rounds[:n] for s in group]
    part = apply_together(before, [s.change for s in some[:k]]) if k else before
    return Culprit(
        some[k],
        len(earlier) + k + 1,
        part,
        (*earlier, *(replace(s, after=part) for s in some[:k])),
    )


def _first_true(count: int, predicate: Callable[[int], bool]) -> int:
    """Return the least number below `count` for which `predicate` is true, assuming that it is for
    the last."""
    low, high = -1, count - 1
    while high - low > 1:
        middle = (low + high) // 2
        if predicate(middle):
            high = middle
        else:
            low = middle
    return high


class ProvedButInaccurate(CheckFailed):
    """A graph whose error is too large, though the rule to blame is proved for all sizes over the
    real numbers, or no step is to blame: by rounding, or in onnxruntime. The graph is not used; the
    report says why.

    culprit: the step to blame, if one is.
    """

    culprit: Culprit | None = None


def explain_wrong_result(
    original: Original,
    steps: Sequence[Step],
    wrong: WrongResult,
    rules: Mapping[str, Rule],
    folder: Path,
    threads: int,
) -> CheckFailed:
    """Return the error for a failed check: which step caused it, where, and the size of the
    error."""
    exact = _differs_in_float64(original, wrong)
    in_file = _differs_in_runtime(original, wrong, folder, threads)
    label = original.model.source.label
    bad = wrong.result
    why = f"output {bad.place}: {bad.compared.failure} (inputs: {bad.kind})"
    found = find_culprit(steps, exact)
    rounding = ""
    if found is None and not exact(wrong.graph):
        rounding = "; in float64 both agree: the step or onnxruntime loses precision"
        found = find_culprit(steps, in_file)
    if found is None:
        compared = bad.compared
        near = compared.max_error <= NEAR_ERRORS * max(compared.original_max, compared.atol)
        if near and not exact(wrong.graph):
            return ProvedButInaccurate(
                f"{label}: run again, the last graph is right; nothing was written",
                f"{why}{rounding}",
            )
        what = "folding constants" if exact(wrong.graph) else "writing or running the graph"
        return CheckFailed(
            f"{label}: {what} changes the results; nothing was written",
            f"{why}{rounding}",
            "please report this model: no step of the search is the cause",
        )
    names = ValueNames(original.model.names)
    s = found.step
    where = ", ".join(names[v] for v in s.change)
    before = "; ".join(names.term_text(v, MAX_SHOWN_DEPTH) for v in s.change)
    after = "; ".join(dict.fromkeys(names.term_text(v, MAX_SHOWN_DEPTH) for v in s.change.values()))
    rule = rules.get(s.rule)
    source = rule.source if rule is not None else ""
    proved = rule is not None and tier(rule) == "A"
    error = (ProvedButInaccurate if proved else CheckFailed)(
        f"{label}: rule {s.rule} changes the results at {_shorten(where)}; nothing was written",
        f"step {found.number} of {len(steps)} replaced {_shorten(before)} by {_shorten(after)}; "
        f"{why}{rounding}",
        f"correct or remove this rule ({source})" if source else "exclude this rule",
    )
    if isinstance(error, ProvedButInaccurate):
        error.culprit = found
    return error


def bisect_rounding(
    original: Original, steps: Sequence[Step], set_number: int, folder: Path
) -> Culprit | None:
    """Return the step that makes the rounding errors of an output too large on set `set_number`;
    None if no single step does. Models are written to `folder`."""
    ref = output_reference(original, set_number)
    if isinstance(ref, str):
        return None

    def is_lossy(graph: ir_graph.Graph) -> bool:
        path = folder / "lossy" / "model.onnx"
        folded = fold_constants(graph).graph
        try:
            write_graph(original.model, folded, path)
        except ExportError:
            return False
        with OrtSession(path, original.session.threads, original.session.level) as held:
            second = ComparedModel("the model after a step", original.model.source, folded, held)
            found = compare_outputs(
                original, ref, second, tolerance_part=ACCEPTED_TOLERANCE_PART, compare_float64=False
            )
        path.unlink()
        results = [] if isinstance(found, str) else found
        return any(isinstance(r, PlaceResult) and bool(r.compared.failure) for r in results)

    return find_culprit(steps, is_lossy)


def _shorten(text: str, max_chars: int = 120) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."


def _differs_in_float64(original: Original, wrong: WrongResult) -> IsWrong:
    """Return a predicate: does a graph differ from the original in float64, at the place that
    failed?"""
    regions, ref = original.regions, wrong.reference
    at = [n for n, p in enumerate(regions.observed) if p.name == wrong.result.place]

    def is_wrong(graph: ir_graph.Graph) -> bool:
        try:
            parted, _ = cut_candidate(regions, graph)
            some = at or range(len(regions.observed))
            outputs = tuple(parted.outputs[n] for n in some)
            found = evaluate_outputs(
                ir_graph.Graph(parted.inputs, outputs), ref.feed, ref.opaque_results, Reals(F64)
            )
        except (UnmatchedOpaqueNode, NotEvaluable):
            return True
        for n, c in zip(some, found, strict=True):
            r, dtype = ref.exact[n], regions.observed[n].value.type.dtype
            if r is None or c is None:
                continue
            if compare_output(dtype, r, r, c).failure:
                return True
            if dtype is not None and dtype.is_float and compare_exact(r, c):
                return True
        return False

    return is_wrong


def _differs_in_runtime(
    original: Original, wrong: WrongResult, folder: Path, threads: int
) -> IsWrong:
    """Return a predicate: does a graph, folded and written to a file, fail as the candidate did?"""
    judge = runtime_comparison(original, wrong.reference, folder, threads)
    return lambda graph: any(r.compared.failure for r in judge(graph))


def runtime_comparison(
    original: Original, ref: Reference, folder: Path, threads: int
) -> Callable[[ir_graph.Graph], tuple[PlaceResult, ...]]:
    """Return a function that compares a graph, folded, written and run in ONNX Runtime, with `ref`:
    it returns a result for each comparable place; none if the graph does not run."""
    number = 0

    def judge(graph: ir_graph.Graph) -> tuple[PlaceResult, ...]:
        nonlocal number
        number += 1
        path = folder / f"bisect{number}" / "model.onnx"
        folded = fold_constants(graph).graph
        try:
            parted, values = cut_candidate(original.regions, folded)
            write_graph(original.model, folded, path)
        except (UnmatchedOpaqueNode, ExportError):
            return ()
        with OrtSession(path, threads, original.session.level) as held:
            got = held.run(ref.feed)
        path.unlink()
        if isinstance(got, ort.Failure):
            return ()
        names = original.output_names
        ports = dict(zip(folded.outputs, names, strict=True))
        found = tuple(None if v is None else value_array(ports, got, ref.feed, v) for v in values)
        judged = compare_candidate(ref, original.regions, parted, found)
        return tuple(r for r in judged if isinstance(r, PlaceResult))

    return judge
