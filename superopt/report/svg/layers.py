"""Layered graph drawing (Sugiyama): the row of each box, its order in the row, and its x.

Each box is in a row below all its operands. A line that crosses a row has a narrow node there (a
lane), so that it gets a column of its own and crosses no box.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from superopt.report.data.diagram import Box

NEIGHBOUR_GAP = 22.0  # between neighbours
LANE_WIDTH = 10.0  # width of the column in which a line crosses a row
ORDER_SWEEPS = 12  # down and up, to order the rows
MAX_POSITION_SWEEPS, POSITION_TOLERANCE = 400, 0.02  # to position nodes; the tolerance is in pixels
LANE_WEIGHT = 4.0  # weight of a lane relative to a box


@dataclass(slots=True)
class Node:
    """A box, or a lane. x: of its middle."""

    width: float
    row: int
    weight: float = 1.0
    x: float = 0.0
    above: list["Edge"] = field(default_factory=list)
    below: list["Edge"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Edge:
    """Two nodes in neighbouring rows, and where the line begins and ends relative to their
    middles."""

    upper: int
    lower: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Chain:
    """The edges from an operand's box down to its user."""

    source: int
    target: int
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Layers:
    """nodes: those of the boxes first, in their order. rows: nodes from left to right."""

    nodes: tuple[Node, ...]
    rows: tuple[tuple[int, ...], ...]
    chains: tuple[Chain, ...]


def layer_boxes(
    boxes: Sequence[Box],
    widths: Sequence[float],
    ports: Sequence[Mapping[str, float]],
    lane_weight: float = LANE_WEIGHT,
) -> Layers:
    """Lay out boxes with these widths.

    ports: of each box, how far right of its middle its named results leave it. lane_weight: of
    lanes, relative to a box: how straight long lines are.
    """
    nodes, chains = _build_chains(boxes, widths, ports, lane_weight)
    rows = _order_rows(nodes)
    _position_nodes(nodes, rows)
    return Layers(tuple(nodes), tuple(map(tuple, rows)), tuple(chains))


# --- rows -----------------------------------------------------------------------------------------


def _assign_rows(boxes: Sequence[Box]) -> list[int]:
    """Return the row of each box: parameters first, results last, what needs no parameter just
    above its first use."""
    rows = [0] * len(boxes)
    uses: list[list[int]] = [[] for _ in boxes]
    is_constant = [True] * len(boxes)
    for n, box in enumerate(boxes):
        rows[n] = max((rows[link.source] + 1 for link in box.inputs), default=0)
        is_constant[n] = box.kind != "parameter" and all(is_constant[k.source] for k in box.inputs)
        for link in box.inputs:
            uses[link.source].append(n)
    last = max(rows)
    rows = [last if b.kind == "result" else row for b, row in zip(boxes, rows, strict=True)]
    for n in reversed(range(len(boxes))):
        if is_constant[n] and uses[n]:
            rows[n] = min(rows[user] for user in uses[n]) - 1
    return rows


def _build_chains(
    boxes: Sequence[Box],
    widths: Sequence[float],
    ports: Sequence[Mapping[str, float]],
    lane_weight: float,
) -> tuple[list[Node], list[Chain]]:
    """Return the nodes of all rows, and each operand's chain of edges."""
    rows = _assign_rows(boxes)
    nodes = [Node(width, row) for width, row in zip(widths, rows, strict=True)]
    chains: list[Chain] = []
    passing: dict[tuple[int, str, int], int] = {}  # one value uses one column
    for target, box in enumerate(boxes):
        for number, link in enumerate(box.inputs):
            end = widths[target] * ((number + 1) / (len(box.inputs) + 1) - 0.5)
            upper, begin, edges = link.source, ports[link.source].get(link.which, 0.0), list[Edge]()
            for row in range(rows[link.source] + 1, rows[target]):
                lane = passing.setdefault((link.source, link.which, row), len(nodes))
                if lane == len(nodes):
                    nodes.append(Node(LANE_WIDTH, row, lane_weight))
                edges.append(Edge(upper, lane, begin, 0.0))
                upper, begin = lane, 0.0
            edges.append(Edge(upper, target, begin, end))
            chains.append(Chain(link.source, target, tuple(edges)))
    for edge in dict.fromkeys(edge for chain in chains for edge in chain.edges):
        nodes[edge.upper].below.append(edge)
        nodes[edge.lower].above.append(edge)
    return nodes, chains


