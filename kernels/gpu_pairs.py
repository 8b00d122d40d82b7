"""Two products of one operand whose results are made one (plan/paired.py), on a GPU: in one kernel,
with a block of sums of each, or one after the other.

    pair   both: what is read of the operand is read once, and the first result is nowhere in memory
    apart  the first one is a kernel of its own, or the vendor's; the second one reads it

Both kernels of `apart` have the same loops, of which `pair` is one: statements of the first go
before those of the second, and what it would store stays in registers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf, prod

from superopt.kernels import contraction as co
from superopt.kernels.built import Built, built, operands
from superopt.kernels.gpu_blocks import MEMORY, STAGES
from superopt.kernels.gpu_library import NAME, library, offered
from superopt.kernels.gpu_products import Matrix, blocks, matrix_of, multiplied
from superopt.kernels.layout import Layout, Scatter
from superopt.kernels.option import Option
from superopt.kernels.problem import Choice, Problem
from superopt.kernels.tile import For, Kernel, Stmt, Store
from superopt.kernels.transform import reduction
from superopt.te.dtype import F32
from superopt.te.expr import Tensor, cast
from superopt.te.inline import placed
from superopt.te.node import Apply, Axis, Expr, Load, Reduce
from superopt.te.walk import loads

TRIED = 3  # ways of each kind, before the others


@dataclass(frozen=True, slots=True)
class Pair:
    """Two problems: of what is a kernel before, kept in `held`, and of what reads that."""

    first: Problem
    held: Tensor
    second: Problem
    matrix: Matrix


def read_so(now: Tensor, g: Tensor) -> bool:
    """Is each element of `g` read for the same one of the result, outside of sums?"""
    found = reduction(now)
    if found is None or now.body is None or any(x.tensor is g for x in loads(found)):
        return False
    some = [x for x in loads(now.body) if x.tensor is g]
    return now.shape == g.shape and all(_own(x, now) for x in some)


def _own(x: Load, now: Tensor) -> bool:
    places = zip(x.index, now.axes, now.shape, strict=True)
    return all(i == a or n == 1 for i, a, n in places)


def alike(now: Tensor, gate: Tensor, constants: Collection[Tensor]) -> bool:
    """Are both products of one operand with matrices of one kind, over axes of one size?"""
    a, b = (co.contraction(t, constants, 1) for t in (now, _renamed(gate, now)))
    if a is None or b is None or a.a != b.a or not a.of_a or not a.of_b:
        return False
    known = a.b.tensor in constants and b.b.tensor in constants
    return known and a.b.index == b.b.index and a.b.dtype == b.b.dtype


def _renamed(gate: Tensor, now: Tensor) -> Tensor:
    """With the axes of the other product."""
    own, other = reduction(now), reduction(gate)
    assert gate.body is not None
    if own is None or other is None or [*map(co.extent, own.axes)] != [*map(co.extent, other.axes)]:
        return gate
    over = dict(zip(other.axes, own.axes, strict=True))
    env: dict[Axis, Expr] = dict(zip(gate.axes, now.axes, strict=True))

    def go(e: Expr) -> Expr:
        match e:
            case Reduce(fn, _, body, dtype) if e == other:
                return Reduce(fn, own.axes, placed(body, {**env, **over}), dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(go, args)), dtype)
        return placed(e, env)

    return Tensor(gate.name, gate.dtype, now.shape, now.axes, go(gate.body))


def pair_of(p: Problem) -> Pair | None:
    """The pair that a problem is."""
    t = p.tensor
    if p.lead or t.body is None or t in p.layouts:
        return None
    stages = {x.tensor for x in loads(t.body) if x.tensor.body is not None}
    if len(stages) != 1:
        return None
    (g,) = stages
    if not read_so(t, g) or not alike(t, g, p.constants):
        return None
    gate = _renamed(g, t)
    c = co.contraction(gate, p.constants, 1)
    assert c is not None
    assert gate.body is not None
    kind = c.b.dtype if c.b.dtype.bits == 16 else gate.dtype
    short = Tensor("gate", kind, t.shape, t.axes, cast(gate.body, kind))
    held = Tensor("held", kind, t.shape)

    def read(e: Expr) -> Expr:
        match e:
            case Load(x, _, dtype) if x is g:
                return cast(Load(held, t.axes, kind), dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(read, args)), dtype)
        return e

    root = Tensor(t.name, t.dtype, t.shape, t.axes, read(t.body))
    first, second = replace(p, tensor=short), replace(p, tensor=root)
    m = matrix_of(second)
    if m is None or matrix_of(first) is None:
        return None
    return Pair(first, held, second, m)


def pays(m: Matrix) -> bool:
    """Should one kernel of two such products be faster than two, in parts of the sum, too?"""
    one = min((time for time, _ in blocks(m, pair=True)), default=inf)
    return one < 2 * min((time for time, _ in blocks(m)), default=0.0) + _between(m)


def _between(m: Matrix) -> float:
    """What it takes to read the first result, in ns."""
    size = prod(m.sizes[:2]) * prod(map(co.extent, m.batch))
    return size * (2 if m.half else 4) / MEMORY


def pairing(pair: Pair, vendor: bool) -> Iterator[Option]:
    """Ways, the best ones first, by what they should take."""
    m = pair.matrix
    one = sorted(blocks(m, pair=True), key=lambda x: x[0])
    one = one if one and _joins(pair, Option("pair", one[0][1].knobs)) else []
    each = sorted((x for x in blocks(m) if x[1].algorithm == "dot"), key=lambda x: x[0])
    ways = [(time, o, "pair") for time, o in one] + [
        (2 * time + _between(m), o, "apart") for time, o in each
    ]
    first = [x for kind in (one, each) for _, x in kind[:TRIED]]
    ranked = sorted(ways, key=lambda x: (x[1] not in first, x[0]))
    theirs = Option("apart", (*each[0][1].knobs, (NAME, 1)))
    offers = vendor and _theirs(pair, theirs) is not None
    for waiting, more_warps in ((STAGES, 0), (STAGES - 1, 1)):
        for n, (_, o, name) in enumerate(ranked):
            warps = min(8, o["warps"] << more_warps)
            knobs = {**dict(o.knobs), "warps": warps, "stages": waiting}
            yield Option(name, tuple(knobs.items()))
            if n == 0 and waiting == STAGES and offers:
                yield theirs


def _theirs(pair: Pair, o: Option) -> Choice | None:
    """The first product by the vendor's library, where nothing is behind it."""
    m = matrix_of(pair.first)
    made = None if m is None or offered(pair.first, m) is None else library(pair.first, m, o)
    return None if made is None or made.first is not None else made


