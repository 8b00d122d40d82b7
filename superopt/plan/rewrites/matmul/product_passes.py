"""Rewrite matrix products before they become kernels: reduce their number, and choose their order
of axes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from superopt.kernels.algorithms.contraction import match_contraction
from superopt.plan.lowering.polyphase import WrittenParts
from superopt.plan.rewrites.matmul.cell_fusion import find_cells
from superopt.plan.rewrites.matmul.gate_fusion import find_gates
from superopt.plan.rewrites.matmul.gated_cells import fuse_gated_cells
from superopt.plan.rewrites.matmul.horizontal_fusion import Constants, fuse_horizontally
from superopt.plan.rewrites.matmul.slice_batching import batch_slices
from superopt.rules.te.match import Context
from superopt.rules.te.rewrite import load_te_rules
from superopt.te.expr.node import Axis
from superopt.te.expr.tensor import Tensor


def fuse_products(
    current: Mapping[Tensor, Tensor],
    materialized: Collection[Tensor],
    excluded: Collection[Tensor],
    parts: WrittenParts,
    constants: Constants,
    fp16_operands: bool,
) -> dict[Tensor, Tensor]:
    """Return the definitions with products fused, on a GPU, where each launch has a cost. Gates and
    cells are left to their own fusion (see gate_fusion.py, also for the parameters, and
    cell_fusion.py); of the others, products of slices are batched and products of one operand are
    fused."""
    current = fuse_gated_cells(current, materialized, excluded, parts, constants, fp16_operands)
    current, found = find_gates(current, materialized, excluded, parts, constants, fp16_operands)
    known = {*materialized, *found, *(g for some in found.values() for g in some)}
    known |= {x for c in find_cells(current, known, excluded, parts, constants) for x in c.stages}
    return fuse_horizontally(
        batch_slices(current, {*known, *excluded}, constants, fp16_operands), known, constants
    )


def reorder_products(
    current: Mapping[Tensor, Tensor],
    image_tensors: Collection[Tensor],
    constants: Collection[Tensor],
) -> dict[Tensor, Tensor]:
    """Return the definitions with each matrix product in the axis order in which it is fast; a
    tensor with another order reads it."""
    rules = load_te_rules("products", "reorder-")
    out: dict[Tensor, Tensor] = {}
    for t, now in current.items():
        lanes = None if t in image_tensors else _lane_axis(now, constants)
        context = Context(conditions={"vectors_run_along": lanes.__eq__})
        made = None if lanes is None else rules.rewrite(now, context)
        out |= {x: x for x in made.stored} if made is not None else {}
        out[t] = now if made is None else made.tensor
    return out


def _lane_axis(t: Tensor, constants: Collection[Tensor]) -> Axis | None:
    """Return the axis along which the vectors of a product run, if that is not the last one."""
    c = match_contraction(t, constants)
    several = c is not None and any(a.extent != 1 for a in c.b_axes)
    return c.b_axes[-1] if c is not None and several and t.axes[-1] in c.a_axes else None
