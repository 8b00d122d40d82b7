"""Outputs that are equal by a chain of rules, each of which is proved."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from superopt.ir import graph as ir_graph
from superopt.ir.substitute import replace_all
from superopt.pipeline.derive import GRAPHS, STEPS, anywhere
from superopt.pipeline.rule_library import load_library
from superopt.rules.library.records import tier
from superopt.rules.match.derive import Derived, DeriveLimits, derive
from superopt.rules.match.rule_index import RuleIndex
from superopt.rules.trial.new_divisors import new_divisors

NEAR = 0.3  # of the time: for the graphs down to what both share only


@lru_cache(maxsize=1)
def proved_rules() -> RuleIndex:
    """The library's rules that are proved for all sizes and divide by nothing new: what they make
    has a value wherever the model has one, so that a chain of them says what each of them says."""
    return RuleIndex(anywhere(r for r in load_library() if tier(r) == "A" and not new_divisors(r)))


def by_rules(
    a: ir_graph.Graph, b: ir_graph.Graph, output: int, seconds: float, stop: Callable[[], bool]
) -> tuple[str, ...] | str:
    """The names of rules that lead from one output to the other, or why none were found. Both
    graphs are over the same inputs."""
    x, y = a.outputs[output], b.outputs[output]
    one, two = ir_graph.Graph(a.inputs, (x,)), ir_graph.Graph(a.inputs, (y,))
    near = _above_what_is_shared(one, two)
    left = seconds
    if near is not None:
        found = _chain(*near, seconds * NEAR, stop)
        if not isinstance(found, str):
            return found
        left -= seconds * NEAR
    return _chain(one, two, left, stop)


def _chain(
    a: ir_graph.Graph, b: ir_graph.Graph, seconds: float, stop: Callable[[], bool]
) -> tuple[str, ...] | str:
    if seconds <= 0:
        return "there was no time left"
    bounds = DeriveLimits(max_steps=STEPS, max_graphs=GRAPHS, max_seconds=seconds)
    found = derive(a, b, proved_rules(), bounds, stop)
    if not isinstance(found, Derived):
        return found.reason
    return tuple(s.rule for s in (*found.forward, *reversed(found.backward)))


def _above_what_is_shared(
    a: ir_graph.Graph, b: ir_graph.Graph
) -> tuple[ir_graph.Graph, ir_graph.Graph] | None:
    """Both graphs with an input for each node's value that is in both; None where none is."""
    (x,), (y,) = a.outputs, b.outputs
    theirs = set(ir_graph.walk(b))
    shared = [v for v in ir_graph.walk(a) if v in theirs and v not in (x, y)]
    if not shared:
        return None
    new = {v: ir_graph.Input(f"shared {n}", v.type) for n, v in enumerate(shared)}
    inputs = (*a.inputs, *new.values())
    one, two = (ir_graph.Graph(inputs, replace_all(graph, new).outputs) for graph in (a, b))
    return one, two
