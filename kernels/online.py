"""Attention by blocks of keys: rows of a softmax, multiplied with a matrix, that are never whole.

    s[i, j] = sum(q[i, c] * k[j, c] for c)
    x[i, j]                                     of s[i, j]: scaled, masked
    y[i, d] = sum(exp(x[i, j] - most[i]) * v[j, d] for j), multiplied or divided by what is of
              sum(exp(x[i, j] - most[i]) for j)

`most` is the largest x of a row so far; where a block has a larger one, the sums are multiplied by
exp(most - new): Milakov and Gimelshein, arXiv:1805.02867, algorithm 3; Dao et al., FlashAttention,
arXiv:2205.14135, section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from superopt.kernels.factor import put
from superopt.kernels.layout import Layout, Scatter, Stored
from superopt.kernels.lower import buffer
from superopt.kernels.nest import put_for
from superopt.kernels.tile import For, Kernel, Stmt, Store, Update
from superopt.kernels.transform import reduction
from superopt.te import index as ix
from superopt.te.dtype import F32, INDEX, DType
from superopt.te.expr import Tensor, cast, compare, select
from superopt.te.inline import placed
from superopt.te.node import Apply, Axis, Const, Expr, Index, Load, Reduce
from superopt.te.walk import axes_of, loads, reductions

LEAST, MOST = 8, 256  # numbers of a query, and of a row of the result
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Online:
    """y = out(sum(exp(x - most) * v) for j), where x is of sum(q * k for c): expressions over the
    axes of `t`, j and c, in which `held` stands for a sum. over: what all is multiplied with, or
    divided by (`fn`), of the sum `total`."""

    t: Tensor
    i: Axis
    d: Axis
    j: Axis
    c: Axis
    q: Expr
    k: Expr
    x: Expr
    v: Expr
    out: Expr
    fn: str
    over: Expr
    total: Tensor
    held: Tensor

    @property
    def short(self) -> DType:
        """Of which kind values are in memory."""
        return _bare(self.v).dtype


def online(t: Tensor) -> Online | None:
    """What `t` is, if it is such a product, of stages that are computed with it."""
    found = reduction(t)
    if t.body is None or found is None or found.fn != "sum" or len(found.axes) != 1:
        return None
    (j,) = found.axes
    ones: dict[Axis, Expr] = {a: ix.as_index(0) for a in t.axes if a.extent == 1}
    match placed(found.body, ones):
        case Apply("mul", (Load(Tensor(body=Expr())) as p, v)):
            pass
        case Apply("mul", (v, Load(Tensor(body=Expr())) as p)):
            pass
        case _:
            return None
    soft = _softmax(_opened(p), j)
    product = None if soft is None else _product(soft[0])
    if soft is None or product is None:
        return None
    _, fn, over, total = soft
    x, q, k, c, held = product
    if j in hangs(q):
        q, k = k, q
    own = [a for a in t.axes if a.extent != 1]
    rows = [a for a in own if a in hangs(q) and a not in hangs(k) | hangs(v)]
    columns = [a for a in own if a in hangs(v) and a not in hangs(x) | hangs(q) | hangs(k)]
    sizes = [_size(a) for a in (c, *columns)]
    if not rows or len(columns) != 1 or j in hangs(q) or j not in hangs(k) or j not in hangs(v):
        return None
    if not all(LEAST <= n <= MOST for n in sizes) or any(
        x.tensor.body is not None for e in (x, q, k, v) for x in loads(e) if x.tensor is not held
    ):
        return None
    whole = placed(found, ones)
    assert isinstance(whole, Reduce)
    out = put_for(placed(t.body, ones), whole, held, ())
    i = max(rows, key=_size)
    return Online(t, i, columns[0], j, c, q, k, x, v, out, fn, over, total, held)


def _opened(e: Expr) -> Expr:
    """With what is computed of elements in it; sums stay."""
    match e:
        case Load(t, at) if t.body is not None and reduction(t) is None:
            return _opened(placed(t.body, dict(zip(t.axes, at, strict=True))))
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(map(_opened, args)), dtype)
    return e


def _softmax(p: Expr, j: Axis) -> tuple[Expr, str, Expr, Tensor] | None:
    """x, where p is exp(x - its largest of a row) multiplied with, or divided by, what is of the
    sum of that; this, and the sum."""
    match p:
        case Apply("mul" | "div" as fn, (Apply("exp") as e, over)):
            pass
        case Apply("mul" as fn, (over, Apply("exp") as e)):
            pass
        case _:
            return None
    sums = {x for x in loads(over) if x.tensor.body is not None}
    match e:
        case Apply("exp", (Apply("sub", (x, Load() as most)),)) if len(sums) == 1:
            (total,) = sums
            if _row(most, "max", j) == x and _row(total, "sum", j) == e and j not in hangs(over):
                return x, fn, over, total.tensor
    return None


def _row(e: Load, fn: str, j: Axis) -> Expr | None:
    """What is summed, or the largest is taken of, along j."""
    match e.tensor.body:
        case Reduce(f, (over,), body) if f == fn and over.extent == j.extent:
            return _opened(
                placed(body, {**dict(zip(e.tensor.axes, e.index, strict=True)), over: j})
            )
    return None


def _product(x: Expr) -> tuple[Expr, Expr, Expr, Axis, Tensor] | None:
    """x with `held` for the product in it; its factors, and what it goes over."""
    some = {y for y in loads(x) if y.tensor.body is not None}
    if len(some) != 1:
        return None
    (scores,) = some
    s = scores.tensor
    assert s.body is not None
    body = placed(s.body, dict(zip(s.axes, scores.index, strict=True)))
    found = reductions(body)
    match found:
        case [Reduce("sum", (c,), Apply("mul", (q, k)), dtype)] if dtype == F32:
            held = Tensor("held", F32, ())
            inner = put_for(body, found[0], held, ())
            return put(x, s, inner), q, k, c, held
    return None


def hangs(e: Expr) -> set[Axis]:
    """The axes on which a value hangs, or what it reads does."""
    return axes_of(e) | {a for x in loads(e) for a in axes_of(x)}


def _size(a: Axis) -> int:
    assert isinstance(a.extent, int)
    return a.extent


# --- the kernel ---


def kernel(
    a: Online, given: Sequence[Tensor], layouts: Mapping[Tensor, Layout | Scatter],
    rows: int, keys: int,
) -> Kernel:  # fmt: skip
    """`rows` of a result at a time, and so many keys. given: what is read, in order."""
    stored = {x: buffer(x.name, x, layouts.get(x)) for x in (*given, a.t)}
    m, n = min(rows, _size(a.i)), min(keys, _size(a.j))
    block, row = Axis("rows", -(-_size(a.i) // m)), Axis("row", m)
    step, key = Axis("keys", -(-_size(a.j) // n)), Axis("key", n)
    env: dict[Axis, Expr] = {x: ix.as_index(0) for x in a.t.axes if x.extent == 1}
    env[a.i] = ix.as_index(_from(block, m, _size(a.i)) + row)
    # What is beyond the last key is one of the others, of which nothing is taken.
    key_ = ix.as_index(step * n + key)
    env[a.j] = ix.apply("min", (key_, ix.as_index(_size(a.j) - 1)), INDEX)
    beyond = _size(a.j) % n != 0
    kept = a.short
    scratch: list[tuple[Tensor, str]] = []

    def register(name: str, *axes: Axis, kind: DType = F32) -> Load:
        t = Tensor(name, kind, tuple(x.extent for x in axes))
        scratch.append((t, "register"))
        return Load(t, axes, kind)

    def at(e: Expr) -> Expr:
        return _stored(placed(e, env), stored)

    def set_(x: Load, value: Expr) -> Store:
        return Store(x.tensor, x.index, value, tuple(_axes(x)))

    def add(x: Load, fn: str, value: Expr, over: Axis) -> Update:
        return Update(x.tensor, x.index, fn, value, tuple(_axes(x)), (over,))

    query = _bare(at(a.q))
    q = register("q", row, a.c, kind=query.dtype)
    s, x = register("s", row, key), register("x", row, key)
    p = register("p", row, key)
    short = p if kept == F32 else register("short", row, key, kind=kept)
    most, new = register("most", row), register("new", row)
    ground, by = register("ground", row), register("by", row)
    total, sums = register("total", row), register("sums", row, a.d)
    least, zero = Const(float("-inf"), F32), Const(0, F32)
    scores = put(at(a.x), a.held, s)
    # Powers of two are what there are instructions for: one multiplication less. Of 32 bits
    # scores may be so large that by log2(e) they are infinite.
    doubled = _times(scores, math.log2(math.e)) if kept.bits == 16 else None
    power = "exp" if doubled is None else "exp2"
    scores = scores if doubled is None else doubled
    inside: tuple[Stmt, ...] = (
        set_(s, zero),
        add(s, "sum", cast(q, F32) * at(a.k), a.c),
        set_(x, select(key_ < _size(a.j), scores, least) if beyond else scores),
        set_(new, most),
        add(new, "max", x, key),
        # A row of which all is left out so far: exp(-inf - -inf) would be no number.
        set_(ground, select(compare("eq", new, least), zero, new)),
        set_(by, Apply(power, (most - ground,), F32)),
        set_(p, Apply(power, (x - ground,), F32)),
        set_(total, total * by),
        add(total, "sum", p, key),
        set_(sums, sums * by),
        *(() if short is p else (set_(short, cast(p, kept)),)),
        add(
            sums,
            "sum",
            cast(short, F32) * (_guarded(at(a.v), key_, _size(a.j)) if beyond else at(a.v)),
            key,
        ),
        set_(most, new),
    )
    over = put(at(a.over), a.total, total)
    result = put(at(a.out), a.held, Apply(a.fn, (sums, over), F32))
    out = stored[a.t]
    index = tuple(env.get(x, x) for x in a.t.axes)
    body: tuple[Stmt, ...] = (
        set_(q, query), set_(most, least), set_(total, zero), set_(sums, zero),
        For(step, inside),
        Store(out.buffer, out.place(index), result, (row, a.d)),
    )  # fmt: skip
    for axis in reversed([*(x for x in a.t.axes if x not in (a.i, a.d)), block]):
        body = (For(axis, body, "parallel"),)
    params = (*(stored[x].buffer for x in given), out.buffer)
    return Kernel("kernel", params, body, tuple(scratch))


def _times(e: Expr, by: float) -> Expr | None:
    """A number times, where a constant in it takes that in; None where none does."""
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
    return None


def _guarded(v: Expr, key: Expr, length: int) -> Expr:
    """Zero beyond the last key: its value may be infinite."""
    bare = _bare(v)
    return cast(select(compare("lt", key, length), bare, Const(0, bare.dtype)), v.dtype)


def _from(block: Axis, m: int, n: int) -> Expr:
    """Where a block begins: the last one where it just fits."""
    if n % m == 0:
        return ix.as_index(block * m)
    return ix.apply("min", (ix.as_index(block * m), ix.as_index(n - m)), INDEX)


def _axes(x: Load) -> list[Axis]:
    return [i for i in x.index if isinstance(i, Axis)]


def _bare(e: Expr) -> Expr:
    """What is read as it lies in memory, where that is a shorter float."""
    match e:
        case Apply("cast", (x,), dtype) if dtype == F32 and x.dtype.is_float:
            return x
    return e


def _stored(e: Expr, stored: Mapping[Tensor, Stored]) -> Expr:
    """Loads of buffers."""
    match e:
        case Load(t, index, dtype):
            at = tuple(_stored(i, stored) for i in index)
            return Load(stored[t].buffer, stored[t].place(at), dtype) if t in stored else e
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_stored(x, stored) for x in args), dtype)
        case Index(element, bound):
            return Index(_stored(element, stored), bound)
    return e