def _joins(pair: Pair, o: Option) -> bool:
    """Are both kernels one, loop by loop?"""
    made = as_pair(pair, o)
    assert made is not None
    try:
        made.direct[made.root](operands(made.root), pair.second.layouts)
    except NotImplementedError:
        return False
    return True


def as_pair(pair: Pair, o: Option) -> Choice | None:
    """What an option is; None where the library does not compute it."""
    second = multiplied(pair.second, pair.matrix, o)
    m = matrix_of(pair.first)
    assert m is not None
    if o.algorithm == "pair":
        wide = replace(pair.first, tensor=_wide(pair.first.tensor))
        return _together(pair, wide, multiplied(wide, m, o), second, o)
    by = dict(o.knobs).get(NAME)
    first = _theirs(pair, o) if by else multiplied(pair.first, m, o)
    if first is None:
        return None
    return replace(
        second, option=o, schedules={**first.schedules, **second.schedules},
        packed=(*first.packed, *second.packed), made={**first.made, **second.made},
        direct={**first.direct, **second.direct}, first=(first.root, pair.held),
    )  # fmt: skip


def _wide(t: Tensor) -> Tensor:
    """As it is before it is made shorter for memory."""
    match t.body:
        case Apply("cast", (x,), dtype) if dtype == t.dtype and x.dtype == F32:
            return Tensor(t.name, F32, t.shape, t.axes, x)
    return t


