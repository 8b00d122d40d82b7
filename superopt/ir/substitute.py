"""Several values of a graph replaced at once, also in what replaces others."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.ir import graph as g


class Cycle(ValueError):
    """Replacements that are right alone would need each other's results."""


def substituted(
    graph: g.Graph, change: Mapping[g.Value, g.Value], *, inside: bool = True
) -> tuple[g.Graph, dict[g.Value, g.Value]]:
    """`graph` with each key of `change` replaced by its value, and what its values became.

    inside: also in the new values themselves; Cycle where they would need their own results.
    """
    done: dict[g.Value, g.Value] = {} if inside else dict(change)
    open_: set[g.Value] = set()
    for root in graph.outputs:
        stack = [root]
        while stack:
            v = stack[-1]
            if v in done:
                stack.pop()
                continue
            goal = change.get(v, v)
            if goal is not v:
                if goal in done:
                    done[v] = done[goal]
                    open_.discard(v)
                    stack.pop()
                elif v in open_:
                    raise Cycle(str(v))
                else:
                    open_.add(v)
                    stack.append(goal)
                continue
            n = g.producer(v)
            if n is None:
                done[v] = v
                stack.pop()
                continue
            pending = [i for i in n.inputs if i is not None and i not in done]
            if pending:
                if v in open_:
                    raise Cycle(str(v))
                open_.add(v)
                stack.extend(reversed(pending))
                continue
            open_.discard(v)
            inputs = tuple(None if i is None else done[i] for i in n.inputs)
            made = n if inputs == n.inputs else g.intern_node(n.op, inputs, n.attrs, n.types)
            done[v] = g.item(made, v.index) if isinstance(v, g.Item) else made
            stack.pop()
    return g.Graph(graph.inputs, tuple(done[v] for v in graph.outputs)), done


def replace_all(graph: g.Graph, change: Mapping[g.Value, g.Value]) -> g.Graph:
    """`graph` with all of `change` applied, also inside the new values.

    Raises Cycle when the replacements together would need their own results.
    """
    return substituted(graph, change)[0]
