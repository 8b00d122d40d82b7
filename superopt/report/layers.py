"""A small graph in layers: which row a box is in, its order in the row, and how far to the right.

Boxes lie in rows, one row below all that they use. A line that passes a row has a node there, as
narrow as a line, so that it runs down a column of its own and crosses no box.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from superopt.report.diagram import Box

BESIDE = 22.0  # between neighbours
LANE = 10.0  # width of the column in which a line passes a row
SWEEPS = 12  # down and up, to find an order
MOST_MOVES, SETTLED = 400, 0.02  # to find places, in pixels
STRAIGHT = 4.0  # how much heavier a passing line is than a box


@dataclass(slots=True)
class Node:
    """A box, or a place where a line passes a row. `x` is its middle."""

    width: float
    row: int
    weight: float = 1.0
    x: float = 0.0
    above: list["Edge"] = field(default_factory=list)
    below: list["Edge"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Edge:
    """Two nodes in neighbouring rows, and how far from their middles it begins and ends."""

    upper: int
    lower: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Chain:
    """An operand's way from its source down to its target."""

    source: int
    target: int
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Layers:
    """nodes: those of the boxes first, in their order. rows: nodes from left to right."""

    nodes: tuple[Node, ...]
    rows: tuple[tuple[int, ...], ...]
    chains: tuple[Chain, ...]


def layers(
    boxes: Sequence[Box], widths: Sequence[float], ports: Sequence[Mapping[str, float]]
) -> Layers:
    """Rows for boxes of these widths.

    ports: of each box, how far right of its middle its named results leave it.
    """
    nodes, chains = _chained(boxes, widths, ports)
    rows = _ordered(nodes)
    _spread(nodes, rows)
    return Layers(tuple(nodes), tuple(map(tuple, rows)), tuple(chains))


# --- rows -----------------------------------------------------------------------------------------


def _rows(boxes: Sequence[Box]) -> list[int]:
    """The row of each box: parameters first, results last, constants just above their first use."""
    rows = [0] * len(boxes)
    for n, box in enumerate(boxes):
        rows[n] = max((rows[link.source] + 1 for link in box.inputs), default=0)
    last = max(rows)
    rows = [last if b.kind == "result" else row for b, row in zip(boxes, rows, strict=True)]
    for n, box in enumerate(boxes):
        if box.kind in ("constant", "variable") and not box.inputs:
            uses = [rows[i] for i, b in enumerate(boxes) if any(k.source == n for k in b.inputs)]
            rows[n] = min(uses) - 1
    return rows


def _chained(
    boxes: Sequence[Box], widths: Sequence[float], ports: Sequence[Mapping[str, float]]
) -> tuple[list[Node], list[Chain]]:
    """The nodes of all rows, and each operand's way from row to row."""
    rows = _rows(boxes)
    nodes = [Node(width, row) for width, row in zip(widths, rows, strict=True)]
    chains: list[Chain] = []
    passing: dict[tuple[int, str, int], int] = {}  # one value runs down one column
    for target, box in enumerate(boxes):
        for number, link in enumerate(box.inputs):
            end = widths[target] * ((number + 1) / (len(box.inputs) + 1) - 0.5)
            upper, begin, edges = link.source, ports[link.source].get(link.which, 0.0), list[Edge]()
            for row in range(rows[link.source] + 1, rows[target]):
                lane = passing.setdefault((link.source, link.which, row), len(nodes))
                if lane == len(nodes):
                    nodes.append(Node(LANE, row, STRAIGHT))
                edges.append(Edge(upper, lane, begin, 0.0))
                upper, begin = lane, 0.0
            edges.append(Edge(upper, target, begin, end))
            chains.append(Chain(link.source, target, tuple(edges)))
    for edge in dict.fromkeys(edge for chain in chains for edge in chain.edges):
        nodes[edge.upper].below.append(edge)
        nodes[edge.lower].above.append(edge)
    return nodes, chains


# --- order in a row -------------------------------------------------------------------------------


def _ordered(nodes: Sequence[Node]) -> list[list[int]]:
    """The nodes of each row from left to right: by the middle of their neighbours, down and up,
    as long as that makes fewer lines cross."""
    rows: list[list[int]] = [[] for _ in range(max(n.row for n in nodes) + 1)]
    for n in _depth_first(nodes):
        rows[nodes[n].row].append(n)
    best, fewest = rows, _crossings(nodes, rows)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        rows = [list(row) for row in rows]
        sorted_rows = range(len(rows) - 1)  # results keep their order
        for number in sorted_rows if down else reversed(sorted_rows):
            _sort(nodes, rows, number, down)
        crossings = _crossings(nodes, rows)
        if crossings < fewest:
            best, fewest = rows, crossings
    return best


