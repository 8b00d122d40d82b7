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

from superopt.ir import graph as ir_graph
from superopt.ir.evaluate import node_results
from superopt.ir.op import InferError, Op
from superopt.ops import OPS
from superopt.rules.lang.value_facts import uniform_value
from superopt.rules.match.graph_context import graph_context
from superopt.rules.match.node_builder import flatten_operands
from superopt.rules.match.rewrite import Refusal, rewrite
from superopt.rules.match.rule_index import RuleIndex
from superopt.te.expr.dtype import to_numpy
from superopt.te.expr.tensor import TensorType


@dataclass(frozen=True, slots=True)
class DeriveLimits:
    """max_steps: rewrites in a chain. max_growth: nodes beyond the larger graph. max_graphs:
    visited. forward_only: search from the first graph only, as an optimization would."""

    max_steps: int = 8
    max_growth: int = 3
    max_graphs: int = 20_000
    max_seconds: float = 60.0
    forward_only: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """One rewrite: the rule, the graph before and the graph after."""

    rule: str
    before: ir_graph.Graph
    after: ir_graph.Graph


@dataclass(frozen=True, slots=True)
class Derived:
    """Chains from the first and the second graph to a common one; both are empty for equal
    graphs."""

    forward: tuple[Link, ...]
    backward: tuple[Link, ...]
    visited: int


@dataclass(frozen=True, slots=True)
class Underived:
    """No chain was found: why the search ended, and how many graphs it visited."""

    reason: str
    visited: int


Roots = tuple[ir_graph.Value, ...]
STOPPED = "it was stopped"
LOOK_SHARE = 0.3  # of the remaining graphs and time, for a restricted look
RESHAPE = OPS["Reshape"]
RESHAPE_OPS = frozenset((RESHAPE, OPS["Squeeze"], OPS["Unsqueeze"]))


def derive(
    a: ir_graph.Graph,
    b: ir_graph.Graph,
    index: RuleIndex,
    bounds: DeriveLimits,
    stop: Callable[[], bool] = lambda: False,
    excluded: Container[str] = (),
) -> Derived | Underived:
    """Return a chain of rewrites between two graphs over the same inputs, by rules not in
    `excluded`.

    There are three looks, since graphs may grow without end: by rules about the graphs' own
    operators only (reshapes count as one); by all rules, without graphs larger than both ends; and
    by all rules. Each look ends with its share of the graphs and of the time.
    """
    end = time.monotonic() + bounds.max_seconds
    own = frozenset(n.op for graph in (a, b) for n in ir_graph.nodes(graph))
    if not own.isdisjoint(RESHAPE_OPS):
        own |= RESHAPE_OPS
    looks = [
        (index.restricted_to(own), bounds.max_growth, LOOK_SHARE),
        (index, 0, LOOK_SHARE),
        (index, bounds.max_growth, 1.0),
    ]
    visited = 0
    for rules, grow, share in looks if bounds.max_growth else looks[::2]:
        some = replace(
            bounds, max_growth=grow, max_graphs=int(share * (bounds.max_graphs - visited))
        )
        now = time.monotonic()
        found = _search_chain(a, b, rules, some, now + share * (end - now), stop, excluded)
        visited += found.visited
        if isinstance(found, Derived) or time.monotonic() >= end or stop():
            break
    return replace(found, visited=visited)


def _search_chain(
    a: ir_graph.Graph,
    b: ir_graph.Graph,
    index: RuleIndex,
    bounds: DeriveLimits,
    end: float,
    stop: Callable[[], bool],
    excluded: Container[str],
) -> Derived | Underived:
    order = _Canonicalizer({}, {}, _small_constants(a, b))
    ends = tuple(order.canonical_graph(graph) for graph in (a, b))
    sides = tuple(
        _Side(*end, _op_counts(to)) for end, (to, _) in zip(ends, ends[::-1], strict=True)
    )
    if sides[0].start == sides[1].start:
        return Derived((), (), 0)
    most = max(side.queue[0][2].size for side in sides) + bounds.max_growth
    if bounds.forward_only:
        sides[1].queue.clear()
    visited, reason = 2, "nothing more can be reached"
    while any(side.queue for side in sides):
        side, other = sorted(sides, key=lambda one: (not one.queue, len(one.reached)))
        _, _, at = heappop(side.queue)
        if at.depth == bounds.max_steps:
            reason = "the limit of steps was reached"
            continue
        for link in _rewrites(at.graph, index, excluded):
            graph, size = order.canonical_graph(link.after)
            if size > most or graph.outputs in side.reached:
                continue
            link = Link(link.rule, link.before, graph)
            reached = _Reached(graph, size, at.depth + 1, link)
            met = other.reached.get(graph.outputs)
            if met is not None and reached.depth + met.depth > bounds.max_steps:
                reason = "the limit of steps was reached"
            elif met is not None:
                side.reached[graph.outputs] = reached
                chains = [_chain(one.reached, graph.outputs) for one in sides]
                return Derived(chains[0], chains[1], visited)
            visited += 1
            side.add(reached)
            if stop():
                return Underived(STOPPED, visited)
            if time.monotonic() >= end:
                return Underived("the time was used up", visited)
        if visited >= bounds.max_graphs:
            return Underived("the limit of graphs was reached", visited)
        if stop():
            return Underived(STOPPED, visited)
        if time.monotonic() >= end:
            return Underived("the time was used up", visited)
    return Underived(reason, visited)


