"""A partial rule: a program, its mutant, where they are equal, and the correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.report.data.diagram import PartialRuleUse
from superopt.report.formatting.phrases import count_text
from superopt.report.formatting.table import join_lines

EQUAL_MARK, DIFFERENT_MARK = ".", "#"


@dataclass(frozen=True, slots=True)
class ClaimProof:
    """A claim, and the prover's verdict."""

    claim: str
    proved: bool
    verdict: str


@dataclass(frozen=True, slots=True)
class Correction:
    """A correction of a mutant.

    how: recomputed, widened, equal (nothing differs), or split, with the sizes at which it splits.
    rule: its text. by_parts: the claims it follows from, if it was not proved in one piece.
    """

    how: str
    rule: str
    proof: ClaimProof
    by_parts: tuple[ClaimProof, ...]

    @property
    def proved(self) -> bool:
        parts = bool(self.by_parts) and all(p.proved for p in self.by_parts)
        return parts or self.proof.proved


@dataclass(frozen=True, slots=True)
class PartialPage:
    """A program and its mutant as rules have them.

    where: conditions. shape, equal, different: of the result, and of its boxes, as formulas of the
    sizes. needs: conditions under which the boxes exist and are proved. sizes: of the drawing,
    whose lines show the result's last two axes: whether the mutant differs at an element for any
    index of the other axes. share: the equal part of all elements there. exact: nothing is equal
    outside of the equal boxes; for some functions not all laws are known.
    """

    name: str
    params: str
    program: str
    mutant: str
    where: str
    shape: tuple[str, ...]
    equal: tuple[ClaimProof, ...]
    different: tuple[str, ...]
    needs: tuple[str, ...]
    sizes: dict[str, int]
    share: float
    picture: tuple[str, ...]
    corrections: tuple[Correction, ...]
    exact: bool


def partial_use_lines(found: PartialRuleUse) -> list[str]:
    """Return the lines for the terminal."""
    lines = [f"  {found.rule}: of [{', '.join(found.shape)}] the mutant computes correctly"]
    lines += [f"    {box}" for box in found.right]
    if not found.wrong:
        return [*lines, "    which is all of it"]
    how = "separated by zeros" if found.how == "widened" else "recomputed by the program"
    lines += [f"    {box} differs, and is {how}" for box in found.wrong]
    lines.append(f"    {_picture_caption(found.sizes, found.share, len(found.shape))}:")
    return [*lines, *(f"      {line}" for line in found.picture)]


def _picture_caption(sizes: Sequence[tuple[str, int]], share: float, rank: int) -> str:
    """Return the caption of a drawing."""
    at = ", ".join(f"{n} = {v}" for n, v in sizes)
    where = (
        f"the last two axes, {DIFFERENT_MARK} differs for any index of the others"
        if rank > 2
        else f"{DIFFERENT_MARK} differs"
    )
    return f"{at and f'at {at}: '}{100 * share:.1f} % equal; {where}"


def partial_page_text(page: PartialPage) -> str:
    """Return the page for the terminal."""
    lines = [
        f"{page.name}({page.params})" + (f" where {page.where}" if page.where else ""),
        f"  program  {page.program}",
        f"  mutant   {page.mutant}",
        "",
        f"of the result, [{', '.join(page.shape)}] at the tested sizes, the mutant is",
    ]
    lines += [
        f"  equal on    {p.claim}  {'proved' if p.proved else 'NOT PROVED'}" for p in page.equal
    ]
    doubt = "" if page.exact else "  or equal by an unknown law"
    lines += [f"  different on {box}{doubt}" for box in page.different]
    if not page.equal and not page.different:
        lines.append("  empty")
    if page.needs:
        lines.append(f"  proved      where {', '.join(page.needs)}")
    if page.different:
        lines += ["", _picture_caption([*page.sizes.items()], page.share, len(page.shape))]
        lines += [f"  {line}" for line in page.picture]
    lines.append("")
    for c in page.corrections:
        lines += [f"{c.how}: {'proved' if c.proved else 'not proved'}", f"  {c.rule}"]
        lines.append(f"  {c.proof.verdict}")
        if c.by_parts:
            done = sum(p.proved for p in c.by_parts)
            lines.append(f"  by parts: {done} of {count_text(len(c.by_parts), 'claim')} proved")
            lines += [f"    {p.claim}: {p.verdict}" for p in c.by_parts]
    if not page.corrections:
        lines.append("no correction was found")
    return join_lines(lines)
