"""The indices of one graph for matching: nodes by operator, and users of values.

Every graph that a search visits gets them, so one pass builds all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from superopt.ir.graph import Graph, Item, Node, Value, producer, results
from superopt.ir.op import Op

NO_NODES: tuple[Node, ...] = ()
NodesByOp = dict[Op, list[Node]]


@dataclass(frozen=True, slots=True, eq=False)
class GraphContext:
    """A graph with its indices, all in the order of `superopt.ir.graph.nodes`.

    position: each node's index in that order. by_op: nodes by operator. users: the nodes that read
    a value, each once. outputs: the graph's outputs as a set. joined_parts, neighborhoods: caches
    of matching: parts of n-ary operators, and nodes near given ones.
    """

    graph: Graph
    position: dict[Node, int]
    by_op: NodesByOp
    users: dict[Value, list[Node]]
    outputs: frozenset[Value]
    joined_parts: dict[tuple[Node, int, int], Value | None] = field(default_factory=dict)
    neighborhoods: list[tuple[Collection[Node], list[NodesByOp]]] = field(default_factory=list)

    def insertion_index(self, n: Node, op: Op) -> int:
        """Return the index of `n`, or its insertion index, among the nodes of `op`."""
        return bisect_left(
            self.by_op.get(op, NO_NODES), self.position[n], key=self.position.__getitem__
        )

    def nodes_near(self, nodes: Collection[Node], steps: int) -> NodesByOp:
        """Return by operator the nodes that reach one of `nodes` within `steps` operands."""
        if not self.neighborhoods or self.neighborhoods[-1][0] is not nodes:
            self.neighborhoods[:] = [
                (nodes, [self._group_by_op(n for n in nodes if n in self.position)])
            ]
        levels = self.neighborhoods[-1][1]
        while len(levels) <= steps:
            last = {n: None for some in levels[-1].values() for n in some}
            for n in list(last):
                for v in results(n):
                    last.update(dict.fromkeys(self.users.get(v, NO_NODES)))
            levels.append(self._group_by_op(last))
        return levels[steps]

    def _group_by_op(self, nodes: Iterable[Node]) -> NodesByOp:
        out: NodesByOp = {}
        for n in sorted(nodes, key=self.position.__getitem__):
            out.setdefault(n.op, []).append(n)
        return out

    def is_used_only_by(self, v: Value, nodes: Iterable[Node]) -> bool:
        """True if `v` is no output of the graph, and only these nodes read it."""
        if v in self.outputs:
            return False
        users = self.users.get(v, NO_NODES)
        return all(any(u is n for n in nodes) for u in users)


def graph_context(graph: Graph) -> GraphContext:
    """Return the indices of `graph`."""
    position: dict[Node, int] = {}
    by_op: NodesByOp = {}
    users: dict[Value, list[Node]] = {}
    stack: list[Node] = []
    # A node is pushed before its operands; when it is on top again they are done.
    for v in graph.outputs:
        if (n := producer(v)) is not None:
            stack.append(n)
        while stack:
            n = stack[-1]
            if n in position:
                stack.pop()
                continue
            depth = len(stack)
            for operand in reversed(n.inputs):
                kind = type(operand)
                if kind is Node:
                    if operand not in position:
                        stack.append(operand)  # type: ignore[arg-type]
                elif kind is Item and operand.node not in position:  # type: ignore[union-attr]
                    stack.append(operand.node)  # type: ignore[union-attr]
            if len(stack) > depth:
                continue
            stack.pop()
            position[n] = len(position)
            same_op = by_op.get(n.op)
            if same_op is None:
                by_op[n.op] = [n]
            else:
                same_op.append(n)
            for operand in n.inputs:
                if operand is not None:
                    readers = users.get(operand)
                    if readers is None:
                        users[operand] = [n]
                    elif readers[-1] is not n:
                        readers.append(n)
    return GraphContext(graph, position, by_op, users, frozenset(graph.outputs))
