"""How far a compiled model's outputs are from the original's in float64: data, and its text."""

from __future__ import annotations

from dataclasses import dataclass

from superopt.report import words
from superopt.report.table import joined, table


@dataclass(frozen=True, slots=True)
class Output:
    """Absolute errors of an output on one set of inputs, and the largest one of the original where
    all of it is of that precision (infinite where that is beyond its numbers); rms: of the output;
    why it failed (empty: it passed)."""

    name: str
    rms: float
    largest: float
    mean: float
    original: float
    failure: str


@dataclass(frozen=True, slots=True)
class Accuracy:
    """By output, the worst of all inputs. precision: of the compiled model; sets: how many inputs
    were tried; apart: outputs that were not compared, and why. `str` of it is a table."""

    model: str
    precision: str
    sets: int
    outputs: tuple[Output, ...]
    apart: tuple[tuple[str, str], ...] = ()

    @property
    def ok(self) -> bool:
        """Is every output within what DESIGN section 14 allows?"""
        return not any(x.failure for x in self.outputs)

    def __str__(self) -> str:
        verdict = "within the tolerance" if self.ok else "NOT within the tolerance"
        head = (
            f"{words.plain(self.model)} in {self.precision}: {verdict}, on"
            f" {words.count(self.sets, 'set')} of drawn inputs; absolute errors, by the original in"
            " float64"
        )
        own = f"the original's in {self.precision}"
        first = ("output", "its rms", "largest error", "mean", own, "")
        cells: list[tuple[str, ...]] = [first]
        for x in self.outputs:
            errors = (f"{e:.2e}" for e in (x.rms, x.largest, x.mean, x.original))
            cells.append((words.plain(x.name), *errors, x.failure))
        left = [f"{words.plain(name)} is not compared: {why}" for name, why in self.apart]
        return joined([head, *table(cells, shown=len(cells), numbers=range(1, 5)), *left])
