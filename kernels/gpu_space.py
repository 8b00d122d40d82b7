"""How a GPU's kernels compute a tensor: by the kind of computation that it is, blocks of the
result, which are programs, and of what is summed, one after the other.

    dot      a sum of products, by blocks of both operands (tl.dot); windows are loops around it
    split    the same, of several parts of the sum at a time, which another kernel adds: where the
             result has too few blocks for all multiprocessors
    across   sums along what lies next to each other: of several rows at a time, a block of each
    each     all else: so many elements of the result at a time, and terms of sums one by one
    rows     all that is computed of a row (plan/rows.py), a row at a time
    online   attention, by blocks of keys (online.py)

Result axes go together in the order in which they lie in memory, so that a block is what is side by
side. Numbers of an option are those of a schedule; warps and stages go to Triton's compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod

from superopt.kernels import contraction as co
from superopt.kernels.factor import placed, put, scattered
from superopt.kernels.layout import Layout, Part, Scatter, lying
from superopt.kernels.nest import put_for
from superopt.kernels.online import Online, kernel, online
from superopt.kernels.option import Option
from superopt.kernels.problem import Choice, Problem
from superopt.kernels.rows import once
from superopt.kernels.schedule import (
    ComputeAt,
    Fuse,
    Inline,
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from superopt.kernels.transform import reduction
from superopt.te import index as ix
from superopt.te.expr import Tensor
from superopt.te.node import Axis, Load, Reduce
from superopt.te.walk import loads, stages

DOT = 16  # the least extent of a dot's blocks
MULTIPROCESSORS = 132  # programs below which some have nothing to do (an H100's)
ELEMENTS = 1024  # of a result at a time, at most
SUMMED = 1024  # terms of a sum at a time, at most
FEW = 64  # elements of a result for each multiprocessor below which sums are taken apart
BESIDE, TALL = 16, 512  # of a result, that are read side by side; and terms of each, at most
EACH = 16  # terms that take as long as it takes to begin a block of them
LARGEST = 1 << 14  # elements of a row that is one block


def choice(p: Problem, wanted: Option | None = None) -> Choice:
    """By the option that is wanted, where it is one of this problem's; else the best one."""
    option = wanted if wanted is not None and wanted in options(p) else next(options(p))
    return chosen(p, option)