# --- order in a row -------------------------------------------------------------------------------


def _order_rows(nodes: Sequence[Node]) -> list[list[int]]:
    """Order the nodes of each row by the mean position of their neighbours, in sweeps down and up,
    while that reduces the number of crossings."""
    rows: list[list[int]] = [[] for _ in range(max(n.row for n in nodes) + 1)]
    for n in _depth_first(nodes):
        rows[nodes[n].row].append(n)
    best, fewest = rows, _count_crossings(nodes, rows)
    for sweep in range(ORDER_SWEEPS):
        down = sweep % 2 == 0
        rows = [list(row) for row in rows]
        sorted_rows = range(len(rows) - 1)  # results keep their order
        for number in sorted_rows if down else reversed(sorted_rows):
            _sort_row(nodes, rows, number, down)
        crossings = _count_crossings(nodes, rows)
        if crossings < fewest:
            best, fewest = rows, crossings
    return best


def _depth_first(nodes: Sequence[Node]) -> list[int]:
    """Return all nodes, operands before their users and in order."""
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


def _row_positions(nodes: Sequence[Node], rows: Sequence[Sequence[int]]) -> dict[int, int]:
    return {n: place for row in rows for place, n in enumerate(row)}


def _sort_row(nodes: Sequence[Node], rows: list[list[int]], number: int, down: bool) -> None:
    at = _row_positions(nodes, rows)

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


def _count_crossings(nodes: Sequence[Node], rows: Sequence[Sequence[int]]) -> int:
    at = _row_positions(nodes, rows)
    count = 0
    for row in rows:
        ends = [((at[e.upper], e.begin), (at[e.lower], e.end)) for n in row for e in nodes[n].below]
        for i, (a, b) in enumerate(ends):
            count += sum((a < c and b > d) or (a > c and b < d) for c, d in ends[:i])
    return count


# --- positions ------------------------------------------------------------------------------------


def _position_nodes(nodes: Sequence[Node], rows: Sequence[Sequence[int]]) -> None:
    """Set x of every node, as near to its neighbours above and below as the row allows."""
    lines = [(row, _min_offsets(nodes, row)) for row in rows]
    pulls = [_neighbour_pull(nodes, node) for node in nodes]
    for row, offsets in lines:
        _position_row(nodes, row, offsets, [0.0] * len(row))
    for sweep in range(MAX_POSITION_SWEEPS):
        before = [n.x for n in nodes]
        for row, offsets in reversed(lines) if sweep % 2 else lines:
            _position_row(nodes, row, offsets, [_wanted_x(nodes[n], *pulls[n]) for n in row])
        if all(abs(n.x - x) < POSITION_TOLERANCE for n, x in zip(nodes, before, strict=True)):
            break


def _neighbour_pull(nodes: Sequence[Node], node: Node) -> tuple[float, list[tuple[Node, float]]]:
    """Return the offset from the weighted mean of the neighbours at which a node's lines are
    straight, and the weights; lanes weigh most."""
    places = [(nodes[e.upper], e.begin - e.end) for e in node.above]
    places += [(nodes[e.lower], e.end - e.begin) for e in node.below]
    weights = [(node.weight * other.weight) ** 2 for other, _ in places]
    total = sum(weights)
    parts = [(other, w / total) for w, (other, _) in zip(weights, places, strict=True)]
    return sum(w * shift for (_, w), (_, shift) in zip(parts, places, strict=True)), parts


def _wanted_x(node: Node, shift: float, parts: Sequence[tuple[Node, float]]) -> float:
    return shift + sum([w * other.x for other, w in parts]) if parts else node.x


def _min_offsets(nodes: Sequence[Node], row: Sequence[int]) -> list[float]:
    """Return the least distance of each node of a row from its first."""
    offsets = [0.0]
    for a, b in pairwise(row):
        offsets.append(offsets[-1] + (nodes[a].width + nodes[b].width) / 2 + NEIGHBOUR_GAP)
    return offsets


def _position_row(
    nodes: Sequence[Node], row: Sequence[int], offsets: Sequence[float], wanted: Sequence[float]
) -> None:
    """Set the x nearest to those wanted (least squares) with the least distances kept.

    Minus its least distance from the first, each x must not be smaller than the one before;
    neighbours that violate this share their mean (isotonic regression).
    """
    if len(row) == 1:
        nodes[row[0]].x = wanted[0]
        return
    groups: list[tuple[float, float, int]] = []  # sum, weight, count
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
