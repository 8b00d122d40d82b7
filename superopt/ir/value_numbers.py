"""Number the values of a graph; numbers are stable while the graph is rewritten.

Inputs come first, then, node by node with operands first, the constants that it reads and its
results. New values of a rewrite get further numbers. A value that is rebuilt because an operand was
replaced keeps its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from superopt.ir import graph as ir_graph
from superopt.ir.substitute import substitute_values


@dataclass(slots=True)
class ValueNumbering:
    """A graph and its values by number; `numbers` is the inverse map."""

    graph: ir_graph.Graph
    values: list[ir_graph.Value]
    numbers: dict[ir_graph.Value, int]

    def add(self, roots: Sequence[ir_graph.Value]) -> None:
        """Number the values that `roots` depend on and that have no number."""
        stack = list(reversed(roots))
        while stack:
            v = stack[-1]
            n = ir_graph.producer(v)
            new = [] if n is None else [i for i in n.inputs if i is not None]
            new = [i for i in new if i not in self.numbers]
            made = [i for i in new if not isinstance(i, ir_graph.Constant)]
            if v not in self.numbers and made:
                stack += reversed(made)
                continue
            stack.pop()
            for i in (*new, *((v,) if n is None else ir_graph.results(n))):
                if i not in self.numbers:
                    self.numbers[i] = len(self.values)
                    self.values.append(i)

    def replace(self, change: Mapping[ir_graph.Value, ir_graph.Value], *, recursive: bool) -> None:
        """Replace keys by values in the graph; see `substitute_values`, which may raise
        ReplacementCycle."""
        self.add(list(change.values()))
        self.graph, done = substitute_values(self.graph, change, recursive=recursive)
        for k, v in enumerate(self.values):
            w = done.get(v, v)
            if w is not v:
                self.values[k] = w
                if self.numbers.get(v) == k:
                    del self.numbers[v]
                self.numbers.setdefault(w, k)

    def name(self, v: ir_graph.Value) -> str:
        """Return the name of `v`, such as `v7`."""
        return f"v{self.numbers[v]}" if v in self.numbers else "a value without a number"


def number_values(graph: ir_graph.Graph) -> ValueNumbering:
    """Return the graph with its values numbered."""
    made = ValueNumbering(graph, [], {})
    made.add((*graph.inputs, *graph.outputs))
    return made
