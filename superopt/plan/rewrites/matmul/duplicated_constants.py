"""Duplicate constants that a reduction and its epilogue both read: the copy of the reduction can
then be packed in the order in which its loops read it."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

import numpy as np

from superopt.kernels.loops.loop_transforms import reduction
from superopt.plan.lowering.polyphase import replace_reduction
from superopt.te.analysis.inline import Inliner
from superopt.te.analysis.walk import loads
from superopt.te.expr.node import Load
from superopt.te.expr.tensor import Tensor, compute

Constants = MutableMapping[Tensor, Callable[[], np.ndarray]]


def duplicate_constants(
    t: Tensor, constants: Constants, duplicates: MutableMapping[Tensor, Tensor]
) -> Tensor:
    """Return `t` with other constants in place of those that are read outside its reduction.
    duplicates: the duplicate of each constant; new ones are added to it and to `constants`."""
    found = reduction(t)
    if found is None or t.body is None:
        return t
    held = Tensor("held", found.dtype, t.shape)
    outside = replace_reduction(t.body, found, Load(held, t.axes, found.dtype))
    inside = {x.tensor for x in loads(found.body)}
    both = {x.tensor for x in loads(outside)} & inside & constants.keys()
    if not both:
        return t
    for x in both:
        if x not in duplicates:
            duplicates[x] = Tensor(f"{x.name}_again", x.dtype, x.shape)
            constants[duplicates[x]] = constants[x]
    other = {x: compute(x.shape, lambda *i, x=x: duplicates[x][i]) for x in both}
    sums = Tensor("held", found.dtype, t.shape, t.axes, found)
    body = Inliner({held: sums}).expr(Inliner(other).expr(outside))
    return Tensor(t.name, t.dtype, t.shape, t.axes, body)