def _depth_first(nodes: Sequence[Node]) -> list[int]:
    """All nodes, operands before what uses them and in their order."""
    out: dict[int, None] = {}
    for root in (n for n, node in enumerate(nodes) if not node.below):
        stack = [(root, False)]
        while stack:
            n, done = stack.pop()
            if done:
                out.setdefault(n)
            elif n not in out:
                above = sorted(nodes[n].above, key=lambda e: e.end)
                stack += [(n, True), *((e.upper, False) for e in reversed(above))]
    return list(out)


def _position(nodes: Sequence[Node], rows: Sequence[Sequence[int]]) -> dict[int, int]:
    return {n: place for row in rows for place, n in enumerate(row)}


def _sort(nodes: Sequence[Node], rows: list[list[int]], number: int, down: bool) -> None:
    at = _position(nodes, rows)

    def middle(n: int) -> float:
        node = nodes[n]
        edges = node.above if down else node.below
        if not edges:
            return float(at[n])
        ends = [
            at[e.upper] + e.begin / nodes[e.upper].width
            if down
            else at[e.lower] + e.end / nodes[e.lower].width
            for e in edges
        ]
        return sum(ends) / len(ends)

    rows[number].sort(key=middle)


def _crossings(nodes: Sequence[Node], rows: Sequence[Sequence[int]]) -> int:
    at = _position(nodes, rows)
    count = 0
    for row in rows:
        ends = [((at[e.upper], e.begin), (at[e.lower], e.end)) for n in row for e in nodes[n].below]
        for i, (a, b) in enumerate(ends):
            count += sum((a < c and b > d) or (a > c and b < d) for c, d in ends[:i])
    return count


# --- places ---------------------------------------------------------------------------------------


def _spread(nodes: Sequence[Node], rows: Sequence[Sequence[int]]) -> None:
    """Give every node an x: as near to its neighbours above and below as the row allows."""
    lines = [(row, _offsets(nodes, row)) for row in rows]
    pulls = [_pull(nodes, node) for node in nodes]
    for row, offsets in lines:
        _row(nodes, row, offsets, [0.0] * len(row))
    for sweep in range(MOST_MOVES):
        before = [n.x for n in nodes]
        for row, offsets in reversed(lines) if sweep % 2 else lines:
            _row(nodes, row, offsets, [_wanted(nodes[n], *pulls[n]) for n in row])
        if all(abs(n.x - x) < SETTLED for n, x in zip(nodes, before, strict=True)):
            break


def _pull(nodes: Sequence[Node], node: Node) -> tuple[float, list[tuple[Node, float]]]:
    """Where the lines of a node would be straight, those between two passing nodes above all: so
    far from the mean of its neighbours, each with its weight."""
    places = [(nodes[e.upper], e.begin - e.end) for e in node.above]
    places += [(nodes[e.lower], e.end - e.begin) for e in node.below]
    weights = [(node.weight * other.weight) ** 2 for other, _ in places]
    total = sum(weights)
    parts = [(other, w / total) for w, (other, _) in zip(weights, places, strict=True)]
    return sum(w * shift for (_, w), (_, shift) in zip(parts, places, strict=True)), parts


def _wanted(node: Node, shift: float, parts: Sequence[tuple[Node, float]]) -> float:
    return shift + sum([w * other.x for other, w in parts]) if parts else node.x


def _offsets(nodes: Sequence[Node], row: Sequence[int]) -> list[float]:
    """The least distance of each node of a row from its first."""
    offsets = [0.0]
    for a, b in pairwise(row):
        offsets.append(offsets[-1] + (nodes[a].width + nodes[b].width) / 2 + BESIDE)
    return offsets


def _row(
    nodes: Sequence[Node], row: Sequence[int], offsets: Sequence[float], wanted: Sequence[float]
) -> None:
    """The places nearest to those wanted (least squares) at which neighbours keep their distance.

    Less its least distance from the first, each place must not be smaller than the one before:
    neighbours that want the contrary share their mean (isotonic regression).
    """
    if len(row) == 1:
        nodes[row[0]].x = wanted[0]
        return
    groups: list[tuple[float, float, int]] = []  # sum, weight, how many
    for n, want, offset in zip(row, wanted, offsets, strict=True):
        weight = nodes[n].weight
        group = (weight * (want - offset), weight, 1)
        while groups and groups[-1][0] / groups[-1][1] >= group[0] / group[1]:
            total, mass, many = groups.pop()
            group = (total + group[0], mass + group[1], many + group[2])
        groups.append(group)
    places = [total / weight for total, weight, many in groups for _ in range(many)]
    for n, place, offset in zip(row, places, offsets, strict=True):
        nodes[n].x = place + offset
