"""Find axes of cells along which all elements are equivalent up to renaming of inputs.

If every index into an input advances by the same amount along a result axis, in both programs, then
each element is its predecessor with renamed input elements. So the programs are equal for all
elements along that axis, or for none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from superopt.partial.regions.index_functions import evaluate_index
from superopt.te.analysis import affine
from superopt.te.analysis.walk import subexpressions
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Axis, Expr, Index, Load
from superopt.te.expr.tensor import Tensor

MAX_INDEX_PLACES = 1 << 18  # that an index has in all cells, and sums


def translated_axes(
    axes: Sequence[Axis], bodies: Sequence[Expr], begins: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """Return along which axes of which cells this holds, (cells, axes). begins, steps: first
    element of each cell, and the distance to the next along each axis; 0 if there is none."""
    out = np.ones_like(begins, bool)
    some = [e for body in bodies for e in subexpressions(body)]
    if any(isinstance(e, Index) for e in some):
        return np.zeros_like(out)
    moved: dict[tuple[Tensor, int], np.ndarray] = {}
    done: set[tuple[tuple[Tensor, int] | None, object]] = set()
    for of, e in _read_indices(some):
        form = affine.affine(e)
        by = None if form is None else tuple(form.coefficient(a) for a in axes)
        if (of, by or e) in done:  # one that moves as this does is looked at already
            continue
        done.add((of, by or e))
        moves = (
            _index_moves(axes, e, begins, steps)
            if by is None
            else (np.array(by)[:, None] * steps.T,)
        )
        if moves is None:
            return np.zeros_like(out)
        wanted = np.zeros_like(steps.T) if of is None else moved.setdefault(of, moves[0])
        for some_moves in moves:
            out &= (some_moves == wanted).T
    return out


def _read_indices(exprs: Sequence[Expr]) -> Iterator[tuple[tuple[Tensor, int] | None, Expr]]:
    """Yield the indices of loads, and indices used as values."""
    for e in exprs:
        match e:
            case Load(t, index):
                yield from (((t, d), i) for d, i in enumerate(index))
            case Apply("cast", (x,)) if x.dtype == INDEX:
                yield None, x


def _index_moves(
    axes: Sequence[Axis], e: Expr, begins: np.ndarray, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the least and greatest advance of an index along each axis over the places of sums,
    (axes, cells) each; None if there are too many places."""
    free = affine.free_axes(e)
    over = [a for a in free if a not in axes]
    sizes = [a.extent for a in over if isinstance(a.extent, int)]
    if len(sizes) < len(over) or len(begins) * prod(sizes) > MAX_INDEX_PLACES:
        return None
    inner = np.ogrid[tuple(slice(n) for n in sizes)] if sizes else []
    at = {a: x[None] for a, x in zip(over, inner, strict=True)}

    def value(places: np.ndarray) -> np.ndarray:
        own = {a: places[:, n].reshape(-1, *(1,) * len(over)) for n, a in enumerate(axes)}
        x = np.asarray(evaluate_index(e, {**at, **own}))
        return x.reshape(*(1,) * (len(over) + 1 - x.ndim), *x.shape)

    first = value(begins)
    least, most = np.zeros((2, len(axes), len(begins)), np.int64)
    for n, a in enumerate(axes):
        if a in free:
            by = value(begins + steps * (np.arange(len(axes)) == n)) - first
            by = by.reshape(len(by), -1)
            least[n], most[n] = by.min(1), by.max(1)
    return least, most
