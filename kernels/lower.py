"""From tensor expressions, and schedules of some, to a kernel in the tile-level form."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.kernels.nest import nested
from superopt.kernels.stages import Nest, computed, stages
from superopt.kernels.tile import Kernel, Stmt
from superopt.kernels.transform import Scheduled
from superopt.te.expr import Tensor


def lowered(
    name: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    schedules: Sequence[Scheduled] = (),
) -> Kernel:
    """A kernel of `inputs` that computes `outputs`; what these are computed from is scratch.

    Shapes are numbers. What is read must be in range, or under a select's guard.
    """
    nest = Nest()
    body: list[Stmt] = []
    how = {s.tensor: s for s in schedules}
    for t in stages(outputs):
        nest.buffers[t] = b = Tensor(nest.fresh("t"), t.dtype, t.shape)
        if not any(t is o for o in outputs):
            nest.scratch.append((b, "local"))
        body += nested(nest, how[t]) if t in how else computed(nest, t)
    params = (*inputs, *(nest.buffers[o] for o in outputs))
    return Kernel(name, params, tuple(body), tuple(nest.scratch))
