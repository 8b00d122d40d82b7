"""A rule as one self-contained SVG: both sides next to each other, no script, light and dark."""

from collections.abc import Iterator
from html import escape

from superopt.report import words
from superopt.report.diagram import Diagram, RuleDiagram
from superopt.report.drawing import LABEL, LETTER, MARGIN, Drawing, Line, Placed, drawing
from superopt.report.facts import facts

EDGE = 20.0  # around the page and inside a panel
ARROW = 64.0  # between the panels
HEAD = 44.0  # height of the rule's name
NARROWEST = 620.0  # for the text below
SCALE = 0.87  # of a drawing in a page, where two of them are beside text
WIDEST = 140  # letters of a line of text
HEADING = 8  # letters for the headings of facts

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


def page(rule: RuleDiagram) -> str:
    """Return the drawing as an SVG document, in ASCII, so that it is the same in any encoding."""
    text = "\n".join(_page(rule)) + "\n"
    return text.encode("ascii", "xmlcharrefreplace").decode()


def _page(rule: RuleDiagram) -> Iterator[str]:
    left, right = drawing(rule.left), drawing(rule.right)
    widths = [side.width + 2 * EDGE for side in (left, right)]
    spare = max(NARROWEST - 2 * EDGE - ARROW - sum(widths), 0.0) / 2
    widths = [w + spare for w in widths]
    height = max(left.height, right.height) + 2 * EDGE
    width = sum(widths) + ARROW + 2 * EDGE
    told = facts(rule, min(int((width - 2 * EDGE) / LETTER) - HEADING, WIDEST))
    below = HEAD + EDGE + height + EDGE
    total = below + len(told) * LABEL + EDGE
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(width)} {_n(total)}" '
        f'width="{_n(width)}" height="{_n(total)}" role="img">'
    )
    yield f"<title>{_said(rule.name)}</title>"
    yield f"<desc>{_said(rule.text)}</desc>"
    yield f"<style>{STYLE}</style>"
    yield f'<rect class="page" width="{_n(width)}" height="{_n(total)}"/>'
    yield _text("name", EDGE, EDGE + 16, rule.name)
    start = EDGE
    for side, room, label in zip((left, right), widths, ("left", "right"), strict=True):
        yield f'<g id="{label}">'
        yield (
            f'<rect class="panel" x="{_n(start)}" y="{_n(HEAD + EDGE)}" width="{_n(room)}" '
            f'height="{_n(height)}" rx="8"/>'
        )
        x = start + (room - side.width) / 2
        yield from _side(side, x, HEAD + EDGE + (height - side.height) / 2)
        yield "</g>"
        start += room + ARROW
    yield from _arrow(EDGE + widths[0] + ARROW / 2, HEAD + EDGE + height / 2)
    for number, (heading, line) in enumerate(told):
        y = below + number * LABEL + 13
        if heading:
            yield _text("fact", EDGE, y, heading)
        yield _text("said", EDGE + HEADING * LETTER, y, line)
    yield "</svg>"


def inline(side: Diagram) -> str:
    """Return one side as an SVG element for a page whose style sheet has its classes."""
    drawn = drawing(side)
    box = f"{_n(drawn.width + 2)} {_n(drawn.height + 2)}"
    size = f'width="{_n(SCALE * (drawn.width + 2))}" height="{_n(SCALE * (drawn.height + 2))}"'
    head = f'<svg class="side" viewBox="-1 -1 {box}" {size} role="img">'
    return f"{head}<title>{_said(side.text)}</title>{''.join(_side(drawn, 0, 0))}</svg>"


def _side(side: Drawing, x: float, y: float) -> Iterator[str]:
    for line in side.lines:
        yield f'<path class="line" d="{_path(line, x, y)}"/>'
    for placed in side.boxes:
        yield from _box(placed, x, y)


def _path(line: Line, x: float, y: float) -> str:
    """Return a path: vertical where possible, else a curve with vertical ends."""
    (a, b), rest = line.points[0], line.points[1:]
    out = [f"M{_n(a + x)} {_n(b + y)}"]
    for c, d in rest:
        if abs(a - c) < 0.05:
            out.append(f"V{_n(d + y)}")
        else:
            middle = _n((b + d) / 2 + y)
            out.append(f"C{_n(a + x)} {middle} {_n(c + x)} {middle} {_n(c + x)} {_n(d + y)}")
        a, b = c, d
    return "".join(out)


def _box(p: Placed, x: float, y: float) -> Iterator[str]:
    kind = p.box.kind
    if kind == "parameter" and "constant" in p.box.details:
        kind_class = "weight"
    else:
        kind_class = kind
    radius = 6 if kind in ("operator", "each") else min(p.height / 2, 14)
    yield (
        f'<rect class="box {kind_class}" x="{_n(p.x + x)}" y="{_n(p.y + y)}" '
        f'width="{_n(p.width)}" height="{_n(p.height)}" rx="{_n(radius)}"/>'
    )
    middle = p.x + p.width / 2 + x
    for number, line in enumerate(p.lines):
        at = p.y + y + MARGIN / 2 + number * LABEL + 13
        yield _text("label" if number < p.labels else "detail", middle, at, line)
    for label, port in p.ports:
        yield _text("port", port + x, p.y + y + p.height - MARGIN / 2 - 5, label)


def _arrow(x: float, y: float) -> Iterator[str]:
    yield f'<path class="arrow" d="M{_n(x - 20)} {_n(y)}H{_n(x + 12)}"/>'
    yield f'<path class="head" d="M{_n(x + 20)} {_n(y)}l-11 -6v12z"/>'


def _text(kind: str, x: float, y: float, said: str) -> str:
    return f'<text class="{kind}" x="{_n(x)}" y="{_n(y)}">{_said(said)}</text>'


def _said(text: str) -> str:
    return escape(words.plain(text))


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
