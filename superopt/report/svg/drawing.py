"""The layout of a small graph in layers: inputs above, results below.

Lines bend only in the gaps between rows, and cross a row straight down, where no box is. Units are
pixels; y grows downwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from superopt.report.data.diagram import Box, Diagram
from superopt.report.formatting.wrap import display_width, wrap_text
from superopt.report.svg.layers import LANE_WEIGHT, LANE_WIDTH, Layers, layer_boxes

LETTER_WIDTH = 7.9  # pixels of a letter of the fixed-width font, an upper bound
LINE_HEIGHT = 18.0  # pixels of a line of text
BOX_MARGIN = 10.0  # of a box, around its text
ROW_GAP = 44.0  # between rows
PORT_WIDTH = 34.0  # between two results of a box
MAX_OPERATOR_LETTERS, MAX_CONSTANT_LETTERS = (
    34,
    20,
)  # letters of a line in an operator, and in a constant, of which there are many

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class PlacedBox:
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
    label_lines: int
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
    boxes: tuple[PlacedBox, ...]
    lines: tuple[Line, ...]


def lay_out_diagram(diagram: Diagram, lane_weight: float = LANE_WEIGHT) -> Drawing:
    """Return the graph with positions. lane_weight: see `layer_boxes`."""
    boxes = [_measure_box(b, n, diagram.boxes) for n, b in enumerate(diagram.boxes)]
    ports = [dict(b.ports) for b in boxes]
    return _place_boxes(
        boxes, layer_boxes(diagram.boxes, [b.width for b in boxes], ports, lane_weight)
    )


def _measure_box(box: Box, number: int, boxes: Sequence[Box]) -> PlacedBox:
    """Return the box with its size, at the origin, its ports relative to its middle."""
    wrap = MAX_CONSTANT_LETTERS if box.kind == "constant" else MAX_OPERATOR_LETTERS
    labels = wrap_text(box.label, wrap)
    lines = (*labels, *(line for said in box.details for line in wrap_text(said, wrap)))
    used = {link.which for b in boxes for link in b.inputs if link.source == number}
    ports = sorted(used - {""}, key=lambda which: (len(which), which))
    space = max(LANE_WIDTH * (len(box.inputs) + 1), PORT_WIDTH * len(ports))
    width = max(max(map(display_width, lines)) * LETTER_WIDTH + 2 * BOX_MARGIN, space)
    height = (len(lines) + bool(ports)) * LINE_HEIGHT + BOX_MARGIN
    middle = (len(ports) - 1) / 2
    places = tuple((p, (n - middle) * width / len(ports)) for n, p in enumerate(ports))
    return PlacedBox(box, 0.0, 0.0, width, height, lines, len(labels), places)


def _place_boxes(boxes: Sequence[PlacedBox], found: Layers) -> Drawing:
    nodes, rows = found.nodes, found.rows
    left = min(n.x - n.width / 2 for n in nodes)
    width = max(n.x + n.width / 2 for n in nodes) - left
    tops, y = list[float](), 0.0
    heights = [max((boxes[n].height for n in row if n < len(boxes)), default=0.0) for row in rows]
    for height in heights:
        tops.append(y)
        y += height + ROW_GAP
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
    return Drawing(width, y - ROW_GAP, tuple(placed), tuple(lines))
