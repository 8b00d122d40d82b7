"""Best-first search with backtracking (TASO, SOSP 2019, section 5; PET, OSDI 2021, section 6).

Pop the best graph, apply every rule near the last change, and keep results that cost less than
alpha times the best. The priority is: graphs cheaper than all before, then those made by the most
novel rewrite, then the cheapest. Costs may rise on the way to a better graph. A graph is built only
when popped; until then it is a parent and a rewrite. Graphs are equal if their outputs are
identical.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from superopt.cost.graph_cost import GraphCosts
from superopt.ir import graph as ir_graph
from superopt.rules.match.graph_context import GraphContext, graph_context
from superopt.search.move import (
    Move,
    Refusals,
    RewriteCache,
    Step,
    find_moves,
    measured_move,
)
from superopt.search.novelty import NodeView, node_views, novelty
from superopt.search.rule_set import RuleSet

MIN_GAIN_US = 1e-6  # microseconds; less is rounding
MAX_EXTRA_AXES = 2  # beyond the rank of the start: nodes of higher rank are always novel


class StopReason(Enum):
    """Why a search ended."""

    EXHAUSTED = "every graph within alpha was visited"
    GRAPHS = "the limit of graphs was reached"
    PATIENCE = "no better graph was found for long"
    SECONDS = "the time was used up"
    MEMORY = "the queue was full"
    STOPPED = "it was stopped"


@dataclass(frozen=True, slots=True)
class Limits:
    """alpha: the largest cost relative to the best; max_graphs: graphs visited; patience: graphs
    visited without a better one; max_queue: waiting rewrites."""

    alpha: float = 1.05
    max_graphs: int = 8_000
    patience: int = 1_000
    seconds: float = 10.0
    max_queue: int = 50_000


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The cheapest graph, the steps to it, why the search ended, and how many graphs it visited."""

    graph: ir_graph.Graph
    cost: float
    steps: tuple[Step, ...]
    stop: StopReason
    visited: int


@dataclass(frozen=True, slots=True)
class _State:
    graph: ir_graph.Graph
    cost: float
    parent: _State | None
    move: Move | None
    ctx: GraphContext


# Priority, cost afterwards, sequence number, graph before, rewrite, views of its nodes.
_QueueEntry = tuple[int, float, int, _State, Move | None, tuple[NodeView, ...]]


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable garbage collection: graphs have no cycles, and looking for them takes a third of the
    time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@gc_disabled()
def search(
    graph: ir_graph.Graph,
    rules: RuleSet,
    costs: GraphCosts,
    limits: Limits,
    refusals: Refusals,
    stop: Callable[[], bool] = lambda: False,
) -> SearchResult:
    """Return the cheapest graph that the rules reach from `graph` within `limits`; deterministic
    given the costs, unless the time runs out."""
    end = time.monotonic() + limits.seconds
    start = _State(graph, costs.graph_cost(graph), None, None, graph_context(graph))
    best = start
    order = itertools.count()
    queue: list[_QueueEntry] = [(0, start.cost, next(order), start, None, ())]
    seen: set[tuple[ir_graph.Value, ...]] = set()
    known: RewriteCache = {}
    there = (v for n in ir_graph.nodes(graph) for v in ir_graph.results(n))
    axes = _max_rank((*graph.inputs, *ir_graph.constants(graph), *there)) + MAX_EXTRA_AXES
    visited = since = 0
    times: Counter[NodeView] = Counter()
    reason = StopReason.EXHAUSTED
    while queue:
        then, cost, _, parent, move, made = heapq.heappop(queue)
        if cost > limits.alpha * best.cost:
            continue
        now = _priority(cost, best.cost, made, times)
        if now > then:
            heapq.heappush(queue, (now, cost, next(order), parent, move, made))
            continue
        new = parent.graph
        if move is not None and cost < best.cost - MIN_GAIN_US:
            move = measured_move(parent.ctx, costs, move)
            if move is None:
                continue
            cost = parent.cost + move.effect.us
            if cost > limits.alpha * best.cost:
                continue
        if move is not None:
            new = ir_graph.replace(parent.graph, move.change, parent.ctx.position)
        if new.outputs in seen:
            continue
        seen.add(new.outputs)
        times.update(made)
        state = parent if move is None else _State(new, cost, parent, move, graph_context(new))
        visited += 1
        improved = state.cost < best.cost - MIN_GAIN_US
        if improved:
            best, since = state, visited
        if visited - since >= limits.patience:
            reason = StopReason.PATIENCE
            break
        if visited >= limits.max_graphs:
            reason = StopReason.GRAPHS
            break
        if visited % 16 == 0 and time.monotonic() >= end:
            reason = StopReason.SECONDS
            break
        if visited % 16 == 0 and stop():
            reason = StopReason.STOPPED
            break
        near = None if improved or move is None else _nodes_near(state.ctx, move)
        for m in find_moves(state.ctx, rules, costs, refusals, near, known):
            after = state.cost + m.effect.us
            if after < limits.alpha * best.cost and all(
                _max_rank(ir_graph.results(n)) <= axes for n in m.effect.added
            ):
                made = node_views(m.effect, costs)
                rank = _priority(after, best.cost, made, times)
                heapq.heappush(queue, (rank, after, next(order), state, m, made))
        if len(queue) > limits.max_queue:
            queue = heapq.nsmallest(limits.max_queue // 2, queue)
            reason = StopReason.MEMORY
    return SearchResult(best.graph, best.cost, tuple(_steps(best)), reason, visited)


def _priority(
    cost: float, best: float, made: tuple[NodeView, ...], times: Counter[NodeView]
) -> int:
    """Return the priority of a rewrite; it grows with the visits."""
    return -1 if cost < best - MIN_GAIN_US else novelty(made, times)


def _max_rank(values: Iterable[ir_graph.Value]) -> int:
    """Return the largest rank."""
    return max((len(v.type.shape or ()) for v in values), default=0)


def _nodes_near(ctx: GraphContext, move: Move) -> Collection[ir_graph.Node]:
    """Return the nodes that a new match after `move` must cover: nodes that it made, or readers of
    an older value that replaced another one."""
    near = {n for n in move.effect.added if n in ctx.position}
    for new in move.change.values():
        p = ir_graph.producer(new)
        if p is None or p not in near:
            near.update(ctx.users.get(new, ()))
    return near


def _steps(state: _State) -> list[Step]:
    out: list[Step] = []
    while state.parent is not None:
        assert state.move is not None
        m = state.move
        out.append(Step(m.rule.name, None, m.change, m.effect.us, state.parent.graph, state.graph))
        state = state.parent
    return out[::-1]
