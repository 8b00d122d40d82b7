"""A profile as one self-contained SVG: the roofline, a dot for each kernel, and a bar for the
slowest.

Williams, Waterman, Patterson: Roofline, CACM 2009.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import log10
from typing import TYPE_CHECKING

from superopt.report.formatting import phrases
from superopt.report.formatting.wrap import cut_text, wrap_text

if TYPE_CHECKING:
    from superopt.report.compilation.profile import KernelProfile, Profile

WIDTH_PX, PLOT_HEIGHT, LEFT_MARGIN, EDGE_MARGIN = 900.0, 380.0, 70.0, 24.0
TITLE_LINE_HEIGHT, LINE_HEIGHT, BAR_ROW_HEIGHT = 22.0, 17.0, 22.0
AXIS_HEIGHT = 60.0  # below the plot, for its numbers and title
BAR_WIDTH = 200.0  # of the longest bar
MAX_BARS = 14
MIN_DOT_RADIUS, MAX_DOT_RADIUS = 2.5, 18.0  # radius of a dot
# Letters of a line: 0.61 em each of the fixed-width font.
MAX_TITLE_LETTERS, MAX_LETTERS, MAX_BAR_LETTERS = 86, 115, 86
READING_TEXT = (
    "A dot is a kernel, its area the time. Blue: bound by arithmetic, orange: by reading and"
    " writing. Solid line: the bound for data in memory, dashed: in caches. A bar is a kernel's"
    " time, its shaded part the bound. MFLOP: operations of its algorithm, of the"
    " model's direct computation if those are more."
)

STYLE = """
text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  fill: #1b1f24; white-space: pre; }
.page { fill: #fbfbfa; }
.name { font-size: 16px; font-weight: 600; }
.axis, .said { fill: #59626d; }
.end { text-anchor: end; }
.middle { text-anchor: middle; }
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
    what = (
        f"{p.model}: {phrases.time_text(1e6 * p.seconds)} a run, "
        f"{100 * p.roofline_share:.0f} % of the roofline"
    )
    title = wrap_text(what, MAX_TITLE_LETTERS)
    threads = f"{phrases.count_text(p.threads, 'thread')}, " if p.threads else ""
    said = wrap_text(f"{threads}{p.machine}; {p.peaks}", MAX_LETTERS)
    said += wrap_text(READING_TEXT, MAX_LETTERS)
    notes = [line for note in p.notes for line in wrap_text(note, MAX_LETTERS)]
    facts = EDGE_MARGIN + TITLE_LINE_HEIGHT * len(title)
    plot = facts + LINE_HEIGHT * (len(said) + 2)
    bars = plot + PLOT_HEIGHT + AXIS_HEIGHT
    below = bars + BAR_ROW_HEIGHT * len(longest)
    height = below + LINE_HEIGHT * (len(notes) + 1) + EDGE_MARGIN
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH_PX:g} {height:g}" '
        f'width="{WIDTH_PX:g}" height="{height:g}" role="img">'
    )
    yield f"<title>{_escape_text(what)}</title>"
    yield f"<style>{STYLE}</style>"
    yield f'<rect class="page" width="{WIDTH_PX:g}" height="{height:g}"/>'
    yield from _text_lines("name", EDGE_MARGIN + 12, TITLE_LINE_HEIGHT, title)
    yield from _text_lines("said", facts + 12, LINE_HEIGHT, said)
    yield from _roofline_elements(p, plot)
    yield from _bar_elements(longest, bars)
    yield from _text_lines("said", below + 2 * LINE_HEIGHT, LINE_HEIGHT, notes)
    yield "</svg>"


def _text_lines(kind: str, y: float, height: float, lines: Sequence[str]) -> Iterator[str]:
    for n, line in enumerate(lines):
        yield _text_element(kind, EDGE_MARGIN, y + height * n, line)


