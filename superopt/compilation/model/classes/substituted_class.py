"""Classes of models with other sizes in place of theirs (size_substitution.py): sizes of 0, and
those with properties that operators ask for. Their formulas are written by the model's sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superopt.compilation.frontend.graph_ports import numpy_dtype
from superopt.compilation.model.classes.empty_outputs import SymbolicEmptyOutputs
from superopt.compilation.model.classes.runtime_sizes import RuntimeSizedCode
from superopt.compilation.model.size_classes import SymbolicStep
from superopt.plan.program.formula_text import formula_text, shape_formulas
from superopt.plan.program.size_formulas import SizeFormulas
from superopt.te.expr import index
from superopt.te.expr.node import Size

if TYPE_CHECKING:
    from superopt.ir import graph
    from superopt.onnx_io.import_.size_substitution import SizeSubstitution

VARIABLE = re.compile(r"\bs(\d+)\b")  # of formulas


def empty_outputs_step(g: graph.Graph, sizes: Mapping[str, int]) -> SymbolicEmptyOutputs | None:
    """Return the step of a graph all of whose outputs are empty, of shapes that depend on these
    sizes; None of another one."""
    outputs = tuple(dict.fromkeys(g.outputs))
    shapes = [v.type.shape or () for v in outputs]
    known = all(index.symbols(d) <= sizes.keys() for shape in shapes for d in shape)
    if not known or not all(0 in s for s in shapes) or any(v.type.dtype is None for v in outputs):
        return None
    dtypes = tuple(numpy_dtype(v.type) for v in outputs)
    return SymbolicEmptyOutputs(outputs, shape_formulas(shapes, tuple(sizes)), dtypes)


def in_model_sizes(step: SymbolicStep, sizes: Mapping[str, int], by: SizeSubstitution) -> Any:
    """Return a step of the model with other sizes as one by the model's own. sizes: those of the
    model for which it was compiled."""
    own: Any = step
    if own.formulas is not None:
        others = {name: n for name, n in own.example.items() if name not in by.values}
        formulas = _substitute_sizes(own.formulas, sizes, by)
        return replace(own, formulas=formulas, example={**sizes, **others})
    own = replace(own, shapes=_substitute_sizes(own.shapes, sizes, by))
    if not isinstance(own, RuntimeSizedCode):
        return own
    return replace(own, programs=tuple(in_model_sizes(p, sizes, by) for p in own.programs))


def substitution_guards(names: Sequence[str], by: SizeSubstitution) -> tuple[str, ...]:
    """Return the conditions under which other sizes, which are positive, stand for the model's."""
    zeros = (f"s{names.index(name)} == 0" for name in by.zeros)
    positive = (f"1 <= {formula_text(e, names)}" for e in by.values.values())
    return (*zeros, *(formula_text(e, names) for e in by.conditions), *positive)


def _substitute_sizes(
    made: SizeFormulas, sizes: Mapping[str, int], by: SizeSubstitution
) -> SizeFormulas:
    """Return formulas with the model's sizes, which come first, in place of other ones."""
    names = (*sizes, *(name for name in made.names if name not in by.values))
    texts = [formula_text(by.values.get(name, Size(name)), names) for name in made.names]

    def change(formula: str) -> str:
        return VARIABLE.sub(lambda m: f"({texts[int(m[1])]})", formula)

    return SizeFormulas(
        names,
        tuple(map(change, made.guards)),
        tuple(map(change, made.words)),
        change(made.memory_bytes),
        change(made.workspace_bytes),
        tuple(tuple(map(change, shape)) for shape in made.output_shapes),
        tuple(map(change, made.shared)),
    )
