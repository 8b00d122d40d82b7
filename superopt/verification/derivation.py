"""`derive`: does the equality of two models follow from the rules?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from superopt.check.compare import ROUNDED_TOLERANCE, compare_exact
from superopt.check.numeric_check import NotEvaluable, evaluate_outputs
from superopt.check.random_inputs import random_feeds
from superopt.errors import UsageError
from superopt.ir import graph as ir_graph
from superopt.loading.model import load_model
from superopt.loading.representative_sizes import representative_sizes
from superopt.loading.value_names import ValueNames
from superopt.onnx_io.import_.model import Model
from superopt.onnx_io.read.source import Source
from superopt.report.data.report import Derivation, DerivedStep, Event
from superopt.report.formatting.phrases import count_text
from superopt.rules.lang.rule import Rule
from superopt.rules.lang.term import Call
from superopt.rules.library.records import tier
from superopt.rules.match.derive import Derived, DeriveLimits, derive, shorten
from superopt.rules.match.rule_index import shared_index
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F64
from superopt.verification.model_interface import graph_on_inputs_of, interface_mismatch

MAX_STEPS, MAX_GRAPHS = 16, 1_000_000  # large: the time limit ends a search


@dataclass(frozen=True, slots=True)
class DeriveRequest:
    """The arguments of `superopt.api.functions.derive`."""

    rules: tuple[Rule, ...]
    max_seconds: float = 60.0
    progress: Callable[[Event], None] = lambda event: None
    stop: Callable[[], bool] = lambda: False


SAME_GRAPH_TEXT = (
    "both are the same graph after constant folding, with constants equal within a few ulp"
)


def find_derivation(a: Source, b: Source, request: DeriveRequest) -> Derivation:
    """Return a chain of rules from model `a` to model `b`, or why there is none."""
    begin = time.monotonic()
    request.progress(Event("load", f"{a.label} and {b.label}", 0.0))
    one, two = load_model(a).model, load_model(b).model
    mismatch = interface_mismatch(one, two)
    other = None if mismatch else graph_on_inputs_of(one, two)
    if other is None:
        raise UsageError(
            f"{a.label} and {b.label} have different interfaces",
            mismatch or "their symbolic sizes have different names",
            "use models with the same inputs and outputs",
        )
    request.progress(Event("compare", "both models on random inputs", 0.1))
    differs = numeric_difference(one, other)
    if differs:
        return Derivation(False, differs, (), 0, time.monotonic() - begin, True)
    request.progress(Event("derive", "chains of rules from either model", 0.2))
    bounds = DeriveLimits(
        max_steps=MAX_STEPS, max_graphs=MAX_GRAPHS, max_seconds=request.max_seconds
    )
    index = shared_index(without_const_conditions(request.rules))
    found = derive(one.graph, other, index, bounds, request.stop)
    seconds = time.monotonic() - begin
    if not isinstance(found, Derived):
        reason = f"{found.reason}, after {count_text(found.visited, 'graph')}"
        return Derivation(False, reason, (), found.visited, seconds)
    late = begin + request.max_seconds
    found = shorten(
        found, one.graph, other, index, lambda: request.stop() or time.monotonic() > late
    )
    seconds = time.monotonic() - begin
    names = ValueNames(one.names)
    known = {r.name: r for r in request.rules}
    links = [
        *((s.rule, True, s.after) for s in found.forward),
        *((s.rule, False, s.before) for s in reversed(found.backward)),
    ]
    steps = [
        DerivedStep(
            name, forward, _outputs_text(names, after), tier(known[name]), known[name].float_class
        )
        for name, forward, after in links
    ]
    reason = f"by {count_text(len(steps), 'rewrite')}" if steps else SAME_GRAPH_TEXT
    return Derivation(True, reason, tuple(steps), found.visited, seconds)


def numeric_difference(model: Model, second_graph: ir_graph.Graph) -> str:
    """Return how two graphs with the same inputs differ on one set of random inputs, evaluated in
    float64; empty if they do not, or cannot be evaluated. If they differ, no chain of valid rules
    leads from one to the other."""
    sizes = representative_sizes(model, {})
    try:
        (feed,) = random_feeds(model.graph, sizes, 0, ("normal",))
        both = [
            evaluate_outputs(graph, feed, {}, Reals(F64)) for graph in (model.graph, second_graph)
        ]
    except (NotEvaluable, MemoryError, TypeError, KeyError):
        return ""
    for v, x, y in zip(model.source.model.graph.outputs, *both, strict=True):
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


def without_const_conditions(rules: Iterable[Rule]) -> list[Rule]:
    """Return the rules without their `const(x)` conditions, which say where a rule pays, not where
    it holds: trials draw any value there."""
    return [_without_const_condition(r, r.source) for r in rules]


@lru_cache(maxsize=1 << 13)  # so that all requests share one index of the library's 2,292 rules
def _without_const_condition(rule: Rule, source: str) -> Rule:
    where = tuple(f for f in rule.where if not (isinstance(f, Call) and f.fn == "const"))
    return rule if where == rule.where else replace(rule, where=where)


def _outputs_text(names: ValueNames, graph: ir_graph.Graph) -> str:
    return "; ".join(names.term_text(v) for v in graph.outputs)
