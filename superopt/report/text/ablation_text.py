"""The table of an ablation, in at most 15 lines."""

from __future__ import annotations

from collections.abc import Iterator

from superopt.report.data.attribution import AblatedPart, Ablation
from superopt.report.formatting import phrases
from superopt.report.formatting.table import join_lines, table
from superopt.report.formatting.wrap import cut_text

MAX_LINES = 15
MAX_NOTE_CHARS = 56


def ablation_text(a: Ablation) -> str:
    """Return the table: each part, and how many times as long the result takes without it."""
    return join_lines(ablation_lines(a))


def ablation_lines(a: Ablation) -> Iterator[str]:
    """Yield the lines of the table."""
    how = "predicted by the costs of the plan"
    if a.sessions:
        sessions = phrases.count_text(a.sessions, "session")
        how = f"timed in turns, at least {a.rounds} rounds in {sessions}"
    yield f"time without each part, over that of the result ({how})"
    room = MAX_LINES - 1 - len(a.notes)
    shown = a.parts if len(a.parts) <= room else a.parts[: room - 1]
    cells = [(_part_text(p), ratio_text(p), cut_text(part_note(p), MAX_NOTE_CHARS)) for p in shown]
    yield from table(cells, max_rows=len(cells), numeric_columns=())
    if len(shown) < len(a.parts):
        yield f"  and {len(a.parts) - len(shown)} more, in the report"
    yield from (f"  note: {phrases.printable(note)}" for note in a.notes)


def _part_text(p: AblatedPart) -> str:
    name = phrases.printable(p.name)
    if not p.steps:
        return f"without {name}"
    return f"without {p.steps}x {name}" if " " not in name else f"without {name} ({p.steps} steps)"


def ratio_text(p: AblatedPart) -> str:
    """Return the ratio with its interval; marked if it is predicted."""
    if p.ratio is not None:
        return phrases.ratio_text(p.ratio)
    return "-" if p.predicted is None else f"{p.predicted:.2f}x predicted"


def part_note(p: AblatedPart) -> str:
    """Return what else to know about a part; that its gain is not beyond noise, if it is not."""
    within = p.ratio is not None and p.ratio[0] <= 1 <= p.ratio[2]
    texts = filter(None, ("no difference beyond noise" if within else "", p.note))
    return phrases.printable("; ".join(texts))
