"""How a problem with symbolic sizes is solved: as the one of the example sizes is.

Algorithms are chosen, and their schedules made, by the problem at the example sizes. A schedule
names loops and has tile sizes, so that it applies to the loops of symbolic extent as well; what it
requires of these becomes guards when they are lowered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from superopt.kernels.algorithms.contraction import element_count, match_contraction
from superopt.kernels.algorithms.cpu.block_scaled_gemm import row_axes
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.algorithms.space import build_symbolic_choice
from superopt.kernels.loops.layout import Layout, ScatteredLayout
from superopt.plan.lowering.kernel_stages import kernel_stages
from superopt.te.analysis.bind_sizes import Binding
from superopt.te.analysis.walk import computed_tensors, reductions
from superopt.te.expr.symbolic_int import example_sizes, hint, keep_level, masks_tiles
from superopt.te.expr.tensor import Tensor

MIN_COSTLY_SHARE = 0.2  # of the terms of the largest kernel


class SymbolicProblem:
    """A problem at example sizes, and its tensors' originals."""

    def __init__(self, p: Problem, hints: Mapping[str, int]) -> None:
        self.original = p
        self.binding = Binding(hints)
        tensor = self.binding.tensor(p.tensor)
        self.at_hints = replace(
            p,
            tensor=tensor,
            layouts={self.binding.tensor(t): self._layout(x) for t, x in p.layouts.items()},
            constants={self.binding.tensor(t) for t in p.constants},
            is_example=True,
        )
        self.originals = {new: old for old, new in self.binding.tensors.items()}

    def _layout(self, layout: Layout | ScatteredLayout) -> Layout | ScatteredLayout:
        if isinstance(layout, Layout):
            return layout
        b = self.binding
        shape = tuple(map(hint, layout.shape))
        return ScatteredLayout(
            shape, layout.layout, tuple(map(b.axis, layout.axes)), tuple(map(b.expr, layout.index))
        )

    def transfer(self, choice: Choice) -> Choice | None:
        """Return the choice for the symbolic problem; None if it computes another tensor whose form
        is known for fixed sizes only."""
        if (
            (choice.root is not self.at_hints.tensor and choice.restage is None)
            or choice.tables
            or choice.producers
            or choice.derived_constants
            or choice.kernels
            or choice.layout is not None
        ):
            target = "cuda" if masks_tiles() else "cpu"
            return build_symbolic_choice(self.original, choice.option, target)
        try:
            if choice.restage is not None:
                root, schedules = choice.restage(self.original.tensor)
            else:
                root = self.original.tensor
                schedules = {self.originals[t]: steps for t, steps in choice.schedules.items()}
            return replace(
                choice,
                root=root,
                schedules=schedules,
                packed=tuple(self.originals[t] for t in choice.packed),
            )
        except KeyError:
            return None


def costly_tensors(definitions: Mapping[Tensor, Tensor]) -> set[Tensor]:
    """Return the tensors whose kernels take much of the time at the example sizes. Only these limit
    a class to one level of sizes."""
    if not example_sizes():
        return set()
    terms = {
        t: sum(map(_term_count, kernel_stages(now, definitions))) for t, now in definitions.items()
    }
    least = MIN_COSTLY_SHARE * max(terms.values(), default=0)
    return {t for t, count in terms.items() if count >= least}


def _term_count(t: Tensor) -> int:
    """Return the number of elements, and of terms of its reductions."""
    terms = sum(prod(hint(a.size) for a in r.axes) for r in reductions(t.body))
    return element_count(t) * (1 + terms)


def keep_unit_level(p: Problem) -> None:
    """Keep sizes that are 1 in the example at that level (te/expr/symbolic_int.py) where more would
    need tiles, and 1 has none: the rows of a product, what vectors run along, and what is reduced.
    """
    found = match_contraction(p.tensor, p.constants)
    rows = row_axes(p.tensor) if found is None else found.a_axes
    units = list(rows) if prod(hint(a.size) for a in rows) == 1 else []
    reduced = (r for t in computed_tensors([p.tensor]) for r in reductions(t.body))
    for a in (*units, *p.tensor.axes[-1:], *(a for r in reduced for a in r.axes)):
        if hint(a.size) == 1:
            keep_level(a.size)
