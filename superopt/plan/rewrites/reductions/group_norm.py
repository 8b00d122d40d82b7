"""Fuse rows that are several to an axis: a group norm, which reduces over some channels each.

A tensor that reads row c // k along its axis c is rewritten with that axis split in two (c = r k +
i; the rule split-groups). Its rows are then ordinary rows (row_fusion.py). The memory layout does
not change: both axes are one in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from superopt.plan.lowering.kernel_stages import kernel_inputs
from superopt.plan.rewrites.reductions.row_fusion import fuse_group, grow_row_group, tensors_read
from superopt.plan.rewrites.reductions.row_occupancy import has_few_long_rows
from superopt.rules.te.match import Context
from superopt.rules.te.rewrite import load_te_rules
from superopt.te.analysis.walk import reductions
from superopt.te.expr.tensor import Tensor


def fuse_group_norm(
    current: Mapping[Tensor, Tensor],
    materialized: Collection[Tensor],
    image_tensors: Collection[Tensor],
    batch_ranks: Mapping[Tensor, int],
) -> tuple[dict[Tensor, Tensor], dict[Tensor, int]]:
    """Return the definitions with such rows fused, and the number of leading axes that select a row
    of each fused tensor, beside `batch_ranks`. materialized: the tensors that must be in memory.
    image_tensors: those that do not lie row by row, or are written into others; rows of these would
    be read in pieces."""
    out, found = dict(current), dict[Tensor, int]()
    for t in reversed(list(current)):
        if t not in out or t in batch_ranks or t in image_tensors or reductions(out[t].body):
            continue
        for made in load_te_rules("axes").rewrites(out[t], Context(out)):
            now = made.tensor
            two = Tensor(t.name, t.dtype, now.shape)
            new = {two if x is t else x: now if x is t else old for x, old in out.items()}
            readers: dict[Tensor, set[Tensor]] = {}
            for x, old in new.items():
                for y in kernel_inputs(old, new):
                    readers.setdefault(y, set()).add(x)
            group = grow_row_group(
                two,
                new,
                {*materialized, *image_tensors, *batch_ranks},
                readers,
                True,
                parallel_rows=True,
            )
            if group is None or has_few_long_rows(now.shape, group.batch_rank):
                continue
            given = set().union(*map(tensors_read, (now, *group.stages.values())))
            if not given & set(image_tensors):
                out[t], found[t] = fuse_group(group, now), group.batch_rank
                for x in group.stages:
                    del out[x]
                break
    return out, found
