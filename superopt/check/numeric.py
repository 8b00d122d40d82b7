"""The numerical check of a rewritten model: every output against the original in float64.

The original's values are computed once for each set of inputs (`reference_values`), and every
candidate is compared with them (`compare_candidate`). An output that is the same value in both
graphs is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from superopt.check.compare import (
    Compared,
    compare,
    compare_exact,
    differing,
    failed,
    root_mean_square,
)
from superopt.check.inputs import Feeds
from superopt.check.regions import Regions
from superopt.ir import graph as ir_graph
from superopt.ir.evaluate import OpaqueEvaluator, evaluate
from superopt.te.eval.domain import Domain, Reals
from superopt.te.expr.dtype import F64

Values = tuple[
    np.ndarray | None, ...
]  # one for each observed value; None if it cannot be evaluated
Arrays = Mapping[str, np.ndarray]
Keep = Callable[[ir_graph.Value, np.ndarray], None]

RUNTIME = "onnxruntime against float64 evaluation of the original"
OWN = "superopt's evaluation against float64: onnxruntime did not run it"
REGIONS = ", region by region around opaque nodes"
END_TO_END = ", and end to end"


class Unrunnable(ValueError):
    """The original has no value on these inputs."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The original's values on one set of inputs.

    opaque_results: of its opaque nodes, by the names of the regions' inputs; exact: the observed
    values in float64; native: in the model's own dtypes, by the runtime if it runs; is_rounded:
    `exact` equals `native`, because no float64 evaluation was possible.
    """

    feed: Feeds
    free: Arrays
    exact: Values
    own: Values
    rounded: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """The comparison of one observed value on one set of inputs."""

    place: str
    kind: str
    compared: Compared


@dataclass(frozen=True, slots=True)
class Checked:
    """All results; what could not be compared; values that were rewritten and never compared."""

    results: tuple[Result, ...]
    skipped: tuple[str, ...]
    unchecked: tuple[str, ...]
    sets: tuple[str, ...]
    method: str

    @property
    def failures(self) -> tuple[Result, ...]:
        return tuple(r for r in self.results if r.compared.failure)


def values_at(
    graph: ir_graph.Graph,
    feed: Feeds,
    free: Arrays,
    domain: Domain,
    keep: Keep | None = None,
    opaque: OpaqueEvaluator | None = None,
) -> Values:
    """Evaluate the outputs of a graph; None for those that need an input without a value.

    opaque: evaluates the opaque nodes of a graph that is not cut at them. Raises NotEvaluable on
        failure, such as an index out of range.
    """
    given = {**feed.arrays, **free}
    missing = [i for i in graph.inputs if i.name not in given]
    known = [not ir_graph.depends_on((v,), missing) for v in graph.outputs] if missing else None
    wanted = [v for n, v in enumerate(graph.outputs) if known is None or known[n]]
    try:
        part = ir_graph.Graph(graph.inputs, tuple(wanted))
        found = iter(evaluate(part, given, domain, opaque, keep))
    except (ValueError, TypeError, LookupError, ArithmeticError) as e:
        raise Unrunnable(f"{type(e).__name__}: {e}") from e
    if known is None:
        return tuple(found)
    return tuple(next(found) if there else None for there in known)


def reference(
    regions: Regions,
    feed: Feeds,
    free: Arrays,
    ran: Sequence[np.ndarray | None] | None,
    keep: Keep | None = None,
) -> Reference:
    """Return the original's values on one set of inputs. Raises NotEvaluable if it has none.

    runtime_outputs: the runtime's results of the observed values, if it ran.
    """
    exact = values_at(regions.graph, feed, free, Reals(F64), keep)
    if ran is not None and all(r is not None or e is None for r, e in zip(ran, exact, strict=True)):
        return Reference(feed, free, exact, tuple(ran))
    own = values_at(regions.graph, feed, free, Reals(), keep)
    if ran is not None:
        own = tuple(o if r is None else r for r, o in zip(ran, own, strict=True))
    return Reference(feed, free, exact, own)


def compare_on(
    ref: Reference, regions: Regions, candidate: ir_graph.Graph, found: Values | None
) -> list[Result | str]:
    """Compare a cut candidate on the inputs of `ref`: a result for each rewritten value, or a line
    that says why it has none.

    candidate_values: the runtime's results; None: evaluate the candidate here. Raises NotEvaluable
        if the candidate has no value though the original has.
    """
    if found is None:
        found = values_at(candidate, ref.feed, ref.free, Reals())
    out: list[Result | str] = []
    rows = zip(regions.places, regions.graph.outputs, candidate.outputs, strict=True)
    for n, (place, old, new) in enumerate(rows):
        if old is new:
            continue
        r, o, c = ref.exact[n], ref.own[n], found[n]
        if r is None or o is None or c is None:
            out.append(f"{place.name}: it depends on a node whose results are unknown")
            continue
        out.append(Result(place.name, ref.feed.kind, compare(place.value.type.dtype, r, o, c)))
    return out


def exactly(ref: Reference, regions: Regions, candidate: ir_graph.Graph) -> Result | None:
    """Return the first rewritten float output at which the candidate, in float64 without folded
    constants, differs from the original; None if none does.

    The float32 tolerances are relative to an output as a whole: large elements, or a large error of
    the original, would hide a wrong small element.
    """
    found = values_at(candidate, ref.feed, ref.free, Reals(F64))
    rows = zip(regions.places, regions.graph.outputs, candidate.outputs, strict=True)
    for n, (place, old, new) in enumerate(rows):
        r, c, dtype = ref.exact[n], found[n], place.value.type.dtype
        if old is new or r is None or c is None or dtype is None or not dtype.is_float:
            continue
        why = compare_exact(r, c) if r.shape == c.shape else f"shape {c.shape}, not {r.shape}"
        if why:
            return Result(place.name, ref.feed.kind, failed(why))
    return None


SEEN = 0.1  # fraction of the found error that rounding must explain
EXACT = 1e-6  # relative error of a correct rewrite in float64: weights are float32


def rounding_only(
    ref: Reference, regions: Regions, candidate: ir_graph.Graph, failed: Sequence[Result]
) -> bool:
    """True if rounding alone explains the failures.

    That is, at every failed float value the candidate equals the original in float64, and
    superopt's own evaluation in the model's dtypes is nearly as far off as the error that was
    found. Then the rules are correct and amplify rounding (say, by reassociating terms that
    cancel). If only the runtime is off, something else is wrong.
    """
    bad = {r.place: r.compared for r in failed}
    exact = values_at(candidate, ref.feed, ref.free, Reals(F64))
    rounded = values_at(candidate, ref.feed, ref.free, Reals())
    for n, place in enumerate(regions.places):
        if place.name not in bad:
            continue
        r, o, e, c = ref.exact[n], ref.own[n], exact[n], rounded[n]
        dtype = place.value.type.dtype
        if dtype is None or not dtype.is_float or r is None or o is None or e is None or c is None:
            return False
        if r.shape != e.shape:
            return False
        again = compare(dtype, r, o, c)
        if not again.failure and again.max_error < SEEN * bad[place.name].max_error:
            return False
        rms = root_mean_square(r[np.isfinite(r)])
        if not np.allclose(e, r, rtol=EXACT, atol=EXACT * rms, equal_nan=True):
            return False
    return True


def near_ties(
    ref: Reference,
    regions: Regions,
    candidate: ir_graph.Graph,
    found: Values,
    failed: Sequence[Result],
) -> bool:
    """True if all failures are integers or bools decided by rounding: the candidate in float64
    equals the original, and at most one in a thousand elements differs.

    The argmax of two scores that are equal up to rounding may be either.
    """
    bad = {r.place for r in failed}
    exact = values_at(candidate, ref.feed, ref.free, Reals(F64))
    for n, place in enumerate(regions.places):
        if place.name not in bad:
            continue
        r, o, c, e = ref.exact[n], ref.own[n], found[n], exact[n]
        dtype = place.value.type.dtype
        if dtype is None or dtype.is_float or r is None or o is None or c is None or e is None:
            return False
        if c.shape != o.shape or differing(r, e) or differing(o, c) > o.size // 1000:
            return False
    return True
