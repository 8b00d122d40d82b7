"""The numerical check of a rewritten model: every output against the original in float64.

Opaque nodes cut the graph into regions. Their outputs are taken from a run of the original (or
drawn, where onnxruntime cannot run it) and given to both graphs; their inputs are compared like
outputs. An output that is the same value in both graphs needs no check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from superopt.check.compare import Compared, compare
from superopt.check.inputs import Feeds, concrete, values
from superopt.ir import graph as g
from superopt.ir.evaluate import evaluate
from superopt.te.domain import Domain, Reals
from superopt.te.dtype import F64

# Runs a model in a runtime: inputs to its outputs and the extra values; None where it cannot.
Run = Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray] | None]


@dataclass(frozen=True, slots=True)
class Place:
    """A value that must agree: an output of the model, or what an opaque node reads."""

    name: str
    original: g.Value
    candidate: g.Value


@dataclass(frozen=True, slots=True)
class Result:
    """What comparing one place over one set of inputs gave."""

    place: str
    kind: str
    compared: Compared


@dataclass(frozen=True, slots=True)
class Checked:
    """All results, the places that could not be evaluated, and how the values were computed."""

    results: tuple[Result, ...]
    skipped: tuple[str, ...]
    method: str

    @property
    def failures(self) -> tuple[Result, ...]:
        return tuple(r for r in self.results if r.compared.failure)


def opaque_nodes(graph: g.Graph) -> list[g.Node]:
    """The nodes without a tensor expression, in order."""
    return [n for n in g.nodes(graph) if n.op.opaque]


def places(original: g.Graph, candidate: g.Graph, names: Sequence[str]) -> list[Place]:
    """What must agree. Opaque nodes are matched by their payload, which a rewrite never changes."""
    out = [
        Place(n, a, b) for n, a, b in zip(names, original.outputs, candidate.outputs, strict=True)
    ]
    mine = {n.attrs: n for n in opaque_nodes(candidate)}
    for n in opaque_nodes(original):
        other = mine.get(n.attrs)
        if other is None:
            continue  # dead in the candidate: nothing reads it there
        for i, (a, b) in enumerate(zip(n.inputs, other.inputs, strict=True)):
            if a is not None and b is not None and a.type.dtype is not None:
                out.append(Place(f"input {i} of {n.attrs[0][1]}", a, b))
    return out


def check(
    original: g.Graph,
    candidate: g.Graph,
    names: Sequence[str],
    inputs: Sequence[Feeds],
    sizes: Mapping[str, int],
    *,
    run_original: Run,
    run_candidate: Run,
    seed: int,
    stop: Callable[[], bool] = lambda: False,
) -> Checked:
    """Compare `candidate` with `original` on every set of inputs.

    `run_original` gives the outputs and after them the results of `opaque_nodes(original)`, one
    after the other; `run_candidate` the outputs. Where they give None, our own evaluation in the
    model's dtypes stands in.
    """
    wanted = [p for p in places(original, candidate, names) if p.original is not p.candidate]
    results: list[Result] = []
    skipped: dict[str, None] = {}
    methods: dict[str, None] = {}
    for feed in inputs:
        if stop() and results:
            break
        ran = run_original(feed.arrays)
        free = _free(original, ran, len(names), feed, sizes, seed)
        reference = _evaluate(original, [p.original for p in wanted], feed, Reals(F64), free)
        own = _own(original, wanted, names, ran, feed, free)
        theirs, method = _candidate(candidate, wanted, names, run_candidate, feed, free)
        methods[method] = None
        for p, r, o, c in zip(wanted, reference, own, theirs, strict=True):
            if r is None or o is None or c is None:
                skipped[f"{p.name}: depends on a node that cannot be evaluated"] = None
                continue
            results.append(Result(p.name, feed.kind, compare(p.original.type.dtype, r, o, c)))
    how = " and ".join(methods) or "nothing to compare: every output is the same value"
    return Checked(tuple(results), tuple(skipped), how)


Free = Mapping[object, Sequence[np.ndarray | None]]


def _free(
    original: g.Graph,
    ran: Sequence[np.ndarray] | None,
    outputs: int,
    feed: Feeds,
    sizes: Mapping[str, int],
    seed: int,
) -> Free:
    """The results of every opaque node, by payload."""
    found: dict[object, Sequence[np.ndarray | None]] = {}
    rest = list(ran[outputs:]) if ran is not None else []
    for n in opaque_nodes(original):
        count = len(n.types)
        key = n.attrs
        if ran is not None:
            found[key], rest = rest[:count], rest[count:]
            continue
        rng = np.random.default_rng((seed, len(found)))
        drawn: list[np.ndarray | None] = []
        for t in n.types:
            try:
                drawn.append(values(concrete(t, sizes), feed.kind, 2, rng))
            except (KeyError, TypeError):
                drawn.append(None)
        found[key] = drawn
    return found


class _Unknown(Exception):
    """An opaque node's result is not known."""


def _evaluate(
    graph: g.Graph, wanted: Sequence[g.Value], feed: Feeds, domain: Domain, free: Free
) -> list[np.ndarray | None]:
    """The wanted values, None for those behind an opaque node that has no values."""

    def opaque(n: g.Node, arrays: list[np.ndarray | None]) -> list[np.ndarray]:
        known = free.get(n.attrs)
        if known is None or any(a is None for a in known):
            raise _Unknown(str(n))
        return [a for a in known if a is not None]

    try:
        part = g.Graph(graph.inputs, tuple(wanted))
        return list(evaluate(part, feed.arrays, domain, opaque))
    except _Unknown:
        out: list[np.ndarray | None] = []
        for v in wanted:
            try:
                part = g.Graph(graph.inputs, (v,))
                out.append(evaluate(part, feed.arrays, domain, opaque)[0])
            except _Unknown:
                out.append(None)
        return out


def _own(
    original: g.Graph,
    wanted: Sequence[Place],
    names: Sequence[str],
    ran: Sequence[np.ndarray] | None,
    feed: Feeds,
    free: Free,
) -> list[np.ndarray | None]:
    """What the original gives in its own dtypes."""
    by_name = dict(zip(names, ran, strict=False)) if ran is not None else {}
    missing = [p.original for p in wanted if p.name not in by_name]
    rest = iter(_evaluate(original, missing, feed, Reals(), free)) if missing else iter(())
    return [by_name[p.name] if p.name in by_name else next(rest) for p in wanted]


def _candidate(
    candidate: g.Graph,
    wanted: Sequence[Place],
    names: Sequence[str],
    run: Run,
    feed: Feeds,
    free: Free,
) -> tuple[list[np.ndarray | None], str]:
    """What the candidate gives: in the runtime where it runs, its regions by our own evaluation."""
    ran = run(feed.arrays)
    cut = bool(opaque_nodes(candidate))
    if ran is not None and not cut:
        by_name = dict(zip(names, ran, strict=False))
        missing = [p.candidate for p in wanted if p.name not in by_name]
        rest = iter(_evaluate(candidate, missing, feed, Reals(), free)) if missing else iter(())
        done = [by_name[p.name] if p.name in by_name else next(rest) for p in wanted]
        return done, "onnxruntime against our float64 evaluation of the original"
    own = _evaluate(candidate, [p.candidate for p in wanted], feed, Reals(), free)
    return own, "our own evaluation, region by region, against float64"
