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

from superopt.kernels.loops.compute_at import (
    LoweringInput,
    PlacedLoops,
    apply_or_default,
    emit_placed,
    place_loops,
)
from superopt.kernels.loops.element import KernelState
from superopt.kernels.loops.layout import BufferView, Layout, ScatteredLayout, row_major
from superopt.kernels.loops.loop_transforms import initial_loops
from superopt.kernels.loops.schedule import (
    CacheRead,
    ComputeAt,
    IllegalSchedule,
    Schedule,
    schedule_text,
)
from superopt.kernels.loops.staging import StagedTensors, stage_tensors
from superopt.kernels.loops.tile import Kernel, Stmt
from superopt.te.analysis.walk import computed_tensors
from superopt.te.expr.node import Apply, Expr, Index, Load
from superopt.te.expr.tensor import Tensor


def lower_kernel(
    name: str,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    schedules: Mapping[Tensor, Schedule] | None = None,
    layouts: Mapping[Tensor, Layout | ScatteredLayout] | None = None,
    tables: Mapping[Tensor, np.ndarray] | None = None,
    packed: Sequence[Tensor] = (),
) -> Kernel:
    """Return a kernel of `inputs` that computes `outputs`; intermediate tensors are scratch.

    Shapes are static. Loads must be in range, or under a select's guard. A tensor has its layout,
    or is row-major. The values of `tables` are compile-time constants; the inputs `packed` are
    constants, passed in the order in which the kernel reads them. Raises IllegalSchedule.
    """
    how, known = schedules or {}, tables or {}
    made = stage_tensors(outputs, how, known)
    results = [made.replacements[o] for o in outputs]
    nest = KernelState(packed=dict.fromkeys(packed))
    given = _collect_input(made, how, layouts or {}, results)
    for t in inputs:
        if t in given.layouts:
            nest.stored[t] = buffer_view(t.name, t, given.layouts[t])
    loops: list[PlacedLoops] = []
    body: list[Stmt] = []
    for root in made.order:
        if root in given.compute_at:
            continue
        kept = nest.stored[root] = buffer_view(nest.fresh("t"), root, given.layouts.get(root))
        if root not in results:
            nest.scratch.append((kept.buffer, "local"))
        s = apply_or_default(initial_loops(root), given.schedules.get(root), kept.layout)
        nests = place_loops(nest, s, given)
        loops += nests.values()
        body += emit_placed(nest, root, nests)
    packs = [p[0] for p in nest.packed.values() if p is not None]
    buffers = {t: s.buffer for t, s in nest.stored.items()} | {p.source: p.buffer for p in packs}
    params = (*(buffers.get(t, t) for t in inputs), *(nest.stored[o].buffer for o in results))
    scratch, numbers = tuple(nest.scratch), tuple(known.items())
    history = (_Expressions(tuple(outputs)), _Schedules(how), made, _Loops(tuple(loops)))
    passes = tuple(zip(("expressions", "schedule", "stages", "loops"), history, strict=True))
    return Kernel(name, params, tuple(body), scratch, numbers, tuple(packs), passes)


def _collect_input(
    staged: StagedTensors,
    schedules: Mapping[Tensor, Schedule],
    layouts: Mapping[Tensor, Layout | ScatteredLayout],
    results: Sequence[Tensor],
) -> LoweringInput:
    """Return schedules, layouts and placements of the tensors that replace the given ones."""
    of = {
        staged.replacements[t]: steps for t, steps in schedules.items() if t in staged.replacements
    }
    lie = {staged.replacements.get(t, t): layout for t, layout in layouts.items()}
    at: dict[Tensor, ComputeAt | CacheRead] = {t: p for t, (p, _) in staged.copies.items()}
    for t, steps in of.items():
        said = next((p for p in steps if isinstance(p, ComputeAt)), None)
        if said is not None and t in results:
            raise IllegalSchedule(f"{said}: {t.name} is a result of the kernel")
        at |= {} if said is None else {t: said}
    return LoweringInput(
        staged.order, of, lie, at, {t: reader for t, (_, reader) in staged.copies.items()}
    )


def buffer_view(name: str, t: Tensor, layout: Layout | ScatteredLayout | None) -> BufferView:
    """Return a tensor's view of a buffer of this name; row-major without a layout."""
    layout = layout or row_major(t.rank)
    if isinstance(layout, ScatteredLayout):
        return BufferView(Tensor(name, t.dtype, layout.layout.shape(layout.shape)), layout)
    return BufferView(Tensor(name, t.dtype, layout.shape(t.sizes)), layout)


def load_buffers(e: Expr, stored: Mapping[Tensor, BufferView]) -> Expr:
    """Return `e` with loads of buffers."""
    match e:
        case Load(t, index, dtype):
            at = tuple(load_buffers(i, stored) for i in index)
            return Load(stored[t].buffer, stored[t].buffer_index(at), dtype) if t in stored else e
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(load_buffers(x, stored) for x in args), dtype)
        case Index(element, bound):
            return Index(load_buffers(element, stored), bound)
    return e


@dataclass(frozen=True, slots=True)
class _Expressions:
    outputs: tuple[Tensor, ...]

    def __str__(self) -> str:
        return str(StagedTensors(tuple(computed_tensors(self.outputs)), {}))


@dataclass(frozen=True, slots=True)
class _Schedules:
    schedules: Mapping[Tensor, Schedule]

    def __str__(self) -> str:
        return "\n".join(f"{t.name}: {schedule_text(steps)}" for t, steps in self.schedules.items())


@dataclass(frozen=True, slots=True)
class _Loops:
    nests: tuple[PlacedLoops, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.nests))
