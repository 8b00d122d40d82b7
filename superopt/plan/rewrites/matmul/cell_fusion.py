"""Fuse products of few rows (GEMV) with several constants and their elementwise combination into
one kernel: a step of a recurrent network, a gated product of one row. Used on a GPU, where each
launch has a cost. For more rows see gate_fusion.py.

f[i, n] = sum(x[i, k] * a[k, n] for k)
g[i, n] = sum(x[i, k] * b[k, n] for k)
c[i, n] = p(f[i, n], g[i, n], d[i, n])
y[i, n] = q(c[i, n], f[i, n])               =>   cell[i, n, :] = c[i, n], y[i, n]

Each element is a row of its own (row_fusion.py), and these are its numbers. Intermediate results
that other tensors read are stored beside the result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from superopt.kernels.algorithms.contraction import Contraction, match_contraction
from superopt.kernels.algorithms.gpu.gated_gemm import reads_elementwise
from superopt.kernels.algorithms.gpu.gemm import transpose_array, transposed_constant
from superopt.kernels.loops.loop_nest import replace_reduction
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.triton.dot_limits import MIN_DOT_EXTENT
from superopt.plan.lowering.derived_constants import derive_constant
from superopt.plan.lowering.polyphase import WrittenParts
from superopt.plan.rewrites.matmul.horizontal_fusion import Constants
from superopt.plan.rewrites.reductions.row_fusion import replace_tensors
from superopt.te.analysis.affine import rebuild
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import loads, reductions
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Apply, Axis, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor, compare, select

MAX_GEMV_ROWS = MIN_DOT_EXTENT // 2  # fewer rows than tensor cores have blocks for
MAX_CELL_RESULTS = 4  # of a cell, at most
MAX_SUM_TERMS = 1 << 13  # of a sum, which is one block


# For each result its cell tensor, its index in it, and whether that index is the first axis.
ResultPlaces = Mapping[Tensor, tuple[Tensor, int, bool]]


@dataclass(frozen=True, slots=True)
class FusedCell:
    """A fused cell. stages: the tensors computed in it, producers first. results: the stages that
    others read; the last one is the last stage."""

    stages: tuple[Tensor, ...]
    results: tuple[Tensor, ...]


def find_cells(
    current: Mapping[Tensor, Tensor],
    materialized: Collection[Tensor],
    excluded: Collection[Tensor],
    parts: WrittenParts,
    constants: Collection[Tensor],
    few_rows: bool = True,
) -> list[FusedCell]:
    """Return the cells; no tensor is in two. materialized: what must be in memory, where it can
    only be the single result. excluded: tensors with other layouts. parts: tensors written in
    parts, which are in memory. few_rows: find cells of few rows, else of more."""
    lying = {*excluded, *(x.tensor for some in parts.values() for x in some)}
    taken = {*materialized, *lying}
    readers: dict[Tensor, list[Tensor]] = {}
    for t, now in current.items():
        for x in dict.fromkeys(x.tensor for x in _tensor_loads(now)):
            readers.setdefault(x, []).append(t)
    sums = {
        t: _canonical_operand(c, now)
        for t, now in current.items()
        if t not in lying and (c := _constant_product(now, constants, few_rows)) is not None
    }
    known = _Producers(current, readers, {t: n for n, t in enumerate(current)}, sums)
    out: list[FusedCell] = []
    inside: set[Tensor] = set()
    for t in reversed(list(sums)):
        for root in (*(r for r in readers.get(t, ()) if r not in sums), t):
            if root in lying or root in inside:
                continue
            some = _grow_cell(root, known, {*taken, *inside})
            # a result in memory must be alone in its cell
            if some is not None and (len(some.results) == 1 or root not in taken):
                inside |= {*some.stages}
                out.append(some)
    return out


@dataclass(frozen=True, slots=True)
class _Producers:
    """The definitions, the readers of each tensor, its position, and for each product of few rows
    the canonical load of its operand."""

    current: Mapping[Tensor, Tensor]
    readers: Mapping[Tensor, Sequence[Tensor]]
    position: Mapping[Tensor, int]
    sums: Mapping[Tensor, Load]


def _tensor_loads(definition: Tensor) -> list[Load]:
    return [] if definition.body is None else list(loads(definition.body))


def _constant_product(
    definition: Tensor, constants: Collection[Tensor], few_rows: bool
) -> Contraction | None:
    """Return the contraction of a product with a constant, of few rows or of more, with one sum for
    each element; else None."""
    c, found = match_contraction(definition, constants, 1), reduction(definition)
    if c is None or found is None or c.b.tensor not in constants or not c.b_axes:
        return None
    terms = [a.size for a in found.axes]
    if (
        len(terms) > 1
        or found.axes[0] not in c.b.index
        or not MIN_DOT_EXTENT <= terms[0] <= MAX_SUM_TERMS
    ):
        return None
    return c if (prod(a.size for a in c.a_axes) <= MAX_GEMV_ROWS) == few_rows else None


def _canonical_operand(c: Contraction, definition: Tensor) -> Load:
    """Return the load of the operand with canonical axes."""
    found = reduction(definition)
    assert found is not None
    every = enumerate((*definition.axes, *found.axes))
    out = substitute_axes(c.a, {a: Axis(f"a{n}", a.size) if a.extent != 1 else te_index.as_index(0)
                       for n, a in every})  # fmt: skip
    assert isinstance(out, Load)
    return out


def _grow_cell(root: Tensor, k: _Producers, taken: Collection[Tensor]) -> FusedCell | None:
    """Return the cell that ends with `root`: its elementwise producers and the products of one
    operand, the one that is computed last; None if there is none."""
    current = k.current
    if root not in k.sums and reductions(current[root].body):
        return None
    one = k.sums.get(root)
    if one is None:
        some = [k.sums[x] for x in _elementwise_producers(root, k, taken, None) if x in k.sums]
        one = max(some, key=lambda e: k.position.get(e.tensor, -1), default=None)
    if one is None or current[root].dtype != F32:
        return None
    near = _elementwise_producers(root, k, taken, one)
    inside = {root}
    for x in sorted(near, key=lambda x: -k.position[x]):
        read = [t for t in k.readers[x] if t in inside]
        later = all(t in inside or k.position[t] > k.position[root] for t in k.readers[x])
        if read and later and all(reads_elementwise(current[t], x) for t in read):
            inside.add(x)
    stages = _depending_on_sums(sorted(inside, key=lambda x: k.position[x]), k)
    results = tuple(x for x in stages if x is root or not {*k.readers[x]} <= {*stages})
    many = sum(x in k.sums for x in stages) > 1 and len(results) <= MAX_CELL_RESULTS
    return FusedCell(tuple(stages), results) if many else None


def _elementwise_producers(
    root: Tensor, k: _Producers, taken: Collection[Tensor], operand: Load | None
) -> set[Tensor]:
    """Return the elementwise producers of `root`, transitively, with products of `operand` only;
    without an operand up to the first products."""
    near: set[Tensor] = set()
    left = [root]
    while left:
        t = left.pop()
        for x in dict.fromkeys(x.tensor for x in _tensor_loads(k.current[t])):
            now = k.current.get(x)
            if now is None or x in near or x in taken or now.dtype != F32:
                continue
            other = k.sums.get(x) not in (None, operand) if operand is not None else False
            if (
                other
                or (x not in k.sums and reductions(now.body))
                or not reads_elementwise(k.current[t], x)
            ):
                continue
            near.add(x)
            if operand is not None or x not in k.sums:
                left.append(x)
    return near


def _depending_on_sums(stages: Sequence[Tensor], k: _Producers) -> list[Tensor]:
    """Return the stages without those that depend on no sum, unless only stages read them."""
    out: list[Tensor] = []
    for t in stages:
        made = t in k.sums or any(x.tensor in out for x in _tensor_loads(k.current[t]))
        if made or {*k.readers.get(t, ())} <= {*stages}:
            out.append(t)
    return out


def fuse_cells(
    current: Mapping[Tensor, Tensor], found: Sequence[FusedCell], constants: Constants
) -> tuple[dict[Tensor, Tensor], dict[Tensor, int]]:
    """Return the definitions with cells fused, and the number of row axes of each cell; transposed
    constants are added to `constants`."""
    last = {c.results[-1]: c for c in found}
    inside = {x for c in found for x in c.stages}
    where: dict[Tensor, tuple[Tensor, int, bool]] = {}
    out: dict[Tensor, Tensor] = {}
    leads: dict[Tensor, int] = {}
    for t, now in current.items():
        if t in last:
            cell = _build_cell(last[t], current, where, constants)
            key = t if len(last[t].results) == 1 else cell
            out[key] = cell
            leads[key] = now.rank
            if key is cell:
                where |= {x: (cell, n, False) for n, x in enumerate(last[t].results)}
        elif t not in inside:
            out[t] = redirect_reads(now, where)
    return out, leads


def redirect_reads(definition: Tensor, where: ResultPlaces) -> Tensor:
    """Return the definition with reads of fused results redirected to their cells."""
    if definition.body is None or not any(x.tensor in where for x in loads(definition.body)):
        return definition
    return Tensor(
        definition.name,
        definition.dtype,
        definition.shape,
        definition.axes,
        _redirect_loads(definition.body, where),
    )


def _redirect_loads(e: Expr, where: ResultPlaces) -> Expr:
    match e:
        case Load(t, index, dtype):
            index = tuple(_redirect_loads(i, where) for i in index)
            if t not in where:
                return Load(t, index, dtype)
            cell, n, first = where[t]
            which = te_index.as_index(n)
            return Load(cell, (which, *index) if first else (*index, which), dtype)
        case Apply(fn, args, dtype):
            return rebuild(fn, tuple(_redirect_loads(a, where) for a in args), dtype)
        case Reduce(fn, axes, body, dtype):
            return Reduce(fn, axes, _redirect_loads(body, where), dtype)
    return e


def _build_cell(
    c: FusedCell, current: Mapping[Tensor, Tensor],
    where: ResultPlaces, constants: Constants,
) -> Tensor:  # fmt: skip
    done: dict[Tensor, Tensor] = {}
    for n, t in enumerate(c.stages):
        now = redirect_reads(current[t], where)
        assert now.body is not None
        body, found = now.body, reduction(now)
        if found is not None:
            total = _transpose_constants(found, constants)
            first = Tensor(f"sum{n}", found.dtype, now.shape, now.axes, total)
            body = replace_reduction(body, found, first, now.axes)
        done[t] = Tensor(f"number{n}", now.dtype, now.shape, now.axes, replace_tensors(body, done))
    *others, root = (done[x] for x in c.results)
    if not others:
        return Tensor("cell", root.dtype, root.shape, root.axes, root.body)
    which = Axis("result", len(c.results))
    body = select_result(which, [x[root.axes] for x in (*others, root)])
    shape = (*root.shape, which.extent)
    return Tensor("cell", root.dtype, shape, (*root.axes, which), body)


def select_result(which: Axis, results: Sequence[Expr]) -> Expr:
    """Return the result that the axis `which` selects."""
    *others, out = results
    for n, x in reversed(list(enumerate(others))):
        out = select(compare("lt", which, n + 1), x, out)
    return out


def _transpose_constants(found: Reduce, constants: Constants) -> Reduce:
    """Return a sum of products with each constant transposed so that its terms are contiguous."""
    (k,) = found.axes

    def read(e: Expr) -> Expr:
        match e:
            case Load(t, index, dtype) if t in constants and k in index and index[-1] != k:
                order = [d for d, i in enumerate(index) if i != k]
                order += [d for d, i in enumerate(index) if i == k]
                turned = transposed_constant(t, tuple(order), tuple(t.shape[d] for d in order))
                constants[turned] = _transposed_loader(constants[t], t, tuple(order))
                return Load(turned, tuple(index[d] for d in order), dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(read, args)), dtype)
        return e

    return Reduce(found.fn, found.axes, read(found.body), found.dtype)


def _transposed_loader(
    load: Callable[[], np.ndarray], t: Tensor, order: tuple[int, ...]
) -> Callable[[], np.ndarray]:
    return derive_constant(load, (order, t.shape), lambda array: transpose_array(array, t, order))
