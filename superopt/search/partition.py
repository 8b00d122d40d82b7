"""Large graphs in pieces: cut where few values cross, search each piece once, reassemble.

Pieces are consecutive in a topological order, cut at its narrowest places. Numbered stand-ins
replace the weights of a piece, so that the twelve equal layers of a transformer are one graph (the
same object, thanks to interning) and are searched once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from superopt.cost.model import Costs
from superopt.ir import graph as g
from superopt.ir.standin import numbered_input, stand_in
from superopt.ir.substitute import replace_all
from superopt.rules.magnitude import LARGE, declare, magnitude
from superopt.search.move import Inside

PIECE = 60  # nodes


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a graph over stand-ins, the values they stand for, and its outputs."""

    graph: g.Graph
    actual: Mapping[g.Value, g.Value]
    outputs: tuple[g.Value, ...]


def cuts(order: list[g.Node], outputs: tuple[g.Value, ...], most: int) -> list[int]:
    """Return the positions in `order` at which to cut into pieces of at most `max_nodes` nodes: in
    each window the position that the fewest values cross, the latest of equals."""
    position = {n: i for i, n in enumerate(order)}
    last: dict[g.Node, int] = {}
    for i, n in enumerate(order):
        for v in n.inputs:
            p = None if v is None else g.producer(v)
            if p in position:
                last[p] = i
    for v in outputs:
        p = g.producer(v)
        if p in position:
            last[p] = len(order)
    crossing = [0] * (len(order) + 2)
    for n, end in last.items():
        crossing[position[n] + 1] += 1
        crossing[end + 1] -= 1
    width: list[int] = []
    total = 0
    for c in crossing[: len(order) + 1]:
        total += c
        width.append(total)
    out: list[int] = []
    start = 0
    while len(order) - start > most:
        window = range(start + most // 2, start + most + 1)
        best = min(window, key=lambda i: (width[i], -i))
        out.append(best)
        start = best
    return out


def pieces(graph: g.Graph, costs: Costs, most: int) -> list[Piece]:
    """Return the pieces of `graph`, in order; nodes computed from constants go with their
    readers."""
    order = [n for n in g.nodes(graph) if not costs.is_constant(n)]
    at = [0, *cuts(order, graph.outputs, most), len(order)]
    read_after: dict[g.Value, int] = {}
    for i, n in enumerate(order):
        for v in n.inputs:
            if v is not None:
                read_after[v] = i
    for v in graph.outputs:
        read_after[v] = len(order)
    out: list[Piece] = []
    for a, b in pairwise(at):
        part = order[a:b]
        given = tuple(v for n in part for v in g.results(n) if read_after.get(v, -1) >= b)
        if given:
            out.append(_piece(part, given, costs))
    return out


def _piece(part: list[g.Node], given: tuple[g.Value, ...], costs: Costs) -> Piece:
    actual: dict[g.Value, g.Value] = {}
    stand: dict[g.Value, g.Value] = {}
    inputs: list[g.Input] = []
    inside = set(part)
    work = list(reversed(part))
    while work:
        for v in work.pop().inputs:
            if v is None or v in stand:
                continue
            p = g.producer(v)
            if isinstance(v, g.Constant):
                made: g.Value = stand_in(v, len(stand))
            elif p is not None and p in inside:
                continue
            elif p is not None and costs.is_constant(p):
                inside.add(p)
                work.append(p)
                continue
            else:
                made = _input(v, len(stand))
                inputs.append(made)
            stand[v] = made
            if made is not v:
                actual[made] = v
    graph = replace_all(g.Graph((), given), stand)
    return Piece(g.Graph(tuple(inputs), graph.outputs), actual, given)


def _input(v: g.Value, number: int) -> g.Input:
    """Return the stand-in of a value from outside. A possibly large value has another stand-in,
    which declares its magnitude."""
    size = magnitude(v)
    if size <= LARGE:
        return numbered_input(number, v.type)
    digits = math.ceil(math.log10(size)) if math.isfinite(size) else 999
    made = numbered_input(number, v.type, f"e{digits}")
    declare(made, 10.0**digits if digits < 308 else math.inf)
    return made


def assembled(
    graph: g.Graph, parts: Sequence[Piece], chosen: Sequence[g.Graph], inside: Inside
) -> tuple[g.Graph, dict[g.Value, g.Value]]:
    """Return the graph with `chosen[i]` for piece i, and a rewrite inside a piece as one of the
    graph."""
    after, place = assemble(graph, parts, chosen, inside.piece)
    pairs = (*inside.change.keys(), *inside.change.values())
    moved = replace_all(g.Graph((), pairs), place).outputs
    return after, dict(zip(moved[: len(pairs) // 2], moved[len(pairs) // 2 :], strict=True))


def assemble(
    graph: g.Graph, parts: Sequence[Piece], chosen: Sequence[g.Graph], at: int = 0
) -> tuple[g.Graph, Mapping[g.Value, g.Value]]:
    """Return the graph with `chosen[i]` for piece i, and the values of the stand-ins of one
    piece."""
    current: dict[g.Value, g.Value] = {}
    place_at: Mapping[g.Value, g.Value] = {}
    for i, (piece, new) in enumerate(zip(parts, chosen, strict=True)):
        place = {k: current.get(v, v) for k, v in piece.actual.items()}
        made = replace_all(g.Graph((), new.outputs), place).outputs
        current.update(zip(piece.outputs, made, strict=True))
        if i == at:
            place_at = place
    return g.Graph(graph.inputs, tuple(current.get(v, v) for v in graph.outputs)), place_at
