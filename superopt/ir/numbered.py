"""Numbers for the values of a graph, which they keep while the graph is rewritten.

Inputs come first, then, node by node with operands first, the constants that it reads and its
results. What a rewrite makes is numbered after that; a value that is computed from what was
replaced is another object, and has the number of what it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from superopt.ir import graph as g
from superopt.ir.substitute import substituted


@dataclass(slots=True)
class Numbered:
    """A graph and its values by number; `numbers` is the same the other way round."""

    graph: g.Graph
    values: list[g.Value]
    numbers: dict[g.Value, int]

    def add(self, roots: Sequence[g.Value]) -> None:
        """Number the values that `roots` need and that have no number."""
        stack = list(reversed(roots))
        while stack:
            v = stack[-1]
            n = g.producer(v)
            new = [] if n is None else [i for i in n.inputs if i is not None]
            new = [i for i in new if i not in self.numbers]
            made = [i for i in new if not isinstance(i, g.Constant)]
            if v not in self.numbers and made:
                stack += reversed(made)
                continue
            stack.pop()
            for i in (*new, *((v,) if n is None else g.results(n))):
                if i not in self.numbers:
                    self.numbers[i] = len(self.values)
                    self.values.append(i)

    def replace(self, change: Mapping[g.Value, g.Value], *, inside: bool) -> None:
        """Replace keys by values in the graph; see `substituted`, which may raise Cycle."""
        self.add(list(change.values()))
        self.graph, done = substituted(self.graph, change, inside=inside)
        for k, v in enumerate(self.values):
            w = done.get(v, v)
            if w is not v:
                self.values[k] = w
                if self.numbers.get(v) == k:
                    del self.numbers[v]
                self.numbers.setdefault(w, k)

    def name(self, v: g.Value) -> str:
        """What `v` is called, as in `v7`."""
        return f"v{self.numbers[v]}" if v in self.numbers else "a value without a number"


def numbered(graph: g.Graph) -> Numbered:
    """The values of `graph`, numbered."""
    made = Numbered(graph, [], {})
    made.add((*graph.inputs, *graph.outputs))
    return made
