"""What is computed within others: a row, of which sums are taken, is one kernel with these."""

from __future__ import annotations

from collections.abc import Collection

from superopt.te.expr import Tensor
from superopt.te.walk import loads


def within(t: Tensor, current: Collection[Tensor]) -> list[Tensor]:
    """What is computed on the way, and the tensor: each behind those it reads."""
    out: dict[Tensor, None] = {}

    def visit(x: Tensor) -> None:
        for load in loads(x.body) if x.body is not None else ():
            own = load.tensor.body is not None and load.tensor not in current
            if own and load.tensor not in out:
                visit(load.tensor)
        out[x] = None

    visit(t)
    return list(out)


def needs(t: Tensor, current: Collection[Tensor]) -> list[Tensor]:
    """Those of `current` that it reads, and what is computed on the way does."""
    bodies = [s.body for s in within(t, current) if s.body is not None]
    return list(dict.fromkeys(x.tensor for b in bodies for x in loads(b) if x.tensor in current))
