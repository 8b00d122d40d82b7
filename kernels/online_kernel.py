"""Online attention (online_attention.py) as kernels in the tile-level form, built directly.

With key parts, for few rows and many keys: each part p stores its maximum score m[p] and its sums
relative to that; another kernel combines them.

    total = sum(total[p] * exp(m[p] - most) for p), most = max(m[p] for p); and so the others

This is the rule `attention-in-parts` (rules/library/attention.rules), proved for all sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from superopt.kernels.causal import Seen, seen
from superopt.kernels.factor import put
from superopt.kernels.layout import Layout, Scatter, Stored
from superopt.kernels.lower import buffer
from superopt.kernels.online import FEW, Online, bare
from superopt.kernels.tile import For, Kernel, Stmt, Store, Update
from superopt.te import index as ix
from superopt.te.dtype import F32, I32, INDEX, DType
from superopt.te.expr import Tensor, cast, compare, select
from superopt.te.inline import placed
from superopt.te.node import Apply, Axis, Const, Expr, Index, Load

LARGEST = float(np.finfo(np.float32).max)
BESIDE = 4  # behind a row of sums: its maximum score, its total, and padding for aligned rows
Lying = Mapping[Tensor, Layout | Scatter]


@dataclass(slots=True)
class _Registers:
    """The register tiles of a kernel."""

    scratch: list[tuple[Tensor, str]] = field(default_factory=list)

    def of(self, name: str, *axes: Axis, kind: DType = F32) -> Load:
        t = Tensor(name, kind, tuple(x.extent for x in axes))
        self.scratch.append((t, "register"))
        return Load(t, axes, kind)


def _set(x: Load, value: Expr) -> Store:
    return Store(x.tensor, x.index, value, tuple(_axes(x)))


def _add(x: Load, fn: str, value: Expr, over: Axis) -> Update:
    return Update(x.tensor, x.index, fn, value, tuple(_axes(x)), (over,))


NONE, ZERO = Const(float("-inf"), F32), Const(0, F32)


def kernel(
    a: Online, given: Sequence[Tensor], layouts: Lying, rows: int, keys: int,
    parts: Tensor | None = None,
) -> Kernel:  # fmt: skip
    """Return the kernel with blocks of `rows` by `keys`. inputs: in order. parts: the tensor
    of partial results to write instead of the result (see `partial_results`)."""
    stored = {x: buffer(x.name, x, layouts.get(x)) for x in given}
    count, length = a.rows, a.j.size
    m, n = min(rows, max(count, FEW)), min(keys, length)
    block, row = Axis("rows", -(-count // m)), Axis("row", m)
    part = Axis("part", 1 if parts is None else _size_of(parts, 0))
    step, key = Axis("keys", -(-length // (n * part.size))), Axis("key", n)
    limit = seen(a.x, a.i, a.j, Load(a.held, (), F32), bare(a.k).dtype)
    # blocks that see the most keys come first, so that no long one is left at the end
    number = ix.as_index(block if limit is None else block.extent - 1 - block)
    env = _places(a, number, row)
    # beyond the last key another one is read and masked
    key_ = ix.as_index((part * step.extent + step) * n + key)
    env[a.j] = ix.apply("min", (key_, ix.as_index(length - 1)), INDEX)
    beyond = length % (n * step.size * part.size) != 0
    kept = a.short
    tile = _Registers()

    def at(e: Expr) -> Expr:
        return _stored(placed(e, env), stored)

    query = bare(at(a.q))
    q = tile.of("q", row, a.c, kind=query.dtype)
    s, x = tile.of("s", row, key), tile.of("x", row, key)
    p = tile.of("p", row, key)
    short = p if kept == F32 else tile.of("short", row, key, kind=kept)
    most, new = tile.of("most", row), tile.of("new", row)
    ground, by = tile.of("ground", row), tile.of("by", row)
    total, sums = tile.of("total", row), tile.of("sums", row, a.d)
    scores = put(at(a.x), a.held, s)
    power, doubled = powers(a, scores)
    value = _guarded(at(a.v), key_, length) if beyond else at(a.v)
    inside: tuple[Stmt, ...] = (
        _set(s, ZERO),
        _add(s, "sum", cast(q, F32) * at(a.k), a.c),
        _set(x, select(key_ < length, doubled, NONE) if beyond else doubled),
        _set(new, most),
        _add(new, "max", x, key),
        _set(ground, _ground(new)),
        _set(by, Apply(power, (most - ground,), F32)),
        _set(p, Apply(power, (x - ground,), F32)),
        _set(total, total * by),
        _add(total, "sum", p, key),
        _set(sums, sums * by),
        *(() if short is p else (_set(short, cast(p, kept)),)),
        _add(sums, "sum", cast(short, F32) * value, key),
        _set(most, new),
    )
    ends: tuple[Store, ...]
    if parts is None:
        out = stored[a.t] = buffer(a.t.name, a.t, layouts.get(a.t))
        index = out.place(tuple(env.get(x, x) for x in a.t.axes))
        ends = (Store(out.buffer, index, _result(a, at, sums, total), (row, a.d)),)
    else:
        out = stored[a.t] = buffer(parts.name, parts, None)
        place = (part, *(env.get(x, x) for x in a.t.axes if x is not a.d))
        width = a.d.size
        ends = (
            Store(out.buffer, (*place, a.d), sums, (row, a.d)),
            Store(out.buffer, (*place, ix.as_index(width)), most, (row,)),
            Store(out.buffer, (*place, ix.as_index(width + 1)), total, (row,)),
        )
    body: tuple[Stmt, ...] = (
        _set(q, query), _set(most, NONE), _set(total, ZERO), _set(sums, ZERO),
        *_bounded(a, limit, tile, q, For(step, inside), part, n, _last(a, number, row)), *ends,
    )  # fmt: skip
    rest = [_group(a) if x is a.heads else x for x in a.t.axes if x not in (a.i, a.d)]
    for axis in reversed([*rest, block, *([part] if parts is not None else [])]):
        body = (For(axis, body, "parallel"),)
    params = (*(stored[x].buffer for x in given), out.buffer)
    return Kernel("kernel", params, body, tuple(tile.scratch))


def _places(a: Online, block: Expr, row: Axis) -> dict[Axis, Expr]:
    """Return the result's axes at a row of a block."""
    env: dict[Axis, Expr] = {x: ix.as_index(0) for x in a.t.axes if x.extent == 1}
    count = a.rows
    if count < row.size:  # beyond the last row is the last one again, stored several times
        last = Const(count - 1, INDEX)
        number: Expr = Apply("min", (row, last), INDEX)
    else:
        number = _from(block, row.size, count)
        number = ix.as_index(number + row)
    if a.heads is None:
        return env | {a.i: number}
    high = a.i.size
    group = _group(a)
    env[a.heads] = ix.as_index(group * a.share + number // high)
    return env | {a.i: ix.as_index(number % high)}


def _last(a: Online, block: Expr, row: Axis) -> Expr:
    """Return the last query of a block."""
    if a.heads is not None or a.rows < row.size:
        return ix.as_index(a.i.size - 1)
    return ix.as_index(_from(block, row.size, a.rows) + (row.size - 1))


def _bounded(
    a: Online, limit: Seen | None, tile: _Registers, q: Load, loop: For, part: Axis, n: int,
    last: Expr,
) -> tuple[Stmt, ...]:  # fmt: skip
    """Return the loop over the key blocks of a part, up to the last one that the block's last query
    sees."""
    if limit is None:
        return (loop,)
    steps = loop.axis.size
    count = ix.apply("max", (ix.as_index(last + (limit.offset + 1)), ix.as_index(0)), INDEX)
    mine = ix.as_index(ix.as_index(count + (n - 1)) // n - part * steps)
    mine = ix.apply("max", (mine, ix.as_index(0)), INDEX)
    mine = ix.apply("min", (mine, ix.as_index(steps)), INDEX)
    until: Expr = cast(mine, I32)
    if limit.norm is None:
        return (replace(loop, until=until),)
    row = q.index[0]
    assert isinstance(row, Axis)
    norms, norm = tile.of("norms", row), tile.of("norm")
    small = compare("le", norm, Const(Fraction(limit.norm), F32))
    return (
        _set(norms, ZERO),
        _add(norms, "sum", Apply("abs", (cast(q, F32),), F32), a.c),
        _set(norm, ZERO),
        _add(norm, "max", norms, row),
        replace(loop, until=select(small, until, Const(steps, I32))),
    )


def _group(a: Online) -> Axis:
    """Return the axis of heads that share no keys."""
    assert a.heads is not None
    return Axis(f"{a.heads.name}g", a.heads.size // a.share)


def parted(a: Online, parts: int) -> Tensor:
    """Return the tensor of partial results: for each row sums, maximum score, and total of powers.
    Its body records what is read."""
    rest = tuple(x for x in a.t.axes if x is not a.d)
    axes = (Axis("part", parts), *rest, Axis("column", a.d.size + BESIDE))
    body = Apply("mul", (put(a.x, a.held, Apply("mul", (a.q, a.k), F32)), a.v), F32)
    return Tensor("parts", F32, tuple(x.extent for x in axes), axes, body)


def added(a: Online, held: Tensor) -> Tensor:
    """Return the result as a function of `buffer`, which holds `partial_results`. Its body, that
    of one part, records what is read."""
    rest = [ix.as_index(0) if x.extent == 1 else x for x in a.t.axes if x is not a.d]
    width = ix.as_index(a.d.size)

    def of(column: Expr) -> Load:
        return Load(held, (ix.as_index(0), *rest, column), F32)

    body = _result(a, lambda e: e, of(a.d), of(ix.as_index(width + 1)))
    return Tensor(a.t.name, a.t.dtype, a.t.shape, a.t.axes, body)


def adding(a: Online, held: Tensor, given: Sequence[Tensor], layouts: Lying) -> Kernel:
    """Return the kernel that combines partial results, a row at a time."""
    stored = {x: buffer(x.name, x, layouts.get(x)) for x in given}
    out = buffer(a.t.name, a.t, layouts.get(a.t))
    env: dict[Axis, Expr] = {x: ix.as_index(0) for x in a.t.axes if x.extent == 1}
    part = Axis("part", _size_of(held, 0))
    rest = [env.get(x, x) for x in a.t.axes if x is not a.d]
    width = ix.as_index(a.d.size)

    def at(e: Expr) -> Expr:
        return _stored(placed(e, env), stored)

    def of(column: Expr) -> Load:
        return Load(stored[held].buffer, (part, *rest, column), F32)

    tile = _Registers()
    largest, by = tile.of("largest", part), tile.of("by", part)
    most, ground = tile.of("most"), tile.of("ground")
    total, sums = tile.of("total"), tile.of("sums", a.d)
    power, _ = powers(a, put(a.x, a.held, most))
    body: tuple[Stmt, ...] = (
        _set(largest, of(width)),
        _set(most, NONE), _add(most, "max", largest, part), _set(ground, _ground(most)),
        _set(by, Apply(power, (largest - ground,), F32)),
        _set(total, ZERO), _add(total, "sum", by * of(ix.as_index(width + 1)), part),
        _set(sums, ZERO), _add(sums, "sum", by * of(a.d), part),
        Store(out.buffer, out.place(tuple(env.get(x, x) for x in a.t.axes)),
              _result(a, at, sums, total), (a.d,)),
    )  # fmt: skip
    for axis in reversed([x for x in a.t.axes if x is not a.d]):
        body = (For(axis, body, "parallel"),)
    params = (*(stored[x].buffer for x in given), out.buffer)
    return Kernel("kernel", params, body, tuple(tile.scratch))


def _result(a: Online, at: Callable[[Expr], Expr], sums: Expr, total: Expr) -> Expr:
    over = put(at(a.over), a.total, total)
    return put(at(a.out), a.held, Apply(a.fn, (sums, over), F32))


def _ground(most: Load) -> Expr:
    """Return the maximum, or 0 for a fully masked row so far: exp(-inf - -inf) would be NaN."""
    return select(compare("eq", most, NONE), ZERO, most)


def powers(a: Online, scores: Expr) -> tuple[str, Expr]:
    """Return the function of exponentials and its argument: exp2 is an instruction, which saves a
    multiplication. fp32 scores times log2(e) might overflow."""
    doubled = _times(scores, math.log2(math.e)) if a.short.bits == 16 else None
    return ("exp", scores) if doubled is None else ("exp2", doubled)


def _times(e: Expr, by: float) -> Expr | None:
    """Return `e` times a number, folded into one of its constants; None if there is none."""
    match e:
        case Const(c, dtype):
            much = float(c) * by
            if abs(float(c)) == math.inf:
                return e
            return Const(Fraction(much), dtype) if abs(much) <= LARGEST else None
        case Apply("mul", (a, Const() as c), dtype):
            found = _times(c, by)
            return None if found is None else Apply("mul", (a, found), dtype)
        case Apply("mul", (Const() as c, a), dtype):
            return _times(Apply("mul", (a, c), dtype), by)
        case Apply("div", (a, Const(int() | Fraction() as c)), dtype):
            return (
                _times(Apply("mul", (a, Const(1 / Fraction(c), dtype)), dtype), by) if c else None
            )
        case Apply("select", (taken, a, b), dtype):
            left, right = _times(a, by), _times(b, by)
            if left is not None and right is not None:
                return Apply("select", (taken, left, right), dtype)
        case Apply("add", (a, b), dtype):
            left, right = _times(a, by), _times(b, by)
            if left is not None and right is not None:
                return Apply("add", (left, right), dtype)
    return None


def _guarded(v: Expr, key: Expr, length: int) -> Expr:
    """Return v, 0 beyond the last key, whose value may be infinite."""
    inner = bare(v)
    return cast(select(compare("lt", key, length), inner, Const(0, inner.dtype)), v.dtype)


def _from(block: Expr, m: int, n: int) -> Expr:
    """Return the beginning of a block; the last one overlaps."""
    if n % m == 0:
        return ix.as_index(block * m)
    return ix.apply("min", (ix.as_index(block * m), ix.as_index(n - m)), INDEX)


def _axes(x: Load) -> list[Axis]:
    return [i for i in x.index if isinstance(i, Axis)]


def _size_of(t: Tensor, d: int) -> int:
    n = t.shape[d]
    assert isinstance(n, int)
    return n


def _stored(e: Expr, stored: Mapping[Tensor, Stored]) -> Expr:
    """Return `e` with loads of buffers."""
    match e:
        case Load(t, index, dtype):
            at = tuple(_stored(i, stored) for i in index)
            return Load(stored[t].buffer, stored[t].place(at), dtype) if t in stored else e
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_stored(x, stored) for x in args), dtype)
        case Index(element, bound):
            return Index(_stored(element, stored), bound)
    return e
