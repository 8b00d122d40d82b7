"""The error of a compiled model's outputs against the original in float64: data and text."""

from __future__ import annotations

from dataclasses import dataclass

from superopt.report import words
from superopt.report.table import joined, table


@dataclass(frozen=True, slots=True)
class Output:
    """Absolute errors of an output on one set of inputs.

    rms: of the output. original_max_error: the largest error of the original model computed
    throughout in that precision (infinite on overflow). failure: why the check failed; empty if it
    passed.
    """

    name: str
    rms: float
    largest: float
    mean: float
    original: float
    failure: str


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The worst result of each output over all sets of inputs. `str` of it is a table.

    precision: of the compiled model; input_sets: how many sets were tested; not_compared: outputs
    without a comparison, and why.
    """

    model: str
    precision: str
    sets: int
    outputs: tuple[Output, ...]
    apart: tuple[tuple[str, str], ...] = ()

    @property
    def ok(self) -> bool:
        """True if every output is within the tolerance of DESIGN section 14."""
        return not any(x.failure for x in self.outputs)

    def __str__(self) -> str:
        verdict = "within the tolerance" if self.ok else "NOT within the tolerance"
        head = (
            f"{words.plain(self.model)} in {self.precision}: {verdict}, on "
            f"{words.count(self.sets, 'set')} of random inputs; absolute errors against "
            "the original in float64"
        )
        own = f"the original's in {self.precision}"
        first = ("output", "rms", "max error", "mean", own, "")
        cells: list[tuple[str, ...]] = [first]
        for x in self.outputs:
            errors = (f"{e:.2e}" for e in (x.rms, x.largest, x.mean, x.original))
            cells.append((words.plain(x.name), *errors, x.failure))
        left = [f"{words.plain(name)} is not compared: {why}" for name, why in self.apart]
        return joined([head, *table(cells, shown=len(cells), numbers=range(1, 5)), *left])