def shorten(
    found: Derived,
    a: ir_graph.Graph,
    b: ir_graph.Graph,
    index: RuleIndex,
    stop: Callable[[], bool] = lambda: False,
) -> Derived:
    """Return the chains without detours. Every rewrite between graphs of the chains is tried, and
    the shortest path is taken."""
    order = _Canonicalizer({}, {}, _small_constants(a, b))
    along = [a, *(s.after for s in found.forward), *(s.before for s in reversed(found.backward))]
    path = [order.canonical_graph(graph)[0] for graph in along]
    place = {graph.outputs: n for n, graph in enumerate(path)}
    hops: list[dict[int, Link]] = []  # from each graph to others
    for graph in path:
        hops.append({})
        for link in () if stop() else _rewrites(graph, index, ()):
            to = place.get(order.canonical_graph(link.after)[0].outputs)
            if to is not None:
                hops[-1].setdefault(to, Link(link.rule, graph, path[to]))
    last = len(path) - 1
    for n, link in enumerate(found.forward):
        hops[n].setdefault(n + 1, link)
    for n, link in enumerate(found.backward):
        hops[last - n].setdefault(last - n - 1, link)
    forth, back = _shortest_paths(hops, range(last + 1)), _shortest_paths(hops, range(last, -1, -1))
    meet = min(forth.keys() & back.keys(), key=lambda n: len(forth[n]) + len(back[n]))
    return Derived(forth[meet], back[meet], found.visited)


def _shortest_paths(
    hops: Sequence[Mapping[int, Link]], order: range
) -> dict[int, tuple[Link, ...]]:
    """Return the shortest path from the first graph to each, in this order."""
    ways: dict[int, tuple[Link, ...]] = {order[0]: ()}
    for n in order:
        for to, link in hops[n].items() if n in ways else ():
            onwards = (to - n) * order.step > 0
            if onwards and (to not in ways or len(ways[n]) + 1 < len(ways[to])):
                ways[to] = (*ways[n], link)
    return ways


STEP_COST = 0.3  # nodes: the cost of another rewrite that shrinks a graph


class _Reached(NamedTuple):
    """A graph, its number of nodes, and the last rewrite that led there."""

    graph: ir_graph.Graph
    size: int
    depth: int
    link: Link | None


class _Side:
    """The graphs reached from one end: by their outputs, and a queue of graphs to rewrite. Small
    graphs come first, and graphs with about the operators of the other end: a batch normalization
    that is one operator there and ten here must grow first."""

    def __init__(self, graph: ir_graph.Graph, size: int, target_ops: Counter[Op]) -> None:
        self.start = graph.outputs
        self.target_ops = target_ops
        self.reached: dict[Roots, _Reached] = {}
        self.queue: list[tuple[float, int, _Reached]] = []
        self.add(_Reached(graph, size, 0, None))

    def add(self, one: _Reached) -> None:
        self.reached[one.graph.outputs] = one
        have, want = _op_counts(one.graph), self.target_ops
        away = sum(abs(n - want[op]) for op, n in have.items())
        away += sum(n for op, n in want.items() if op not in have)
        heappush(self.queue, (min(one.size, away) + STEP_COST * one.depth, len(self.reached), one))


def _op_counts(graph: ir_graph.Graph) -> Counter[Op]:
    """Return the number of nodes of each operator; reshapes count as one."""
    return Counter(RESHAPE if n.op in RESHAPE_OPS else n.op for n in ir_graph.nodes(graph))


