"""A rule as one self-contained SVG: both sides next to each other, no script, light and dark."""

from collections.abc import Iterator
from html import escape

from superopt.report.data.diagram import Diagram, RuleDiagram
from superopt.report.formatting import phrases
from superopt.report.formatting.rule_facts import rule_facts
from superopt.report.svg.drawing import (
    BOX_MARGIN,
    LETTER_WIDTH,
    LINE_HEIGHT,
    Drawing,
    Line,
    PlacedBox,
    lay_out_diagram,
)

PAGE_MARGIN = 20.0  # around the page and inside a panel
ARROW_WIDTH = 64.0  # between the panels
TITLE_HEIGHT = 44.0  # height of the rule's name
MIN_PAGE_WIDTH = 620.0  # for the text below
INLINE_SCALE = 0.87  # of a drawing in a page, where two of them are beside text
MAX_LINE_LETTERS = 140  # letters of a line of text
HEADING_LETTERS = 8  # letters for the headings of facts

# No CSS variables: some SVG viewers lack them.
STYLE = """
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  fill: #1b1f24; }
.page { fill: #fbfbfa; }
.panel { fill: #ffffff; stroke: #d9dde2; }
.name { font-size: 17px; font-weight: 600; }
.label { font-weight: 600; text-anchor: middle; }
.detail, .port { fill: #59626d; text-anchor: middle; }
.fact { fill: #59626d; }
.line, .arrow { fill: none; stroke: #7a848f; stroke-width: 1.4; }
.head { fill: #7a848f; }
.box { fill: #e9f2f9; stroke: #0067a5; stroke-width: 1.2; }
.parameter { fill: #ffffff; stroke: #59626d; }
.constant, .weight { fill: #f1f3f5; stroke: #59626d; }
.constant { stroke-dasharray: 4 3; }
.each, .variable { fill: #fdf3e7; stroke: #b8500c; }
.result { fill: none; stroke: none; }
@media (prefers-color-scheme: dark) {
  text { fill: #e8eaed; }
  .page { fill: #14171a; }
  .panel { fill: #1c2024; stroke: #363d45; }
  .detail, .port, .fact { fill: #a3acb6; }
  .line, .arrow { stroke: #8a94a0; }
  .head { fill: #8a94a0; }
  .box { fill: #17324a; stroke: #56b4e9; }
  .parameter { fill: #1c2024; stroke: #a3acb6; }
  .constant, .weight { fill: #2d343b; stroke: #a3acb6; }
  .each, .variable { fill: #3d2a17; stroke: #f0a35e; }
  .result { fill: none; stroke: none; }
}
"""


def rule_page(rule: RuleDiagram) -> str:
    """Return the drawing as an SVG document, in ASCII, so that it is the same in any encoding."""
    text = "\n".join(_page(rule)) + "\n"
    return text.encode("ascii", "xmlcharrefreplace").decode()


def _page(rule: RuleDiagram) -> Iterator[str]:
    left, right = lay_out_diagram(rule.left), lay_out_diagram(rule.right)
    widths = [side.width + 2 * PAGE_MARGIN for side in (left, right)]
    spare = max(MIN_PAGE_WIDTH - 2 * PAGE_MARGIN - ARROW_WIDTH - sum(widths), 0.0) / 2
    widths = [w + spare for w in widths]
    height = max(left.height, right.height) + 2 * PAGE_MARGIN
    width = sum(widths) + ARROW_WIDTH + 2 * PAGE_MARGIN
    facts = rule_facts(
        rule, min(int((width - 2 * PAGE_MARGIN) / LETTER_WIDTH) - HEADING_LETTERS, MAX_LINE_LETTERS)
    )
    below = TITLE_HEIGHT + PAGE_MARGIN + height + PAGE_MARGIN
    total = below + len(facts) * LINE_HEIGHT + PAGE_MARGIN
    yield (
        '<svg xmlns="http://www.w3.org/2000/svg" '
        f'viewBox="0 0 {number_text(width)} {number_text(total)}" '
        f'width="{number_text(width)}" height="{number_text(total)}" role="img">'
    )
    yield f"<title>{_escape_text(rule.name)}</title>"
    yield f"<desc>{_escape_text(rule.text)}</desc>"
    yield f"<style>{STYLE}</style>"
    yield f'<rect class="page" width="{number_text(width)}" height="{number_text(total)}"/>'
    yield text_element("name", PAGE_MARGIN, PAGE_MARGIN + 16, rule.name)
    start = PAGE_MARGIN
    for side, room, label in zip((left, right), widths, ("left", "right"), strict=True):
        yield f'<g id="{label}">'
        yield (
            f'<rect class="panel" x="{number_text(start)}" '
            f'y="{number_text(TITLE_HEIGHT + PAGE_MARGIN)}" width="{number_text(room)}" '
            f'height="{number_text(height)}" rx="8"/>'
        )
        x = start + (room - side.width) / 2
        yield from _side_elements(side, x, TITLE_HEIGHT + PAGE_MARGIN + (height - side.height) / 2)
        yield "</g>"
        start += room + ARROW_WIDTH
    yield from _arrow_elements(
        PAGE_MARGIN + widths[0] + ARROW_WIDTH / 2, TITLE_HEIGHT + PAGE_MARGIN + height / 2
    )
    for number, (heading, line) in enumerate(facts):
        y = below + number * LINE_HEIGHT + 13
        if heading:
            yield text_element("fact", PAGE_MARGIN, y, heading)
        yield text_element("said", PAGE_MARGIN + HEADING_LETTERS * LETTER_WIDTH, y, line)
    yield "</svg>"


