"""Replace several values of a graph at once, also inside of the replacements."""

from __future__ import annotations

from collections.abc import Mapping

from superopt import guard
from superopt.ir import graph as ir_graph


class ReplacementCycle(ValueError):
    """Replacements that are valid separately depend on each other's results."""


def substitute_values(
    graph: ir_graph.Graph,
    change: Mapping[ir_graph.Value, ir_graph.Value],
    *,
    recursive: bool = True,
) -> tuple[ir_graph.Graph, dict[ir_graph.Value, ir_graph.Value]]:
    """Return `graph` with each key of `change` replaced by its value, and the map from old to new
    values.

    recursive: replace in the new values, too; raises ReplacementCycle if they depend on their own
    results.
    """
    done: dict[ir_graph.Value, ir_graph.Value] = {} if recursive else dict(change)
    open_: set[ir_graph.Value] = set()  # on the path from an output to the top of the stack
    stack = list(reversed(graph.outputs))
    while stack:
        v = stack[-1]
        if v in done:
            stack.pop()
            continue
        goal = change.get(v, v)
        n = v if type(v) is ir_graph.Node else v.node if type(v) is ir_graph.Item else None
        if v not in open_:
            needed = (goal,) if goal is not v else () if n is None else n.inputs
            more = [i for i in needed if i is not None and i not in done]
            if not open_.isdisjoint(more) or v in more:
                raise ReplacementCycle(str(v))
            if more:
                open_.add(v)
                stack += reversed(more)
                continue
        stack.pop()
        open_.discard(v)
        guard.check_time("rewriting a graph")
        if goal is not v:
            done[v] = done[goal]
        elif n is None:
            done[v] = v
        else:
            inputs = tuple([None if i is None else done[i] for i in n.inputs])
            made = n if inputs == n.inputs else ir_graph.intern_node(n.op, inputs, n.attrs, n.types)
            done[v] = ir_graph.result(made, v.index) if type(v) is ir_graph.Item else made
    return ir_graph.Graph(graph.inputs, tuple(done[v] for v in graph.outputs)), done


def replace_all(
    graph: ir_graph.Graph, change: Mapping[ir_graph.Value, ir_graph.Value]
) -> ir_graph.Graph:
    """Return `graph` with all of `change` applied, also inside of the new values.

    Raises ReplacementCycle if the replacements together depend on their own results.
    """
    return substitute_values(graph, change)[0]
