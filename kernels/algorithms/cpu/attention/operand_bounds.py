"""The largest magnitudes of attention's keys and values, by which streaming_kernel.py decides
whether keys behind a causal mask can be skipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from superopt.kernels.algorithms.cpu.attention.blocks import (
    Blocks,
    ScratchBuffers,
    accumulate,
    ceil_div,
    first_unit_key,
    index_axis,
    store,
)
from superopt.kernels.algorithms.online_attention import OnlineAttention
from superopt.kernels.loops.layout import Layout, ScatteredLayout
from superopt.kernels.loops.lower import buffer_view, load_buffers
from superopt.kernels.loops.tile import For, Kernel, Stmt, Store
from superopt.te.analysis.inline import substitute_axes
from superopt.te.expr.dtype import F32
from superopt.te.expr.index import as_index
from superopt.te.expr.node import Apply, Axis, Expr, Load
from superopt.te.expr.tensor import Tensor, const

ZERO = const(0, F32)
Layouts = Mapping[Tensor, Layout | ScatteredLayout]


def operand_bounds(a: OnlineAttention) -> Tensor:
    """Return the tensor of the largest magnitudes of keys and values of each head; NaN if one of
    them is NaN. Its body records what is read."""
    rest = tuple(x for x in a.tensor.axes if x not in (a.i, a.d))
    axes = (*rest, Axis("operand", 2))
    value = substitute_axes(a.v, {a.j: as_index(0), a.d: as_index(0)})
    body = Apply("mul", (a.k, value), F32)
    return Tensor("bounds", F32, tuple(x.extent for x in axes), axes, body)


def operand_bounds_kernel(
    a: OnlineAttention, t: Tensor, inputs: Sequence[Tensor], layouts: Layouts, blocks: Blocks
) -> Kernel:
    """Return the kernel of `operand_bounds`."""
    stored = {x: buffer_view(x.name, x, layouts.get(x)) for x in inputs}
    out = stored[t] = buffer_view(t.name, t, None)
    made, b = ScratchBuffers(), blocks
    rest = tuple(x for x in a.tensor.axes if x not in (a.i, a.d))
    ones: dict[Axis, Expr] = {x: as_index(0) for x in a.tensor.axes if x.extent == 1}
    lane, length = Axis("lane", b.unit), as_index(a.j.extent)
    unit, term = index_axis("unit", ceil_div(length, b.unit)), Axis("channel", a.c.extent)
    keys, values = made.register("keys", lane), made.register("values", a.d)
    largest = made.register("largest")
    env = {a.j: as_index(first_unit_key(unit, length, b) + lane), a.c: term}

    def size(e: Expr, env: Mapping[Axis, Expr]) -> Expr:
        return Apply("abs", (load_buffers(substitute_axes(e, {**ones, **env}), stored),), F32)

    def write(column: int, x: Load, axis: Axis) -> tuple[Stmt, ...]:
        place = (*(ones.get(y, y) for y in rest), as_index(column))
        return (
            store(largest, ZERO),
            accumulate(largest, "max", x, (), axis),
            Store(out.buffer, place, largest),
        )

    body: tuple[Stmt, ...] = (
        store(keys, ZERO, lane),
        For(unit, (For(term, (accumulate(keys, "max", size(a.k, env), (lane,)),)),)),
        *write(0, keys, lane),
        store(values, ZERO, a.d),
        For(a.j, (accumulate(values, "max", size(a.v, {}), (a.d,)),)),
        *write(1, values, a.d),
    )
    for axis in reversed(rest):
        body = (For(axis, body, "parallel"),)
    params = (*(stored[x].buffer for x in inputs), out.buffer)
    return Kernel("kernel", params, body, tuple(made.scratch))