def inline_side(side: Diagram) -> str:
    """Return one side as an SVG element for a page whose style sheet has its classes."""
    drawn = lay_out_diagram(side)
    box = f"{number_text(drawn.width + 2)} {number_text(drawn.height + 2)}"
    size = (
        f'width="{number_text(INLINE_SCALE * (drawn.width + 2))}" '
        f'height="{number_text(INLINE_SCALE * (drawn.height + 2))}"'
    )
    head = f'<svg class="side" viewBox="-1 -1 {box}" {size} role="img">'
    return (
        f"{head}<title>{_escape_text(side.text)}</title>"
        f"{''.join(_side_elements(drawn, 0, 0))}</svg>"
    )


def _side_elements(side: Drawing, x: float, y: float) -> Iterator[str]:
    for line in side.lines:
        yield f'<path class="line" d="{path_data(line, x, y)}"/>'
    for placed in side.boxes:
        yield from box_elements(placed, x, y)


def path_data(line: Line, x: float, y: float) -> str:
    """Return a path: vertical where possible, else a curve with vertical ends."""
    (a, b), rest = line.points[0], line.points[1:]
    out = [f"M{number_text(a + x)} {number_text(b + y)}"]
    for c, d in rest:
        if abs(a - c) < 0.05:
            out.append(f"V{number_text(d + y)}")
        else:
            middle = number_text((b + d) / 2 + y)
            out.append(
                f"C{number_text(a + x)} {middle} {number_text(c + x)} {middle} "
                f"{number_text(c + x)} {number_text(d + y)}"
            )
        a, b = c, d
    return "".join(out)


def box_elements(p: PlacedBox, x: float, y: float) -> Iterator[str]:
    kind = p.box.kind
    if kind == "parameter" and "constant" in p.box.details:
        kind_class = "weight"
    else:
        kind_class = kind
    radius = 6 if kind in ("operator", "each") else min(p.height / 2, 14)
    yield (
        f'<rect class="box {kind_class}" x="{number_text(p.x + x)}" y="{number_text(p.y + y)}" '
        f'width="{number_text(p.width)}" height="{number_text(p.height)}" '
        f'rx="{number_text(radius)}"/>'
    )
    middle = p.x + p.width / 2 + x
    for number, line in enumerate(p.lines):
        at = p.y + y + BOX_MARGIN / 2 + number * LINE_HEIGHT + 13
        yield text_element("label" if number < p.label_lines else "detail", middle, at, line)
    for label, port in p.ports:
        yield text_element("port", port + x, p.y + y + p.height - BOX_MARGIN / 2 - 5, label)


def _arrow_elements(x: float, y: float) -> Iterator[str]:
    yield (
        f'<path class="arrow" d="M{number_text(x - 20)} {number_text(y)}H{number_text(x + 12)}"/>'
    )
    yield f'<path class="head" d="M{number_text(x + 20)} {number_text(y)}l-11 -6v12z"/>'


def text_element(kind: str, x: float, y: float, text: str) -> str:
    return (
        f'<text class="{kind}" x="{number_text(x)}" y="{number_text(y)}">'
        f"{_escape_text(text)}</text>"
    )


def _escape_text(text: str) -> str:
    return escape(phrases.printable(text))


def number_text(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
