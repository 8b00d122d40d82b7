"""Classes of models whose sizes are related (size_relation.py). Their programs are for the new
sizes; their formulas are written in the model's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superopt.compilation.frontend.graph_ports import numpy_dtype
from superopt.compilation.model.classes.empty_outputs import SymbolicEmptyOutputs
from superopt.compilation.model.classes.runtime_sizes import RuntimeSizedCode
from superopt.compilation.model.size_classes import SymbolicStep
from superopt.plan.program.formula_text import formula_text, guard_text, shape_formulas
from superopt.plan.program.size_formulas import SizeFormulas
from superopt.te.expr import index
from superopt.te.expr.node import Size

if TYPE_CHECKING:
    from superopt.ir import graph
    from superopt.onnx_io.import_.size_relation import SizeRelation

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


def in_model_sizes(step: SymbolicStep, sizes: Mapping[str, int], by: SizeRelation) -> Any:
    """Return a step of the related model as one by the model's own sizes. sizes: those of the model
    for which it was compiled."""
    own: Any = step
    if by.is_identity:
        return own
    if own.formulas is not None:
        others = {name: n for name, n in own.example.items() if name not in by.values}
        formulas = related_formulas(own.formulas, sizes, by)  # it admits no more than its class
        return replace(own, formulas=formulas, example={**sizes, **others})
    own = replace(own, shapes=formulas_in_model_sizes(own.shapes, tuple(sizes), by))
    if not isinstance(own, RuntimeSizedCode):
        return own
    return replace(own, programs=tuple(in_model_sizes(p, sizes, by) for p in own.programs))


def with_relation_guards(
    made: SizeFormulas, sizes: Mapping[str, int], by: SizeRelation
) -> SizeFormulas:
    """Return formulas, in the model's sizes, that admit only sizes that are related: of which those
    that are not 0 at the example are positive, and so are the new sizes."""
    names = tuple(sizes)
    assert made.names[: len(names)] == names  # which guards refer to by number
    positive = (f"1 <= s{n}" for n, size in enumerate(sizes.values()) if size)
    guards = (guard_text(e, holds, names) for e, holds in by.guards.items())
    new = (f"1 <= {formula_text(e, names)}" for e in by.values.values())
    return replace(made, guards=tuple(dict.fromkeys((*positive, *guards, *new, *made.guards))))


def related_formulas(
    made: SizeFormulas, sizes: Mapping[str, int], by: SizeRelation
) -> SizeFormulas:
    """Return formulas in new sizes as ones in the model's, with the guards of the relation."""
    if not by.is_identity:
        made = formulas_in_model_sizes(made, tuple(sizes), by)
    return with_relation_guards(made, sizes, by)


def formulas_in_model_sizes(
    made: SizeFormulas, model_names: Sequence[str], by: SizeRelation
) -> SizeFormulas:
    """Return formulas with the model's sizes, which come first, in place of the new ones."""
    names = (*model_names, *(name for name in made.names if name not in by.values))
    texts = [formula_text(by.values.get(name, Size(name)), names) for name in made.names]

    def change(formula: str) -> str:
        return VARIABLE.sub(lambda m: texts[int(m[1])], formula)

    return SizeFormulas(
        names,
        tuple(map(change, made.guards)),
        tuple(map(change, made.words)),
        change(made.memory_bytes),
        change(made.workspace_bytes),
        tuple(tuple(map(change, shape)) for shape in made.output_shapes),
        tuple(map(change, made.shared)),
    )
