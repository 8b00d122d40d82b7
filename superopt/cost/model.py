"""The cost of a graph: the sum over its nodes of what onnxruntime takes for each."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from superopt.cost.fusion import fused_away
from superopt.cost.roofline import NODE_US, roofline
from superopt.cost.signature import Signature, signature
from superopt.ir import graph as g
from superopt.ir.fold import is_constant

UNKNOWN_US = 5.0  # a node of unknown types: it is in both graphs, so its cost cancels


class Clock(Protocol):
    """Says what nodes of the given signatures cost, in microseconds."""

    def __call__(self, signatures: Sequence[Signature]) -> Sequence[float]: ...


@dataclass(slots=True)
class Costs:
    """Costs of nodes and graphs at representative sizes; remembers what it was asked.

    clock: prices signatures not seen yet; threads: for the roofline.
    """

    sizes: Mapping[str, int]
    clock: Clock
    priced: dict[Signature, float] = field(default_factory=dict)
    constant: dict[g.Node, bool] = field(default_factory=dict)
    _nodes: dict[g.Node, float] = field(default_factory=dict)

    def of_nodes(self, nodes: Iterable[g.Node]) -> list[float]:
        """Microseconds of each node; new signatures are priced together."""
        wanted = list(nodes)
        pending: dict[g.Node, Signature] = {}
        for n in wanted:
            if n in self._nodes:
                continue
            if self.is_constant(n):
                self._nodes[n] = 0.0
                continue
            flags = tuple(
                isinstance(v, g.Constant)
                or (v is not None and g.producer(v) is not None and is_constant(v, self.constant))
                for v in n.inputs
            )
            if fused_away(n, flags):
                self._nodes[n] = 0.0
                continue
            s = None if n.op.opaque else signature(n, self.sizes, flags)
            if s is None:
                self._nodes[n] = UNKNOWN_US
            elif s in self.priced:
                self._nodes[n] = self.priced[s]
            else:
                pending[n] = s
        if pending:
            fresh = list(dict.fromkeys(pending.values()))
            self.priced.update(zip(fresh, self.clock(fresh), strict=True))
            for n, s in pending.items():
                self._nodes[n] = self.priced[s]
        return [self._nodes[n] for n in wanted]

    def of_node(self, n: g.Node) -> float:
        """Microseconds of one node."""
        known = self._nodes.get(n)
        return self.of_nodes((n,))[0] if known is None else known

    def of_graph(self, graph: g.Graph) -> float:
        """Microseconds of a graph: the sum of its nodes."""
        return sum(self.of_nodes(g.nodes(graph)))

    def is_constant(self, n: g.Node) -> bool:
        """Is `n` computed ahead of time?"""
        return is_constant(g.item(n, 0), self.constant)

    def forget(self) -> None:
        """Release the nodes of a finished search; prices stay."""
        self._nodes.clear()
        self.constant.clear()


def by_roofline(threads: int) -> Clock:
    """A clock that measures nothing."""
    return lambda signatures: [roofline(s, threads) for s in signatures]


def tabled(
    table: Mapping[str, float], otherwise: Callable[[Signature], float] | None = None
) -> Clock:
    """A clock that reads a table by operator name (tests, replays)."""

    def price(s: Signature) -> float:
        if s.op.name in table:
            return table[s.op.name]
        return otherwise(s) if otherwise else NODE_US

    return lambda signatures: [price(s) for s in signatures]


def stable_seed(s: Signature) -> int:
    """A seed for random operands that depends on the signature only."""
    return zlib.crc32(str(s).encode())
