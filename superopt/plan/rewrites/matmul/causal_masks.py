"""Replace constant causal masks by comparisons of indices, so that attention kernels know which
keys they can skip."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from math import isfinite

import numpy as np

from superopt.te.analysis.affine import rebuild
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import BOOL
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load, Number, Reduce
from superopt.te.expr.tensor import Tensor, compare, select

MAX_MASK_ELEMENTS = 1 << 26  # of a constant that is inspected
Constants = Mapping[Tensor, Callable[[], np.ndarray]]


def replace_causal_masks(
    current: Mapping[Tensor, Tensor], row_tensors: Collection[Tensor], constants: Constants
) -> dict[Tensor, Tensor]:
    """Return the definitions with causal masks replaced. row_tensors: those computed by rows, whose
    masks are inspected."""
    known: dict[Tensor, tuple[int, Number, Number] | None] = {}

    def diagonal(t: Tensor) -> tuple[int, Number, Number] | None:
        if t not in known:
            known[t] = _match_diagonal(t, constants[t])
        return known[t]

    def read(e: Expr) -> Expr:
        match e:
            case Load(t, index, dtype) if t in constants:
                found = _matrix_axes(t, index)
                sides = None if found is None else diagonal(t)
                if found is None or sides is None:
                    return e
                (i, j), (offset, below, above) = found, sides
                if dtype == BOOL and above:
                    return compare("lt", te_index.as_index(i + offset), j)
                here = compare("le", j, te_index.as_index(i + offset))
                if dtype == BOOL:
                    return here
                return select(here, Const(below, dtype), Const(above, dtype))
            case Apply(fn, args, dtype):
                return rebuild(fn, tuple(map(read, args)), dtype)
            case Reduce(fn, axes, body, dtype):
                return Reduce(fn, axes, read(body), dtype)
        return e

    made: dict[Tensor, Tensor] = {}

    def stage(t: Tensor) -> Tensor:
        """Return the tensor, and the stages inlined in it, with masks replaced."""
        if t.body is None or t in current:
            return t
        if t not in made:
            made[t] = one(t)
        return made[t]

    def within(e: Expr) -> Expr:
        match e:
            case Load(t, index, dtype):
                return Load(stage(t), index, dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(within, args)), dtype)
            case Reduce(fn, axes, body, dtype):
                return Reduce(fn, axes, within(body), dtype)
        return e

    def one(t: Tensor) -> Tensor:
        assert t.body is not None
        return Tensor(t.name, t.dtype, t.shape, t.axes, within(read(t.body)))

    return {t: one(now) if t in row_tensors else now for t, now in current.items()}


def _matrix_axes(t: Tensor, index: tuple[Expr, ...]) -> tuple[Axis, Axis] | None:
    """Return the two axes that index a matrix; None where there are not two."""
    axes = [i for i, n in zip(index, t.shape, strict=True) if n != 1]
    match axes:
        case [Axis() as i, Axis() as j] if i != j:
            return i, j
    return None


def _match_diagonal(t: Tensor, load: Callable[[], np.ndarray]) -> tuple[int, Number, Number] | None:
    """Return (offset, below, above): the value is `below` where j <= i + offset, else `above`; None
    if the matrix is not of this form."""
    sides = [n for n in t.shape if isinstance(n, int) and n != 1]
    if len(sides) != 2 or sides[0] * sides[1] > MAX_MASK_ELEMENTS:
        return None
    a = load().reshape(sides)
    below, above = a[-1, 0], a[0, -1]
    counts = (a == below).sum(1)
    cut = np.flatnonzero((counts > 0) & (counts < sides[1]))
    if not cut.size:
        return None
    offset = int(counts[cut[0]] - 1 - cut[0])
    where = np.arange(sides[1])[None, :] <= np.arange(sides[0])[:, None] + offset
    if not (a == np.where(where, below, above)).all():
        return None
    return offset, _exact_number(below), _exact_number(above)


def _exact_number(x: np.generic) -> Number:
    if isinstance(x, np.bool_ | np.integer):
        return int(x)
    wide = float(x)
    return Fraction(wide) if isfinite(wide) else wide
