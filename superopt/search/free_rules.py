"""Rewrites that the compiler makes before it plans: they cost nothing, and are made before the
search, whose rules then find what they lead to (merged convolutions whose batch normalization is
folded, for example)."""

from __future__ import annotations

from superopt.ir import graph as ir_graph
from superopt.ir.substitute import ReplacementCycle, replace_all
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.rewrite import Refusal, rewrite
from superopt.search.move import Step
from superopt.search.rule_set import RuleSet

MAX_ROUNDS = 16  # each of which leaves fewer matches


def apply_free_rules(graph: ir_graph.Graph, rules: RuleSet) -> tuple[ir_graph.Graph, list[Step]]:
    """Return the graph after these rules, wherever they match, and the steps."""
    steps: list[Step] = []
    for _ in range(MAX_ROUNDS if rules.rules else 0):
        ctx = graph_context(graph)
        found: dict[ir_graph.Value, ir_graph.Value] = {}
        made: list[tuple[str, dict[ir_graph.Value, ir_graph.Value]]] = []
        for m in rules.index.matches(ctx, None):
            change = rewrite(m, ctx)
            if isinstance(change, Refusal) or any(v in found for v in change):
                continue
            found |= change
            made.append((m.rule.name, dict(change)))
        try:
            after = replace_all(graph, found) if found else graph
        except ReplacementCycle:
            break
        if after == graph:
            break
        steps += [Step(name, None, change, 0.0, graph, after) for name, change in made]
        graph = after
    return graph, steps
