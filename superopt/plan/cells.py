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

from superopt.kernels.contraction import Contraction, contraction
from superopt.kernels.gpu_blocks import DOT
from superopt.kernels.gpu_gates import read_at
from superopt.kernels.gpu_products import transposed, turned_of
from superopt.kernels.nest import put_for
from superopt.kernels.transform import reduction
from superopt.plan.constants import derived
from superopt.plan.joint import Constants
from superopt.plan.phases import Written
from superopt.plan.rows import instead
from superopt.te import index as ix
from superopt.te.affine import rebuild
from superopt.te.dtype import F32
from superopt.te.expr import Tensor, compare, select
from superopt.te.inline import placed
from superopt.te.node import Apply, Axis, Expr, Load, Reduce
from superopt.te.walk import loads, reductions

ROWS = DOT // 2  # fewer rows than tensor cores have blocks for
RESULTS = 4  # of a cell, at most
LONGEST = 1 << 13  # of a sum, which is one block


# For each result its cell tensor, its index in it, and whether that index is the first axis.
Where = Mapping[Tensor, tuple[Tensor, int, bool]]


@dataclass(frozen=True, slots=True)
class Cell:
    """A fused cell. stages: the tensors computed in it, producers first. results: the stages that
    others read; the last one is the last stage."""

    stages: tuple[Tensor, ...]
    results: tuple[Tensor, ...]


def cells(
    current: Mapping[Tensor, Tensor], stay: Collection[Tensor], apart: Collection[Tensor],
    parts: Written, constants: Collection[Tensor], few: bool = True,
) -> list[Cell]:  # fmt: skip
    """Return the cells; no tensor is in two. materialized: what must be in memory, where it can
    only be the single result. excluded: tensors with other layouts. parts: tensors written in
    parts, which are in memory. few_rows: find cells of few rows, else of more."""
    lying = {*apart, *(x.tensor for some in parts.values() for x in some)}
    taken = {*stay, *lying}
    readers: dict[Tensor, list[Tensor]] = {}
    for t, now in current.items():
        for x in dict.fromkeys(x.tensor for x in _loads(now)):
            readers.setdefault(x, []).append(t)
    sums = {t: _operand(c, now) for t, now in current.items()
            if t not in lying and (c := _product(now, constants, few)) is not None}  # fmt: skip
    known = _Known(current, readers, {t: n for n, t in enumerate(current)}, sums)
    out: list[Cell] = []
    inside: set[Tensor] = set()
    for t in reversed(list(sums)):
        for root in (*(r for r in readers.get(t, ()) if r not in sums), t):
            if root in lying or root in inside:
                continue
            some = _cell(root, known, {*taken, *inside})
            # a result in memory must be alone in its cell
            if some is not None and (len(some.results) == 1 or root not in taken):
                inside |= {*some.stages}
                out.append(some)
    return out


@dataclass(frozen=True, slots=True)
class _Known:
    """The definitions, the readers of each tensor, its position, and for each product of few rows
    the canonical load of its operand."""

    current: Mapping[Tensor, Tensor]
    readers: Mapping[Tensor, Sequence[Tensor]]
    place: Mapping[Tensor, int]
    sums: Mapping[Tensor, Load]


def _loads(now: Tensor) -> list[Load]:
    return [] if now.body is None else list(loads(now.body))


def _product(now: Tensor, constants: Collection[Tensor], few: bool) -> Contraction | None:
    """Return the contraction of a product with a constant, of few rows or of more, with one sum for
    each element; else None."""
    c, found = contraction(now, constants, 1), reduction(now)
    if c is None or found is None or c.b.tensor not in constants or not c.of_b:
        return None
    terms = [a.size for a in found.axes]
    if len(terms) > 1 or found.axes[0] not in c.b.index or not DOT <= terms[0] <= LONGEST:
        return None
    return c if (prod(a.size for a in c.of_a) <= ROWS) == few else None


def _operand(c: Contraction, now: Tensor) -> Load:
    """Return the load of the operand with canonical axes."""
    found = reduction(now)
    assert found is not None
    every = enumerate((*now.axes, *found.axes))
    out = placed(c.a, {a: Axis(f"a{n}", a.size) if a.size > 1 else ix.as_index(0)
                       for n, a in every})  # fmt: skip
    assert isinstance(out, Load)
    return out


def _cell(root: Tensor, k: _Known, taken: Collection[Tensor]) -> Cell | None:
    """Return the cell that ends with `root`: its elementwise producers and the products of one
    operand, the one that is computed last; None where there is none."""
    current = k.current
    if root not in k.sums and reductions(current[root].body):
        return None
    one = k.sums.get(root)
    if one is None:
        some = [k.sums[x] for x in _reached(root, k, taken, None) if x in k.sums]
        one = max(some, key=lambda e: k.place.get(e.tensor, -1), default=None)
    if one is None or current[root].dtype != F32:
        return None
    near = _reached(root, k, taken, one)
    inside = {root}
    for x in sorted(near, key=lambda x: -k.place[x]):
        read = [t for t in k.readers[x] if t in inside]
        later = all(t in inside or k.place[t] > k.place[root] for t in k.readers[x])
        if read and later and all(read_at(current[t], x) for t in read):
            inside.add(x)
    stages = _of_sums(sorted(inside, key=lambda x: k.place[x]), k)
    results = tuple(x for x in stages if x is root or not {*k.readers[x]} <= {*stages})
    many = sum(x in k.sums for x in stages) > 1 and len(results) <= RESULTS
    return Cell(tuple(stages), results) if many else None


