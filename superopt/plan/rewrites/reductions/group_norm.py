"""Fuse rows that are several to an axis: a group norm, which reduces over some channels each.

A tensor that reads row c // k along its axis c is rewritten with that axis split in two (c = r k +
i). Its rows are then ordinary rows (row_fusion.py). The memory layout does not change: both axes
are one in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain

from superopt.plan.lowering.kernel_stages import kernel_inputs
from superopt.plan.rewrites.reductions.row_fusion import fuse_group, grow_row_group, tensors_read
from superopt.plan.rewrites.reductions.row_occupancy import has_few_long_rows
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import loads, reductions
from superopt.te.expr import index
from superopt.te.expr.node import Apply, Axis, Const, Expr
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
        for a, n in _divided_axes(out[t], out):
            now = _split_axis(out[t], a, n)
            two = Tensor(t.name, t.dtype, now.shape)
            new = {two if x is t else x: now if x is t else made for x, made in out.items()}
            readers: dict[Tensor, set[Tensor]] = {}
            for x, made in new.items():
                for y in kernel_inputs(made, new):
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


def _divided_axes(
    definition: Tensor, current: Mapping[Tensor, Tensor]
) -> Iterator[tuple[Axis, int]]:
    """Yield the axes whose quotients index a reduction, with the divisor."""
    for e in loads(definition.body) if definition.body is not None else ():
        x = current.get(e.tensor)
        if x is None or len(reductions(x.body)) != 1:
            continue
        for i in e.index:
            match i:
                case Apply("floordiv", (Axis() as a, Const(n))) if a in definition.axes:
                    if a.size % int(n) == 0:
                        yield a, int(n)


def _split_axis(definition: Tensor, a: Axis, n: int) -> Tensor:
    """Return `now` with axis `a` split in two, the second one of extent n."""
    row, within = Axis(f"{a.name}r", a.size // n), Axis(f"{a.name}w", n)
    known: dict[Axis, Expr] = {a: index.as_index(row * n + within)}
    axes = tuple(chain.from_iterable((row, within) if x == a else (x,) for x in definition.axes))
    assert definition.body is not None
    body = substitute_axes(definition.body, known)
    return Tensor(definition.name, definition.dtype, tuple(x.extent for x in axes), axes, body)
