"""The stages that are inlined in a tensor's kernel, and the stored tensors that it reads."""

from __future__ import annotations

from collections.abc import Collection

from superopt.te.analysis.walk import loads
from superopt.te.expr.tensor import Tensor


def kernel_stages(t: Tensor, current: Collection[Tensor]) -> list[Tensor]:
    """Return the stages inlined in the tensor and the tensor itself, producers first."""
    out: dict[Tensor, None] = {}

    def visit(x: Tensor) -> None:
        for load in loads(x.body) if x.body is not None else ():
            own = load.tensor.body is not None and load.tensor not in current
            if own and load.tensor not in out:
                visit(load.tensor)
        out[x] = None

    visit(t)
    return list(out)


def kernel_inputs(t: Tensor, current: Collection[Tensor]) -> list[Tensor]:
    """Return the tensors of `current` that the kernel of `t` reads."""
    bodies = [s.body for s in kernel_stages(t, current) if s.body is not None]
    return list(dict.fromkeys(x.tensor for b in bodies for x in loads(b) if x.tensor in current))
