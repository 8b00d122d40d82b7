"""Online attention (online_attention.py) as kernels in the tile-level form, built directly.

With key parts, for few rows and many keys: each part p stores its maximum score m[p] and its sums
relative to that; another kernel combines them.

    total = sum(total[p] * exp(m[p] - most) for p), most = max(m[p] for p); and so the others

This is the rule `attention-in-parts` (rules/library/attention.rules), proved for all sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from superopt.kernels.algorithms.causal_mask import VisibleKeys, visible_keys
from superopt.kernels.algorithms.online_attention import (
    MIN_BLOCK_ROWS,
    MINUS_INFINITY,
    OnlineAttention,
    attention_result,
    finite_maximum,
    without_widening,
)
from superopt.kernels.loops.layout import Layout, ScatteredLayout
from superopt.kernels.loops.lower import buffer_view, load_buffers
from superopt.kernels.loops.substitution import replace_loads
from superopt.kernels.loops.tile import For, Kernel, Stmt, Store, Update
from superopt.te.analysis.inline import substitute_axes
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import F32, I32, INDEX, DType
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load
from superopt.te.expr.tensor import Tensor, cast, compare, select

FLOAT32_MAX = float(np.finfo(np.float32).max)
EXTRA_COLUMNS = (
    4  # behind a row of sums: its maximum score, its total, and padding for aligned rows
)
Layouts = Mapping[Tensor, Layout | ScatteredLayout]


@dataclass(slots=True)
class _Registers:
    """The register tiles of a kernel."""

    scratch: list[tuple[Tensor, str]] = field(default_factory=list)

    def allocate(self, name: str, *axes: Axis, kind: DType = F32) -> Load:
        t = Tensor(name, kind, tuple(x.extent for x in axes))
        self.scratch.append((t, "register"))
        return Load(t, axes, kind)


def _store(x: Load, value: Expr) -> Store:
    return Store(x.tensor, x.index, value, tuple(_axes(x)))


def _update(x: Load, fn: str, value: Expr, axis: Axis) -> Update:
    return Update(x.tensor, x.index, fn, value, tuple(_axes(x)), (axis,))


ZERO = Const(0, F32)


def online_attention_kernel(
    a: OnlineAttention, inputs: Sequence[Tensor], layouts: Layouts, rows: int, keys: int,
    parts: Tensor | None = None,
) -> Kernel:  # fmt: skip
    """Return the kernel with blocks of `rows` by `keys`. inputs: in order. parts: the tensor
    of partial results to write instead of the result (see `partial_results`)."""
    stored = {x: buffer_view(x.name, x, layouts.get(x)) for x in inputs}
    count, length = a.rows, a.j.size
    m, n = min(rows, max(count, MIN_BLOCK_ROWS)), min(keys, length)
    block, row = Axis("rows", -(-count // m)), Axis("row", m)
    part = Axis("part", 1 if parts is None else _dimension(parts, 0))
    step, key = Axis("keys", -(-length // (n * part.size))), Axis("key", n)
    limit = visible_keys(
        a.score, a.i, a.j, Load(a.placeholder, (), F32), without_widening(a.k).dtype
    )
    # blocks that see the most keys come first, so that no long one is left at the end
    number = te_index.as_index(block if limit is None else block.extent - 1 - block)
    env = _result_indices(a, number, row)
    # beyond the last key another one is read and masked
    key_ = te_index.as_index((part * step.extent + step) * n + key)
    env[a.j] = te_index.apply("min", (key_, te_index.as_index(length - 1)), INDEX)
    beyond = length % (n * step.size * part.size) != 0
    kept = a.value_dtype
    tile = _Registers()

    def at(e: Expr) -> Expr:
        return load_buffers(substitute_axes(e, env), stored)

    query = without_widening(at(a.q))
    q = tile.allocate("q", row, a.c, kind=query.dtype)
    s, x = tile.allocate("s", row, key), tile.allocate("x", row, key)
    p = tile.allocate("p", row, key)
    short = p if kept == F32 else tile.allocate("short", row, key, kind=kept)
    most, new = tile.allocate("most", row), tile.allocate("new", row)
    ground, by = tile.allocate("ground", row), tile.allocate("by", row)
    total, sums = tile.allocate("total", row), tile.allocate("sums", row, a.d)
    scores = replace_loads(at(a.score), a.placeholder, s)
    power, doubled = exp_function(a, scores)
    value = _zero_past_end(at(a.v), key_, length) if beyond else at(a.v)
    inside: tuple[Stmt, ...] = (
        _store(s, ZERO),
        _update(s, "sum", cast(q, F32) * at(a.k), a.c),
        _store(x, select(key_ < length, doubled, MINUS_INFINITY) if beyond else doubled),
        _store(new, most),
        _update(new, "max", x, key),
        _store(ground, finite_maximum(new)),
        _store(by, Apply(power, (most - ground,), F32)),
        _store(p, Apply(power, (x - ground,), F32)),
        _store(total, total * by),
        _update(total, "sum", p, key),
        _store(sums, sums * by),
        *(() if short is p else (_store(short, cast(p, kept)),)),
        _update(sums, "sum", cast(short, F32) * value, key),
        _store(most, new),
    )
    ends: tuple[Store, ...]
    if parts is None:
        out = stored[a.tensor] = buffer_view(a.tensor.name, a.tensor, layouts.get(a.tensor))
        index = out.buffer_index(tuple(env.get(x, x) for x in a.tensor.axes))
        ends = (Store(out.buffer, index, attention_result(a, at, sums, total), (row, a.d)),)
    else:
        out = stored[a.tensor] = buffer_view(parts.name, parts, None)
        place = (part, *(env.get(x, x) for x in a.tensor.axes if x is not a.d))
        width = a.d.size
        ends = (
            Store(out.buffer, (*place, a.d), sums, (row, a.d)),
            Store(out.buffer, (*place, te_index.as_index(width)), most, (row,)),
            Store(out.buffer, (*place, te_index.as_index(width + 1)), total, (row,)),
        )
    body: tuple[Stmt, ...] = (
        _store(q, query),
        _store(most, MINUS_INFINITY),
        _store(total, ZERO),
        _store(sums, ZERO),
        *_causal_loop(a, limit, tile, q, For(step, inside), part, n, _last_query(a, number, row)),
        *ends,
    )
    rest = [
        _head_group_axis(a) if x is a.shared_heads else x
        for x in a.tensor.axes
        if x not in (a.i, a.d)
    ]
    for axis in reversed([*rest, block, *([part] if parts is not None else [])]):
        body = (For(axis, body, "parallel"),)
    params = (*(stored[x].buffer for x in inputs), out.buffer)
    return Kernel("kernel", params, body, tuple(tile.scratch))


def _result_indices(a: OnlineAttention, block: Expr, row: Axis) -> dict[Axis, Expr]:
    """Return the result's axes at a row of a block."""
    env: dict[Axis, Expr] = {x: te_index.as_index(0) for x in a.tensor.axes if x.extent == 1}
    count = a.rows
    if count < row.size:  # beyond the last row is the last one again, stored several times
        last = Const(count - 1, INDEX)
        number: Expr = Apply("min", (row, last), INDEX)
    else:
        number = _block_begin(block, row.size, count)
        number = te_index.as_index(number + row)
    if a.shared_heads is None:
        return env | {a.i: number}
    high = a.i.size
    group = _head_group_axis(a)
    env[a.shared_heads] = te_index.as_index(group * a.heads_per_key + number // high)
    return env | {a.i: te_index.as_index(number % high)}


def _last_query(a: OnlineAttention, block: Expr, row: Axis) -> Expr:
    """Return the last query of a block."""
    if a.shared_heads is not None or a.rows < row.size:
        return te_index.as_index(a.i.size - 1)
    return te_index.as_index(_block_begin(block, row.size, a.rows) + (row.size - 1))


def _causal_loop(
    a: OnlineAttention,
    limit: VisibleKeys | None,
    tile: _Registers,
    q: Load,
    loop: For,
    part: Axis,
    n: int,
    last: Expr,
) -> tuple[Stmt, ...]:
    """Return the loop over the key blocks of a part, up to the last one that the block's last query
    sees."""
    if limit is None:
        return (loop,)
    steps = loop.axis.size
    count = te_index.apply(
        "max", (te_index.as_index(last + (limit.offset + 1)), te_index.as_index(0)), INDEX
    )
    mine = te_index.as_index(te_index.as_index(count + (n - 1)) // n - part * steps)
    mine = te_index.apply("max", (mine, te_index.as_index(0)), INDEX)
    mine = te_index.apply("min", (mine, te_index.as_index(steps)), INDEX)
    until: Expr = cast(mine, I32)
    if limit.max_query_norm is None:
        return (replace(loop, until=until),)
    row = q.index[0]
    assert isinstance(row, Axis)
    norms, norm = tile.allocate("norms", row), tile.allocate("norm")
    small = compare("le", norm, Const(Fraction(limit.max_query_norm), F32))
    return (
        _store(norms, ZERO),
        _update(norms, "sum", Apply("abs", (cast(q, F32),), F32), a.c),
        _store(norm, ZERO),
        _update(norm, "max", norms, row),
        replace(loop, until=select(small, until, Const(steps, I32))),
    )


def _head_group_axis(a: OnlineAttention) -> Axis:
    """Return the axis of heads that share no keys."""
    assert a.shared_heads is not None
    return Axis(f"{a.shared_heads.name}g", a.shared_heads.size // a.heads_per_key)


def partial_results(a: OnlineAttention, parts: int) -> Tensor:
    """Return the tensor of partial results: for each row sums, maximum score, and total of powers.
    Its body records what is read."""
    rest = tuple(x for x in a.tensor.axes if x is not a.d)
    axes = (Axis("part", parts), *rest, Axis("column", a.d.size + EXTRA_COLUMNS))
    body = Apply(
        "mul", (replace_loads(a.score, a.placeholder, Apply("mul", (a.q, a.k), F32)), a.v), F32
    )
    return Tensor("parts", F32, tuple(x.extent for x in axes), axes, body)


def combined_result(a: OnlineAttention, buffer: Tensor) -> Tensor:
    """Return the result as a function of `buffer`, which holds `partial_results`. Its body, that
    of one part, records what is read."""
    rest = [te_index.as_index(0) if x.extent == 1 else x for x in a.tensor.axes if x is not a.d]
    width = te_index.as_index(a.d.size)

    def of(column: Expr) -> Load:
        return Load(buffer, (te_index.as_index(0), *rest, column), F32)

    body = attention_result(a, lambda e: e, of(a.d), of(te_index.as_index(width + 1)))
    return Tensor(a.tensor.name, a.tensor.dtype, a.tensor.shape, a.tensor.axes, body)


def combine_parts_kernel(
    a: OnlineAttention, buffer: Tensor, inputs: Sequence[Tensor], layouts: Layouts
) -> Kernel:
    """Return the kernel that combines partial results, a row at a time."""
    stored = {x: buffer_view(x.name, x, layouts.get(x)) for x in inputs}
    out = buffer_view(a.tensor.name, a.tensor, layouts.get(a.tensor))
    env: dict[Axis, Expr] = {x: te_index.as_index(0) for x in a.tensor.axes if x.extent == 1}
    part = Axis("part", _dimension(buffer, 0))
    rest = [env.get(x, x) for x in a.tensor.axes if x is not a.d]
    width = te_index.as_index(a.d.size)

    def at(e: Expr) -> Expr:
        return load_buffers(substitute_axes(e, env), stored)

    def of(column: Expr) -> Load:
        return Load(stored[buffer].buffer, (part, *rest, column), F32)

    tile = _Registers()
    largest, by = tile.allocate("largest", part), tile.allocate("by", part)
    most, ground = tile.allocate("most"), tile.allocate("ground")
    total, sums = tile.allocate("total"), tile.allocate("sums", a.d)
    power, _ = exp_function(a, replace_loads(a.score, a.placeholder, most))
    body: tuple[Stmt, ...] = (
        _store(largest, of(width)),
        _store(most, MINUS_INFINITY),
        _update(most, "max", largest, part),
        _store(ground, finite_maximum(most)),
        _store(by, Apply(power, (largest - ground,), F32)),
        _store(total, ZERO),
        _update(total, "sum", by * of(te_index.as_index(width + 1)), part),
        _store(sums, ZERO),
        _update(sums, "sum", by * of(a.d), part),
        Store(
            out.buffer,
            out.buffer_index(tuple(env.get(x, x) for x in a.tensor.axes)),
            attention_result(a, at, sums, total),
            (a.d,),
        ),
    )
    for axis in reversed([x for x in a.tensor.axes if x is not a.d]):
        body = (For(axis, body, "parallel"),)
    params = (*(stored[x].buffer for x in inputs), out.buffer)
    return Kernel("kernel", params, body, tuple(tile.scratch))


def exp_function(a: OnlineAttention, scores: Expr) -> tuple[str, Expr]:
    """Return the function of exponentials and its argument: exp2 is an instruction, which saves a
    multiplication. fp32 scores times log2(e) might overflow."""
    doubled = _scale_constant(scores, math.log2(math.e)) if a.value_dtype.bits == 16 else None
    return ("exp", scores) if doubled is None else ("exp2", doubled)


def _scale_constant(e: Expr, factor: float) -> Expr | None:
    """Return `e` times a number, folded into one of its constants; None if there is none."""
    match e:
        case Const(c, dtype):
            much = float(c) * factor
            if abs(float(c)) == math.inf:
                return e
            return Const(Fraction(much), dtype) if abs(much) <= FLOAT32_MAX else None
        case Apply("mul", (a, Const() as c), dtype):
            found = _scale_constant(c, factor)
            return None if found is None else Apply("mul", (a, found), dtype)
        case Apply("mul", (Const() as c, a), dtype):
            return _scale_constant(Apply("mul", (a, c), dtype), factor)
        case Apply("div", (a, Const(int() | Fraction() as c)), dtype):
            return (
                _scale_constant(Apply("mul", (a, Const(1 / Fraction(c), dtype)), dtype), factor)
                if c
                else None
            )
        case Apply("select", (taken, a, b), dtype):
            left, right = _scale_constant(a, factor), _scale_constant(b, factor)
            if left is not None and right is not None:
                return Apply("select", (taken, left, right), dtype)
        case Apply("add", (a, b), dtype):
            left, right = _scale_constant(a, factor), _scale_constant(b, factor)
            if left is not None and right is not None:
                return Apply("add", (left, right), dtype)
    return None


def _zero_past_end(v: Expr, key: Expr, length: int) -> Expr:
    """Return v, 0 beyond the last key, whose value may be infinite."""
    inner = without_widening(v)
    return cast(select(compare("lt", key, length), inner, Const(0, inner.dtype)), v.dtype)


def _block_begin(block: Expr, m: int, n: int) -> Expr:
    """Return the beginning of a block; the last one overlaps."""
    if n % m == 0:
        return te_index.as_index(block * m)
    return te_index.apply("min", (te_index.as_index(block * m), te_index.as_index(n - m)), INDEX)


def _axes(x: Load) -> list[Axis]:
    return [i for i in x.index if isinstance(i, Axis)]


def _dimension(t: Tensor, d: int) -> int:
    n = t.shape[d]
    assert isinstance(n, int)
    return n
