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
from superopt.ir import graph

_MAX_STEPS = 4  # steps upwards in which a node's counterpart is looked for, past what was rewritten


@dataclass(frozen=True, slots=True)
class Provenance:
    """Counterparts in the original of nodes and values of the rewritten graph."""

    nodes: dict[graph.Node, graph.Node] = field(default_factory=dict)
    values: dict[graph.Value, graph.Value] = field(default_factory=dict)


def trace_provenance(old: graph.Graph, new: graph.Graph) -> Provenance:
    """Return the counterparts of what is in `new` but not in `old`. Each counterpart is used
    once."""
    found = Provenance()
    before, after = set(graph.nodes(old)), set(graph.nodes(new))
    gone = {m for m in before if m not in after}  # what is in both keeps its own name
    named: set[graph.Value] = set()
    was = {m.attrs: m for m in gone if m.op.opaque}
    todo: deque[tuple[graph.Value, graph.Value]] = deque(
        zip(new.outputs, old.outputs, strict=False)
    )

    def pair(n: graph.Node, m: graph.Node) -> None:
        found.nodes[n] = m
        gone.discard(m)
        todo.extend(_result_pairs(n, m))
        todo.extend(_operand_pairs(n, m))

    for n in graph.nodes(new):
        if n.op.opaque and n not in before and n.attrs in was:
            pair(n, was[n.attrs])
    seen: set[tuple[graph.Value, graph.Value]] = set()
    while todo:
        guard.check_time("writing a graph")
        v, w = todo.popleft()
        if v is w or (v, w) in seen:
            continue
        seen.add((v, w))
        p, q = graph.producer(v), graph.producer(w)
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


def has_same_attributes(n: graph.Node, m: graph.Node) -> bool:
    """True if the attributes of `m`, as written in the file, mean the same on `n`."""
    return (
        n.op is m.op
        and n.attrs == m.attrs
        and n.types == m.types
        and _operand_types(n) == _operand_types(m)
    )


def _operand_types(n: graph.Node) -> tuple[object, ...]:
    return tuple(None if v is None else v.type for v in n.inputs)


def _operand_pairs(n: graph.Node, m: graph.Node) -> Iterator[tuple[graph.Value, graph.Value]]:
    for v, w in zip(n.inputs, m.inputs, strict=False):
        if v is not None and w is not None:
            yield v, w


def _result_pairs(n: graph.Node, m: graph.Node) -> Iterator[tuple[graph.Value, graph.Value]]:
    if len(n.types) == len(m.types):
        yield from zip(graph.results(n), graph.results(m), strict=True)


def _counterpart(
    p: graph.Node, q: graph.Node, found: Provenance, unmatched: set[graph.Node]
) -> tuple[graph.Node, graph.Node] | None:
    """Return the nearest pair above `p` and `q` with equal operator and output types."""
    left, right = _producer_chain(p), _producer_chain(q)
    pairs = sorted(
        ((i + j, i, n, m) for i, n in left for j, m in right if i + j <= _MAX_STEPS),
        key=lambda t: t[:2],
    )
    for _, _, n, m in pairs:
        if n.op is m.op and n.types == m.types and n not in found.nodes and m in unmatched:
            return n, m
    return None


def _producer_chain(n: graph.Node) -> list[tuple[int, graph.Node]]:
    """Return `n` and the nodes above it along first operands, with distances."""
    out = [(0, n)]
    while len(out) <= _MAX_STEPS:
        p = next((graph.producer(v) for v in n.inputs if v is not None and graph.producer(v)), None)
        if p is None:
            break
        out.append((len(out), p))
        n = p
    return out