def options(p: Problem) -> Iterator[Option]:
    """All ways, the one that should be the fastest first."""
    fused = online(p.tensor) if p.lead else None
    if fused is not None:
        yield from _attending(fused)
        return
    if p.lead:
        yield Option.of("rows", warps=4)
        return
    found = reduction(p.tensor)
    matrix = _matrix(p)
    if matrix is not None:
        yield from _ranked(matrix)
        return
    if found is not None:
        beside, n = _beside(p, found), prod(map(co.extent, found.axes))
        few = _count(p.tensor) < FEW * MULTIPROCESSORS and n >= FEW
        if beside or few:
            rows = max(1, min(8, _count(p.tensor) // (4 * MULTIPROCESSORS))) if beside else BESIDE
            rows = min(rows, max(_count(p.tensor), 1))
            deep = _block(co.extent(found.axes[-1]), SUMMED if beside else TALL, 1)
            yield Option.of("across", rows=rows, deep=deep, warps=4 if deep * rows > 512 else 1)
    most = max(_count(p.tensor) // (2 * MULTIPROCESSORS), 64)
    elements = 1 << min(ELEMENTS, most).bit_length() - 1
    for n in dict.fromkeys((elements, 256, 512, 1024)):
        yield Option.of("each", elements=n, warps=max(1, min(4, n // 64)))


def chosen(p: Problem, option: Option) -> Choice:
    """What an option is for this problem. Raises ValueError where it is none of its options."""
    t = p.tensor
    match option.algorithm:
        case "dot":
            m = _matrix(p)
            if m is not None:
                packed = (m.c.b.tensor,) if m.c.b.tensor in p.constants else ()
                return Choice(option, t, {t: _dot(m, option)}, packed)
        case "split":
            m = _matrix(p)
            if m is not None:
                return _split(p, m, option)
        case "online" if p.lead and (fused := online(t)) is not None:
            made = partial(kernel, fused, rows=option["rows"], keys=option["keys"])
            return Choice(option, t, direct=made)
        case "rows" if p.lead:
            return Choice(option, t, _rows(t, p.lead))
        case "across":
            found = reduction(t)
            if found is not None:
                return Choice(option, t, {t: _across(p, found, option["rows"], option["deep"])})
        case "each":
            return Choice(option, t, {t: _each(p, option["elements"])})
    raise ValueError(f"{option} is no way to compute {t.name}")


def told(option: Option) -> tuple[int, int]:
    """How many warps run its kernels, and how many steps of their loops are under way at a time."""
    knobs = dict(option.knobs)
    return knobs.get("warps", 4), knobs.get("stages", 3)


# --- products ---


@dataclass(frozen=True, slots=True)
class Matrix:
    """A sum of products as one of matrices: rows, columns, and what is summed, each as axes that go
    together, the outermost first; batch: axes of both operands."""

    c: co.Contraction
    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    over: tuple[Axis, ...]
    half: bool

    @property
    def sizes(self) -> tuple[int, int, int]:
        m, n, k = (prod(map(co.extent, x)) for x in (self.rows, self.columns, self.over))
        return m, n, k


def _matrix(p: Problem) -> Matrix | None:
    c, found = co.contraction(p.tensor, p.constants, 1), reduction(p.tensor)
    if c is None or found is None or not c.of_a or not c.of_b:
        return None
    order = [p.tensor.axes[x.axis] for x in _parts(p)]
    rows, columns = (tuple(a for a in order if a in x) for x in (c.of_a, c.of_b))
    both = tuple(a for a in order if a not in (*rows, *columns))  # or of neither
    # Channels innermost, where pictures lie so; what is of one step says nothing.
    over = sorted(found.axes, key=lambda a: (co.extent(a) > 1, _stride(c.a, a, p.layouts) == 1))
    half = c.a.dtype.bits == 16
    m = Matrix(c, both, rows, columns, tuple(over), half)
    return m if min(m.sizes[0], m.sizes[1], _terms(m)) > DOT // 2 else None


def _terms(m: Matrix, most: int = 64) -> int:
    """Of a block of the sum: of its last axis, or of all axes where that is short; 0 where it has
    no such blocks."""
    last = co.extent(m.over[-1])
    n = last if last >= DOT else m.sizes[2]
    return n if DOT // 2 < n < DOT else _block(n, most, DOT) or _block(n, 2 * most, DOT)


SIDES = (16, 32, 64, 128)  # of blocks of the result
PARTS = (1, 2, 3, 4, 6, 8, 9, 16)  # of a sum


def _ranked(m: Matrix) -> Iterator[Option]:
    """Blocks, the best ones first, by what they should take; a second time for those by which the
    compiler may do it otherwise."""
    best = sorted(_blocks(m), key=lambda x: x[0])
    for waiting, more in ((4, 0), (3, 1)):
        for _, o in best:
            knobs = dict(o.knobs)
            knobs["stages"] = waiting
            knobs["warps"] = min(8, knobs["warps"] << more)
            yield Option(o.algorithm, tuple(knobs.items()))


def _blocks(m: Matrix) -> Iterator[tuple[float, Option]]:
    """What a block takes is the steps of its sum, of which each waits for what it reads; what all
    take is no less than what is read and multiplied."""
    rows, columns, terms = m.sizes
    batch = prod(map(co.extent, m.batch))
    deep = _terms(m, 64 if m.half else 32)
    last, size = co.extent(m.over[-1]), 2 if m.half else 4
    for h, w, parts in product(SIDES, SIDES, PARTS):
        if h >= 2 * max(rows, DOT) or w >= 2 * max(columns, DOT):
            continue
        if parts > 1 and (last < DOT or last % (parts * deep)):
            continue
        blocks = parts * batch * -(-rows // h) * -(-columns // w)
        near = max(1, min(MOST, ROOM // (h * w)))  # that a multiprocessor has at a time
        steps = -(-terms // (parts * deep))
        waves = -(-blocks // (MULTIPROCESSORS * near))
        read = blocks * steps * deep * (h + w) * size / BYTES
        made = blocks * steps * deep * h * w / PRODUCTS[m.half]
        together = min(near, -(-blocks // MULTIPROCESSORS))
        one = max(h * w / PRODUCTS[m.half], (h + w) * size / BYTES)
        busy = together * deep * one * MULTIPROCESSORS
        time = START + max(waves * steps * max(STEP, busy), read, made) + (w > h)
        if parts > 1:
            time += AGAIN + parts * rows * columns * batch * 8 / BYTES
        warps = 8 if h * w >= 128 * 128 else 4 if h * w >= 32 * 64 else 2
        knobs = {"rows": h, "columns": w, "deep": deep, "warps": warps, "stages": 4}
        if parts > 1:
            knobs["parts"] = parts
        yield time, Option.of("dot" if parts == 1 else "split", **knobs)


# In ns: a step that waits, a kernel, and one more that adds parts; in one of them the bytes that
# all multiprocessors read from the second cache, and the products that they do, of float32 and of
# halves.
STEP, START, AGAIN = 150.0, 1500.0, 2000.0
BYTES = 4000.0
PRODUCTS = {False: 100_000.0, True: 250_000.0}
SOFT, FUNCTIONS = 600.0, 2000.0  # a step of attention; and exponentials in a ns
ROOM, MOST = 128 * 128, 8  # elements of blocks, and these, that a multiprocessor has at a time


def _dot(m: Matrix, o: Option) -> Schedule:
    steps: list[Primitive] = [
        Reorder(tuple(a.name for a in (*m.batch, *m.rows, *m.columns, *m.over)))
    ]
    row, column = _fused(steps, m.rows), _fused(steps, m.columns)
    last = co.extent(m.over[-1])
    if last >= DOT:
        *window, k = [a.name for a in m.over]
    else:
        window, k = [], _fused(steps, m.over)
    high, wide = min(o["rows"], m.sizes[0]), min(o["columns"], m.sizes[1])
    steps += [Split(row, high), Split(column, wide), Split(k, o["deep"])]
    outer = [*(a.name for a in m.batch), f"{row}.o", f"{column}.o"]
    inner = [f"{k}.i", f"{row}.i", f"{column}.i"]
    steps.append(Reorder((*outer, *window, f"{k}.o", *inner)))
    for name in window[1:]:
        steps.append(Fuse(window[0], name))
        window[0] = f"{window[0]}_{name}"
    if window:
        steps.append(Fuse(window[0], f"{k}.o"))
    steps += [Parallel(x) for x in outer]
    return (*steps, Unroll(f"{k}.i"), Unroll(f"{row}.i"), Vectorize(f"{column}.i"))


def _split(p: Problem, m: Matrix, o: Option) -> Choice:
    """The sum in parts, of its last axis; and these added, in what the result is made of it."""
    t, found, parts = p.tensor, reduction(p.tensor), o["parts"]
    assert found is not None
    k = m.over[-1]
    n = co.extent(k) // parts
    part, rest, again = Axis("part", parts), Axis(f"{k.name}r", n), Axis("part", parts)
    body = placed(found.body, {k: ix.as_index(part * n + rest)})
    over = tuple(rest if a == k else a for a in found.axes)
    order = [t.axes[x.axis] for x in _parts(p)]
    axes = (part, *order)
    shape = tuple(a.extent for a in axes)
    before = Tensor("parts", found.dtype, shape, axes, Reduce("sum", over, body, found.dtype))
    buffer, held = Tensor("summed", found.dtype, shape), Tensor("held", found.dtype, t.shape)
    total = Reduce("sum", (again,), Load(buffer, (again, *order), found.dtype), found.dtype)
    assert t.body is not None
    root = Tensor(
        t.name, t.dtype, t.shape, t.axes, put(put_for(t.body, found, held, t.axes), held, total)
    )
    own = {x: y for x, y in p.layouts.items() if x != t}
    lies = p.layouts.get(t)
    inner = _matrix(replace(p, tensor=before, layouts=own))
    assert inner is not None
    outer = replace(p, tensor=root, layouts=own if lies is None else {**own, root: lies})
    elements = max(64, min(512, 1 << max(_count(t) // (2 * MULTIPROCESSORS), 1).bit_length() - 1))
    schedules = {before: _dot(inner, o), root: _each(outer, elements)}
    packed = (m.c.b.tensor,) if m.c.b.tensor in p.constants else ()
    return Choice(
        o, root, schedules, packed, scattered(t, lies, t.axes, t.axes), {}, (before, buffer)
    )


# --- attention ---

QUERIES, KEYS = (16, 32, 64, 128), (32, 64, 128)  # of a block


def _attending(a: Online) -> Iterator[Option]:
    """Blocks, the best ones first, by what they should take: steps that wait for keys, products,
    and functions of scores; and the keys that are read again for each block of queries."""
    n, length, width = co.extent(a.i), co.extent(a.j), co.extent(a.d)
    half, others = a.short.bits == 16, _count(a.t) // (n * width)
    found = []
    for rows, keys in product(QUERIES, KEYS):
        if rows >= 2 * max(n, DOT) or keys >= 2 * max(length, KEYS[0]):
            continue
        blocks, steps = others * -(-n // rows), -(-length // keys)
        near = max(1, min(MOST, ROOM // (rows * (keys + width))))
        waves = -(-blocks // (MULTIPROCESSORS * near))
        together = min(near, -(-blocks // MULTIPROCESSORS))
        done = rows * keys * (2 * width / PRODUCTS[half] + 1 / FUNCTIONS) * MULTIPROCESSORS
        read = 2 * keys * width * (2 if half else 4) / BYTES * MULTIPROCESSORS
        time = waves * steps * max(SOFT, together * max(done, read))
        warps = 8 if rows >= 128 else 4
        found.append((time, Option.of("online", rows=rows, keys=keys, warps=warps, stages=3)))
    best = [o for _, o in sorted(found, key=lambda x: x[0])]
    yield from best
    for o in best:
        knobs = {**dict(o.knobs), "stages": 2}
        yield Option("online", tuple(knobs.items()))


# --- sums, and all else ---


def _across(p: Problem, found: Reduce, rows: int, deep: int) -> Schedule:
    order = [p.tensor.axes[x.axis] for x in _parts(p)]
    *outer, k = [a.name for a in found.axes]
    steps: list[Primitive] = [Reorder((*(a.name for a in order), *outer, k))]
    name = _fused(steps, order)
    steps += [Split(name, rows), Split(k, deep)]
    steps.append(Reorder((f"{name}.o", *outer, f"{k}.o", f"{k}.i", f"{name}.i")))
    return (*steps, Parallel(f"{name}.o"), Unroll(f"{k}.i"), Vectorize(f"{name}.i"))


def _each(p: Problem, elements: int) -> Schedule:
    order = [p.tensor.axes[x.axis] for x in _parts(p)]
    found = reduction(p.tensor)
    over = [] if found is None else [a.name for a in found.axes]
    if not order:
        return ()
    steps: list[Primitive] = [Reorder((*(a.name for a in order), *over))]
    name = _fused(steps, order)
    steps += [Split(name, min(elements, max(_count(p.tensor), 1)))]
    steps.append(Reorder((f"{name}.o", *over, f"{name}.i")))
    return (*steps, Parallel(f"{name}.o"), Vectorize(f"{name}.i"))


def _rows(t: Tensor, lead: int) -> Mapping[Tensor, Schedule]:
    """A row is a program; what is computed of it is, whole, where it is not too long."""
    row = t.axes[lead - 1].name
    out: dict[Tensor, Schedule] = {}
    order = stages([t])
    for s in order:
        found = reduction(s)
        if s is not t and found is None and s.rank == t.rank and once(s, order):
            out[s] = (Inline(),)
            continue
        steps: list[Primitive] = [] if s is t else [ComputeAt(t.name, row)]
        axes = found.axes if found is not None else s.axes[lead:]
        if axes:
            name = _fused(steps, axes)
            n = prod(map(co.extent, axes))
            if n > LARGEST:
                steps.append(Split(name, _block(n, LARGEST, 1)))
                name = f"{name}.i"
            steps.append(Vectorize(name))
        out[s] = tuple(steps)
    out[t] = (*out[t], *(Parallel(a.name) for a in t.axes[:lead]))
    return out


# --- what all of them need ---


def _fused(steps: list[Primitive], axes: Sequence[Axis]) -> str:
    """The name of the axes as one, which follow each other."""
    name = axes[0].name
    for a in axes[1:]:
        steps.append(Fuse(name, a.name))
        name = f"{name}_{a.name}"
    return name


def _block(n: int, most: int, least: int) -> int:
    """The factor of n, of at most `most`, by which blocks waste the least: of what is beyond them,
    for they are powers of two, and for each of them; 0 where it has none of at least `least`."""
    some = [d for d in range(least, min(n, most) + 1) if n % d == 0]
    return min(some, key=lambda d: ((1 << (d - 1).bit_length()) + EACH) / d, default=0)


def _parts(p: Problem) -> tuple[Part, ...]:
    return lying(p.layouts.get(p.tensor), p.tensor.rank).parts


def _count(t: Tensor) -> int:
    return prod(map(co.extent, t.axes))


def _stride(x: Load, a: Axis, layouts: Mapping[Tensor, Layout | Scatter]) -> int | None:
    return co.strides(co.in_memory(x, layouts), a)


def _beside(p: Problem, found: Reduce) -> bool:
    """Do the terms of the sum lie next to each other, and the elements of the result do not?"""
    last = found.axes[-1]
    order = [p.tensor.axes[x.axis] for x in _parts(p)]
    if co.extent(last) < 32:
        return False
    some = [x for x in loads(found.body) if x.tensor.shape]
    along = [_stride(x, last, p.layouts) for x in some]
    lane = [_stride(x, order[-1], p.layouts) for x in some] if order else []
    return 1 in along and not any(s == 1 for s in lane)
