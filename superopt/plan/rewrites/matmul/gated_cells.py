"""Fuse cells (cell_fusion.py) of more rows with several results as gated products (gate_fusion.py):
the cell state and the output of an LSTM are one kernel. Used on a GPU.

f[i, n] = sum(x[i, k] * a[k, n] for k)
c[i, n] = p(f[i, n], sum(x[i, k] * b[k, n] for k))
y[i, n] = q(c[i, n], sum(x[i, k] * d[k, n] for k))

=>  cell[r, i, n] = (c[i, n], y[i, n])[r]

Each half computes everything, in parallel: a step waits for one kernel instead of two.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from superopt.kernels.algorithms.gpu.gated_gemm import MAX_PRODUCTS, match_gated, should_fuse
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.loop_nest import replace_reduction
from superopt.kernels.loops.loop_transforms import reduction
from superopt.plan.lowering.polyphase import WrittenParts
from superopt.plan.rewrites.matmul.cell_fusion import (
    FusedCell,
    ResultPlaces,
    find_cells,
    redirect_reads,
    select_result,
)
from superopt.plan.rewrites.reductions.row_fusion import replace_tensors
from superopt.te.analysis.inline import Inliner, substitute_axes
from superopt.te.analysis.walk import loads
from superopt.te.expr.node import Axis, Expr
from superopt.te.expr.tensor import Tensor

VECTOR_BYTES = 64  # of a vector; has no effect here


def fuse_gated_cells(
    current: Mapping[Tensor, Tensor],
    materialized: Collection[Tensor],
    excluded: Collection[Tensor],
    parts: WrittenParts,
    constants: Collection[Tensor],
    fp16_operands: bool,
) -> dict[Tensor, Tensor]:
    """Return the definitions with cells fused where that should be faster; see `find_gates` for the
    parameters."""
    some = {
        c.results[-1]: c
        for c in find_cells(current, materialized, excluded, parts, constants, few_rows=False)
    }
    inside: set[Tensor] = set()
    where: dict[Tensor, tuple[Tensor, int, bool]] = {}
    made: dict[Tensor, tuple[Tensor, ...]] = {}
    for t in current:
        if (
            t in some
            and (found := _build_gated_cell(some[t], current, where, constants, fp16_operands))
            is not None
        ):
            made[t] = found
            inside |= {*some[t].stages}
            where |= {x: (found[-1], n, True) for n, x in enumerate(some[t].results)}
    out: dict[Tensor, Tensor] = {}
    for t, now in current.items():
        if t in made:
            out |= {x: x for x in made[t]}
        elif t not in inside:
            out[t] = redirect_reads(now, where)
    return out


def _build_gated_cell(
    c: FusedCell,
    current: Mapping[Tensor, Tensor],
    where: ResultPlaces,
    constants: Collection[Tensor],
    fp16_operands: bool,
) -> tuple[Tensor, ...] | None:
    """Return the gates and the cell; None where there is no such kernel or no gain."""
    if not 1 < len(c.results) <= len(c.stages) <= MAX_PRODUCTS:
        return None
    root = current[c.results[-1]]
    which = Axis("result", len(c.results))
    axes, shape = (which, *root.axes), (which.extent, *root.shape)
    gates: list[Tensor] = []
    done: dict[Tensor, Tensor] = {}
    for t in c.stages:
        now = redirect_reads(current[t], where)
        found = reduction(now)
        if found is None or now.body is None:
            return None
        body: Expr = now.body
        if t is not c.results[-1]:
            env = dict(zip(now.axes, root.axes, strict=True))
            total = substitute_axes(found, {**env})
            gates.append(Tensor("gate", found.dtype, shape, axes, total))
            held = Tensor("held", found.dtype, now.shape)
            body = replace_reduction(body, found, held, now.axes)
            read = Tensor("held", found.dtype, now.shape, now.axes, gates[-1][(which, *now.axes)])
            body = Inliner({held: read}).expr(body)
        body = Inliner(done).expr(body)
        done[t] = Tensor(t.name, now.dtype, now.shape, now.axes, body)
    results = [substitute_axes(x.body, dict(zip(x.axes, root.axes, strict=True)))
               for r in c.results if (x := done[r]).body is not None]  # fmt: skip
    cell = Tensor("cell", root.dtype, shape, axes, select_result(which, results))
    made = match_gated(Problem(_read_from_buffers(cell, gates), {}, constants, VECTOR_BYTES))
    return (*gates, cell) if made is not None and should_fuse(made, fp16_operands, which) else None


def _read_from_buffers(cell: Tensor, gates: Sequence[Tensor]) -> Tensor:
    """Return the cell with its gates inlined and all other tensors read from memory."""
    read = dict.fromkeys(x.tensor for t in (cell, *gates) if t.body for x in loads(t.body))
    buffers = {x: Tensor(x.name, x.dtype, x.shape) for x in read if x.body and x not in gates}

    def there(t: Tensor, known: Mapping[Tensor, Tensor]) -> Tensor:
        assert t.body is not None
        return Tensor(t.name, t.dtype, t.shape, t.axes, replace_tensors(t.body, known))

    return there(cell, {**buffers, **{g: there(g, buffers) for g in gates}})
