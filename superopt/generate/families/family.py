"""Families of operators that are enumerated together: inputs, constants, and operator uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from superopt.ir.op import Attr, Op
from superopt.ops import OPS

Shape = tuple[int, ...]
SIZE_ABOVE_1 = -1
ANY_SIZE = -2
NO_FURTHER_DIMS = -3


@dataclass(frozen=True, slots=True)
class OperatorUse:
    """An operator with its attributes, applied to `arity` tensors.

    result: the index of its result, if it `has_many_results`. operand_suffixes: for each operand
    the required last dims, so that images are not used as kernels; SIZE_ABOVE_1 is any size but 1,
    ANY_SIZE any size, and NO_FURTHER_DIMS, as the first, forbids more dims. allows_constants:
    operands may be constants. must_cut_within: a Slice along one axis must drop a part of it, and
    not end beyond it.
    """

    name: str
    attrs: tuple[tuple[str, Attr], ...]
    arity: int
    result: int = 0
    has_many_results: bool = False
    operand_suffixes: tuple[Shape, ...] = ()
    allows_constants: bool = True
    must_cut_within: bool = False

    @property
    def op(self) -> Op:
        return OPS[self.name]

    def accepts(self, shapes: Sequence[Shape]) -> bool:
        """True if operands of these shapes are tried. Only scalars and vectors broadcast: laws of
        broadcasting a tensor over a batch are not useful. Nor are vectors stacked, which is a
        broadcast."""
        if self.name == "Concat" and any(_is_stacked_vector(s, self.attrs) for s in shapes):
            return False
        if not all(_ends_with(s, f) for s, f in zip(shapes, self.operand_suffixes, strict=False)):
            return False
        if self.must_cut_within and not _is_proper_cut(shapes[0], dict(self.attrs)):
            return False
        if len(shapes) < 2 or "elementwise" not in self.op.laws or shapes[0] == shapes[1]:
            return True
        return _is_broadcast_vector(*shapes) or _is_broadcast_vector(*shapes[::-1])

    def __str__(self) -> str:
        attrs = "".join(f" {k}={v}" for k, v in self.attrs)
        return f"{self.name}{attrs}{f' [{self.result}]' if self.has_many_results else ''}"


def _ends_with(shape: Shape, last: Shape) -> bool:
    """True if a shape ends with these dims."""
    if last[:1] == (NO_FURTHER_DIMS,):
        return len(shape) < len(last) and _ends_with(shape, last[1:])
    if len(last) > len(shape):
        return False
    ends = shape[len(shape) - len(last) :]
    return all(
        f in (d, ANY_SIZE) or (f == SIZE_ABOVE_1 and d > 1) for d, f in zip(ends, last, strict=True)
    )


def _is_stacked_vector(shape: Shape, attrs: tuple[tuple[str, Attr], ...]) -> bool:
    """True if a vector is joined along an axis on which it has one element."""
    axis = dict(attrs)["axis"]
    assert isinstance(axis, int)
    return len(shape) > axis and shape[axis] == 1 and sum(d > 1 for d in shape) <= 1


def _is_proper_cut(shape: Shape, attrs: Mapping[str, Attr]) -> bool:
    """True if a Slice along one axis drops a part of it, and ends within it."""
    match attrs:
        case {"axes": (int(axis),), "starts": (int(start),), "ends": (int(end),)}:
            return axis < len(shape) and end <= shape[axis] > end - start
    raise ValueError(f"not a Slice along one axis: {attrs}")


def _is_broadcast_vector(a: Shape, b: Shape) -> bool:
    """True if `b` is a scalar, or a vector along one axis of `a`."""
    if len(b) > len(a) or sum(d > 1 for d in b) > 1:
        return False
    return all(d in (1, e) for d, e in zip(b[::-1], a[::-1], strict=False))


@dataclass(frozen=True, slots=True)
class Family:
    """Inputs and constants by name, operator uses, and limits of an enumeration.

    inputs: shapes. constants: a kind (see `enumeration.bank.constant_values`) and a
    shape. max_elements: of a tensor. samples: random inputs at a time; with few elements a tensor
    may be all positive by chance, and then equals its own Relu. max_ops: the most operators in a
    default run. complete_ops: the most operators of graphs of which all equalities are related;
    beyond, only those that save two operators. finds_partial: also find partially equal tensors.
    makes_rules: derive rules from equalities. adds_biases: also for convolutions with a bias.
    """

    name: str
    inputs: Mapping[str, Shape]
    constants: Mapping[str, tuple[str, Shape]]
    uses: tuple[OperatorUse, ...]
    max_elements: int
    samples: int = 8
    max_ops: int = 4
    complete_ops: int = 4
    finds_partial: bool = False
    makes_rules: bool = True
    adds_biases: bool = False


def operator_use(name: str, arity: int, **attrs: Attr) -> OperatorUse:
    return OperatorUse(name, tuple(attrs.items()), arity)


def result_uses(name: str, count: int, **attrs: Attr) -> list[OperatorUse]:
    """Return a use for each of several results of an operator with one operand."""
    return [OperatorUse(name, tuple(attrs.items()), 1, i, True) for i in range(count)]


def attribute_uses(
    name: str, arity: int, key: str, values: Sequence[Attr], **attrs: Attr
) -> list[OperatorUse]:
    """Return a use for each value of an attribute."""
    return [operator_use(name, arity, **{key: v, **attrs}) for v in values]


def without_constants(*operator_uses: OperatorUse) -> list[OperatorUse]:
    """Return the uses without constants as operands."""
    return [replace(u, allows_constants=False) for u in operator_uses]


def with_operand_suffixes(u: OperatorUse, *last: Shape) -> OperatorUse:
    """Return the use for operands with these last dims."""
    return replace(u, operand_suffixes=last)
