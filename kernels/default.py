"""The schedule of what nothing better is known for: loops as the result lies in memory, and along
its last dimension vectors, within which sums are taken one term after the other."""

from __future__ import annotations

from superopt.kernels.layout import Layout
from superopt.kernels.schedule import Parallel, Primitive, Reorder, Schedule, Split, Vectorize
from superopt.kernels.transform import Scheduled

LANES = 64  # elements of a tile
SHARED = 2  # outer loops whose steps several threads do


def default(s: Scheduled, layout: Layout, most: int = LANES) -> Schedule:
    """Of the loops of `s`, not split yet. most: elements of a tile."""
    steps: list[Primitive] = []
    names = [x.axis.name.removeprefix(s.prefix) for x in s.loops if not x.reduced]
    sizes = [x.extent for x in s.loops if not x.reduced]
    summed = [x.axis.name.removeprefix(s.prefix) for x in s.loops if x.reduced]
    if not names:
        return ()
    order: list[str] = []
    last, extent = "", 0
    for p in layout.parts:
        last, extent = names[p.axis], sizes[p.axis]
        if p.block > 1 and not p.within:
            steps.append(Split(last, p.block))
        if p.block > 1:
            last, extent = (f"{last}.i", min(p.block, extent)) if p.within else (f"{last}.o", 0)
        order.append(last)
    if extent > most:
        steps.append(Split(last, most))
        order[-1:] = [f"{last}.o", f"{last}.i"]
    lanes = order.pop()
    shared = [] if s.prefix else [Parallel(x) for x in order[:SHARED]]
    return (*steps, Reorder((*order, *summed, lanes)), Vectorize(lanes), *shared)
