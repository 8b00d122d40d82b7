"""Plan a program for a class of sizes (model/size_classes.py), with the formulas of its sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from superopt.onnx_io.import_.size_relation import Guards
from superopt.plan.graph.partition import Segment
from superopt.plan.program.formula_text import define_shared, formula_text, guard_text
from superopt.plan.program.program import Program, SymbolicSizes
from superopt.plan.program.size_formulas import SizeFormulas
from superopt.te.expr.node import Dim, Size
from superopt.te.expr.symbolic_int import extent, symbolic_sizes

if TYPE_CHECKING:
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.device import CodeGenerator

Code = TypeVar("Code")


@dataclass(frozen=True, slots=True)
class ClassProgram(Generic[Code]):
    """A program for all sizes that its formulas admit, and its machine code."""

    program: Program
    formulas: SizeFormulas
    code: Code


def with_planned_sizes(
    build: Callable[[Program], Code],
) -> Callable[[Program], tuple[Code, SymbolicSizes]]:
    """Return a function that returns the code of a program, and what the plan needs before a
    run."""

    def build_both(program: Program) -> tuple[Code, SymbolicSizes]:
        assert program.symbolic is not None
        return build(program), program.symbolic

    return build_both


def plan_class_program(
    generator: CodeGenerator,
    c: Compiler,
    s: Segment,
    example: Mapping[str, int],
    assumed: Guards,
    build: Callable[[Program], tuple[Code, SymbolicSizes]],
    *,
    masks_tiles: bool = False,
) -> ClassProgram[Code]:
    """Return the program of a segment for all sizes for which the same decisions are right as for
    the example. assumed: comparisons that the model assumes, and whether they hold. build: returns
    the code of a program, and what it needs before a run; its decisions are guards, too.
    masks_tiles: see SizeEnvironment.

    Raises one of NO_KERNEL_ERRORS if an operator has no kernel for symbolic sizes.
    """
    with symbolic_sizes(example, assumed, masks_tiles=masks_tiles) as decided:
        if not all(extent(d) >= 0 for n in s.nodes for t in n.types for d in t.shape or ()):
            raise NotImplementedError("a size is below 0")
        if any(d == 0 for n in s.nodes for t in n.types for d in t.shape or ()):
            raise NotImplementedError("tiles that overlap need elements")
        sizes = {name: extent(Size(name)) for name in example}
        for n in s.nodes:  # guards the decisions of the partition
            if why := c.fallback_reason(n, sizes):
                raise NotImplementedError(why)
        made = generator.plan_segment(c, s, {})
        if made.symbolic is None:
            raise NotImplementedError("no size is symbolic")
        code, symbolic = build(made)
    names = symbolic.names
    # expressions assume that sizes are positive; the model has a 0 in place of a size of 0
    positive = (f"1 <= s{n}" for n, name in enumerate(names) if example[name])
    guards = (guard_text(g, holds, names) for g, holds in decided.required_guards().items())
    shapes = [tuple(v.type.shape or ()) for v in s.outputs]
    needs = symbolic.memory_bytes, symbolic.workspace_bytes
    roots = (*needs, *symbolic.words, *(d for shape in shapes for d in shape))
    shared, defined = define_shared(roots, names)

    def texts(dims: Iterable[Dim]) -> tuple[str, ...]:
        return tuple(formula_text(d, names, defined) for d in dims)

    memory, workspace = texts(needs)
    formulas = SizeFormulas(
        names,
        (*positive, *guards),
        texts(symbolic.words),
        memory,
        workspace,
        tuple(map(texts, shapes)),
        shared,
    )
    return ClassProgram(made, formulas, code)
