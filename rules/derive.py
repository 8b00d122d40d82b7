"""Derive the equality of two graphs from rules: a chain of rewrites from both sides.

Best-first search from either graph in turns, until both reach one graph. The order prefers small
graphs, graphs with about the operators of the other end, and fewer rewrites. Rules apply in the
given directions only; a graph that two chains reach is equal to both ends. Constants are folded at
once, and equal a given constant up to rounding.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from superopt.ir import graph as g
from superopt.ir.evaluate import node_results
from superopt.ir.op import InferError, Op
from superopt.ops import OPS
from superopt.rules.build import Refusal, rewrite
from superopt.rules.context import context
from superopt.rules.facts import uniform
from superopt.rules.index import Index
from superopt.rules.make import flatten_operands
from superopt.te.dtype import to_numpy
from superopt.te.expr import TensorType


@dataclass(frozen=True, slots=True)
class Bounds:
    """max_steps: rewrites in a chain. max_growth: nodes beyond the larger graph. max_graphs:
    visited. forward_only: search from the first graph only, as an optimization would."""

    steps: int = 8
    grow: int = 3
    graphs: int = 20_000
    seconds: float = 60.0
    forward: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """One rewrite: the rule, the graph before and the graph after."""

    rule: str
    before: g.Graph
    after: g.Graph


@dataclass(frozen=True, slots=True)
class Derived:
    """Chains from the first and the second graph to a common one; both are empty for equal
    graphs."""

    forth: tuple[Link, ...]
    back: tuple[Link, ...]
    visited: int


@dataclass(frozen=True, slots=True)
class Underived:
    """No chain was found: why the search ended, and how many graphs it visited."""

    reason: str
    visited: int


Roots = tuple[g.Value, ...]
STOPPED = "it was stopped"
SHARE = 0.3  # of the remaining graphs and time, for a restricted look
RESHAPE = OPS["Reshape"]
RESHAPES = frozenset((RESHAPE, OPS["Squeeze"], OPS["Unsqueeze"]))


def derive(
    a: g.Graph,
    b: g.Graph,
    index: Index,
    bounds: Bounds,
    stop: Callable[[], bool] = lambda: False,
    without: Container[str] = (),
) -> Derived | Underived:
    """Return a chain of rewrites between two graphs over the same inputs, by rules not in
    `excluded`.

    There are three looks, since graphs may grow without end: by rules about the graphs' own
    operators only (reshapes count as one); by all rules, without graphs larger than both ends; and
    by all rules. Each look ends with its share of the graphs and of the time.
    """
    end = time.monotonic() + bounds.seconds
    own = frozenset(n.op for graph in (a, b) for n in g.nodes(graph))
    if not own.isdisjoint(RESHAPES):
        own |= RESHAPES
    looks = [(index.within(own), bounds.grow, SHARE), (index, 0, SHARE), (index, bounds.grow, 1.0)]
    visited = 0
    for rules, grow, share in looks if bounds.grow else looks[::2]:
        some = replace(bounds, grow=grow, graphs=int(share * (bounds.graphs - visited)))
        now = time.monotonic()
        found = _chained(a, b, rules, some, now + share * (end - now), stop, without)
        visited += found.visited
        if isinstance(found, Derived) or time.monotonic() >= end or stop():
            break
    return replace(found, visited=visited)


def _chained(
    a: g.Graph,
    b: g.Graph,
    index: Index,
    bounds: Bounds,
    end: float,
    stop: Callable[[], bool],
    without: Container[str],
) -> Derived | Underived:
    order = _Order({}, {}, _few(a, b))
    ends = tuple(order.graph(graph) for graph in (a, b))
    sides = tuple(_Side(*end, _kinds(to)) for end, (to, _) in zip(ends, ends[::-1], strict=True))
    if sides[0].start == sides[1].start:
        return Derived((), (), 0)
    most = max(side.open[0][2].size for side in sides) + bounds.grow
    if bounds.forward:
        sides[1].open.clear()
    visited, reason = 2, "nothing more can be reached"
    while any(side.open for side in sides):
        side, other = sorted(sides, key=lambda one: (not one.open, len(one.seen)))
        _, _, at = heappop(side.open)
        if at.depth == bounds.steps:
            reason = "the limit of steps was reached"
            continue
        for link in _rewrites(at.graph, index, without):
            graph, size = order.graph(link.after)
            if size > most or graph.outputs in side.seen:
                continue
            link = Link(link.rule, link.before, graph)
            reached = _Reached(graph, size, at.depth + 1, link)
            met = other.seen.get(graph.outputs)
            if met is not None and reached.depth + met.depth > bounds.steps:
                reason = "the limit of steps was reached"
            elif met is not None:
                side.seen[graph.outputs] = reached
                chains = [_chain(one.seen, graph.outputs) for one in sides]
                return Derived(chains[0], chains[1], visited)
            visited += 1
            side.add(reached)
            if stop():
                return Underived(STOPPED, visited)
            if time.monotonic() >= end:
                return Underived("the time was used up", visited)
        if visited >= bounds.graphs:
            return Underived("the limit of graphs was reached", visited)
        if stop():
            return Underived(STOPPED, visited)
        if time.monotonic() >= end:
            return Underived("the time was used up", visited)
    return Underived(reason, visited)


def shortened(
    found: Derived, a: g.Graph, b: g.Graph, index: Index, stop: Callable[[], bool] = lambda: False
) -> Derived:
    """Return the chains without detours. Every rewrite between graphs of the chains is tried, and
    the shortest path is taken."""
    order = _Order({}, {}, _few(a, b))
    along = [a, *(s.after for s in found.forth), *(s.before for s in reversed(found.back))]
    path = [order.graph(graph)[0] for graph in along]
    place = {graph.outputs: n for n, graph in enumerate(path)}
    hops: list[dict[int, Link]] = []  # from each graph to others
    for graph in path:
        hops.append({})
        for link in () if stop() else _rewrites(graph, index, ()):
            to = place.get(order.graph(link.after)[0].outputs)
            if to is not None:
                hops[-1].setdefault(to, Link(link.rule, graph, path[to]))
    last = len(path) - 1
    for n, link in enumerate(found.forth):
        hops[n].setdefault(n + 1, link)
    for n, link in enumerate(found.back):
        hops[last - n].setdefault(last - n - 1, link)
    forth, back = _ways(hops, range(last + 1)), _ways(hops, range(last, -1, -1))
    meet = min(forth.keys() & back.keys(), key=lambda n: len(forth[n]) + len(back[n]))
    return Derived(forth[meet], back[meet], found.visited)


def _ways(hops: Sequence[Mapping[int, Link]], order: range) -> dict[int, tuple[Link, ...]]:
    """Return the shortest path from the first graph to each, in this order."""
    ways: dict[int, tuple[Link, ...]] = {order[0]: ()}
    for n in order:
        for to, link in hops[n].items() if n in ways else ():
            onwards = (to - n) * order.step > 0
            if onwards and (to not in ways or len(ways[n]) + 1 < len(ways[to])):
                ways[to] = (*ways[n], link)
    return ways


STEP = 0.3  # nodes: the cost of another rewrite that shrinks a graph


class _Reached(NamedTuple):
    """A graph, its number of nodes, and the last rewrite that led there."""

    graph: g.Graph
    size: int
    depth: int
    link: Link | None


class _Side:
    """The graphs reached from one end: by their outputs, and a queue of graphs to rewrite. Small
    graphs come first, and graphs with about the operators of the other end: a batch normalization
    that is one operator there and ten here must grow first."""

    def __init__(self, graph: g.Graph, size: int, to: Counter[Op]) -> None:
        self.start = graph.outputs
        self.to = to
        self.seen: dict[Roots, _Reached] = {}
        self.open: list[tuple[float, int, _Reached]] = []
        self.add(_Reached(graph, size, 0, None))

    def add(self, one: _Reached) -> None:
        self.seen[one.graph.outputs] = one
        have = _kinds(one.graph)
        away = (have - self.to).total() + (self.to - have).total()
        heappush(self.open, (min(one.size, away) + STEP * one.depth, len(self.seen), one))


def _kinds(graph: g.Graph) -> Counter[Op]:
    """Return the number of nodes of each operator; reshapes count as one."""
    return Counter(RESHAPE if n.op in RESHAPES else n.op for n in g.nodes(graph))


@dataclass(frozen=True, slots=True)
class _Order:
    """Canonical graphs: ordered operands of commutative operators, flattened joins, scalars in
    place of uniform operands, folded constants. given: constants of both graphs; a folded constant
    becomes the given one that it equals up to rounding. computed: constants from arithmetic; others
    were only moved and are exact."""

    numbers: dict[g.Value, int]
    known: dict[g.Node, tuple[g.Value, ...]]
    given: tuple[g.Constant, ...]
    rounded: set[g.Value] = field(default_factory=set)

    def graph(self, graph: g.Graph) -> tuple[g.Graph, int]:
        """Return the canonical graph and its number of nodes."""
        known = self.known
        every = g.nodes(graph)
        for n in every:
            if n not in known:
                known[n] = self.results(n)
        made = g.Graph(graph.inputs, tuple(map(self.value, graph.outputs)))
        return made, len(every if made.outputs == graph.outputs else g.nodes(made))

    def results(self, n: g.Node) -> tuple[g.Value, ...]:
        inputs = tuple(None if v is None else self.value(v) for v in n.inputs)
        if not n.op.opaque and all(v is None or _small(v) for v in inputs):
            folded = self.folded(n, inputs)
            if folded is not None:
                return folded
        if "elementwise" in n.op.laws and len(inputs) > 1:
            inputs = _without_axes(n, inputs)
        for v in inputs:
            if v is not None:
                self.numbers.setdefault(v, len(self.numbers))
        inputs = flatten_operands(n, inputs)
        sums = n.op.name in ("Sum", "Mean") and len(inputs) > 2  # computed from the left
        if "commutative" in n.op.laws and not sums and None not in inputs:
            inputs = tuple(sorted(inputs, key=lambda v: self.numbers[v]))  # type: ignore[index]
        made = n if inputs == n.inputs else g.intern_node(n.op, inputs, n.attrs, n.types)
        return g.results(made)

    def value(self, v: g.Value) -> g.Value:
        p = g.producer(v)
        return v if p is None else self.known[p][v.index if isinstance(v, g.Item) else 0]

    def folded(self, n: g.Node, inputs: Sequence[g.Value | None]) -> tuple[g.Constant, ...] | None:
        """Return the results of a node of constants, if they are small."""
        if any(_elements(t) is None for t in n.types):
            return None
        arrays = [v.load() if isinstance(v, g.Constant) else None for v in inputs]
        try:
            with np.errstate(all="ignore"):
                found = node_results(n, arrays)
        except (ValueError, TypeError, LookupError, ArithmeticError):
            return None  # as for an index out of range
        moved = "data" in n.op.laws and self.rounded.isdisjoint(v for v in inputs if v)
        return tuple(map(g.constant if moved else self.constant, found))

    def constant(self, array: np.ndarray) -> g.Constant:
        """Return a computed constant, or the only given constant that it equals up to rounding."""
        made = g.constant(array)
        if array.dtype.kind != "f" or array.dtype.itemsize < 4 or made in self.given:
            return made
        self.rounded.add(made)
        rtol = ROUNDED * np.finfo(array.dtype).eps
        near = [
            c
            for c in self.given
            if c.type == made.type and np.allclose(c.load(), array, rtol, 0, equal_nan=True)
        ]
        return near[0] if len(near) == 1 else made


FOLDED = 1 << 14  # elements of a folded constant
ROUNDED = 4  # units in the last place


def _few(*graphs: g.Graph) -> tuple[g.Constant, ...]:
    return tuple(dict.fromkeys(c for graph in graphs for c in g.constants(graph) if _small(c)))


def _small(v: g.Value) -> bool:
    return isinstance(v, g.Constant) and _elements(v.type) is not None


def _elements(t: TensorType) -> int | None:
    """Return the number of elements; None if it is unknown or too large."""
    count = 1
    for d in t.shape if t.dtype is not None and t.shape is not None else (None,):
        if not isinstance(d, int):
            return None
        count *= d
    return count if count <= FOLDED else None


def _without_axes(n: g.Node, inputs: tuple[g.Value | None, ...]) -> tuple[g.Value | None, ...]:
    """Replace uniform operands by scalars if the others determine the shape."""
    for k, v in enumerate(inputs):
        if not isinstance(v, g.Constant) or not v.type.shape or (one := uniform(v)) is None:
            continue
        assert v.type.dtype is not None
        scalar = g.constant(np.full((), one, to_numpy(v.type.dtype)))
        fewer = (*inputs[:k], scalar, *inputs[k + 1 :])
        try:
            same = g.node(n.op, fewer, **dict(n.attrs)).types == n.types
        except InferError:  # sizes that are not known to fit
            same = False
        inputs = fewer if same else inputs
    return inputs


def _rewrites(graph: g.Graph, index: Index, without: Container[str]) -> Iterator[Link]:
    ctx = context(graph)
    for match in index.matches(ctx):
        if match.rule.name in without:
            continue
        change = rewrite(match, ctx)
        if isinstance(change, Refusal) or all(old is new for old, new in change.items()):
            continue
        yield Link(match.rule.name, graph, g.replace(graph, change, ctx.position))


def _chain(seen: Mapping[Roots, _Reached], roots: Roots) -> tuple[Link, ...]:
    out: list[Link] = []
    link = seen[roots].link
    while link is not None:
        out.append(link)
        link = seen[link.before.outputs].link
    return tuple(reversed(out))
