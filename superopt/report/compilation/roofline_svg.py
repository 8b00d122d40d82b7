"""A profile as one self-contained SVG: the roofline, a dot for each kernel, and a bar for the
slowest.

Williams, Waterman, Patterson: Roofline, CACM 2009.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import log10
from typing import TYPE_CHECKING

from superopt.report.formatting import phrases

if TYPE_CHECKING:
    from superopt.report.compilation.profile import KernelProfile, Profile

WIDTH_PX, PLOT_HEIGHT, LEFT_MARGIN, TOP_MARGIN, EDGE_MARGIN = 900.0, 380.0, 70.0, 88.0, 24.0
BAR_ROW_HEIGHT, MAX_BARS = 22.0, 14
MIN_DOT_RADIUS, MAX_DOT_RADIUS = 2.5, 18.0  # radius of a dot

STYLE = """
text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  fill: #1b1f24; }
.page { fill: #fbfbfa; }
.name { font-size: 16px; font-weight: 600; }
.axis, .said { fill: #59626d; }
.grid { stroke: #d9dde2; stroke-width: 1; }
.roof { fill: none; stroke: #59626d; stroke-width: 1.6; }
.cache { stroke-dasharray: 5 4; }
.dot { stroke-width: 1; fill-opacity: 0.35; }
.bar { fill-opacity: 0.85; }
.flops { fill: #0067a5; stroke: #0067a5; }
.bytes { fill: #b8500c; stroke: #b8500c; }
.other { fill: #7a848f; stroke: #7a848f; }
.bar { stroke: none; }
.done { fill: #1b1f24; fill-opacity: 0.25; }
@media (prefers-color-scheme: dark) {
  text { fill: #e8eaed; }
  .page { fill: #14171a; }
  .axis, .said { fill: #a3acb6; }
  .grid { stroke: #363d45; }
  .roof { stroke: #a3acb6; }
  .flops { fill: #56b4e9; stroke: #56b4e9; }
  .bytes { fill: #f0a35e; stroke: #f0a35e; }
  .done { fill: #ffffff; }
}
"""


def roofline_page(p: Profile) -> str:
    """Return the drawing as an SVG document, in ASCII, so that it is the same in any encoding."""
    text = "\n".join(_page(p)) + "\n"
    return text.encode("ascii", "xmlcharrefreplace").decode()


def _page(p: Profile) -> Iterator[str]:
    longest = sorted(p.parts, key=lambda x: -x.seconds)[:MAX_BARS]
    height = TOP_MARGIN + PLOT_HEIGHT + 80 + BAR_ROW_HEIGHT * len(longest) + EDGE_MARGIN
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH_PX:g} {height:g}" '
        f'width="{WIDTH_PX:g}" height="{height:g}" role="img">'
    )
    what = (
        f"{p.model}: {phrases.time_text(1e6 * p.seconds)} a run, "
        f"{100 * p.roofline_share:.0f} % of the roofline"
    )
    yield f"<title>{_escape_text(what)}</title>"
    yield f"<style>{STYLE}</style>"
    yield f'<rect class="page" width="{WIDTH_PX:g}" height="{height:g}"/>'
    yield _text_element("name", EDGE_MARGIN, 30, what)
    about = f"{phrases.count_text(p.threads, 'thread')}, {p.machine}; a dot's area is its time"
    yield _text_element("said", EDGE_MARGIN, 50, about)
    yield from _roofline_elements(p)
    yield from _bar_elements(p, longest, TOP_MARGIN + PLOT_HEIGHT + 60)
    yield "</svg>"


def _roofline_elements(p: Profile) -> Iterator[str]:
    dots = [x for x in p.parts if x.operations and x.bytes and x.seconds > 0]
    across = [x.operations / x.bytes for x in dots]
    up = [x.operations / x.seconds / 1e9 for x in dots]
    memory = p.bandwidths[-1][1]
    cache = max(rate for _, rate in p.bandwidths)
    low, high = _decades([*across, p.flops / cache, p.flops / memory])
    least, most = _decades([*up, p.flops / 1e9])

    def x(value: float) -> float:
        return LEFT_MARGIN + (WIDTH_PX - LEFT_MARGIN - EDGE_MARGIN) * (log10(value) - low) / (
            high - low
        )

    def y(value: float) -> float:
        return TOP_MARGIN + PLOT_HEIGHT * (most - log10(value)) / (most - least)

    for n in range(low, high + 1):
        at = x(10.0**n)
        yield f'<path class="grid" d="M{at:.1f} {TOP_MARGIN:g}V{TOP_MARGIN + PLOT_HEIGHT:g}"/>'
        yield _text_element("axis", at - 12, TOP_MARGIN + PLOT_HEIGHT + 16, f"{10.0**n:g}")
    for n in range(least, most + 1):
        at = y(10.0**n)
        yield f'<path class="grid" d="M{LEFT_MARGIN:g} {at:.1f}H{WIDTH_PX - EDGE_MARGIN:g}"/>'
        yield _text_element("axis", LEFT_MARGIN - 46, at + 4, f"{10.0**n:g}")
    yield _text_element(
        "axis", WIDTH_PX - EDGE_MARGIN - 190, TOP_MARGIN + PLOT_HEIGHT + 34, "operations per byte"
    )
    yield _text_element("axis", EDGE_MARGIN, TOP_MARGIN - 6, "GFLOP/s")
    for rate, kind in ((memory, "roof"), (cache, "roof cache")):
        begin = max(10.0**low, 10.0**least * 1e9 / rate)
        knee = p.flops / rate
        points = [(begin, begin * rate / 1e9), (knee, p.flops / 1e9), (10.0**high, p.flops / 1e9)]
        path = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in points)
        yield f'<path class="{kind}" d="M{path}"/>'
    total = max((d.seconds for d in dots), default=1.0)
    for d, a, b in sorted(zip(dots, across, up, strict=True), key=lambda z: -z[0].seconds):
        radius = max(MIN_DOT_RADIUS, MAX_DOT_RADIUS * (d.seconds / total) ** 0.5)
        told = (
            f"{d.label}: {phrases.time_text(1e6 * d.seconds)}, {b:.1f} GFLOP/s, "
            f"{100 * d.roofline_share:.0f} %"
        )
        yield (
            f'<circle class="dot {_bound_class(d)}" cx="{x(a):.1f}" cy="{y(b):.1f}" '
            f'r="{radius:.1f}">'
            f"<title>{_escape_text(told)}</title></circle>"
        )


def _bar_elements(p: Profile, parts: list[KernelProfile], top: float) -> Iterator[str]:
    """Yield the times of kernels; the dark part is the roofline's bound."""
    longest = max((x.seconds for x in parts), default=1.0)
    for n, part in enumerate(parts):
        y = top + n * BAR_ROW_HEIGHT
        size = 260.0 * part.seconds / longest
        done = min(size, 260.0 * part.roofline_seconds / longest)
        yield (
            f'<rect class="bar {_bound_class(part)}" x="{EDGE_MARGIN:g}" y="{y:.1f}" '
            f'width="{size:.1f}" height="{BAR_ROW_HEIGHT - 6:g}"/>'
        )
        yield (
            f'<rect class="done" x="{EDGE_MARGIN:g}" y="{y:.1f}" width="{done:.1f}" '
            f'height="{BAR_ROW_HEIGHT - 6:g}"/>'
        )
        share = f", {100 * part.roofline_share:.0f} %" if part.roofline_seconds else ""
        told = f"{phrases.time_text(1e6 * part.seconds)}{share}  {part.label} {part.type}"
        yield _text_element("label", EDGE_MARGIN + 270, y + 12, told[:84])


def _bound_class(part: KernelProfile) -> str:
    if not part.roofline_seconds:
        return "other"
    return "flops" if part.arithmetic >= part.memory else "bytes"


def _decades(values: list[float]) -> tuple[int, int]:
    """Return the exponents of the powers of ten around the values."""
    logs = [log10(v) for v in values if v > 0]
    low, high = min(logs), max(logs)
    return int(low // 1), max(int(-(-high // 1)), int(low // 1) + 1)


def _text_element(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{_escape_text(text)}</text>'


def _escape_text(text: str) -> str:
    return escape(phrases.printable(text))
