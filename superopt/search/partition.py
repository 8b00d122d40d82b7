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

from superopt.cost.graph_cost import GraphCosts
from superopt.ir import graph as ir_graph
from superopt.ir.stand_ins import numbered_input, stand_in
from superopt.ir.substitute import replace_all
from superopt.rules.match.magnitude import LARGE_MAGNITUDE, declare_magnitude, magnitude
from superopt.search.move import PieceChange

MAX_PIECE_NODES = 60  # nodes


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a graph over stand-ins, the values they stand for, and its outputs."""

    graph: ir_graph.Graph
    stand_in_values: Mapping[ir_graph.Value, ir_graph.Value]
    outputs: tuple[ir_graph.Value, ...]


def cut_positions(
    order: list[ir_graph.Node], outputs: tuple[ir_graph.Value, ...], max_nodes: int
) -> list[int]:
    """Return the positions in `order` at which to cut into pieces of at most `max_nodes` nodes: in
    each window the position that the fewest values cross, the latest of equals."""
    position = {n: i for i, n in enumerate(order)}
    last: dict[ir_graph.Node, int] = {}
    for i, n in enumerate(order):
        for v in n.inputs:
            p = None if v is None else ir_graph.producer(v)
            if p in position:
                last[p] = i
    for v in outputs:
        p = ir_graph.producer(v)
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
    while len(order) - start > max_nodes:
        window = range(start + max_nodes // 2, start + max_nodes + 1)
        best = min(window, key=lambda i: (width[i], -i))
        out.append(best)
        start = best
    return out


def split_into_pieces(graph: ir_graph.Graph, costs: GraphCosts, max_nodes: int) -> list[Piece]:
    """Return the pieces of `graph`, in order; nodes computed from constants go with their
    readers."""
    order = [n for n in ir_graph.nodes(graph) if not costs.is_constant(n)]
    at = [0, *cut_positions(order, graph.outputs, max_nodes), len(order)]
    read_after: dict[ir_graph.Value, int] = {}
    for i, n in enumerate(order):
        for v in n.inputs:
            if v is not None:
                read_after[v] = i
    for v in graph.outputs:
        read_after[v] = len(order)
    out: list[Piece] = []
    for a, b in pairwise(at):
        part = order[a:b]
        given = tuple(v for n in part for v in ir_graph.results(n) if read_after.get(v, -1) >= b)
        if given:
            out.append(_make_piece(part, given, costs))
    return out


def _make_piece(
    part: list[ir_graph.Node], given: tuple[ir_graph.Value, ...], costs: GraphCosts
) -> Piece:
    actual: dict[ir_graph.Value, ir_graph.Value] = {}
    stand: dict[ir_graph.Value, ir_graph.Value] = {}
    inputs: list[ir_graph.Input] = []
    inside = set(part)
    work = list(reversed(part))
    while work:
        for v in work.pop().inputs:
            if v is None or v in stand:
                continue
            p = ir_graph.producer(v)
            if isinstance(v, ir_graph.Constant):
                made: ir_graph.Value = stand_in(v, len(stand))
            elif p is not None and p in inside:
                continue
            elif p is not None and costs.is_constant(p):
                inside.add(p)
                work.append(p)
                continue
            else:
                made = _stand_in_input(v, len(stand))
                inputs.append(made)
            stand[v] = made
            if made is not v:
                actual[made] = v
    graph = replace_all(ir_graph.Graph((), given), stand)
    return Piece(ir_graph.Graph(tuple(inputs), graph.outputs), actual, given)


def _stand_in_input(v: ir_graph.Value, number: int) -> ir_graph.Input:
    """Return the stand-in of a value from outside. A possibly large value has another stand-in,
    which declares its magnitude."""
    size = magnitude(v)
    if size <= LARGE_MAGNITUDE:
        return numbered_input(number, v.type)
    digits = math.ceil(math.log10(size)) if math.isfinite(size) else 999
    made = numbered_input(number, v.type, f"e{digits}")
    declare_magnitude(made, 10.0**digits if digits < 308 else math.inf)
    return made


def assemble_rewrite(
    graph: ir_graph.Graph,
    parts: Sequence[Piece],
    chosen: Sequence[ir_graph.Graph],
    piece_change: PieceChange,
) -> tuple[ir_graph.Graph, dict[ir_graph.Value, ir_graph.Value]]:
    """Return the graph with `chosen[i]` for piece i, and a rewrite inside a piece as one of the
    graph."""
    after, place = assemble(graph, parts, chosen, piece_change.piece)
    pairs = (*piece_change.change.keys(), *piece_change.change.values())
    moved = replace_all(ir_graph.Graph((), pairs), place).outputs
    return after, dict(zip(moved[: len(pairs) // 2], moved[len(pairs) // 2 :], strict=True))


def assemble(
    graph: ir_graph.Graph,
    parts: Sequence[Piece],
    chosen: Sequence[ir_graph.Graph],
    piece_index: int = 0,
) -> tuple[ir_graph.Graph, Mapping[ir_graph.Value, ir_graph.Value]]:
    """Return the graph with `chosen[i]` for piece i, and the values of the stand-ins of one
    piece."""
    current: dict[ir_graph.Value, ir_graph.Value] = {}
    place_at: Mapping[ir_graph.Value, ir_graph.Value] = {}
    for i, (piece, new) in enumerate(zip(parts, chosen, strict=True)):
        place = {k: current.get(v, v) for k, v in piece.stand_in_values.items()}
        made = replace_all(ir_graph.Graph((), new.outputs), place).outputs
        current.update(zip(piece.outputs, made, strict=True))
        if i == piece_index:
            place_at = place
    return ir_graph.Graph(graph.inputs, tuple(current.get(v, v) for v in graph.outputs)), place_at
