"""The array operations that compute a tensor: data, made by `array_plan.py`, run by `frame.py`.

Inside a box every array has one dimension for each axis in scope, of length 1 if it does not depend
on the axis, so that numpy's broadcasting aligns all arrays. An axis is identified by its position
in the scope; a reduction appends its axes to the outer ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from superopt.te.affine import Affine
from superopt.te.dtype import DType
from superopt.te.expr import Tensor
from superopt.te.node import Axis, Number

Positions = frozenset[int]
NOWHERE: Positions = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An array over `scope`; `axes` are the positions that it depends on."""

    scope: tuple[Axis, ...]
    axes: Positions


@dataclass(frozen=True, slots=True, eq=False)
class Fixed(Step):
    """A constant."""

    value: Number
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """base + sum of coefficient * index at a position."""

    base: int
    terms: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Ramp(Step):
    """The values of an affine form."""

    form: Form


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """Elements count where `guard` equals `holds`; elsewhere loads may be out of range."""

    guard: Plan
    holds: bool


@dataclass(frozen=True, slots=True, eq=False)
class Margin:
    """`fill` around the elements low..high of the source; indices span first..last.

    With `masks`, elements outside must not occur where all masks hold.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    fill: Plan
    masks: tuple[Mask, ...]


@dataclass(frozen=True, slots=True, eq=False)
class View(Step):
    """A strided view: a form for each dimension of the source, or one for the row-major address."""

    tensor: Tensor
    forms: tuple[Form, ...]
    flat: bool
    margin: Margin | None


@dataclass(frozen=True, slots=True, eq=False)
class Pick(Step):
    """Elements at computed indices on some dimensions, a view on the others.

    The indices and the forms use different axes.
    """

    tensor: Tensor
    forms: tuple[tuple[int, Form], ...]
    picked: tuple[tuple[int, Plan], ...]
    masks: tuple[Mask, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Wrap(Step):
    """An integer element as an index in [-bound, bound); a negative element counts from the end."""

    element: Plan
    bound: int
    masks: tuple[Mask, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Call(Step):
    """A scalar function, elementwise."""

    fn: str
    args: tuple[Plan, ...]
    kinds: tuple[DType, ...]
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Choose(Step):
    """`yes` where `guard` holds, else `no`."""

    guard: Plan
    yes: Plan
    no: Plan


@dataclass(frozen=True, slots=True, eq=False)
class Fold(Step):
    """`fn` of `body` over the last axes of its scope, which `scope` lacks.

    `window_axes` are the reduced axes that are added to other axes in an index (they slide a
    window).
    """

    fn: str
    body: Plan
    sliding: Positions
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Contract(Step):
    """The sum of the product of `factors` over the axes of `inner` that `scope` lacks.

    An axis that no factor depends on is not reduced.
    """

    inner: tuple[Axis, ...]
    factors: tuple[Plan, ...]
    dtype: DType


Plan = Fixed | Ramp | View | Pick | Wrap | Call | Choose | Fold | Contract


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A box of a tensor: its position, and its elements over the box's axes."""

    axes: tuple[Axis, ...]
    place: tuple[Affine, ...]
    body: Plan


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """The boxes of a tensor; `shared` operations are used more than once."""

    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    shared: frozenset[Plan]
