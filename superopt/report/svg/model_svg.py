"""The graph of a model as SVG: nodes that steps touched, and unchanged stretches as one box each.

The nodes of a stretch have the same drawn nodes above them, so that no box is both above and below
another one.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from superopt.report.data.diagram import Box, Diagram, Link
from superopt.report.data.graph_change import GraphChange, GraphNode
from superopt.report.formatting import phrases
from superopt.report.svg.drawing import lay_out_diagram
from superopt.report.svg.rule_svg import box_elements, number_text, path_data

MAX_WHOLE_NODES = 40  # of a graph that is drawn without stretches
MIN_STRETCH_NODES = 3
MAX_BOXES = 1200  # of a drawing; with more, neighbours of touched nodes are not drawn, or nothing
MODEL_LANE_WEIGHT = 1.0  # straighter long lines push a deep graph sideways, block by block
SHOWN_OPERATORS = 3  # of a stretch, the most frequent ones
SHOWN_STEPS = 3  # of a node, in its box
MAX_NAME_LETTERS = 30  # of an input's or output's name in a box

UNTRACED_TEXT = "by no step: constants are folded, equal nodes merged, unused ones left out"

Kind = Literal["kept", "replaced", "new", "stretch"]


@dataclass(frozen=True, slots=True)
class DrawnGraph:
    """nodes: of the model; boxes: of the drawing; anchors: the id of each node's box; svg: empty if
    there are too many boxes."""

    nodes: int
    boxes: int
    anchors: tuple[str, ...]
    svg: str


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the graphs. kept: the index in the other graph of each node that is in both. steps:
    numbers of the steps, from 1, that touched each node. changed_kind: of a node in this graph
    only."""

    prefix: str
    label: str
    changed_kind: Kind
    nodes: tuple[GraphNode, ...]
    kept: Mapping[int, int]
    steps: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Group:
    """The nodes of one box."""

    members: tuple[int, ...]
    kind: Kind


def draw_graph_change(change: GraphChange) -> tuple[DrawnGraph, DrawnGraph]:
    """Return the drawings of the graphs before and after."""
    before, after = dict(change.kept), {b: a for a, b in change.kept}
    steps = [_steps_by_node([s.before for s in change.steps])]
    steps += [_steps_by_node([s.after for s in change.steps])]
    sides = (
        _Side("b", "The original model", "replaced", change.before, before, steps[0]),
        _Side("a", "The optimized model", "new", change.after, after, steps[1]),
    )
    groups = [_group_nodes(side) for side in sides]
    anchors = [_box_anchors(side, some) for side, some in zip(sides, groups, strict=True)]
    first, second = (
        DrawnGraph(len(side.nodes), len(groups[n]), anchors[n], "")
        if max(map(len, groups)) > MAX_BOXES
        else _draw_side(side, groups[n], change, anchors[n], anchors[1 - n])
        for n, side in enumerate(sides)
    )
    return first, second


def _steps_by_node(steps: Sequence[Sequence[int]]) -> dict[int, tuple[int, ...]]:
    out: dict[int, list[int]] = {}
    for number, nodes in enumerate(steps, 1):
        for n in nodes:
            out.setdefault(n, []).append(number)
    return {n: tuple(numbers) for n, numbers in out.items()}


# --- stretches ------------------------------------------------------------------------------------


def _group_nodes(side: _Side) -> list[_Group]:
    """Return the boxes, operands before their users: each touched node and each neighbour of one
    by itself, all other nodes in stretches."""
    operands = _operand_nodes(side.nodes)
    touched = {n for n in range(len(side.nodes)) if n in side.steps or n not in side.kept}
    drawn = set(range(len(side.nodes)))
    if len(drawn) > MAX_WHOLE_NODES:
        drawn = touched | {m for n in touched for m in operands[n]}
        drawn |= {n for n, some in enumerate(operands) if not touched.isdisjoint(some)}
    if len(drawn) > MAX_BOXES:
        drawn = touched
    above = _drawn_above(operands, drawn)
    part = list(range(len(side.nodes)))  # neighbours with the same drawn nodes above are united
    for n, some in enumerate(operands):
        for m in () if n in drawn else some:
            if m not in drawn and above[m] == above[n]:
                part[_root(part, n)] = _root(part, m)
    members: dict[int, list[int]] = {}
    for n in range(len(part)):
        members.setdefault(_root(part, n), []).append(n)
    rows: list[Sequence[int]] = []
    for united in members.values():
        rows += [united] if len(united) >= MIN_STRETCH_NODES else [[n] for n in united]
    return [
        _Group(
            tuple(some),
            "stretch" if len(some) > 1 else "kept" if some[0] in side.kept else side.changed_kind,
        )
        for some in sorted(rows, key=lambda s: (above[s[0]].bit_count(), s[0] in drawn, s[0]))
    ]


def _root(part: list[int], n: int) -> int:
    while part[n] != n:
        part[n] = n = part[part[n]]
    return n


def _operand_nodes(nodes: Sequence[GraphNode]) -> list[tuple[int, ...]]:
    """Return the nodes that each node reads; each is before it, as in a file."""
    of = {v: n for n, node in enumerate(nodes) for v in node.outputs if v}
    return [
        tuple(dict.fromkeys(of[v] for v in node.inputs if of.get(v, n) < n))
        for n, node in enumerate(nodes)
    ]


def _drawn_above(operands: Sequence[Sequence[int]], drawn: set[int]) -> list[int]:
    """Return the set of drawn nodes above each node, as bits."""
    bit = {n: 1 << k for k, n in enumerate(sorted(drawn))}
    above: list[int] = []
    for some in operands:
        bits = 0
        for m in some:
            bits |= above[m] | bit.get(m, 0)
        above.append(bits)
    return above


