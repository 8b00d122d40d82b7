"""Arrays of bounds: an axis for each index variable in scope, of length 1 where nothing depends on
it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from superopt.te.expr.node import Axis, Expr
from superopt.te.expr.tensor import Tensor
from superopt.verifier.rounding.error_bounds import Amount, Bounds, bounds_of_constant
from superopt.verifier.rounding.posynomials import Posynomial

Scope = tuple[Axis, ...]
Fold = Callable[..., np.ndarray]


def largest_over_axes(b: Bounds, rank: int) -> Bounds:
    """Return the bounds of the largest, or the least, of elements over the axes from `rank` on."""
    return replace(
        b,
        size=_fold_amount(b.size, rank),
        error=_fold_amount(b.error, rank),
        count=1.0,
        roundings=b.all_roundings,
        low=_fold_numbers(b.low, rank, np.min),
        high=_fold_numbers(b.high, rank, np.max),
        least=None,
    )


def _fold_amount(x: Amount, rank: int) -> Amount:
    return x if isinstance(x, Posynomial) else _fold_numbers(x, rank, np.max)


def _fold_numbers(x: float | np.ndarray, rank: int, fold: Fold) -> float | np.ndarray:
    if not np.ndim(x):
        return x
    array = np.asarray(x)
    return fold(array, axis=tuple(range(rank, array.ndim)))


def read_bounds(b: Bounds, t: Tensor, places: tuple[Expr, ...], scope: Scope) -> Bounds:
    """Return the bounds of the elements of `t` at indices of a scope: by element along axes that a
    variable runs over, the largest ones along others."""
    where: dict[int, int] = {}
    for d, (p, n) in enumerate(zip(places, t.shape, strict=True)):
        if isinstance(p, Axis) and p in scope and p.extent == n:
            position = scope.index(p)
            if position not in where.values():
                where[d] = position
    rank = len(scope)
    return replace(
        b,
        size=_move_amount(b.size, where, rank, np.max),
        error=_move_amount(b.error, where, rank, np.max),
        low=_move_numbers(b.low, where, rank, np.min),
        high=_move_numbers(b.high, where, rank, np.max),
        least=None if b.least is None else _move_amount(b.least, where, rank, np.min),
    )


def _move_amount(x: Amount, where: dict[int, int], rank: int, fold: Fold) -> Amount:
    return x if isinstance(x, Posynomial) else _move_numbers(x, where, rank, fold)


def _move_numbers(
    x: float | np.ndarray, where: dict[int, int], rank: int, fold: Fold
) -> float | np.ndarray:
    """Move axes to the positions of their variables, and fold the others."""
    if not np.ndim(x):
        return x
    array = np.asarray(x)
    kept = [d for d in range(array.ndim) if d in where and array.shape[d] > 1]
    lost = tuple(d for d in range(array.ndim) if d not in kept)
    array = fold(array, axis=lost) if lost else array
    order = sorted(range(len(kept)), key=lambda k: where[kept[k]])
    shape = [1] * rank
    for k in order:
        shape[where[kept[k]]] = array.shape[k]
    return array.transpose(order).reshape(shape)


def constant_bounds(values: np.ndarray) -> Bounds:
    """Return the bounds of a constant tensor. Of floats that are not whole, each is the nearest to
    a number that the prover may take for it."""
    is_whole = values.dtype.kind in "iub" or bool((values == np.rint(values)).all())
    return bounds_of_constant(values, float(not is_whole))
