"""The array operations that compute a tensor: data, made by `array_plan.py`, run by `frame.py`.

Inside a box every array has one dimension for each axis in scope, of length 1 if it does not depend
on the axis, so that numpy's broadcasting aligns all arrays. An axis is identified by its position
in the scope; a reduction appends its axes to the outer ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from superopt.te.analysis.affine import Affine
from superopt.te.expr.dtype import DType
from superopt.te.expr.node import Axis, Number
from superopt.te.expr.tensor import Tensor

Positions = frozenset[int]
NO_POSITIONS: Positions = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An array over `scope`; `axes` are the positions that it depends on."""

    scope: tuple[Axis, ...]
    axes: Positions


@dataclass(frozen=True, slots=True, eq=False)
class ConstantArray(Step):
    """A constant."""

    value: Number
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class AffineForm:
    """base + sum of coefficient * index at a position."""

    base: int
    terms: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class AffineValues(Step):
    """The values of an affine form."""

    form: AffineForm


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """Elements count where `guard` equals `holds`; elsewhere loads may be out of range."""

    guard: ArrayOp
    holds: bool


@dataclass(frozen=True, slots=True, eq=False)
class Padding:
    """`fill` around the elements low..high of the source; indices span first..last.

    With `masks`, elements outside must not occur where all masks hold.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    fill: ArrayOp
    masks: tuple[Mask, ...]


@dataclass(frozen=True, slots=True, eq=False)
class StridedView(Step):
    """A strided view: a form for each dimension of the source, or one for the row-major address."""

    tensor: Tensor
    forms: tuple[AffineForm, ...]
    flat: bool
    padding: Padding | None


@dataclass(frozen=True, slots=True, eq=False)
class GatherElements(Step):
    """Elements at computed indices on some dimensions, a view on the others.

    The indices and the forms use different axes.
    """

    tensor: Tensor
    forms: tuple[tuple[int, AffineForm], ...]
    gathered: tuple[tuple[int, ArrayOp], ...]
    masks: tuple[Mask, ...]


@dataclass(frozen=True, slots=True, eq=False)
class WrapIndex(Step):
    """An integer element as an index in [-bound, bound); a negative element counts from the end."""

    element: ArrayOp
    bound: int
    masks: tuple[Mask, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Elementwise(Step):
    """A scalar function, elementwise."""

    fn: str
    args: tuple[ArrayOp, ...]
    kinds: tuple[DType, ...]
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Select(Step):
    """`yes` where `guard` holds, else `no`."""

    guard: ArrayOp
    yes: ArrayOp
    no: ArrayOp


@dataclass(frozen=True, slots=True, eq=False)
class Reduction(Step):
    """`fn` of `body` over the last axes of its scope, which `scope` lacks.

    `window_axes` are the reduced axes that are added to other axes in an index (they slide a
    window).
    """

    fn: str
    body: ArrayOp
    window_axes: Positions
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Contraction(Step):
    """The sum of the product of `factors` over the axes of `inner` that `scope` lacks.

    An axis that no factor depends on is not reduced.
    """

    inner: tuple[Axis, ...]
    factors: tuple[ArrayOp, ...]
    dtype: DType


ArrayOp = (
    ConstantArray
    | AffineValues
    | StridedView
    | GatherElements
    | WrapIndex
    | Elementwise
    | Select
    | Reduction
    | Contraction
)


@dataclass(frozen=True, slots=True, eq=False)
class BoxProgram:
    """A box of a tensor: its position, and its elements over the box's axes."""

    axes: tuple[Axis, ...]
    position: tuple[Affine, ...]
    body: ArrayOp


@dataclass(frozen=True, slots=True, eq=False)
class ArrayProgram:
    """The boxes of a tensor; `shared` operations are used more than once."""

    shape: tuple[int, ...]
    boxes: tuple[BoxProgram, ...]
    shared: frozenset[ArrayOp]
