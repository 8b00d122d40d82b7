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

from superopt.cost.model import Costs
from superopt.ir import graph as g
from superopt.rules.context import GraphContext, context
from superopt.search.book import Book
from superopt.search.move import Known, Move, Refusals, Step, moves
from superopt.search.novelty import View, novelty, views

GAIN = 1e-6  # microseconds; less is rounding
AXES = 2  # beyond the rank of the start: nodes of higher rank are always novel


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
    graphs: int = 8_000
    patience: int = 1_000
    seconds: float = 10.0
    queue: int = 50_000


@dataclass(frozen=True, slots=True)
class Found:
    """The cheapest graph, the steps to it, why the search ended, and how many graphs it visited."""

    graph: g.Graph
    cost: float
    steps: tuple[Step, ...]
    stop: StopReason
    seen: int


@dataclass(frozen=True, slots=True)
class _State:
    graph: g.Graph
    cost: float
    parent: _State | None
    move: Move | None
    ctx: GraphContext


# Priority, cost afterwards, sequence number, graph before, rewrite, views of its nodes.
_Waiting = tuple[int, float, int, _State, Move | None, tuple[View, ...]]


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection: graphs have no cycles, and looking for them takes a third of the
    time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@uncollected()
def search(
    graph: g.Graph,
    rules: Book,
    costs: Costs,
    limits: Limits,
    refusals: Refusals,
    stop: Callable[[], bool] = lambda: False,
) -> Found:
    """Return the cheapest graph that the rules reach from `graph` within `limits`; deterministic
    given the costs, unless the time runs out."""
    end = time.monotonic() + limits.seconds
    start = _State(graph, costs.of_graph(graph), None, None, context(graph))
    best = start
    order = itertools.count()
    queue: list[_Waiting] = [(0, start.cost, next(order), start, None, ())]
    seen: set[tuple[g.Value, ...]] = set()
    known: Known = {}
    there = (v for n in g.nodes(graph) for v in g.results(n))
    axes = _axes((*graph.inputs, *g.constants(graph), *there)) + AXES
    visited = since = 0
    times: Counter[View] = Counter()
    reason = StopReason.EXHAUSTED
    while queue:
        then, cost, _, parent, move, made = heapq.heappop(queue)
        if cost > limits.alpha * best.cost:
            continue
        now = _rank(cost, best.cost, made, times)
        if now > then:
            heapq.heappush(queue, (now, cost, next(order), parent, move, made))
            continue
        new = parent.graph
        if move is not None:
            new = g.replace(parent.graph, move.change, parent.ctx.position)
        if new.outputs in seen:
            continue
        seen.add(new.outputs)
        times.update(made)
        state = parent if move is None else _State(new, cost, parent, move, context(new))
        visited += 1
        improved = state.cost < best.cost - GAIN
        if improved:
            best, since = state, visited
        if visited - since >= limits.patience:
            reason = StopReason.PATIENCE
            break
        if visited >= limits.graphs:
            reason = StopReason.GRAPHS
            break
        if visited % 16 == 0 and time.monotonic() >= end:
            reason = StopReason.SECONDS
            break
        if visited % 16 == 0 and stop():
            reason = StopReason.STOPPED
            break
        near = None if improved or move is None else _near(state.ctx, move)
        for m in moves(state.ctx, rules, costs, refusals, near, known):
            after = state.cost + m.effect.us
            if after < limits.alpha * best.cost and all(
                _axes(g.results(n)) <= axes for n in m.effect.added
            ):
                made = views(m.effect, costs)
                rank = _rank(after, best.cost, made, times)
                heapq.heappush(queue, (rank, after, next(order), state, m, made))
        if len(queue) > limits.queue:
            queue = heapq.nsmallest(limits.queue // 2, queue)
            reason = StopReason.MEMORY
    return Found(best.graph, best.cost, tuple(_steps(best)), reason, visited)


def _rank(cost: float, best: float, made: tuple[View, ...], times: Counter[View]) -> int:
    """Return the priority of a rewrite; it grows with the visits."""
    return -1 if cost < best - GAIN else novelty(made, times)


def _axes(values: Iterable[g.Value]) -> int:
    """Return the largest rank."""
    return max((len(v.type.shape or ()) for v in values), default=0)


def _near(ctx: GraphContext, move: Move) -> Collection[g.Node]:
    """Return the nodes that a new match after `move` must cover: nodes that it made, or readers of
    an older value that replaced another one."""
    near = {n for n in move.effect.added if n in ctx.position}
    for new in move.change.values():
        p = g.producer(new)
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
