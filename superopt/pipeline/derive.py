"""`derive`: does the equality of two models follow from the rules?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from superopt.check.compare import ROUNDED_TOLERANCE, compare_exact
from superopt.check.inputs import feeds
from superopt.check.numeric import Unrunnable, values_at
from superopt.errors import UsageError
from superopt.ir import graph as ir_graph
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.pipeline.interface import interface, joined
from superopt.pipeline.load import load_model
from superopt.pipeline.naming import Names
from superopt.pipeline.shapes import representative
from superopt.report.data import Derivation, DerivedStep, Event
from superopt.report.words import count
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.term import Call
from superopt.rules.library.records import tier
from superopt.rules.match.derive import Derived, DeriveLimits, derive, shorten
from superopt.rules.match.rule_index import shared_index
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64

STEPS, GRAPHS = 16, 1_000_000  # large: the time limit ends a search


@dataclass(frozen=True, slots=True)
class Asked:
    """The arguments of `superopt.api.derive`."""

    rules: tuple[Rule, ...]
    limit: float = 60.0
    progress: Callable[[Event], None] = lambda event: None
    stop: Callable[[], bool] = lambda: False


SAME = "both are the same graph after constant folding, with constants equal within a few ulp"


def derivation(a: Source, b: Source, asked: Asked) -> Derivation:
    """Return a chain of rules from model `a` to model `b`, or why there is none."""
    begin = time.monotonic()
    asked.progress(Event("load", f"{a.label} and {b.label}", 0.0))
    one, two = load_model(a).model, load_model(b).model
    mismatch = interface(one, two)
    other = None if mismatch else joined(one, two)
    if other is None:
        raise UsageError(
            f"{a.label} and {b.label} have different interfaces",
            mismatch or "their symbolic sizes have different names",
            "use models with the same inputs and outputs",
        )
    asked.progress(Event("compare", "both models on random inputs", 0.1))
    differs = difference(one, other)
    if differs:
        return Derivation(False, differs, (), 0, time.monotonic() - begin, True)
    asked.progress(Event("derive", "chains of rules from either model", 0.2))
    bounds = DeriveLimits(max_steps=STEPS, max_graphs=GRAPHS, max_seconds=asked.limit)
    index = shared_index(anywhere(asked.rules))
    found = derive(one.graph, other, index, bounds, asked.stop)
    seconds = time.monotonic() - begin
    if not isinstance(found, Derived):
        reason = f"{found.reason}, after {count(found.visited, 'graph')}"
        return Derivation(False, reason, (), found.visited, seconds)
    late = begin + asked.limit
    found = shorten(found, one.graph, other, index, lambda: asked.stop() or time.monotonic() > late)
    seconds = time.monotonic() - begin
    names = Names(one.names)
    known = {r.name: r for r in asked.rules}
    links = [
        *((s.rule, True, s.after) for s in found.forward),
        *((s.rule, False, s.before) for s in reversed(found.backward)),
    ]
    steps = [
        DerivedStep(name, forward, _text(names, after), tier(known[name]), known[name].float_class)
        for name, forward, after in links
    ]
    reason = f"by {count(len(steps), 'rewrite')}" if steps else SAME
    return Derivation(True, reason, tuple(steps), found.visited, seconds)


def difference(one: Model, other: ir_graph.Graph) -> str:
    """Return how two graphs with the same inputs differ on one set of random inputs, evaluated in
    float64; empty if they do not, or cannot be evaluated. If they differ, no chain of valid rules
    leads from one to the other."""
    sizes = representative(one, {})
    try:
        (feed,) = feeds(one.graph, sizes, 0, ("normal",))
        both = [values_at(graph, feed, {}, Reals(F64)) for graph in (one.graph, other)]
    except (Unrunnable, MemoryError, TypeError, KeyError):
        return ""
    for v, x, y in zip(one.source.model.graph.outputs, *both, strict=True):
        if x is None or y is None:
            continue
        if x.shape != y.shape:
            return f"output {v.name} has shapes {x.shape} and {y.shape}"
        if x.dtype.kind in "bui" and not np.array_equal(x, y):
            at = np.argwhere(x != y)[0].tolist()
            return f"output {v.name} differs on random inputs at {at}"
        if x.dtype == y.dtype == np.float64:
            why = compare_exact(x, y, ROUNDED_TOLERANCE)
            if why:
                return f"output {v.name} differs on random inputs: {why}"
    return ""


def anywhere(rules: Iterable[Rule]) -> list[Rule]:
    """Return the rules without their `const(x)` conditions, which say where a rule pays, not where
    it holds: trials draw any value there."""
    return [_anywhere(r, r.source) for r in rules]


@lru_cache(maxsize=1 << 13)  # so that all requests share one index of the library's 2,292 rules
def _anywhere(rule: Rule, source: str) -> Rule:
    where = tuple(f for f in rule.where if not (isinstance(f, Call) and f.fn == "const"))
    return rule if where == rule.where else replace(rule, where=where)


def _text(names: Names, graph: ir_graph.Graph) -> str:
    return "; ".join(names.text(v) for v in graph.outputs)
