"""Proofs that outputs are equal, by chains of proved rules."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from superopt.ir import graph as ir_graph
from superopt.ir.substitute import replace_all
from superopt.loading.rule_library import load_library
from superopt.rules.library.records import tier
from superopt.rules.match.derive import Derived, DeriveLimits, derive
from superopt.rules.match.rule_index import RuleIndex
from superopt.rules.trial.new_divisors import new_divisors
from superopt.verification.derivation import MAX_GRAPHS, MAX_STEPS, without_const_conditions

SHARED_CUT_PART = 0.3  # of the time, for the graphs above the values that both share


@lru_cache(maxsize=1)
def proved_rules() -> RuleIndex:
    """Return the library's rules that are proved for all sizes and add no divisor: their results
    are defined wherever the model's are, so a chain of them proves what each of them proves."""
    return RuleIndex(
        without_const_conditions(
            r for r in load_library() if tier(r) == "A" and not new_divisors(r)
        )
    )


def find_rule_chain(
    a: ir_graph.Graph, b: ir_graph.Graph, output: int, max_seconds: float, stop: Callable[[], bool]
) -> tuple[str, ...] | str:
    """Return the names of the rules of a chain from one output to the other, or why none was found.
    Both graphs have the same inputs."""
    x, y = a.outputs[output], b.outputs[output]
    one, two = ir_graph.Graph(a.inputs, (x,)), ir_graph.Graph(a.inputs, (y,))
    near = _cut_at_shared_values(one, two)
    left = max_seconds
    if near is not None:
        found = _derive_chain(*near, max_seconds * SHARED_CUT_PART, stop)
        if not isinstance(found, str):
            return found
        left -= max_seconds * SHARED_CUT_PART
    return _derive_chain(one, two, left, stop)


def _derive_chain(
    a: ir_graph.Graph, b: ir_graph.Graph, max_seconds: float, stop: Callable[[], bool]
) -> tuple[str, ...] | str:
    if max_seconds <= 0:
        return "no time was left"
    bounds = DeriveLimits(max_steps=MAX_STEPS, max_graphs=MAX_GRAPHS, max_seconds=max_seconds)
    found = derive(a, b, proved_rules(), bounds, stop)
    if not isinstance(found, Derived):
        return found.reason
    return tuple(s.rule for s in (*found.forward, *reversed(found.backward)))


def _cut_at_shared_values(
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
