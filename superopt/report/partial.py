"""A partial rule: a program, its mutant, where that is right, and what corrects it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.report.diagram import InParts
from superopt.report.table import joined
from superopt.report.words import count

RIGHT, WRONG = ".", "#"


@dataclass(frozen=True, slots=True)
class Proof:
    """What is claimed, and what the prover says of it."""

    claim: str
    proved: bool
    verdict: str


@dataclass(frozen=True, slots=True)
class Correction:
    """How a mutant is corrected: recomputed, widened, or equal, where nothing is wrong; or split,
    at sizes of which it takes a part. rule: its text. by_parts: what it follows from, where it was
    not proved in one piece."""

    how: str
    rule: str
    proof: Proof
    by_parts: tuple[Proof, ...]

    @property
    def proved(self) -> bool:
        parts = bool(self.by_parts) and all(p.proved for p in self.by_parts)
        return parts or self.proof.proved


@dataclass(frozen=True, slots=True)
class PartialPage:
    """program, mutant: both sides, as rules have them. where: conditions. shape, equal, different:
    of the result, and of boxes of it, as formulas of the sizes. needs: where these boxes are there,
    and what a proof of one needs beyond: what is proved is proved there only. sizes: those of the
    picture, whose lines say of each element along the result's last two axes at which the mutant is
    ever wrong whether it is; share: of all that it computes right there. exact: is nothing right
    beyond these boxes? Of some functions not all laws are seen."""

    name: str
    params: str
    program: str
    mutant: str
    where: str
    shape: tuple[str, ...]
    equal: tuple[Proof, ...]
    different: tuple[str, ...]
    needs: tuple[str, ...]
    sizes: dict[str, int]
    share: float
    picture: tuple[str, ...]
    corrections: tuple[Correction, ...]
    exact: bool


def in_parts(found: InParts) -> list[str]:
    """For the terminal."""
    lines = [f"  {found.rule}: of [{', '.join(found.shape)}] the mutant computes right"]
    lines += [f"    {box}" for box in found.right]
    if not found.wrong:
        return [*lines, "    which is all of it"]
    how = "kept apart by zeros" if found.how == "widened" else "computed by the program"
    lines += [f"    {box} is wrong, and {how}" for box in found.wrong]
    lines.append(f"    {_seen(found.sizes, found.share, len(found.shape))}:")
    return [*lines, *(f"      {line}" for line in found.picture)]


def _seen(sizes: Sequence[tuple[str, int]], share: float, rank: int) -> str:
    """What is above a picture."""
    at = ", ".join(f"{n} = {v}" for n, v in sizes)
    where = (
        f"the last two axes, {WRONG} is wrong in any of the others"
        if rank > 2
        else f"{WRONG} is wrong"
    )
    return f"{at and f'at {at}: '}{100 * share:.1f} % right; {where}"


def text(page: PartialPage) -> str:
    """For the terminal."""
    lines = [
        f"{page.name}({page.params})" + (f" where {page.where}" if page.where else ""),
        f"  program  {page.program}",
        f"  mutant   {page.mutant}",
        "",
        f"of the result, [{', '.join(page.shape)}] at the sizes that were tried, the mutant is",
    ]
    lines += [
        f"  right on  {p.claim}  {'proved' if p.proved else 'NOT PROVED'}" for p in page.equal
    ]
    doubt = "" if page.exact else "  or right by a law that is not seen"
    lines += [f"  wrong on  {box}{doubt}" for box in page.different]
    if not page.equal and not page.different:
        lines.append("  of no elements")
    if page.needs:
        lines.append(f"  proved    where {', '.join(page.needs)}")
    if page.different:
        lines += ["", _seen([*page.sizes.items()], page.share, len(page.shape))]
        lines += [f"  {line}" for line in page.picture]
    lines.append("")
    for c in page.corrections:
        lines += [f"{c.how}: {'proved' if c.proved else 'not proved'}", f"  {c.rule}"]
        lines.append(f"  {c.proof.verdict}")
        if c.by_parts:
            done = sum(p.proved for p in c.by_parts)
            lines.append(f"  by parts: {done} of {count(len(c.by_parts), 'claim')} proved")
            lines += [f"    {p.claim}: {p.verdict}" for p in c.by_parts]
    if not page.corrections:
        lines.append("no correction was found")
    return joined(lines)