def _box_anchors(side: _Side, groups: Sequence[_Group]) -> tuple[str, ...]:
    found = {n: group.members[0] for group in groups for n in group.members}
    return tuple(f"{side.prefix}{found[n]}" for n in range(len(side.nodes)))


# --- drawing --------------------------------------------------------------------------------------


def _draw_side(
    side: _Side,
    groups: Sequence[_Group],
    change: GraphChange,
    anchors: tuple[str, ...],
    other: Sequence[str],
) -> DrawnGraph:
    boxes, drawn_groups = _diagram_boxes(side, groups, change)
    drawing = lay_out_diagram(Diagram(tuple(boxes)), MODEL_LANE_WEIGHT)
    width, height = number_text(drawing.width + 2), number_text(drawing.height + 2)
    parts = [
        f'<svg class="side graph" viewBox="-1 -1 {width} {height}" width="{width}" '
        f'height="{height}" role="group" aria-label="{side.label}">'
    ]
    lines = dict.fromkeys(path_data(line, 0, 0) for line in drawing.lines)
    parts.append(f'<path class="line" d="{"".join(lines)}"/>')
    for placed, group in zip(drawing.boxes, drawn_groups, strict=True):
        shape = "".join(box_elements(placed, 0, 0))
        parts.append(_node_element(shape, group, side, other) if group else shape)
    return DrawnGraph(len(side.nodes), len(groups), anchors, "".join((*parts, "</svg>")))


def _diagram_boxes(
    side: _Side, groups: Sequence[_Group], change: GraphChange
) -> tuple[list[Box], list[_Group | None]]:
    """Return the boxes, operands before their users, and the group of each; None for an input or
    output of the model."""
    made = {v: k for k, g in enumerate(groups) for n in g.members for v in side.nodes[n].outputs}
    read = {v for node in side.nodes for v in node.inputs}
    inputs = [v for v in change.inputs if v in read]
    at = {v: Link(n) for n, v in enumerate(inputs)}
    at |= {v: Link(len(inputs) + k) for v, k in made.items() if v}
    boxes = [Box("parameter", _short_name(v)) for v in inputs]
    for k, group in enumerate(groups):
        some = (at[v] for n in group.members for v in side.nodes[n].inputs if v in at)
        links = tuple(dict.fromkeys(link for link in some if link.source != len(inputs) + k))
        label, details = _group_label(side, group)
        boxes.append(Box("operator", label, details, links))
    outputs = [v for v in change.outputs if v in at]
    boxes += [Box("result", _short_name(v), inputs=(at[v],)) for v in outputs]
    return boxes, [*[None] * len(inputs), *groups, *[None] * len(outputs)]


def _short_name(name: str) -> str:
    text = phrases.printable(name)
    return text if len(text) <= MAX_NAME_LETTERS else f"...{text[3 - MAX_NAME_LETTERS :]}"


def _group_label(side: _Side, group: _Group) -> tuple[str, tuple[str, ...]]:
    """Return the lines of a box: the label and the rest."""
    if group.kind == "stretch":
        return phrases.count_text(len(group.members), "node"), (_operator_counts(side, group),)
    steps = side.steps.get(group.members[0], ())
    more = ", ..." * (len(steps) > SHOWN_STEPS)
    word = "step" if len(steps) == 1 else "steps"
    numbers = ", ".join(map(str, steps[:SHOWN_STEPS]))
    details = (f"{word} {numbers}{more}",) if steps else ()
    return phrases.printable(side.nodes[group.members[0]].operator), details


def _operator_counts(side: _Side, group: _Group) -> str:
    counts = Counter(phrases.printable(side.nodes[n].operator) for n in group.members)
    shown = [f"{count} {operator}" for operator, count in counts.most_common(SHOWN_OPERATORS)]
    return ", ".join(shown + ["..."] * (len(counts) > SHOWN_OPERATORS))


def _node_element(shape: str, group: _Group, side: _Side, other: Sequence[str]) -> str:
    """Return the box with what the page's script shows of it: the title, a line for each fact or
    for each node; its steps; its counterpart in the other graph."""
    first = group.members[0]
    steps = side.steps.get(first, ())
    attributes = f'id="{side.prefix}{first}" class="node {group.kind}"'
    if steps:
        attributes += f' data-steps="{" ".join(map(str, steps))}"'
    twin = next((side.kept[n] for n in group.members if n in side.kept), None)
    if twin is not None:
        attributes += f' data-twin="{other[twin]}"'
    if group.kind == "stretch":
        title = f"{len(group.members)} unchanged nodes: {_operator_counts(side, group)}"
        members = "\n".join(_node_text(side.nodes[n]) for n in group.members)
        inside = f"<title>{escape(title)}</title><desc>{escape(members)}</desc>{shape}"
    else:
        facts = [*_node_facts(side.nodes[first])]
        if group.kind == side.changed_kind and not steps:
            facts.append(UNTRACED_TEXT)
        inside = f"<title>{escape(chr(10).join(facts))}</title>{shape}"
    element = f"<g {attributes}>{inside}</g>"
    return f'<a href="#step-{steps[0]}">{element}</a>' if steps else element


def _node_text(node: GraphNode) -> str:
    return phrases.printable(f"{node.operator} {node.name or ', '.join(node.outputs)}")


def _node_facts(node: GraphNode) -> Iterator[str]:
    yield _node_text(node)
    if node.attributes:
        yield phrases.printable(node.attributes)
    yield phrases.printable(f"reads {', '.join(v or '(none)' for v in node.inputs) or 'nothing'}")
    yield phrases.printable(f"computes {', '.join(filter(None, node.outputs))}")
