"""Classes of models with other sizes in place of theirs (size_substitution.py): sizes of 0, and
those with properties that operators ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from superopt.compilation.frontend.graph_ports import numpy_dtype, static_shape
from superopt.plan.program.formula_text import formula_text
from superopt.plan.program.size_formulas import SizeFormulas
from superopt.te.expr import index

if TYPE_CHECKING:
    from superopt.compilation.model.size_classes import SymbolicProgram, SymbolicStep
    from superopt.compilation.model.steps import Step
    from superopt.ir import graph
    from superopt.onnx_io.import_.size_substitution import SizeSubstitution
    from superopt.plan.program.image import CountCall

VARIABLE = re.compile(r"\bs(\d+)\b")  # of formulas


@dataclass(frozen=True, slots=True)
class SubstitutedStep:
    """A step of a model with other sizes, by those of the model."""

    step: SymbolicStep
    substitution: SizeSubstitution
    formulas: ClassVar[None] = None

    @property
    def programs(self) -> Sequence[SymbolicProgram]:
        return self.step.programs

    def at_sizes(self, sizes: Mapping[str, int], count_call: CountCall | None = None) -> Step:
        """Return the step at these sizes of the model."""
        return self.step.at_sizes(self.substitution.example(sizes), count_call)


@dataclass(frozen=True, slots=True)
class EmptyOutputs:
    """The step of a model all of whose outputs are empty. shapes, dtypes: of the outputs."""

    outputs: tuple[graph.Value, ...]
    shapes: tuple[tuple[int, ...], ...]
    inputs: ClassVar[Mapping[str, graph.Value]] = {}

    def run(self, env: dict[graph.Value, Any]) -> None:
        """Compute the outputs."""
        for v, shape in zip(self.outputs, self.shapes, strict=True):
            env[v] = np.empty(shape, numpy_dtype(v.type))


@dataclass(frozen=True, slots=True)
class SymbolicEmptyOutputs:
    """The step of a model all of whose outputs are empty, at all sizes."""

    outputs: tuple[graph.Value, ...]
    formulas: ClassVar[None] = None
    programs: ClassVar[tuple[()]] = ()

    def at_sizes(self, sizes: Mapping[str, int], _: CountCall | None = None) -> EmptyOutputs:
        """Return the step at given sizes."""
        return EmptyOutputs(self.outputs, tuple(static_shape(v.type, sizes) for v in self.outputs))


def empty_outputs_step(g: graph.Graph, sizes: Mapping[str, int]) -> SymbolicEmptyOutputs | None:
    """Return the step of a graph all of whose outputs are empty, of shapes that depend on these
    sizes; None of another one."""
    outputs = tuple(dict.fromkeys(g.outputs))
    shapes = [v.type.shape or () for v in outputs]
    known = all(index.symbols(d) <= sizes.keys() for shape in shapes for d in shape)
    if not known or not all(0 in s for s in shapes) or any(v.type.dtype is None for v in outputs):
        return None
    return SymbolicEmptyOutputs(outputs)


def substituted_formulas(
    made: SizeFormulas, names: Sequence[str], substitution: SizeSubstitution
) -> SizeFormulas:
    """Return the conditions of a class by the model's sizes. made: its formulas by the new ones.
    names: of the model's sizes."""
    values = [formula_text(substitution.values[name], names) for name in made.names]
    zeros = (f"s{names.index(name)} == 0" for name in substitution.zeros)
    conditions = (formula_text(e, names) for e in substitution.conditions)
    guards = (VARIABLE.sub(lambda m: f"({values[int(m[1])]})", g) for g in made.guards)
    return SizeFormulas(tuple(names), (*zeros, *conditions, *guards), (), "0", "0", ())
