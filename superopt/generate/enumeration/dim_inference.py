"""Infer which batch and channel dims of a pair's inputs may differ.

A family has one batch size and one number of channels, so that many operators fit together. A pair
found there holds more generally: each input starts with its own dims, and each operator unifies
some of them or fixes them (unification, as in type inference).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from superopt.generate.enumeration.pattern import Equation, Pattern, PatternCall, PatternVariable
from superopt.generate.families.family import Family, Shape
from superopt.ir import graph
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

Dim = int | str
Dims = tuple[Dim, Dim]  # batch or output channels, and channels
_Part = tuple[Dims, graph.Value]
CHANNEL_NAMES, IMAGE_NAMES = "coqrstde", "nm"  # names that no input has, more than a pair needs
DIM_PRESERVING_OPS = frozenset(
    ("Pad", "Slice", "MaxPool", "AveragePool")
)  # operators that keep both dims


class DimsNotGeneral(ValueError):
    """The dims cannot be generalized beyond the family's."""


@dataclass(slots=True)
class _DimUnion:
    """A union-find of dims. images: those that may be numbers."""

    images: frozenset[str]
    parent: dict[str, Dim] = field(default_factory=dict)

    def representative(self, d: Dim) -> Dim:
        while isinstance(d, str) and d in self.parent:
            d = self.parent[d]
        return d

    def unify(self, a: Dim, b: Dim) -> None:
        a, b = self.representative(a), self.representative(b)
        if a == b:
            return
        if isinstance(a, int):
            a, b = b, a
        if isinstance(a, int) or (a in self.images) != (isinstance(b, int) or b in self.images):
            raise DimsNotGeneral(f"{a} and {b}")
        self.parent[a] = b


def infer_dims(e: Equation, family: Family) -> list[Dims]:
    """Return the first two dims of each input of rank 4: numbers, and names of CHANNEL_NAMES and
    IMAGE_NAMES.

    Raises DimsNotGeneral if they cannot be generalized, and InferError if the equation does not fit
    these sizes.
    """
    own = [family.inputs[i] for i in e.inputs]
    images = frozenset(f"{k}/0" for k, shape in enumerate(own) if shape[0] == 1)
    same = _DimUnion(images)
    some: list[_Part] = [
        ((f"{k}/0", f"{k}/1"), graph.Input(f"{k}", TensorType(F32, s))) for k, s in enumerate(own)
    ]
    (left, _), (right, _) = (_infer_term_dims(p, family, some, same) for p in (e.left, e.right))
    for a, b in zip(left, right, strict=True):
        same.unify(a, b)
    names: dict[Dim, Dim] = {}
    free = {True: iter(IMAGE_NAMES), False: iter(CHANNEL_NAMES)}
    for dim in (same.representative(d) for two, _ in some for d in two):
        if dim not in names:
            names[dim] = dim if isinstance(dim, int) else next(free[dim in images])
    return [(names[same.representative(a)], names[same.representative(b)]) for (a, b), _ in some]


def _infer_term_dims(p: Pattern, family: Family, some: Sequence[_Part], same: _DimUnion) -> _Part:
    """Return the first two dims of a pattern's result, and the result at the family's sizes."""
    if isinstance(p, PatternVariable):
        return some[p.number]
    if not isinstance(p, PatternCall):
        raise DimsNotGeneral(str(p))
    use, attrs = family.uses[p.use], dict(family.uses[p.use].attrs)
    operands = [_infer_term_dims(o, family, some, same) for o in p.operands]
    made = graph.result(graph.node(use.op, [v for _, v in operands], **attrs), use.result)
    first, *others = (two for two, _ in operands)
    axis = attrs.get("axis")
    if use.name == "Conv" and attrs["group"] == 1:
        ((kernels, channels),) = others
        same.unify(first[1], channels)
        return (first[0], kernels), made
    if use.name in DIM_PRESERVING_OPS:
        return first, made
    if use.name in ("Concat", "Split") and axis in (2, 3):
        for other in others:
            same.unify(first[0], other[0])
            same.unify(first[1], other[1])
        return first, made
    if use.name == "Reshape" or (use.name in ("Concat", "Split") and axis == 0):
        for two, v in operands:  # images are counted
            same.unify(two[0], value_shape(v)[0])
            same.unify(first[1], two[1])
        return (value_shape(made)[0], first[1]), made
    raise DimsNotGeneral(use.name)


def graph_inputs(
    e: Equation, family: Family, input_dims: Sequence[Dims], sizes: Mapping[str, int]
) -> tuple[graph.Input, ...]:
    """Return a graph's inputs for the variables, at these sizes."""
    out = []
    for name, two in zip(e.inputs, input_dims, strict=True):
        first = (d if isinstance(d, int) else sizes[d] for d in two)
        out.append(graph.Input(name, TensorType(F32, (*first, *family.inputs[name][2:]))))
    return tuple(out)


def term_value(p: Pattern, family: Family, inputs: Sequence[graph.Input]) -> graph.Value:
    """Return the term as a graph's value, for any channels. Raises InferError if inputs do not
    fit."""
    if isinstance(p, PatternVariable):
        return inputs[p.number]
    assert isinstance(p, PatternCall)
    use = family.uses[p.use]
    operands = [term_value(o, family, inputs) for o in p.operands]
    attrs = dict(use.attrs)
    match attrs.get("shape"):
        case (images, _, *sides):
            attrs["shape"] = (images, value_shape(operands[0])[1], *sides)
    return graph.result(graph.node(use.op, operands, **attrs), use.result)


def value_shape(v: graph.Value) -> Shape:
    return tuple(map(int, v.type.shape or ()))  # type: ignore[arg-type]
