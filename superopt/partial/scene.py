"""Hints that a program's sizes and windows give for its mutants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from superopt.ir import graph as g
from superopt.partial.program import Program, Shape, computed, factors, windows
from superopt.partial.restrict import shape_of


@dataclass(frozen=True, slots=True)
class Scene:
    """out: wanted shape. windows: strides, dilations and pads. factors: named fold factors. parts:
    sizes into which an axis is split. uses: how often each input may be read. products: number of
    products; deep: longest chain of them. turns: number of Reshapes and Transposes. groups: has
    grouped convolutions. weights: number of weights. computed: multiplies two computed values.
    transposed: has a transposed weight. biased: has a bias between products. gaps: axes, and how
    many zeros separate images."""

    out: Shape
    windows: tuple[tuple[Shape, Shape, Shape], ...]
    factors: tuple[tuple[str, int], ...]
    parts: tuple[tuple[int, Shape], ...]
    uses: tuple[tuple[str, int], ...]
    products: int
    deep: int
    turns: int
    groups: bool
    weights: int
    computed: bool
    transposed: bool
    biased: bool
    gaps: tuple[tuple[int, int], ...]

    @property
    def strided(self) -> bool:
        return any(max(t) > 1 for t, _, _ in self.windows)


PRODUCTS = ("Conv", "MatMul", "Gemm")


def scene(p: Program) -> Scene:
    """Return the hints of a program. Raises InferError if the results cannot be concatenated."""
    out = shape_of(p.whole)
    found: dict[Any, None] = {
        tuple(n.attr(k) for k in ("strides", "dilations", "pads")): None for n in windows(p)
    }
    batch = {shape_of(i)[0] for i in p.inputs if i.name not in p.known and windows(p)} - {1}
    by = [(str(f), f) for f in factors(p)] + [("all", n) for n in sorted(batch)[:1]]
    parts: dict[tuple[int, Shape], None] = {}
    for n in g.nodes([p.whole]):
        if n.op.name == "Split":
            parts[n.attr("axis"), n.attr("split")] = None  # type: ignore[index]
        if n.op.name == "Concat":
            axis: Any = n.attr("axis")
            parts[axis, tuple(shape_of(v)[axis] for v in n.inputs if v is not None)] = None
    order = g.nodes([p.whole])
    biased = any(_adds(p, n) for n in order)
    again = {i for i in p.inputs if biased and i.name in p.known}  # by what is made of a bias
    uses = [(i.name, sum(v is i for n in order for v in n.inputs) + (i in again)) for i in p.inputs]
    deep: dict[g.Node, int] = {}
    for n in order:
        before = (g.producer(v) for v in n.inputs if v is not None)
        deep[n] = max((deep[b] for b in before if b), default=0) + (n.op.name in PRODUCTS)
    return Scene(
        out, tuple(found), tuple(by), tuple(parts), tuple(uses),
        sum(n.op.name in PRODUCTS for n in order), max(deep.values(), default=0),
        sum(n.op.name in ("Reshape", "Transpose") for n in order),
        any(n.attr("group") != 1 for n in windows(p)), len(p.known),
        any(computed(p, n) for n in order),
        any(n.op.name == "Gemm" and n.attr("transB") for n in order),
        biased, _gaps(p),
    )  # fmt: skip


def _adds(p: Program, n: g.Node) -> bool:
    """True if the node adds a weight."""
    added = n.inputs if n.op.name == "Add" else n.inputs[2:] if n.op.name in PRODUCTS else ()
    return any(isinstance(v, g.Input) and v.name in p.known for v in added)


def _gaps(p: Program) -> tuple[tuple[int, int], ...]:
    """Return the gaps for windows of stride 1 that share one kernel."""
    some = windows(p)
    if len({n.inputs[1] for n in some}) != 1 or any(max(_steps(n)) > 1 for n in some):
        return ()
    pads: Any = some[0].attr("pads")
    sides = len(pads) // 2
    each = ((d + 2, max(pads[d], pads[d + sides])) for d in range(sides))
    return tuple((axis, gap) for axis, gap in each if gap)


def _steps(n: g.Node) -> Shape:
    strides: Any = n.attr("strides")
    return tuple(strides)
