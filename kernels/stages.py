"""Tensors as statements on tiles, where no schedule says otherwise: for each a nest of loops over
its axes, and within them a tile of some elements of the last one.

    y[i0, i1] = sum(a[i0, k0] * b[k0, i1] for k0 < 8)

    for i0.1 < 4
      for block2 < 3
        sum4[lane3] = 0 for lane3 < 64
        for k0.5 < 8
          sum4[lane3] sum= (a[i0.1, k0.5] * b[k0.5, block2 * 64 + lane3]) for lane3 < 64
        y[i0.1, block2 * 64 + lane3] = sum4[lane3] for lane3 < 64
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import prod

from superopt.kernels.tile import For, Stmt, Store, Update
from superopt.te import index as ix
from superopt.te.dtype import F32, INDEX, DType
from superopt.te.expr import Tensor, cast, const
from superopt.te.fn import unit
from superopt.te.node import Apply, Axis, Dim, Expr, Index, Load, Reduce

LANES = 64  # elements of a tile
Env = Mapping[Expr, Expr]


@dataclass(slots=True)
class Nest:
    """A kernel that grows: the buffers of what is computed already, scratch, and new names."""

    buffers: dict[Tensor, Tensor] = field(default_factory=dict)
    scratch: list[tuple[Tensor, str]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def fresh(self, stem: str) -> str:
        return f"{stem}{next(self.numbers)}"


def stages(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that are computed, each behind those that it reads."""
    done: dict[Tensor, None] = {}

    def visit(t: Tensor) -> None:
        if t.body is not None and t not in done:
            for load in loads(t.body):
                visit(load.tensor)
            done[t] = None

    for o in outputs:
        visit(o)
    return list(done)


def loads(e: Expr) -> Iterator[Load]:
    """Every load in `e`, those within indices, too."""
    match e:
        case Load(_, at):
            yield e
            for i in at:
                yield from loads(i)
        case Apply(_, args):
            for a in args:
                yield from loads(a)
        case Reduce(_, _, body):
            yield from loads(body)
        case Index(element, bound):
            yield from loads(element)
            yield from loads(bound)


def computed(nest: Nest, t: Tensor) -> tuple[Stmt, ...]:
    """Loops over all axes of `t`."""
    shape = [d for d in t.shape if isinstance(d, int)]
    if not prod(shape):
        return ()
    if not t.axes:
        return tuple(_tile(nest, t, {}, ()))
    *rest, last = t.axes
    outer = [Axis(nest.fresh(f"{a.name}."), a.extent) for a in rest]
    whole, left = divmod(shape[-1], LANES)
    body: tuple[Stmt, ...] = ()
    for begin, blocks, extent in ((0, whole, LANES), (whole * LANES, min(left, 1), left)):
        if not blocks:
            continue
        block, lane = Axis(nest.fresh("block"), blocks), Axis(nest.fresh("lane"), extent)
        env: dict[Expr, Expr] = dict(zip(rest, outer, strict=True))
        env[last] = ix.as_index(lane + begin + (block * LANES if blocks > 1 else 0))
        tile = tuple(_tile(nest, t, env, (lane,)))
        body += (For(block, tile),) if blocks > 1 else tile
    for a in reversed(outer):
        body = (For(a, body),)
    return body


def _tile(nest: Nest, t: Tensor, env: Env, axes: tuple[Axis, ...]) -> list[Stmt]:
    """One tile: first what it sums, in tiles of their own, then what is made of these."""
    assert t.body is not None
    before: list[Stmt] = []
    new = value(nest, t.body, env, axes, before)
    where = tuple(ix.as_index(env.get(a, a)) for a in t.axes)
    return [*before, Store(nest.buffers[t], where, new, axes)]


def value(nest: Nest, e: Expr, env: Env, axes: tuple[Axis, ...], before: list[Stmt]) -> Expr:
    """`e` at the loops of `env`; what must be computed for it goes to `before`."""
    if e.dtype == INDEX:
        return index(nest, e, env, axes, before)
    match e:
        case Load(t, at, dtype):
            place = tuple(index(nest, i, env, axes, before) for i in at)
            return Load(nest.buffers.get(t, t), place, dtype)
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(value(nest, a, env, axes, before) for a in args), dtype)
        case Reduce(fn, over, body, dtype):
            total = summed(nest, e, tuple(a.extent for a in axes), "register")
            loops = [Axis(nest.fresh(f"{a.name}."), a.extent) for a in over]
            inner: list[Stmt] = []
            element = value(nest, body, {**env, **dict(zip(over, loops, strict=True))}, axes, inner)
            folded: tuple[Stmt, ...] = (*inner, Update(total, axes, fn, element, axes))
            for a in reversed(loops):
                folded = (For(a, folded),)
            before += (Store(total, axes, start(e), axes), *folded)
            return cast(total[axes], dtype)
        case _:
            return e


def summed(nest: Nest, e: Reduce, shape: tuple[Dim, ...], scope: str) -> Tensor:
    """Where a reduction is summed: floats of less than 32 bits in float32, as te/domain.py does."""
    total = Tensor(nest.fresh(e.fn), _wide(e.dtype), shape)
    nest.scratch.append((total, scope))
    return total


def start(e: Reduce) -> Expr:
    """What a reduction begins with."""
    return const(unit(e.fn, e.dtype), _wide(e.dtype))


def _wide(dtype: DType) -> DType:
    return F32 if dtype.is_float and dtype.bits < 32 else dtype


def index(nest: Nest, e: Expr, env: Env, axes: tuple[Axis, ...], before: list[Stmt]) -> Expr:
    """An index at the loops of `env`."""
    match e:
        case Axis():
            return env.get(e, e)
        case Index(element, bound):
            at = value(nest, element, env, axes, before)
            return Index(at, index(nest, bound, env, axes, before))
        case Apply(fn, args, dtype):
            moved = (index(nest, a, env, axes, before) for a in args)
            return ix.apply(fn, tuple(moved), dtype)
        case _:
            return e
