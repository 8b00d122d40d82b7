"""The layout of a small graph in layers: inputs above, results below.

Lines bend only in the gaps between rows, and cross a row straight down, where no box is. Units are
pixels; y grows downwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from superopt.report.diagram import Box, Diagram
from superopt.report.layers import LANE, Layers, layers
from superopt.report.wrap import broken, columns

LETTER = 7.9  # pixels of a letter of the fixed-width font, an upper bound
LABEL = 18.0  # pixels of a line of text
MARGIN = 10.0  # of a box, around its text
BETWEEN = 44.0  # between rows
PORT = 34.0  # between two results of a box
WIDE, NARROW = (
    34,
    20,
)  # letters of a line in an operator, and in a constant, of which there are many

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Placed:
    """A box with its top left corner, its size and its lines of text.

    label_lines: how many of the lines are the label. ports: the named results along its lower edge,
    each with its x.
    """

    box: Box
    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, ...]
    labels: int
    ports: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Line:
    """A line from a box to a user of it. Between two points with one x it is straight."""

    source: int
    target: int
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    width: float
    height: float
    boxes: tuple[Placed, ...]
    lines: tuple[Line, ...]


def drawing(diagram: Diagram) -> Drawing:
    """Return the graph with positions."""
    boxes = [_measured(b, n, diagram.boxes) for n, b in enumerate(diagram.boxes)]
    ports = [dict(b.ports) for b in boxes]
    return _drawn(boxes, layers(diagram.boxes, [b.width for b in boxes], ports))


def _measured(box: Box, number: int, boxes: Sequence[Box]) -> Placed:
    """Return the box with its size, at the origin, its ports relative to its middle."""
    wrap = NARROW if box.kind == "constant" else WIDE
    labels = broken(box.label, wrap)
    lines = (*labels, *(line for said in box.details for line in broken(said, wrap)))
    used = {link.which for b in boxes for link in b.inputs if link.source == number}
    ports = sorted(used - {""}, key=lambda which: (len(which), which))
    space = max(LANE * (len(box.inputs) + 1), PORT * len(ports))
    width = max(max(map(columns, lines)) * LETTER + 2 * MARGIN, space)
    height = (len(lines) + bool(ports)) * LABEL + MARGIN
    middle = (len(ports) - 1) / 2
    places = tuple((p, (n - middle) * width / len(ports)) for n, p in enumerate(ports))
    return Placed(box, 0.0, 0.0, width, height, lines, len(labels), places)


def _drawn(boxes: Sequence[Placed], found: Layers) -> Drawing:
    nodes, rows = found.nodes, found.rows
    left = min(n.x - n.width / 2 for n in nodes)
    width = max(n.x + n.width / 2 for n in nodes) - left
    tops, y = list[float](), 0.0
    heights = [max((boxes[n].height for n in row if n < len(boxes)), default=0.0) for row in rows]
    for height in heights:
        tops.append(y)
        y += height + BETWEEN
    placed = []
    for n, box in enumerate(boxes):
        node = nodes[n]
        middle, row = node.x - left, node.row
        top = tops[row] + (heights[row] - box.height) / 2
        ports = tuple((label, middle + x) for label, x in box.ports)
        placed.append(replace(box, x=middle - box.width / 2, y=top, ports=ports))
    lines = []
    for chain in found.chains:
        points: list[Point] = []
        for e in chain.edges:
            upper, lower = nodes[e.upper], nodes[e.lower]
            begin, end = upper.x + e.begin - left, lower.x + e.end - left
            if e.upper == chain.source:
                points.append((begin, placed[e.upper].y + placed[e.upper].height))
            points.append((begin, tops[upper.row] + heights[upper.row]))
            points.append((end, tops[lower.row]))
        points.append((points[-1][0], placed[chain.target].y))
        lines.append(Line(chain.source, chain.target, tuple(points)))
    return Drawing(width, y - BETWEEN, tuple(placed), tuple(lines))
