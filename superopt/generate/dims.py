"""Infer which batch and channel dims of a pair's inputs may differ.

A family has one batch size and one number of channels, so that many operators fit together. A pair
found there holds more generally: each input starts with its own dims, and each operator unifies
some of them or fixes them (unification, as in type inference).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from superopt.generate.family import Family, Shape
from superopt.generate.pattern import Equation, Hole, Made, Pattern
from superopt.ir import graph
from superopt.te.expr.dtype import F32
from superopt.te.expr.tensor import TensorType

Dim = int | str
Dims = tuple[Dim, Dim]  # batch or output channels, and channels
_Part = tuple[Dims, graph.Value]
CHANNELS, IMAGES = "coqrstde", "nm"  # names that no input has, more than a pair needs
KEPT = frozenset(("Pad", "Slice", "MaxPool", "AveragePool"))  # operators that keep both dims


class Unlike(ValueError):
    """The dims cannot be generalized beyond the family's."""


@dataclass(slots=True)
class _Same:
    """A union-find of dims. images: those that may be numbers."""

    images: frozenset[str]
    of: dict[str, Dim] = field(default_factory=dict)

    def found(self, d: Dim) -> Dim:
        while isinstance(d, str) and d in self.of:
            d = self.of[d]
        return d

    def join(self, a: Dim, b: Dim) -> None:
        a, b = self.found(a), self.found(b)
        if a == b:
            return
        if isinstance(a, int):
            a, b = b, a
        if isinstance(a, int) or (a in self.images) != (isinstance(b, int) or b in self.images):
            raise Unlike(f"{a} and {b}")
        self.of[a] = b


def dims(e: Equation, family: Family) -> list[Dims]:
    """Return the first two dims of each input of rank 4: numbers, and names of CHANNEL_NAMES and
    IMAGE_NAMES.

    Raises DimsNotGeneral if they cannot be generalized, and InferError if the equation does not fit
    these sizes.
    """
    own = [family.inputs[i] for i in e.inputs]
    images = frozenset(f"{k}/0" for k, shape in enumerate(own) if shape[0] == 1)
    same = _Same(images)
    some: list[_Part] = [
        ((f"{k}/0", f"{k}/1"), graph.Input(f"{k}", TensorType(F32, s))) for k, s in enumerate(own)
    ]
    (left, _), (right, _) = (_result(p, family, some, same) for p in (e.left, e.right))
    for a, b in zip(left, right, strict=True):
        same.join(a, b)
    names: dict[Dim, Dim] = {}
    free = {True: iter(IMAGES), False: iter(CHANNELS)}
    for dim in (same.found(d) for two, _ in some for d in two):
        if dim not in names:
            names[dim] = dim if isinstance(dim, int) else next(free[dim in images])
    return [(names[same.found(a)], names[same.found(b)]) for (a, b), _ in some]


def _result(p: Pattern, family: Family, some: Sequence[_Part], same: _Same) -> _Part:
    """Return the first two dims of a pattern's result, and the result at the family's sizes."""
    if isinstance(p, Hole):
        return some[p.number]
    if not isinstance(p, Made):
        raise Unlike(str(p))
    use, attrs = family.uses[p.use], dict(family.uses[p.use].attrs)
    operands = [_result(o, family, some, same) for o in p.operands]
    made = graph.result(graph.node(use.op, [v for _, v in operands], **attrs), use.result)
    first, *others = (two for two, _ in operands)
    axis = attrs.get("axis")
    if use.name == "Conv" and attrs["group"] == 1:
        ((kernels, channels),) = others
        same.join(first[1], channels)
        return (first[0], kernels), made
    if use.name in KEPT:
        return first, made
    if use.name in ("Concat", "Split") and axis in (2, 3):
        for other in others:
            same.join(first[0], other[0])
            same.join(first[1], other[1])
        return first, made
    if use.name == "Reshape" or (use.name in ("Concat", "Split") and axis == 0):
        for two, v in operands:  # images are counted
            same.join(two[0], shape_of(v)[0])
            same.join(first[1], two[1])
        return (shape_of(made)[0], first[1]), made
    raise Unlike(use.name)


def given(
    e: Equation, family: Family, some: Sequence[Dims], sizes: Mapping[str, int]
) -> tuple[graph.Input, ...]:
    """Return a graph's inputs for the variables, at these sizes."""
    out = []
    for name, two in zip(e.inputs, some, strict=True):
        first = (d if isinstance(d, int) else sizes[d] for d in two)
        out.append(graph.Input(name, TensorType(F32, (*first, *family.inputs[name][2:]))))
    return tuple(out)


def value(p: Pattern, family: Family, inputs: Sequence[graph.Input]) -> graph.Value:
    """Return the term as a graph's value, for any channels. Raises InferError if inputs do not
    fit."""
    if isinstance(p, Hole):
        return inputs[p.number]
    assert isinstance(p, Made)
    use = family.uses[p.use]
    operands = [value(o, family, inputs) for o in p.operands]
    attrs = dict(use.attrs)
    match attrs.get("shape"):
        case (images, _, *sides):
            attrs["shape"] = (images, shape_of(operands[0])[1], *sides)
    return graph.result(graph.node(use.op, operands, **attrs), use.result)


def shape_of(v: graph.Value) -> Shape:
    return tuple(map(int, v.type.shape or ()))  # type: ignore[arg-type]
