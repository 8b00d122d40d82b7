"""Hints that a program's sizes and windows give for its mutants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from superopt.ir import graph
from superopt.partial.correct.restrict import static_shape
from superopt.partial.enumerate.program import (
    Program,
    Shape,
    convolutions,
    fold_factors,
    multiplies_computed,
)


@dataclass(frozen=True, slots=True)
class ProgramHints:
    """out: wanted shape. windows: strides, dilations and pads. factors: named fold factors. parts:
    sizes into which an axis is split. uses: how often each input may be read. products: number of
    products; deep: longest chain of them. turns: number of Reshapes and Transposes. groups: has
    grouped convolutions. weights: number of weights. computed: multiplies two computed values.
    transposed: has a transposed weight. biased: has a bias between products. gaps: axes, and how
    many zeros separate images."""

    output_shape: Shape
    windows: tuple[tuple[Shape, Shape, Shape], ...]
    factors: tuple[tuple[str, int], ...]
    axis_parts: tuple[tuple[int, Shape], ...]
    input_uses: tuple[tuple[str, int], ...]
    products: int
    product_depth: int
    transposes: int
    has_groups: bool
    weights: int
    multiplies_computed: bool
    has_transposed_weight: bool
    has_bias: bool
    gaps: tuple[tuple[int, int], ...]

    @property
    def is_strided(self) -> bool:
        return any(max(t) > 1 for t, _, _ in self.windows)


PRODUCT_OPS = ("Conv", "MatMul", "Gemm")


def program_hints(p: Program) -> ProgramHints:
    """Return the hints of a program. Raises InferError if the results cannot be concatenated."""
    out = static_shape(p.joined_output)
    found: dict[Any, None] = {
        tuple(n.attr(k) for k in ("strides", "dilations", "pads")): None for n in convolutions(p)
    }
    batch = {
        static_shape(i)[0] for i in p.inputs if i.name not in p.weights and convolutions(p)
    } - {1}
    by = [(str(f), f) for f in fold_factors(p)] + [("all", n) for n in sorted(batch)[:1]]
    parts: dict[tuple[int, Shape], None] = {}
    for n in graph.nodes([p.joined_output]):
        if n.op.name == "Split":
            parts[n.attr("axis"), n.attr("split")] = None  # type: ignore[index]
        if n.op.name == "Concat":
            axis: Any = n.attr("axis")
            parts[axis, tuple(static_shape(v)[axis] for v in n.inputs if v is not None)] = None
    order = graph.nodes([p.joined_output])
    biased = any(_adds_weight(p, n) for n in order)
    again = {i for i in p.inputs if biased and i.name in p.weights}  # by what is made of a bias
    uses = [(i.name, sum(v is i for n in order for v in n.inputs) + (i in again)) for i in p.inputs]
    deep: dict[graph.Node, int] = {}
    for n in order:
        before = (graph.producer(v) for v in n.inputs if v is not None)
        deep[n] = max((deep[b] for b in before if b), default=0) + (n.op.name in PRODUCT_OPS)
    return ProgramHints(
        out, tuple(found), tuple(by), tuple(parts), tuple(uses),
        sum(n.op.name in PRODUCT_OPS for n in order), max(deep.values(), default=0),
        sum(n.op.name in ("Reshape", "Transpose") for n in order),
        any(n.attr("group") != 1 for n in convolutions(p)), len(p.weights),
        any(multiplies_computed(p, n) for n in order),
        any(n.op.name == "Gemm" and n.attr("transB") for n in order),
        biased, _window_gaps(p),
    )  # fmt: skip


def _adds_weight(p: Program, n: graph.Node) -> bool:
    """True if the node adds a weight."""
    added = n.inputs if n.op.name == "Add" else n.inputs[2:] if n.op.name in PRODUCT_OPS else ()
    return any(isinstance(v, graph.Input) and v.name in p.weights for v in added)


def _window_gaps(p: Program) -> tuple[tuple[int, int], ...]:
    """Return the gaps for windows of stride 1 that share one kernel."""
    some = convolutions(p)
    if len({n.inputs[1] for n in some}) != 1 or any(max(_strides(n)) > 1 for n in some):
        return ()
    pads: Any = some[0].attr("pads")
    sides = len(pads) // 2
    each = ((d + 2, max(pads[d], pads[d + sides])) for d in range(sides))
    return tuple((axis, gap) for axis, gap in each if gap)


def _strides(n: graph.Node) -> Shape:
    strides: Any = n.attr("strides")
    return tuple(strides)
