"""Folding: what is computed from constants only is computed once, ahead of time, within bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass

import numpy as np

from superopt.ir import graph as g
from superopt.ir.evaluate import node_results
from superopt.te.domain import Domain, Reals
from superopt.te.dtype import F64, STRING, to_numpy


def is_constant(v: g.Value, memo: MutableMapping[g.Node, bool]) -> bool:
    """Is `v` computed from constants only, through operators with tensor expressions?"""
    top = g.producer(v)
    if top is None:
        return isinstance(v, g.Constant)
    stack = [top]
    while stack:
        n = stack[-1]
        if n in memo:
            stack.pop()
            continue
        if n.op.opaque:
            memo[n] = False
            continue
        pending: list[g.Node] = []
        verdict = True
        for i in n.inputs:
            if i is None or isinstance(i, g.Constant):
                continue
            p = g.producer(i)
            if p is None:
                verdict = False
                break
            known = memo.get(p)
            if known is None:
                pending.append(p)
            elif not known:
                verdict = False
                break
        if verdict and pending:
            stack.extend(pending)
            continue
        memo[n] = verdict and (bool(n.inputs) or _sized(n))
        stack.pop()
    return memo[top]


def _sized(n: g.Node) -> bool:
    return all(t.shape is not None and all(isinstance(d, int) for d in t.shape) for t in n.types)


@dataclass(frozen=True, slots=True)
class Folded:
    """The folded graph, how many nodes went, and what was not folded and why."""

    graph: g.Graph
    nodes: int
    bytes_before: int
    bytes_after: int
    skipped: tuple[str, ...]


def fold(
    graph: g.Graph,
    *,
    limit_bytes: int | None = None,
    keep: Callable[[g.Constant, g.Value], None] | None = None,
) -> Folded:
    """`graph` with every constant subgraph that a non-constant node or an output reads computed.

    limit_bytes: constants of the result may take this much together; by default twice the bytes of
    the original's plus 1 %. The largest growths are left as nodes. `keep(new, old)` is told of each
    folded value. Arithmetic is done in float64 and rounded once.
    """
    memo: dict[g.Node, bool] = {}
    frontier: dict[g.Value, None] = {}
    order = g.nodes(graph)
    for n in order:
        if is_constant(g.item(n, 0), memo):
            continue
        for v in n.inputs:
            if v is not None and g.producer(v) is not None and is_constant(v, memo):
                frontier[v] = None
    for v in graph.outputs:
        if g.producer(v) is not None and is_constant(v, memo):
            frontier[v] = None
    before = sum(c.nbytes for c in g.constants(graph))
    allowed = limit_bytes if limit_bytes is not None else int(2.01 * before) + 4096
    sizes = {v: _nbytes(v) for v in frontier}
    taken, skipped = _within(graph, sizes, allowed)
    change: dict[g.Value, g.Value] = {}
    cache: dict[g.Node, list[np.ndarray]] = {}
    uses = _uses(taken)
    for v in taken:
        array = _value(v, cache, uses)
        made = g.constant(array)
        if made.type != v.type:
            skipped.append(f"folding gave {made.type}, the node says {v.type}")
            continue
        change[v] = made
        if keep is not None:
            keep(made, v)
    done = g.replace(graph, change) if change else graph
    after = sum(c.nbytes for c in g.constants(done))
    return Folded(done, len(order) - len(g.nodes(done)), before, after, tuple(skipped))


def _nbytes(v: g.Value) -> int:
    count = 1
    for d in v.type.shape or ():
        if not isinstance(d, int):
            return 1 << 62
        count *= d
    assert v.type.dtype is not None
    if v.type.dtype == STRING:
        return 1 << 62
    return count * to_numpy(v.type.dtype).itemsize


def _within(
    graph: g.Graph, sizes: dict[g.Value, int], allowed: int
) -> tuple[list[g.Value], list[str]]:
    """The values to fold so that all constants together stay within `allowed` bytes."""
    skipped: list[str] = []
    kept = sorted((v for v in sizes if sizes[v] < 1 << 62), key=lambda v: sizes[v])
    total = sum(c.nbytes for c in _direct(graph, set(kept)))
    total += sum(sizes[v] for v in kept)
    while kept and total > allowed:
        v = kept.pop()
        total -= sizes[v]
        skipped.append(f"{g.producer(v)} would take {sizes[v]} bytes")
    chosen = set(kept)
    return [v for v in sizes if v in chosen], skipped


def _direct(graph: g.Graph, folded: set[g.Value]) -> list[g.Constant]:
    """Constants still read once the values in `folded` are constants themselves."""
    found: dict[g.Constant, None] = {}
    stack: list[g.Value] = list(graph.outputs)
    seen: set[g.Value] = set()
    while stack:
        v = stack.pop()
        if v in seen or v in folded:
            continue
        seen.add(v)
        if isinstance(v, g.Constant):
            found[v] = None
        stack.extend(g.operands(v))
    return list(found)


def _uses(roots: Iterable[g.Value]) -> dict[g.Node, int]:
    count: dict[g.Node, int] = {}
    for n in g.nodes(roots):
        for v in n.inputs:
            p = None if v is None else g.producer(v)
            if p is not None:
                count[p] = count.get(p, 0) + 1
    for v in roots:
        p = g.producer(v)
        if p is not None:
            count[p] = count.get(p, 0) + 1
    return count


def _value(
    v: g.Value, cache: dict[g.Node, list[np.ndarray]], uses: dict[g.Node, int]
) -> np.ndarray:
    """The value of a constant subgraph; what no later root reads is dropped from the cache."""
    domain: Domain = Reals(F64)

    def take(value: g.Value) -> np.ndarray:
        if isinstance(value, g.Constant):
            return value.load()
        p = g.producer(value)
        assert p is not None
        found = cache[p][value.index if isinstance(value, g.Item) else 0]
        uses[p] -= 1
        if uses[p] == 0:
            del cache[p]
        return found

    top = g.producer(v)
    assert top is not None
    for n in _missing(top, cache):
        arrays = [None if i is None else take(i) for i in n.inputs]
        cache[n] = node_results(n, arrays, domain)
    array = take(v)
    assert v.type.dtype is not None
    return np.asarray(array).astype(to_numpy(v.type.dtype), copy=False)


def _missing(top: g.Node, cache: dict[g.Node, list[np.ndarray]]) -> list[g.Node]:
    """The nodes to evaluate for `top`, operands first, stopping at what the cache holds."""
    order: list[g.Node] = []
    stack: list[tuple[g.Node, bool]] = [(top, False)]
    seen: set[g.Node] = set()
    while stack:
        n, done = stack.pop()
        if done:
            order.append(n)
        elif n not in seen and n not in cache:
            seen.add(n)
            stack.append((n, True))
            stack.extend((p, False) for v in n.inputs if v is not None and (p := g.producer(v)))
    return order
