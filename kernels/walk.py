"""Walks: tensors that are computed from each other by indices that are elements of the last one.

    node1[n, t] = child[node0[n, t], ...]        the same for all steps of some trees t
    node2[n, t] = child[node1[n, t], ...]   =>   (lanes) before they are summed up
    y[n] = sum(value[node2[n, t]] for t)

Steps of a vector of trees are in registers, and as many loads wait for memory at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from superopt.kernels.schedule import (
    ComputeAt,
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Vectorize,
)
from superopt.kernels.transform import reduction
from superopt.te.expr import Tensor
from superopt.te.node import Axis, Index, Load
from superopt.te.walk import axes_of, loads, parts, stages

TREES = 64  # side by side, at most: four vectors of 16 hide how long each load takes


ROWS = 32  # of a chunk, which is one thread's


def is_step(t: Tensor, of: Tensor) -> bool:
    """True if elements of `of` at the same place are indices of what `t` reads."""
    return t.body is not None and t.shape == of.shape and any(
        isinstance(e, Index) and isinstance(e.element, Load) and e.element.tensor is of
        and e.element.index == t.axes
        for e in parts(t.body)
    )  # fmt: skip


def walks(t: Tensor) -> bool:
    """True if it sums up what the last step of a walk leads to, whose steps are its stages."""
    some = stages([t])
    return (
        reduction(t) is not None
        and len(some) > 2
        and all(is_step(b, a) for a, b in pairwise(some[:-1]))
    )


def side_by_side(count: int, most: int = TREES) -> int:
    """How many of so many trees are walked at a time: whole vectors where some divide."""
    whole = [k for k in (64, 48, 32, 16, 8) if k <= most and count % k == 0]
    return whole[0] if whole else max(k for k in range(1, most + 1) if count % k == 0)


def walk_schedules(t: Tensor, trees: int = TREES) -> Mapping[Tensor, Schedule]:
    """Of a sum over trees, and of the steps, which are computed for some trees at a time: once for
    all results to which a leaf gives something."""
    found, steps = reduction(t), stages([t])[:-1]
    assert found is not None
    (read,) = {x for x in loads(found.body) if x.tensor is steps[-1]}
    moving = set[Axis]().union(*map(axes_of, read.index))
    outer = [a for a in t.axes if a in moving]
    inner = [a.name for a in t.axes if a not in moving and a.size > 1]
    ones = [a.name for a in t.axes if a not in moving and a.size == 1]
    axis = found.axes[-1]
    rest = [a.name for a in found.axes[:-1]]
    lanes = side_by_side(axis.size, trees)
    split: list[Primitive] = [Split(axis.name, lanes)] if lanes < axis.size else []
    block, lane = ([f"{axis.name}.o"], f"{axis.name}.i") if split else ([], axis.name)
    row, *others = outer
    if row.size > ROWS:
        split.append(Split(row.name, ROWS))
    chunk, each = ([f"{row.name}.o"], f"{row.name}.i") if row.size > ROWS else ([], row.name)
    # The nodes of some trees stay in the cache for as many rows as there are.
    order = [*chunk, *(a.name for a in others), *ones, *rest, *block, each, lane, *inner]
    out: dict[Tensor, Schedule] = {
        s: (ComputeAt(t.name, each), Vectorize(s.axes[-1].name)) for s in steps
    }
    shared = [Parallel(a) for a in chunk]
    out[t] = (*split, Reorder(tuple(order)), Vectorize(inner[-1] if inner else lane), *shared)
    return out