@dataclass(frozen=True, slots=True)
class _Canonicalizer:
    """Canonical graphs: ordered operands of commutative operators, flattened joins, scalars in
    place of uniform operands, folded constants. given: constants of both graphs; a folded constant
    becomes the given one that it equals up to rounding. computed: constants from arithmetic; others
    were only moved and are exact. node_counts: of canonical graphs, by their outputs."""

    value_numbers: dict[ir_graph.Value, int]
    canonical: dict[ir_graph.Node, tuple[ir_graph.Value, ...]]
    given: tuple[ir_graph.Constant, ...]
    computed: set[ir_graph.Value] = field(default_factory=set)
    node_counts: dict[Roots, int] = field(default_factory=dict)

    def canonical_graph(self, graph: ir_graph.Graph) -> tuple[ir_graph.Graph, int]:
        """Return the canonical graph and its number of nodes."""
        known = self.canonical
        for n in ir_graph.nodes(graph, known):
            known[n] = self.canonical_results(n)
        canonical = ir_graph.Graph(graph.inputs, tuple(map(self.canonical_value, graph.outputs)))
        size = self.node_counts.get(canonical.outputs)
        if size is None:
            size = self.node_counts[canonical.outputs] = len(ir_graph.nodes(canonical))
        return canonical, size

    def canonical_results(self, n: ir_graph.Node) -> tuple[ir_graph.Value, ...]:
        inputs = tuple(None if v is None else self.canonical_value(v) for v in n.inputs)
        if not n.op.opaque and all(v is None or _is_small_constant(v) for v in inputs):
            folded = self.fold(n, inputs)
            if folded is not None:
                return folded
        if "elementwise" in n.op.laws and len(inputs) > 1:
            inputs = _scalarize_uniform(n, inputs)
        for v in inputs:
            if v is not None:
                self.value_numbers.setdefault(v, len(self.value_numbers))
        inputs = flatten_operands(n, inputs)
        sums = n.op.name in ("Sum", "Mean") and len(inputs) > 2  # computed from the left
        if "commutative" in n.op.laws and not sums and None not in inputs:
            inputs = tuple(sorted(inputs, key=lambda v: self.value_numbers[v]))  # type: ignore[index]
        canonical = (
            n if inputs == n.inputs else ir_graph.intern_node(n.op, inputs, n.attrs, n.types)
        )
        return ir_graph.results(canonical)

    def canonical_value(self, v: ir_graph.Value) -> ir_graph.Value:
        p = ir_graph.producer(v)
        return v if p is None else self.canonical[p][v.index if isinstance(v, ir_graph.Item) else 0]

    def fold(
        self, n: ir_graph.Node, inputs: Sequence[ir_graph.Value | None]
    ) -> tuple[ir_graph.Constant, ...] | None:
        """Return the results of a node of constants, if they are small."""
        if any(_element_count(t) is None for t in n.types):
            return None
        arrays = [v.load() if isinstance(v, ir_graph.Constant) else None for v in inputs]
        try:
            with np.errstate(all="ignore"):
                found = node_results(n, arrays)
        except (ValueError, TypeError, LookupError, ArithmeticError):
            return None  # as for an index out of range
        moved = "data" in n.op.laws and self.computed.isdisjoint(v for v in inputs if v)
        return tuple(map(ir_graph.constant if moved else self.match_constant, found))

    def match_constant(self, array: np.ndarray) -> ir_graph.Constant:
        """Return a computed constant, or the only given constant that it equals up to rounding."""
        computed = ir_graph.constant(array)
        if array.dtype.kind != "f" or array.dtype.itemsize < 4 or computed in self.given:
            return computed
        self.computed.add(computed)
        rtol = ROUNDING_ULPS * np.finfo(array.dtype).eps
        close = [
            c
            for c in self.given
            if c.type == computed.type and np.allclose(c.load(), array, rtol, 0, equal_nan=True)
        ]
        return close[0] if len(close) == 1 else computed


MAX_FOLDED_ELEMENTS = 1 << 14  # elements of a folded constant
ROUNDING_ULPS = 4  # units in the last place


def _small_constants(*graphs: ir_graph.Graph) -> tuple[ir_graph.Constant, ...]:
    return tuple(
        dict.fromkeys(
            c for graph in graphs for c in ir_graph.constants(graph) if _is_small_constant(c)
        )
    )


def _is_small_constant(v: ir_graph.Value) -> bool:
    return isinstance(v, ir_graph.Constant) and _element_count(v.type) is not None


def _element_count(t: TensorType) -> int | None:
    """Return the number of elements; None if it is unknown or too large."""
    count = 1
    for d in t.shape if t.dtype is not None and t.shape is not None else (None,):
        if not isinstance(d, int):
            return None
        count *= d
    return count if count <= MAX_FOLDED_ELEMENTS else None


def _scalarize_uniform(
    n: ir_graph.Node, inputs: tuple[ir_graph.Value | None, ...]
) -> tuple[ir_graph.Value | None, ...]:
    """Replace uniform operands by scalars if the others determine the shape."""
    for k, v in enumerate(inputs):
        if (
            not isinstance(v, ir_graph.Constant)
            or not v.type.shape
            or (one := uniform_value(v)) is None
        ):
            continue
        assert v.type.dtype is not None
        scalar = ir_graph.constant(np.full((), one, to_numpy(v.type.dtype)))
        fewer = (*inputs[:k], scalar, *inputs[k + 1 :])
        try:
            same = ir_graph.node(n.op, fewer, **dict(n.attrs)).types == n.types
        except InferError:  # sizes that are not known to fit
            same = False
        inputs = fewer if same else inputs
    return inputs


def _rewrites(graph: ir_graph.Graph, index: RuleIndex, excluded: Container[str]) -> Iterator[Link]:
    ctx = graph_context(graph)
    for match in index.matches(ctx):
        if match.rule.name in excluded:
            continue
        change = rewrite(match, ctx)
        if isinstance(change, Refusal) or all(old is new for old, new in change.items()):
            continue
        yield Link(match.rule.name, graph, ir_graph.replace(graph, change, ctx.position))


def _chain(seen: Mapping[Roots, _Reached], roots: Roots) -> tuple[Link, ...]:
    out: list[Link] = []
    link = seen[roots].link
    while link is not None:
        out.append(link)
        link = seen[link.before.outputs].link
    return tuple(reversed(out))
