"""Replace constant causal masks by comparisons of indices, so that attention kernels know which
keys they can skip. The rules are those of rules/library/te/masks.rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from functools import cache, partial
from math import isfinite

import numpy as np

from superopt.plan.rewrites.reductions.row_fusion import replace_tensors
from superopt.rules.te.match import Context
from superopt.rules.te.rewrite import load_te_rules
from superopt.te.analysis.walk import loads
from superopt.te.expr.dtype import BOOL
from superopt.te.expr.node import Number
from superopt.te.expr.tensor import Tensor

MAX_MASK_ELEMENTS = 1 << 26  # of a constant that is inspected
Constants = Mapping[Tensor, Callable[[], np.ndarray]]
Diagonal = tuple[int, Number, Number]  # offset, the value below, the value above


def replace_causal_masks(
    current: Mapping[Tensor, Tensor], row_tensors: Collection[Tensor], constants: Constants
) -> dict[Tensor, Tensor]:
    """Return the definitions with causal masks replaced. row_tensors: those computed by rows, whose
    masks are inspected."""

    @cache
    def diagonal(t: Tensor) -> list[Diagonal]:
        found = _match_diagonal(t, constants[t])
        return [] if found is None else [found]

    def visible(t: Tensor, above: bool) -> list[int]:
        return [d for d, _, high in diagonal(t) if t.dtype == BOOL and bool(high) == above]

    context = Context(
        conditions={
            "visible_below": partial(visible, above=False),
            "visible_above": partial(visible, above=True),
            "diagonal": diagonal,
        },
        constants=constants,
    )
    rules = load_te_rules("masks")
    made: dict[Tensor, Tensor] = {}

    def stage(t: Tensor) -> Tensor:
        """Return the tensor, and the stages inlined in it, with masks replaced."""
        if t.body is None or t in current:
            return t
        if t not in made:
            made[t] = one(t)
        return made[t]

    def one(t: Tensor) -> Tensor:
        now = rules.rewrite_fully(t, context)
        assert now.body is not None
        stages = {x.tensor: stage(x.tensor) for x in loads(now.body)}
        return Tensor(t.name, t.dtype, t.shape, t.axes, replace_tensors(now.body, stages))

    return {t: one(now) if t in row_tensors else now for t, now in current.items()}


def _match_diagonal(t: Tensor, load: Callable[[], np.ndarray]) -> Diagonal | None:
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