def _roofline_elements(p: Profile, top: float) -> Iterator[str]:
    """Yield the plot. A kernel that is above the measured peaks lies on the roofline."""
    memory = p.bandwidths[-1][1]
    cache = max(rate for _, rate in p.bandwidths)
    dots = [x for x in p.parts if x.operations and x.bytes and x.seconds > 0]
    across = [x.operations / x.bytes for x in dots]
    up = [
        min(x.operations / x.seconds, p.flops, at * cache) / 1e9
        for x, at in zip(dots, across, strict=True)
    ]
    low, high = _decades([*across, p.flops / cache, p.flops / memory])
    least, most = _decades([*up, p.flops / 1e9])

    def x(value: float) -> float:
        width = WIDTH_PX - LEFT_MARGIN - EDGE_MARGIN
        return LEFT_MARGIN + width * (log10(value) - low) / (high - low)

    def y(value: float) -> float:
        return top + PLOT_HEIGHT * (most - log10(value)) / (most - least)

    bottom = top + PLOT_HEIGHT
    for n in range(low, high + 1):
        at = x(10.0**n)
        yield f'<path class="grid" d="M{at:.1f} {top:g}V{bottom:g}"/>'
        yield _text_element("axis middle", at, bottom + 16, f"{10.0**n:g}")
    for n in range(least, most + 1):
        at = y(10.0**n)
        yield f'<path class="grid" d="M{LEFT_MARGIN:g} {at:.1f}H{WIDTH_PX - EDGE_MARGIN:g}"/>'
        yield _text_element("axis end", LEFT_MARGIN - 8, at + 4, f"{10.0**n:g}")
    yield _text_element("axis end", WIDTH_PX - EDGE_MARGIN, bottom + 34, "operations per byte")
    yield _text_element("axis", EDGE_MARGIN, top - 10, "GFLOP/s")
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
            f"{d.label}: {phrases.time_text(1e6 * d.seconds)}, "
            f"{d.operations / d.seconds / 1e9:.1f} GFLOP/s, {100 * d.roofline_share:.0f} %; "
            f"{_operations_text(d)}{d.how}"
        )
        yield (
            f'<circle class="dot {d.bound or "other"}" cx="{x(a):.1f}" cy="{y(b):.1f}" '
            f'r="{radius:.1f}"><title>{_escape_text(told)}</title></circle>'
        )


def _bar_elements(parts: Sequence[KernelProfile], top: float) -> Iterator[str]:
    """Yield the times of kernels; the shaded part is the roofline's bound."""
    longest = max((x.seconds for x in parts), default=0.0) or 1.0
    for n, part in enumerate(parts):
        y = top + n * BAR_ROW_HEIGHT
        for kind, seconds in (
            (f"bar {part.bound or 'other'}", part.seconds),
            ("done", part.roofline_seconds),
        ):
            yield (
                f'<rect class="{kind}" x="{EDGE_MARGIN:g}" y="{y:.1f}" '
                f'width="{BAR_WIDTH * seconds / longest:.1f}" height="{BAR_ROW_HEIGHT - 6:g}"/>'
            )
        share = f"{100 * part.roofline_share:.0f} %" if part.roofline_seconds else ""
        told = f"{phrases.time_text(1e6 * part.seconds):>8} {share:>5}  {_operations_text(part)}"
        told = cut_text(f"{told}{part.label}", MAX_BAR_LETTERS)
        yield _text_element("label", EDGE_MARGIN + BAR_WIDTH + 10, y + 12, told)


def _operations_text(part: KernelProfile) -> str:
    """Return the operations of the algorithm, and of the model if they are more."""
    if not part.operations:
        return ""
    of = f" of {part.model_operations / 1e6:.3g}" if part.saved_operations else ""
    return f"{part.operations / 1e6:.3g}{of} MFLOP  "


def _decades(values: list[float]) -> tuple[int, int]:
    """Return the exponents of the powers of ten around the values."""
    logs = [log10(v) for v in values if v > 0]
    low, high = min(logs), max(logs)
    return int(low // 1), max(int(-(-high // 1)), int(low // 1) + 1)


def _text_element(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{_escape_text(text)}</text>'


def _escape_text(text: str) -> str:
    return escape(phrases.printable(text))
