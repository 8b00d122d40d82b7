"""Families of operators to be enumerated together: inputs, constants, and ways to use operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from superopt.ir.op import Attr, Op
from superopt.ops import OPS

Shape = tuple[int, ...]
MANY = -1
ANY = -2
NONE = -3


@dataclass(frozen=True, slots=True)
class Use:
    """An operator with its attributes, applied to `arity` tensors; `result` is which of its
    results, where it has `many`. fits: for each operand the last dims that it must have, so that
    images are not taken for kernels; MANY is any size but 1, ANY any size, and NONE, as the first,
    no more dims. constants: may operands be such? cuts: a Slice along one axis must leave some of
    it out, and not end beyond it."""

    name: str
    attrs: tuple[tuple[str, Attr], ...]
    arity: int
    result: int = 0
    many: bool = False
    fits: tuple[Shape, ...] = ()
    constants: bool = True
    cuts: bool = False

    @property
    def op(self) -> Op:
        return OPS[self.name]

    def takes(self, shapes: Sequence[Shape]) -> bool:
        """May operands of these shapes be tried? Only scalars and vectors are broadcast: that a
        tensor of one image is added to each of two is a law that nobody needs. Nor are vectors
        stacked, which is a broadcast."""
        if self.name == "Concat" and any(_stacked(s, self.attrs) for s in shapes):
            return False
        if not all(_ends(s, f) for s, f in zip(shapes, self.fits, strict=False)):
            return False
        if self.cuts and not _cut(shapes[0], dict(self.attrs)):
            return False
        if len(shapes) < 2 or "elementwise" not in self.op.laws or shapes[0] == shapes[1]:
            return True
        return _thin(*shapes) or _thin(*shapes[::-1])

    def __str__(self) -> str:
        attrs = "".join(f" {k}={v}" for k, v in self.attrs)
        return f"{self.name}{attrs}{f' [{self.result}]' if self.many else ''}"


def _ends(shape: Shape, last: Shape) -> bool:
    """Does a shape end with these dims?"""
    if last[:1] == (NONE,):
        return len(shape) < len(last) and _ends(shape, last[1:])
    if len(last) > len(shape):
        return False
    ends = shape[len(shape) - len(last) :]
    return all(f in (d, ANY) or (f == MANY and d > 1) for d, f in zip(ends, last, strict=True))


def _stacked(shape: Shape, attrs: tuple[tuple[str, Attr], ...]) -> bool:
    """Is a vector joined along an axis on which it has one element?"""
    axis = dict(attrs)["axis"]
    assert isinstance(axis, int)
    return len(shape) > axis and shape[axis] == 1 and sum(d > 1 for d in shape) <= 1


def _cut(shape: Shape, attrs: Mapping[str, Attr]) -> bool:
    """Does a Slice along one axis leave some of it out, and end within it?"""
    match attrs:
        case {"axes": (int(axis),), "starts": (int(start),), "ends": (int(end),)}:
            return axis < len(shape) and end <= shape[axis] > end - start
    raise ValueError(f"no Slice along one axis: {attrs}")


def _thin(a: Shape, b: Shape) -> bool:
    """Is `b` a scalar, or a vector along one axis of `a`?"""
    if len(b) > len(a) or sum(d > 1 for d in b) > 1:
        return False
    return all(d in (1, e) for d, e in zip(b[::-1], a[::-1], strict=False))


@dataclass(frozen=True, slots=True)
class Family:
    """What is enumerated: inputs and constants by name, uses of operators, and the largest tensor.

    inputs: shapes. constants: a kind (see `superopt.generate.bank.constant`) and a shape. largest:
    elements of a tensor. samples: random inputs at a time; a tensor of few elements is all
    positive, or all negative, by chance, and then it is its own Relu. top: operators at most,
    where a default run enumerates no more. whole: operators of graphs of which all that is equal is
    related; beyond, only what saves two operators. partial: look for tensors that are equal in
    parts, too. rules: make rules of what is equal altogether. biases: and of the same with a bias
    in the convolutions.
    """

    name: str
    inputs: Mapping[str, Shape]
    constants: Mapping[str, tuple[str, Shape]]
    uses: tuple[Use, ...]
    largest: int
    samples: int = 8
    top: int = 4
    whole: int = 4
    partial: bool = False
    rules: bool = True
    biases: bool = False


def use(name: str, arity: int, **attrs: Attr) -> Use:
    return Use(name, tuple(attrs.items()), arity)


def parts(name: str, count: int, **attrs: Attr) -> list[Use]:
    """Each of several results of an operator of one operand."""
    return [Use(name, tuple(attrs.items()), 1, i, True) for i in range(count)]


def each(name: str, arity: int, key: str, values: Sequence[Attr], **attrs: Attr) -> list[Use]:
    """One use for each value of an attribute."""
    return [use(name, arity, **{key: v, **attrs}) for v in values]


def of_variables(*some: Use) -> list[Use]:
    """The uses, of no constants."""
    return [replace(u, constants=False) for u in some]


def fitting(u: Use, *last: Shape) -> Use:
    """The use for operands whose last dims are these."""
    return replace(u, fits=last)
