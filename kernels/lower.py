"""Lower tensor expressions, schedules and layouts to a kernel in the tile-level form, pass by pass:

    expressions  tensors, each an element of others
    schedule     the schedule of each
    stages       the tensors that have loops (staging.py)
    loops        the loops of each tensor, and the loops of others around them (compute_at.py)
    tile         the kernel (loop_nest.py, element.py)

The passes of a target follow (runtime/dump.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from superopt.kernels.element import Nest
from superopt.kernels.layout import Layout, Scatter, Stored, row_major
from superopt.kernels.place import Given, Placed, emitted, placed, scheduled
from superopt.kernels.schedule import CacheRead, ComputeAt, IllegalSchedule, Schedule, text
from superopt.kernels.staging import Staged, staged
from superopt.kernels.tile import Kernel, Stmt
from superopt.kernels.transform import unscheduled
from superopt.te.expr import Tensor
from superopt.te.walk import stages


def lowered(
    name: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    schedules: Mapping[Tensor, Schedule] | None = None,
    layouts: Mapping[Tensor, Layout | Scatter] | None = None,
    tables: Mapping[Tensor, np.ndarray] | None = None,
    packed: Sequence[Tensor] = (),
) -> Kernel:
    """Return a kernel of `inputs` that computes `outputs`; intermediate tensors are scratch.

    Shapes are static. Loads must be in range, or under a select's guard. A tensor has its layout,
    or is row-major. The values of `tables` are compile-time constants; the inputs `packed` are
    constants, passed in the order in which the kernel reads them. Raises IllegalSchedule.
    """
    how, known = schedules or {}, tables or {}
    made = staged(outputs, how, known)
    results = [made.now[o] for o in outputs]
    nest = Nest(packed=dict.fromkeys(packed))
    given = _given(made, how, layouts or {}, results)
    for t in inputs:
        if t in given.layouts:
            nest.stored[t] = buffer(t.name, t, given.layouts[t])
    loops: list[Placed] = []
    body: list[Stmt] = []
    for root in made.order:
        if root in given.at:
            continue
        kept = nest.stored[root] = buffer(nest.fresh("t"), root, given.layouts.get(root))
        if root not in results:
            nest.scratch.append((kept.buffer, "local"))
        s = scheduled(unscheduled(root), given.schedules.get(root), kept.layout)
        nests = placed(nest, s, given)
        loops += nests.values()
        body += emitted(nest, root, nests)
    packs = [p[0] for p in nest.packed.values() if p is not None]
    buffers = {t: s.buffer for t, s in nest.stored.items()} | {p.source: p.buffer for p in packs}
    params = (*(buffers.get(t, t) for t in inputs), *(nest.stored[o].buffer for o in results))
    scratch, numbers = tuple(nest.scratch), tuple(known.items())
    history = (_Expressions(tuple(outputs)), _Said(how), made, _Loops(tuple(loops)))
    passes = tuple(zip(("expressions", "schedule", "stages", "loops"), history, strict=True))
    return Kernel(name, params, tuple(body), scratch, numbers, tuple(packs), passes)


def _given(
    made: Staged,
    how: Mapping[Tensor, Schedule],
    layouts: Mapping[Tensor, Layout | Scatter],
    results: Sequence[Tensor],
) -> Given:
    """Return schedules, layouts and placements of the tensors that replace the given ones."""
    of = {made.now[t]: steps for t, steps in how.items() if t in made.now}
    lie = {made.now.get(t, t): layout for t, layout in layouts.items()}
    at: dict[Tensor, ComputeAt | CacheRead] = {t: p for t, (p, _) in made.copies.items()}
    for t, steps in of.items():
        said = next((p for p in steps if isinstance(p, ComputeAt)), None)
        if said is not None and t in results:
            raise IllegalSchedule(f"{said}: {t.name} is a result of the kernel")
        at |= {} if said is None else {t: said}
    return Given(made.order, of, lie, at, {t: reader for t, (_, reader) in made.copies.items()})


def buffer(name: str, t: Tensor, layout: Layout | Scatter | None) -> Stored:
    """Return a tensor's view of a buffer of this name; row-major without a layout."""
    layout = layout or row_major(t.rank)
    if isinstance(layout, Scatter):
        return Stored(Tensor(name, t.dtype, layout.layout.shape(layout.shape)), layout)
    shape = [n for n in t.shape if isinstance(n, int)]
    return Stored(Tensor(name, t.dtype, layout.shape(shape)), layout)


@dataclass(frozen=True, slots=True)
class _Expressions:
    outputs: tuple[Tensor, ...]

    def __str__(self) -> str:
        return str(Staged(tuple(stages(self.outputs)), {}))


@dataclass(frozen=True, slots=True)
class _Said:
    schedules: Mapping[Tensor, Schedule]

    def __str__(self) -> str:
        return "\n".join(f"{t.name}: {text(steps)}" for t, steps in self.schedules.items())


@dataclass(frozen=True, slots=True)
class _Loops:
    nests: tuple[Placed, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.nests))
