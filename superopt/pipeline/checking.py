"""The check of one rewritten graph and of the file that it was written to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from superopt import ort
from superopt.check.compare import Compared, failed
from superopt.check.numeric import (
    END_TO_END,
    OWN,
    REGIONS,
    RUNTIME,
    Checked,
    Reference,
    Result,
    Unrunnable,
    Values,
    compare_on,
    exactly,
    near_ties,
    reference,
    rounding_only,
)
from superopt.check.regions import Unmatched, cut_like, opaque_nodes
from superopt.ir import graph as ir_graph
from superopt.onnx_io.import_.model import file_node
from superopt.onnx_io.import_.subgraphs import captured_values
from superopt.pipeline.comparison import (
    Second,
    compare_outputs,
    output_reference,
    runtime_reference,
)
from superopt.pipeline.original import Original, free_values
from superopt.pipeline.request import Deadline
from superopt.pipeline.runtime import Got, Session, Watched, value, watched

# reserved for timing when it is decided whether there is time for another input set
RACE_SECONDS = 2.0
# The part of `verify`'s tolerances that a rewritten model may use up: on other inputs, or on
# another machine, its error relative to the original differs.
ALLOWED_PART = 0.5


@dataclass(frozen=True, slots=True)
class Dropped:
    """Why a graph is not used, though it is not known to be wrong.

    lossy_set: the number of the input set on which its rounding errors are too large, if they are.
    """

    reason: str
    lossy: int | None = None


@dataclass(frozen=True, slots=True)
class Wrong:
    """A graph that disagrees with the original: where, and what the search for the wrong step
    needs.

    graph: after constant folding; runtime_values: the values that the runtime computed at the
    compared places; None if it did not run.
    """

    graph: ir_graph.Graph
    ref: Reference
    found: Values | None
    result: Result


@dataclass(slots=True)
class _Tally:
    """The state of a check."""

    results: list[Result] = field(default_factory=list)
    skipped: dict[str, None] = field(default_factory=dict)
    sets: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    own: bool = False
    whole: bool = False  # whether outputs were compared with float64 values of the whole model


def check(
    original: Original,
    graph: ir_graph.Graph,
    folded: ir_graph.Graph,
    session: Session,
    deadline: Deadline,
) -> Checked | Dropped | Wrong:
    """Compare `folded`, which was written to the session's file, with the original on every input
    set.

    graph: the graph before constant folding. The file's outputs are compared with float64 values as
    `verify` compares them, within a part of its tolerances. On optional sets they are compared with
    the original's results in ONNX Runtime if float64 evaluation would take too much time.
    """
    try:
        regions, values = cut_like(original.regions, folded)
    except Unmatched as e:
        return Dropped(str(e))
    file: Watched | None = None
    if original.runs and session.path is not None:
        wanted = [v for n in opaque_nodes(folded) for v in ir_graph.results(n)]
        wanted += [v for v in values if v is not None]
        place = session.path.parent / "watched" / session.path.name
        file = watched(original.model, folded, wanted, place, session.path)
    tally = _Tally()
    second = Second("the rewritten model", original.model.source, folded, session)
    if file is None:
        found = _on_sets(tally, original, graph, folded, regions, values, None, second, deadline)
    elif file.path == session.path:
        run = (file, session)
        found = _on_sets(tally, original, graph, folded, regions, values, run, second, deadline)
    else:
        with Session(file.path, session.threads) as held:
            run = (file, held)
            found = _on_sets(tally, original, graph, folded, regions, values, run, second, deadline)
    return found or _checked(tally, original, regions)


def _on_sets(
    tally: _Tally,
    original: Original,
    graph: ir_graph.Graph,
    folded: ir_graph.Graph,
    regions: ir_graph.Graph,
    values: Sequence[ir_graph.Value | None],
    run: tuple[Watched, Session] | None,
    second: Second,
    deadline: Deadline,
) -> Dropped | Wrong | None:
    """Fill the state; return what ends the check early, if anything does."""
    if run is not None and run[1].refused:
        return Dropped(f"onnxruntime rejects it: {run[1].refused}")
    # What a subgraph reads affects an output only if the subgraph runs.
    lazy = any(captured_values(file_node(n)) for n in opaque_nodes(original.model.graph))
    for n, s in enumerate(original.sets):
        if not s.must and tally.results and not _time_for(original, n, deadline):
            far = _far_from_runtime(original, n, second)
            if isinstance(far, str):
                tally.skipped[far] = None
                continue
            if far is None:
                tally.late.append(s.feed.kind)
                continue
            if deadline.over():
                return far
        whole = _end_to_end(original, n, second, exactly=not tally.sets and graph != folded)
        if original.regions.free and isinstance(whole, list):
            tally.results += whole
            tally.whole = True
            if tally.sets and not lazy:  # other inputs reveal nothing more about the regions
                tally.sets.append(s.feed.kind)
                continue
        ref = original.reference(n)
        if isinstance(ref, str):
            tally.skipped[ref] = None
            continue
        found: Values | None = None
        if run is None or s.got is None:
            tally.own = True
        else:
            got = run[1].run(s.feed)
            if isinstance(got, ort.Failed):
                return Dropped(
                    f"onnxruntime fails on {s.feed.kind} inputs, but runs the original on them:"
                    f" {got.message}"
                )
            found, ref = _found(original, folded, values, run[0], got, ref)
        wrong = _judge(tally, original, graph, folded, regions, ref, found)
        if isinstance(wrong, Dropped):
            return replace(wrong, lossy=n)
        if wrong is not None:
            return wrong
        if not tally.sets:
            different = _exactly(original, graph, ref)
            if different is not None:
                return Wrong(folded, ref, found, different)
        if isinstance(whole, Dropped):
            return whole
        if isinstance(whole, str):
            tally.skipped[whole] = None
        tally.sets.append(s.feed.kind)
    return None


def _far_from_runtime(original: Original, n: int, second: Second) -> Dropped | str | None:
    """Return why the compared model is not used, if its outputs are not near the original's results
    in ONNX Runtime on set number `n`; a text if these cannot be compared. This needs no float64
    evaluation: outputs within ACCEPTED_TOLERANCE_PART of the original's own results are within the
    tolerances of float64, too."""
    s = original.sets[n]
    if s.got is None:
        return f"{s.feed.kind} inputs: no time was left"
    ref = runtime_reference(s.feed, original.names, s.got)
    found = compare_outputs(original, ref, second, part=ALLOWED_PART, exactly=False)
    return found if isinstance(found, str) else _lossy(found, n)


def _end_to_end(
    original: Original, n: int, second: Second, *, exactly: bool
) -> list[Result] | Dropped | str | None:
    """Compare the file's outputs on set number `n` with the float64 values of the whole model.
    Return the results of the rewritten outputs; a rejection if `verify` would refute the model, or
    nearly; a text if nothing can be compared; None if there are no float64 values."""
    ref = output_reference(original, n)
    if isinstance(ref, str):
        return ref
    found = compare_outputs(original, ref, second, part=ALLOWED_PART, exactly=exactly)
    if isinstance(found, str):
        return found
    lossy = _lossy(found, n)
    if lossy is not None or ref.rounded:
        return lossy
    rows = zip(found, original.model.graph.outputs, second.graph.outputs, strict=True)
    return [r for r, old, new in rows if isinstance(r, Result) and old is not new]


def _lossy(found: Sequence[Result | str], n: int) -> Dropped | None:
    for r in found:
        if isinstance(r, Result) and r.compared.failure:
            why = f"{r.compared.failure} (inputs: {r.kind})"
            return Dropped(f"rounding errors grow too large at {r.place}: {why}", n)
    return None


def _time_for(original: Original, n: int, deadline: Deadline) -> bool:
    """True if there is time to evaluate the original on set `n`, which is optional."""
    if original.knows(n):
        return not deadline.over()
    slowest = original.slowest
    enough = original.seconds + slowest <= original.check_seconds
    return enough and deadline.left() > 2 * slowest + RACE_SECONDS


def _checked(tally: _Tally, original: Original, regions: ir_graph.Graph) -> Checked:
    if tally.late:
        tally.skipped[
            f"{', '.join(tally.late)} inputs: no time was left for float64; outputs are close to"
            " those of the original in onnxruntime"
        ] = None
    method = OWN if tally.own else RUNTIME
    if original.regions.free:
        method += REGIONS + (END_TO_END if tally.whole else "")
    compared = {r.place for r in tally.results}
    rows = zip(
        original.regions.places, original.regions.graph.outputs, regions.outputs, strict=True
    )
    unchecked = tuple(p.name for p, old, new in rows if old is not new and p.name not in compared)
    return Checked(tuple(tally.results), tuple(tally.skipped), unchecked, tuple(tally.sets), method)


def _found(
    original: Original,
    graph: ir_graph.Graph,
    values: Sequence[ir_graph.Value | None],
    file: Watched,
    got: Got,
    ref: Reference,
) -> tuple[Values, Reference]:
    """Return the graph's values at the compared places, and the original's values given what the
    opaque nodes computed in this very run: a random node never returns the same values twice."""
    found = tuple(None if v is None else value(file.ports, got, ref.feed, v) for v in values)
    free = free_values(original.regions, graph, file.ports, got, ref.feed)
    if all(_same(a, ref.free.get(name)) for name, a in free.items()):
        return found, ref
    return found, reference(original.regions, ref.feed, {**ref.free, **free}, None)


def _same(a: np.ndarray, b: np.ndarray | None) -> bool:
    if b is None or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))


def _judge(
    tally: _Tally,
    original: Original,
    graph: ir_graph.Graph,
    folded: ir_graph.Graph,
    regions: ir_graph.Graph,
    ref: Reference,
    found: Values | None,
) -> Dropped | Wrong | None:
    """Add the comparison on one input set to the state. Return WrongResult if it failed,
    RejectedCandidate if it failed by rounding alone."""
    try:
        judged = compare_on(ref, original.regions, regions, found)
    except Unrunnable as e:
        bad = Result("the graph", ref.feed.kind, failed(f"it cannot be evaluated: {e}"))
        return Wrong(folded, ref, found, bad)
    failures = [r for r in judged if isinstance(r, Result) and r.compared.failure]
    if failures and not _rounded(original, graph, ref, found, failures):
        bad = min(failures, key=lambda r: r.compared.exceptional)
        if _inexact(original, graph, ref, failures):
            return Dropped(
                f"rounding errors grow too large at {bad.place}: {bad.compared.failure}; float64 is"
                " equal"
            )
        return Wrong(folded, ref, found, bad)
    for r in judged:
        if isinstance(r, str):
            tally.skipped[r] = None
        elif r.compared.failure:
            tally.skipped[
                f"{r.place}: on {r.kind} inputs rounding changes a choice in a few elements; in"
                f" float64 all elements are equal"
            ] = None
            tally.results.append(replace(r, compared=Compared(0, 0, 0, 0, 0, 0, "")))
        else:
            tally.results.append(r)
    return None


def _exactly(original: Original, graph: ir_graph.Graph, ref: Reference) -> Result | None:
    try:
        exact, _ = cut_like(original.regions, graph)
        return exactly(ref, original.regions, exact)
    except (Unmatched, Unrunnable):
        return None  # the runtime's values decide there


def _inexact(
    original: Original, graph: ir_graph.Graph, ref: Reference, failures: Sequence[Result]
) -> bool:
    try:
        exact, _ = cut_like(original.regions, graph)
        return rounding_only(ref, original.regions, exact, failures)
    except (Unmatched, Unrunnable):
        return False


def _rounded(
    original: Original,
    graph: ir_graph.Graph,
    ref: Reference,
    found: Values | None,
    failures: Sequence[Result],
) -> bool:
    if found is None:
        return False
    try:
        exact, _ = cut_like(original.regions, graph)
        return near_ties(ref, original.regions, exact, found, failures)
    except (Unmatched, Unrunnable):
        return False