def _reached(root: Tensor, k: _Known, taken: Collection[Tensor], one: Load | None) -> set[Tensor]:
    """Return the elementwise producers of `root`, transitively, with products of `operand` only;
    without an operand up to the first products."""
    near: set[Tensor] = set()
    left = [root]
    while left:
        t = left.pop()
        for x in dict.fromkeys(x.tensor for x in _loads(k.current[t])):
            now = k.current.get(x)
            if now is None or x in near or x in taken or now.dtype != F32:
                continue
            other = k.sums.get(x) not in (None, one) if one is not None else False
            if other or (x not in k.sums and reductions(now.body)) or not read_at(k.current[t], x):
                continue
            near.add(x)
            if one is not None or x not in k.sums:
                left.append(x)
    return near


def _of_sums(inside: Sequence[Tensor], k: _Known) -> list[Tensor]:
    """Return the stages without those that depend on no sum, unless only stages read them."""
    out: list[Tensor] = []
    for t in inside:
        made = t in k.sums or any(x.tensor in out for x in _loads(k.current[t]))
        if made or {*k.readers.get(t, ())} <= {*inside}:
            out.append(t)
    return out


def celled(
    current: Mapping[Tensor, Tensor], some: Sequence[Cell], constants: Constants
) -> tuple[dict[Tensor, Tensor], dict[Tensor, int]]:
    """Return the definitions with cells fused, and the number of row axes of each cell; transposed
    constants are added to `constants`."""
    last = {c.results[-1]: c for c in some}
    inside = {x for c in some for x in c.stages}
    where: dict[Tensor, tuple[Tensor, int, bool]] = {}
    out: dict[Tensor, Tensor] = {}
    leads: dict[Tensor, int] = {}
    for t, now in current.items():
        if t in last:
            cell = _made(last[t], current, where, constants)
            key = t if len(last[t].results) == 1 else cell
            out[key] = cell
            leads[key] = now.rank
            if key is cell:
                where |= {x: (cell, n, False) for n, x in enumerate(last[t].results)}
        elif t not in inside:
            out[t] = read_there(now, where)
    return out, leads


def read_there(now: Tensor, where: Where) -> Tensor:
    """Return the definition with reads of fused results redirected to their cells."""
    if now.body is None or not any(x.tensor in where for x in loads(now.body)):
        return now
    return Tensor(now.name, now.dtype, now.shape, now.axes, _read(now.body, where))


def _read(e: Expr, where: Where) -> Expr:
    match e:
        case Load(t, index, dtype):
            index = tuple(_read(i, where) for i in index)
            if t not in where:
                return Load(t, index, dtype)
            cell, n, first = where[t]
            which = ix.as_index(n)
            return Load(cell, (which, *index) if first else (*index, which), dtype)
        case Apply(fn, args, dtype):
            return rebuild(fn, tuple(_read(a, where) for a in args), dtype)
        case Reduce(fn, axes, body, dtype):
            return Reduce(fn, axes, _read(body, where), dtype)
    return e


def _made(
    c: Cell, current: Mapping[Tensor, Tensor],
    where: Where, constants: Constants,
) -> Tensor:  # fmt: skip
    done: dict[Tensor, Tensor] = {}
    for n, t in enumerate(c.stages):
        now = read_there(current[t], where)
        assert now.body is not None
        body, found = now.body, reduction(now)
        if found is not None:
            total = _by_terms(found, constants)
            first = Tensor(f"sum{n}", found.dtype, now.shape, now.axes, total)
            body = put_for(body, found, first, now.axes)
        done[t] = Tensor(f"number{n}", now.dtype, now.shape, now.axes, instead(body, done))
    *others, root = (done[x] for x in c.results)
    if not others:
        return Tensor("cell", root.dtype, root.shape, root.axes, root.body)
    which = Axis("result", len(c.results))
    body = one_of(which, [x[root.axes] for x in (*others, root)])
    shape = (*root.shape, which.extent)
    return Tensor("cell", root.dtype, shape, (*root.axes, which), body)


def one_of(which: Axis, results: Sequence[Expr]) -> Expr:
    """Return the result that the axis `which` selects."""
    *others, out = results
    for n, x in reversed(list(enumerate(others))):
        out = select(compare("lt", which, n + 1), x, out)
    return out


def _by_terms(found: Reduce, constants: Constants) -> Reduce:
    """Return a sum of products with each constant transposed so that its terms are contiguous."""
    (k,) = found.axes

    def read(e: Expr) -> Expr:
        match e:
            case Load(t, index, dtype) if t in constants and k in index and index[-1] != k:
                order = [d for d, i in enumerate(index) if i != k]
                order += [d for d, i in enumerate(index) if i == k]
                turned = turned_of(t, tuple(order), tuple(t.shape[d] for d in order))
                constants[turned] = _turned(constants[t], t, tuple(order))
                return Load(turned, tuple(index[d] for d in order), dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(read, args)), dtype)
        return e

    return Reduce(found.fn, found.axes, read(found.body), found.dtype)


def _turned(
    load: Callable[[], np.ndarray], t: Tensor, order: tuple[int, ...]
) -> Callable[[], np.ndarray]:
    return derived(load, (order, t.shape), lambda array: transposed(array, t, order))
