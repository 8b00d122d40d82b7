"""Fuse tree walks, step by step, into the reader of their last step
(kernels/algorithms/cpu/tree_walk.py)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from superopt.kernels.algorithms.cpu.tree_walk import is_step
from superopt.kernels.loops.loop_transforms import reduction
from superopt.plan.rewrites.reductions.row_fusion import RowGroup, fuse_group
from superopt.te.analysis.walk import loads
from superopt.te.expr.tensor import Tensor


def tree_walk_steps(order: Collection[Tensor]) -> set[Tensor]:
    """Return the steps of all walks; they are computed once, however often they are read."""
    out: set[Tensor] = set()
    for t in order:
        read = dict.fromkeys(x.tensor for x in loads(t.body)) if t.body is not None else ()
        for s in read:
            if s.body is not None and is_step(t, s):
                out.add(t)
    return out


def fuse_tree_walks(
    current: Mapping[Tensor, Tensor], steps: Collection[Tensor], materialized: Collection[Tensor]
) -> dict[Tensor, Tensor]:
    """Return the definitions with all steps of a walk inlined in the reader of the last one, if
    nothing else reads them."""
    readers: dict[Tensor, set[Tensor]] = {}
    for t, now in current.items():
        for x in loads(now.body) if now.body is not None else ():
            readers.setdefault(x.tensor, set()).add(t)
    out = dict(current)
    for t in current:
        if t in steps or reduction(current[t]) is None:
            continue
        if (last := _last_step(current[t], steps)) is not None:
            stages = _step_chain(last, current, readers, t, materialized, steps)
            if stages is not None:
                out[t] = fuse_group(RowGroup(t, t.rank, stages), current[t])
                for s in stages:
                    del out[s]
    return out


def _last_step(definition: Tensor, steps: Collection[Tensor]) -> Tensor | None:
    found = (
        {x.tensor for x in loads(definition.body) if x.tensor in steps}
        if definition.body
        else set()
    )
    return found.pop() if len(found) == 1 else None


def _step_chain(
    last: Tensor,
    current: Mapping[Tensor, Tensor],
    readers: Mapping[Tensor, Collection[Tensor]],
    root: Tensor,
    materialized: Collection[Tensor],
    steps: Collection[Tensor],
) -> dict[Tensor, Tensor] | None:
    """Return the steps up to the last one in order; None if others read them."""
    chain, reader, t = [], root, last
    while True:
        if t in materialized or readers[t] != {reader}:
            return None
        chain.append(t)
        body = current[t].body
        before = {x.tensor for x in loads(body) if x.tensor in steps} if body is not None else set()
        if not before:
            break
        reader, t = t, before.pop()
        if before:
            return None
    return {t: current[t] for t in reversed(chain)}
