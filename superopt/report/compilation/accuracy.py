"""The error of a compiled model's outputs against the original in float64: data and text."""

from __future__ import annotations

from dataclasses import dataclass

from superopt.report.formatting import phrases
from superopt.report.formatting.table import join_lines, table


@dataclass(frozen=True, slots=True)
class OutputAccuracy:
    """Absolute errors of an output on one set of inputs.

    rms: of the output. original_max_error: the largest error of the original model computed
    throughout in that precision (infinite on overflow). failure: why the check failed; empty if it
    passed. steps: the largest difference in quantization steps, from the nearer one of the float64
    result and the original's; None if the output is not of a quantization.
    """

    name: str
    rms: float
    max_error: float
    mean_error: float
    original_max_error: float
    failure: str
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The worst result of each output over all sets of inputs. `str` of it is a table.

    precision: of the compiled model; input_sets: how many sets were tested; not_compared: outputs
    without a comparison, and why.
    """

    model: str
    precision: str
    input_sets: int
    outputs: tuple[OutputAccuracy, ...]
    not_compared: tuple[tuple[str, str], ...] = ()

    @property
    def passed(self) -> bool:
        """True if every output is within the tolerance of DESIGN section 14."""
        return not any(x.failure for x in self.outputs)

    def __repr__(self) -> str:
        verdict = "within the tolerance" if self.passed else "NOT within the tolerance"
        return f"<Accuracy of {self.model} in {self.precision}: {verdict}>"

    def __str__(self) -> str:
        verdict = "within the tolerance" if self.passed else "NOT within the tolerance"
        head = (
            f"{phrases.printable(self.model)} in {self.precision}: {verdict}, on "
            f"{phrases.count_text(self.input_sets, 'set')} of random inputs; absolute errors "
            "against the original in float64"
        )
        own = f"the original's in {self.precision}"
        stepped = any(x.steps is not None for x in self.outputs)
        head_of_steps = ("steps",) if stepped else ()
        cells = [("output", "rms", "max error", "mean", own, *head_of_steps, "")]
        for x in self.outputs:
            errors = [f"{e:.2e}" for e in (x.rms, x.max_error, x.mean_error, x.original_max_error)]
            if stepped:
                errors.append("-" if x.steps is None else str(x.steps))
            cells.append((phrases.printable(x.name), *errors, x.failure))
        left = [
            f"{phrases.printable(name)} is not compared: {why}" for name, why in self.not_compared
        ]
        return join_lines(
            [head, *table(cells, max_rows=len(cells), numeric_columns=range(1, 5 + stepped)), *left]
        )
