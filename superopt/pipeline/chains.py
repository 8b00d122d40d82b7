"""Proofs that outputs are equal, by chains of proved rules."""

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

NEAR = 0.3  # of the time, for the graphs above the values that both share


@lru_cache(maxsize=1)
def proved_rules() -> RuleIndex:
    """Return the library's rules that are proved for all sizes and add no divisor: their results
    are defined wherever the model's are, so a chain of them proves what each of them proves."""
    return RuleIndex(anywhere(r for r in load_library() if tier(r) == "A" and not new_divisors(r)))


def by_rules(
    a: ir_graph.Graph, b: ir_graph.Graph, output: int, seconds: float, stop: Callable[[], bool]
) -> tuple[str, ...] | str:
    """Return the names of the rules of a chain from one output to the other, or why none was found.
    Both graphs have the same inputs."""
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
        return "no time was left"
    bounds = DeriveLimits(max_steps=STEPS, max_graphs=GRAPHS, max_seconds=seconds)
    found = derive(a, b, proved_rules(), bounds, stop)
    if not isinstance(found, Derived):
        return found.reason
    return tuple(s.rule for s in (*found.forward, *reversed(found.backward)))


def _above_what_is_shared(
    a: ir_graph.Graph, b: ir_graph.Graph
) -> tuple[ir_graph.Graph, ir_graph.Graph] | None:
    """Return both graphs with an input for each node value that is in both; None if there is
    none."""
    (x,), (y,) = a.outputs, b.outputs
    theirs = set(ir_graph.walk(b))
    shared = [v for v in ir_graph.walk(a) if v in theirs and v not in (x, y)]
    if not shared:
        return None
    new = {v: ir_graph.Input(f"shared {n}", v.type) for n, v in enumerate(shared)}
    inputs = (*a.inputs, *new.values())
    one, two = (ir_graph.Graph(inputs, replace_all(graph, new).outputs) for graph in (a, b))
    return one, two
