"""Why a kernel has its schedule: data and text."""

from __future__ import annotations

from dataclasses import dataclass

from superopt.report.formatting import phrases
from superopt.report.formatting.table import join_lines, table


@dataclass(frozen=True, slots=True)
class CandidateCost:
    """An option of a kernel.

    option: algorithm and block sizes. predicted: its time by the prediction that decides, relative
    to the general algorithm; None for other options of an algorithm, which are in its order.
    seconds: by resource, if that alone took time; bound: the resource that takes longest. parts:
    that threads share.
    """

    option: str
    predicted: float | None
    seconds: tuple[float, ...]
    bound: str
    parts: int


@dataclass(frozen=True, slots=True)
class KernelExplanation:
    """Why a kernel has its schedule.

    kernel: what it computes; type: of its result; seconds: measured. chosen, default: options, the
    latter predicted to be the fastest. resources: of which candidates have seconds. rejected:
    algorithms that are not expected to pay. limits: what bounds the block sizes, and figures: of
    the machine, with where they come from, a sentence each. stored: where a chosen option that is
    not the default was found.
    """

    kernel: str
    type: str
    seconds: float
    chosen: str
    default: str
    stored: str
    resources: tuple[str, ...]
    candidates: tuple[CandidateCost, ...]
    rejected: tuple[str, ...]
    limits: tuple[str, ...]
    figures: tuple[str, ...]

    def __str__(self) -> str:
        return explanation_text(self)


def explanation_text(e: KernelExplanation) -> str:
    """Return the explanation as text."""
    reason = (
        "the least predicted time of the algorithms below; of equals, the first in"
        " docs/reference/algorithms.md"
        if e.chosen == e.default
        else f"measured by `tune`, and kept in {e.stored}; without it: {e.default}"
    )
    lines = [
        f"{e.kernel}: {e.type}, {phrases.time_text(1e6 * e.seconds)} measured",
        f"  chosen: {e.chosen}",
        f"  by: {reason}",
        "",
        "  Candidates: the relative time that was predicted, and estimated us of each resource",
    ]
    head = ["", "predicted", *e.resources, "bound by", "parts", "option"]
    rows = [
        [
            ">" if c.option == e.chosen else "",
            "" if c.predicted is None else f"{c.predicted:.2f}",
            *(_microseconds(s) for s in c.seconds),
            c.bound,
            str(c.parts),
            c.option,
        ]
        for c in e.candidates
    ]
    numeric = range(1, len(e.resources) + 2)
    lines += table([head, *rows], max_rows=len(rows) + 1, numeric_columns=numeric)
    if e.rejected:
        lines.append(f"  not expected to pay here: {', '.join(e.rejected)}")
    for title, some in (("What bounds the block sizes", e.limits), ("The machine", e.figures)):
        lines += ["", f"  {title}", *(f"  - {x}" for x in some or ("nothing is recorded",))]
    return join_lines(lines)


def _microseconds(seconds: float) -> str:
    us = 1e6 * seconds
    return f"{us:.0f}" if us >= 10 or not us else f"{us:.1f}"
