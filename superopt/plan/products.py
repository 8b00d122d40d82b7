"""Rewrite matrix products before they become kernels: reduce their number, and choose their order
of axes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

from superopt.kernels.contraction import contraction
from superopt.kernels.nest import put_for
from superopt.kernels.transform import reduction
from superopt.plan.cells import cells
from superopt.plan.gated import gates
from superopt.plan.joint import Constants, joint
from superopt.plan.paired import paired
from superopt.plan.phases import Written
from superopt.plan.slices import at_once
from superopt.te.expr import Tensor


def few(
    current: Mapping[Tensor, Tensor], stay: Collection[Tensor], apart: Collection[Tensor],
    parts: Written, constants: Constants, half: bool,
) -> dict[Tensor, Tensor]:  # fmt: skip
    """Return the definitions with products fused, on a GPU, where each launch has a cost. Gates and
    cells are left to their own fusion (see gate_fusion.py, also for the parameters, and
    cell_fusion.py); of the others, products of slices are batched and products of one operand are
    fused."""
    current = paired(current, stay, apart, parts, constants, half)
    current, found = gates(current, stay, apart, parts, constants, half)
    known = {*stay, *found, *(g for some in found.values() for g in some)}
    known |= {x for c in cells(current, known, apart, parts, constants) for x in c.stages}
    return joint(at_once(current, {*known, *apart}, constants, half), known, constants)


def turned(
    current: Mapping[Tensor, Tensor], lying: Collection[Tensor], constants: Collection[Tensor]
) -> dict[Tensor, Tensor]:
    """Return the definitions with each matrix product in the axis order in which it is fast; a
    tensor with another order reads it."""
    out: dict[Tensor, Tensor] = {}
    for t, now in current.items():
        c = None if t in lying else contraction(now, constants)
        found = reduction(now)
        several = c is not None and prod(a.size for a in c.of_b) > 1
        if c is None or found is None or not several or now.axes[-1] not in c.of_a:
            out[t] = now
            continue
        order = (*(a for a in now.axes if a != c.of_b[-1]), c.of_b[-1])
        product = Tensor("product", found.dtype, tuple(a.extent for a in order), order, found)
        out[product] = product
        assert now.body is not None
        body = put_for(now.body, found, product, order)
        out[t] = Tensor(now.name, now.dtype, now.shape, now.axes, body)
    return out
