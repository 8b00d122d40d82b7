"""Provenance: which node of the original each node of a rewritten graph corresponds to.

Nodes are interned, so every node downstream of a rewrite is a new node although only its operands
changed. Such nodes keep their names, doc strings and metadata. Counterparts are found by walking
both graphs upwards from their outputs in parallel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from superopt import guard
from superopt.ir import graph as g

_NEAR = 4  # steps upwards in which a node's counterpart is looked for, past what was rewritten


@dataclass(frozen=True, slots=True)
class Heirs:
    """Counterparts in the original of nodes and values of the rewritten graph."""

    nodes: dict[g.Node, g.Node] = field(default_factory=dict)
    values: dict[g.Value, g.Value] = field(default_factory=dict)


def heirs(old: g.Graph, new: g.Graph) -> Heirs:
    """Return the counterparts of what is in `new` but not in `old`. Each counterpart is used
    once."""
    found = Heirs()
    before, after = set(g.nodes(old)), set(g.nodes(new))
    gone = {m for m in before if m not in after}  # what is in both keeps its own name
    named: set[g.Value] = set()
    was = {m.attrs: m for m in gone if m.op.opaque}
    todo: deque[tuple[g.Value, g.Value]] = deque(zip(new.outputs, old.outputs, strict=False))

    def pair(n: g.Node, m: g.Node) -> None:
        found.nodes[n] = m
        gone.discard(m)
        todo.extend(_results(n, m))
        todo.extend(_operands(n, m))

    for n in g.nodes(new):
        if n.op.opaque and n not in before and n.attrs in was:
            pair(n, was[n.attrs])
    seen: set[tuple[g.Value, g.Value]] = set()
    while todo:
        guard.check_time("writing a graph")
        v, w = todo.popleft()
        if v is w or (v, w) in seen:
            continue
        seen.add((v, w))
        p, q = g.producer(v), g.producer(w)
        if q is None or q in after:
            continue
        if v not in found.values and w not in named and v.type == w.type:
            found.values[v] = w
            named.add(w)
        if p is not None and p not in before:
            match = _counterpart(p, q, found, gone)
            if match is not None:
                pair(*match)
    return found


def same_attributes(n: g.Node, m: g.Node) -> bool:
    """True if the attributes of `m`, as written in the file, mean the same on `n`."""
    return n.op is m.op and n.attrs == m.attrs and n.types == m.types and _types(n) == _types(m)


def _types(n: g.Node) -> tuple[object, ...]:
    return tuple(None if v is None else v.type for v in n.inputs)


def _operands(n: g.Node, m: g.Node) -> Iterator[tuple[g.Value, g.Value]]:
    for v, w in zip(n.inputs, m.inputs, strict=False):
        if v is not None and w is not None:
            yield v, w


def _results(n: g.Node, m: g.Node) -> Iterator[tuple[g.Value, g.Value]]:
    if len(n.types) == len(m.types):
        yield from zip(g.results(n), g.results(m), strict=True)


def _counterpart(
    p: g.Node, q: g.Node, found: Heirs, gone: set[g.Node]
) -> tuple[g.Node, g.Node] | None:
    """Return the nearest pair above `p` and `q` with equal operator and output types."""
    left, right = _above(p), _above(q)
    pairs = sorted(
        ((i + j, i, n, m) for i, n in left for j, m in right if i + j <= _NEAR),
        key=lambda t: t[:2],
    )
    for _, _, n, m in pairs:
        if n.op is m.op and n.types == m.types and n not in found.nodes and m in gone:
            return n, m
    return None


def _above(n: g.Node) -> list[tuple[int, g.Node]]:
    """Return `n` and the nodes above it along first operands, with distances."""
    out = [(0, n)]
    while len(out) <= _NEAR:
        p = next((g.producer(v) for v in n.inputs if v is not None and g.producer(v)), None)
        if p is None:
            break
        out.append((len(out), p))
        n = p
    return out
