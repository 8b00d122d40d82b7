"""Build the kernels of a Choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from superopt.kernels.gpu_short import short
from superopt.kernels.identity import identity
from superopt.kernels.layout import Layout, Scatter
from superopt.kernels.lower import lowered
from superopt.kernels.problem import Choice, Problem
from superopt.kernels.settled import settled
from superopt.kernels.tile import Kernel
from superopt.te.dtype import BOOL, U8
from superopt.te.expr import Tensor
from superopt.te.node import Load
from superopt.te.walk import loads, stages


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel, named after its digest, and the tensors that its parameters stand for."""

    kernel: Kernel
    reads: tuple[Tensor, ...]
    writes: Tensor


def built(p: Problem, how: Choice) -> list[Built]:
    """Return the kernels in execution order; the last one writes the problem's tensor."""
    layout = dict(p.layouts)
    if how.lies is not None:
        layout[how.root] = how.lies
    out = [_built(before, how, layout, buffer, p.halved) for before, buffer in how.first]
    return [*out, _built(how.root, how, layout, p.tensor, p.halved)]


def _built(
    root: Tensor, how: Choice, layout: dict[Tensor, Layout | Scatter], target: Tensor, halved: bool
) -> Built:
    read = operands(root)
    if root.dtype == BOOL and isinstance(root.body, Load) and read == [root.body.tensor]:
        return _as_bytes(root, root.body, how, layout, target)
    given = [x for x in read if x not in how.tables]
    if root in how.direct:
        kernel = how.direct[root](given, layout)
    else:
        packs = [x for x in how.packed if x in given]
        tables = {x: table for x, table in how.tables.items() if x in read}
        kernel = lowered("kernel", given, [root], how.schedules, layout, tables, packs)
        if how.settles:
            kernel = settled(kernel)
        if root is how.root and how.programs:
            kernel = replace(kernel, programs=how.programs)
    if halved:
        kernel = replace(kernel, body=short(kernel.body))
    return Built(replace(kernel, name=f"k{identity(kernel)}"), tuple(given), target)


def _as_bytes(
    root: Tensor, load: Load, how: Choice, layout: dict[Tensor, Layout | Scatter], target: Tensor
) -> Built:
    """Return a copy kernel of booleans as bytes, so that no lane is compared with 0."""
    given = Tensor(load.tensor.name, U8, load.tensor.shape)
    made = Tensor(root.name, U8, root.shape, root.axes, Load(given, load.index, U8))
    same = {load.tensor: given, root: made}
    kernel = lowered(
        "kernel", [given], [made],
        {same.get(t, t): x for t, x in how.schedules.items()},
        {same.get(t, t): x for t, x in layout.items()},
    )  # fmt: skip
    return Built(replace(kernel, name=f"k{identity(kernel)}"), (load.tensor,), target)


def buffers(made: Sequence[Built]) -> dict[Tensor, Tensor]:
    """Return the buffer of each tensor of the kernels; packed constants have buffers of their
    own."""
    out: dict[Tensor, Tensor] = {}
    for x in made:
        for buffer, t in zip(x.kernel.params, (*x.reads, x.writes), strict=True):
            out.setdefault(t, buffer)
    return out


def operands(t: Tensor) -> list[Tensor]:
    """Return the tensors in memory that `t` and its stages read."""
    bodies = [x.body for x in stages([t]) if x.body is not None]
    read = dict.fromkeys(x.tensor for b in bodies for x in loads(b))
    return [x for x in read if x.body is None]