def _together(pair: Pair, wide: Problem, first: Choice, second: Choice, o: Option) -> Choice:
    after, inner = second.root, first.root.body
    assert inner is not None
    assert after.body is not None

    def put(e: Expr) -> Expr:
        match e:
            case Load(x) if x is pair.held:
                return cast(inner, x.dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(put, args)), dtype)
        return e

    root = Tensor(after.name, after.dtype, after.shape, after.axes, put(after.body))
    made = built(wide, first)[0], built(pair.second, second)[0]
    return Choice(
        o, root, made={**first.made, **second.made},
        direct={root: partial(_one, *made, pair.held)},
    )  # fmt: skip


def _one(
    a: Built, b: Built, held: Tensor, given: Sequence[Tensor],
    layouts: Mapping[Tensor, Layout | Scatter],
) -> Kernel:  # fmt: skip
    """Both kernels as one."""
    buffers = dict(zip(b.reads, b.kernel.params, strict=False))
    inner = buffers.pop(held)
    body, gate = _merged(a.kernel.body, b.kernel.body, a.kernel.params[-1], inner)
    for x, buffer in zip(a.reads, a.kernel.params, strict=False):
        buffers.setdefault(x, buffer)
    same = {p: buffers[x] for x, p in zip(a.reads, a.kernel.params, strict=False)}
    body = tuple(_reading(s, same) for s in body)
    params = (*(buffers[x] for x in given), b.kernel.params[-1])
    scratch = (*a.kernel.scratch, *b.kernel.scratch, (gate, "register"))
    packs = {p.buffer: p for k in (a.kernel, b.kernel) for p in k.packs if p.buffer in params}
    return Kernel("kernel", params, body, scratch, packs=tuple(packs.values()))


def _merged(
    first: Sequence[Stmt], second: Sequence[Stmt], out: Tensor, inner: Tensor
) -> tuple[tuple[Stmt, ...], Tensor]:
    """Statements of both, loop by loop; what the first one stores to `out` is a register, which the
    second one reads in the place of `inner`."""
    gates: list[Tensor] = []

    def go(some: Sequence[Stmt], others: Sequence[Stmt]) -> Iterator[Stmt]:
        for s, o in zip(some, others, strict=True):
            if isinstance(s, For) and isinstance(o, For):
                if (s.axis, s.kind) != (o.axis, o.kind):
                    raise NotImplementedError(
                        f"the loops {s.axis.name} and {o.axis.name} are not alike"
                    )
                around = [x for x in (s, o) if x.kind != "unroll"]
                if around:
                    yield replace(s, body=tuple(go(s.body, o.body)))
                else:
                    yield from (s, o)
            elif isinstance(s, Store) and isinstance(o, Store) and s.buffer is out:
                gate = Tensor("gate", out.dtype, tuple(a.extent for a in s.axes))
                gates.append(gate)
                yield Store(gate, s.axes, s.value, s.axes)
                read = Load(gate, s.axes, gate.dtype)
                yield replace(o, value=_held(o.value, inner, s.index, read))
            else:
                yield from (s, o)

    body = tuple(go(first, second))
    return body, gates[0]


def _held(e: Expr, inner: Tensor, index: tuple[Expr, ...], read: Load) -> Expr:
    match e:
        case Load(x, at) if x is inner:
            if at != index:
                raise NotImplementedError("both products are not stored in the same order")
            return read
        case Apply("cast", (Load(x) as load,), dtype) if x is inner:
            return cast(_held(load, inner, index, read), dtype)
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_held(a, inner, index, read) for a in args), dtype)
    return e


def _reading(s: Stmt, same: Mapping[Tensor, Tensor]) -> Stmt:
    """With the buffers that both read as one."""

    def go(e: Expr) -> Expr:
        match e:
            case Load(x, index, dtype):
                return Load(same.get(x, x), tuple(map(go, index)), dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(go, args)), dtype)
        return e

    match s:
        case For():
            return replace(s, body=tuple(_reading(x, same) for x in s.body))
    return replace(s, value=go(s.value), index=tuple(map(go, s.index)))
