"""Strassen's matrix product: Strassen, Gaussian elimination is not optimal, 1969.

Each operand is split in two along both axes; seven products of sums of quarters replace eight
products of quarters. For quarters (r, s) of a, (s, c) of b and (r, c) of y:

    p[i, x, k]    = sum(A[x, r, s] * a[r, i, s, k] for r, s)
    q[x, k, n]    = sum(B[x, s, c] * b[s, k, c, n] for s, c)        a constant: ahead of time
    s[x, i, n]    = sum(p[i, x, k] * q[x, k, n] for k)
    y[i, r, c, n] = sum(C[r, c, x] * s[x, i, n] for x)

Errors of a sum of rows are relative to the largest of these, so rows are scaled (`row_scaling.py`).

If the number of rows is odd, the second half begins one row earlier and computes that row again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from math import prod

import numpy as np

from superopt.kernels import reducing
from superopt.kernels.contraction import DEEP, REGISTERS, Contraction, tiles
from superopt.kernels.factor import Form, placed, put, scattered
from superopt.kernels.layout import Layout, Scatter
from superopt.kernels.nest import put_for
from superopt.kernels.pack import packed
from superopt.kernels.picture import over
from superopt.kernels.scales import inverses, undone
from superopt.kernels.schedule import Schedule, parsed
from superopt.kernels.tile import Pack
from superopt.kernels.transform import reduction
from superopt.te import index as ix
from superopt.te.expr import Tensor, compute, reduce_sum
from superopt.te.node import Apply, Axis, Expr, Load
from superopt.te.walk import axes_of

# [x][r][s], [x][s][c] and [r][c][x] of Strassen's own seven products: Winograd's variant takes
# fewer additions by sharing them, but amplifies errors more.
A = (
    (1, 0, 0, 1),
    (0, 0, 1, 1),
    (1, 0, 0, 0),
    (0, 0, 0, 1),
    (1, 1, 0, 0),
    (-1, 0, 1, 0),
    (0, 1, 0, -1),
)
B = (
    (1, 0, 0, 1),
    (1, 0, 0, 0),
    (0, 1, 0, -1),
    (-1, 0, 1, 0),
    (0, 0, 0, 1),
    (1, 1, 0, 0),
    (0, 0, 1, 1),
)
C = ((1, 0, 0, 1, -1, 0, 1), (0, 0, 1, 0, 1, 0, 0), (0, 1, 0, 1, 0, 0, 0), (1, -1, 1, 0, 0, 1, 0))


@dataclass(frozen=True, slots=True)
class Square:
    """A matrix product: `rows`, fused axes of the result, `n` columns, `k` terms; for each of
    `images`, if the first of several row axes selects one.

    Rows of different images are never summed, since a NaN would spread to the rows it is summed
    with.
    """

    images: Axis | None
    rows: tuple[Axis, ...]
    n: Axis
    k: Axis

    @property
    def count(self) -> int:
        return 1 if self.images is None else self.images.size

    @property
    def high(self) -> int:
        """The rows of an image."""
        return prod(a.size for a in self.rows)


@dataclass(frozen=True, slots=True)
class Plan:
    """levels: of recursion. apart: all sums of a's parts are computed by a kernel before; else
    those of `block` rows of each part at a time. Register tiles of the products are `rows` times
    `vectors`; deep: terms of a K block, 0 for one block."""

    levels: int
    apart: bool
    block: int
    rows: int
    vectors: int
    deep: int


def square(t: Tensor, c: Contraction) -> Square | None:
    """Match a matrix product that Strassen can compute; None otherwise."""
    found = reduction(t)
    if found is None or not isinstance(found.body, Apply) or c.b not in found.body.args:
        return None
    if 0 in (x.size for x in (*t.axes, *found.axes)):
        return None
    long = [x for x in found.axes if x.size > 1]
    columns = [x for x in c.of_b if x.size > 1]
    rows = tuple(x for x in t.axes if x.size > 1 and x not in columns)
    if len(long) != 1 or len(columns) != 1 or not set(rows) <= set(c.of_a):
        return None
    several = len(rows) > 1 and rows[0] is t.axes[0]
    images, rows = (rows[0], rows[1:]) if several else (None, rows)
    return Square(images, rows, columns[0], long[0])


def cut(
    t: Tensor, c: Contraction, p: Square, plan: Plan, layouts: Mapping[Tensor, Layout | Scatter],
    lanes: int, registers: int,
) -> Form:  # fmt: skip
    """Return the tensor by Strassen's products."""
    found = reduction(t)
    assert found is not None
    assert isinstance(found.body, Apply)
    kind, parts = found.dtype, 2**plan.levels
    count, m, n, k = 7**plan.levels, high(p, parts), p.n.size // parts, p.k.size // parts
    table_a = Tensor("A", kind, (count, parts, parts))
    table_c = Tensor("C", kind, (parts, parts, count))
    q = Tensor("q", kind, (count, n // lanes, k, lanes))  # in panels of a vector's columns
    factor = next(e for e in found.body.args if e is not c.b)
    none: dict[Expr, Expr] = dict.fromkeys((*t.axes, *found.axes), ix.as_index(0))

    each = m // p.count
    twice = parts * each - p.high  # rows that the last part computes again
    chunked = plan.block > twice and (p.count == 1 or each % plan.block == 0)

    def row(part: Expr, i: Expr, stored: bool = False) -> dict[Expr, Expr]:
        """Return the row axes at row i of a part. stored: a row that another part computes, too, is
        not stored twice (with other rounding, by another thread): it goes to the place of the first
        new row, which the same chunk stores after it."""
        out: dict[Expr, Expr] = {}
        if p.images is not None:
            out[p.images], i = ix.as_index(i // each), ix.as_index(i % each)
        begin = ix.as_index(part * each), ix.as_index(p.high - each)
        at = ix.as_index(ix.apply("min", begin, part.dtype) + i)
        if stored and twice and chunked:
            at = ix.apply("max", (at, begin[0]), part.dtype)
        for x in reversed(p.rows):
            out[x] = ix.as_index(at % x.size) if x is not p.rows[0] else ix.as_index(at)
            at = at // x.size
        return out

    of_rows = (*(() if p.images is None else (p.images,)), *p.rows)
    scales = inverses(factor, of_rows, p.k, none)
    scale = Tensor("scale", kind, scales.shape)

    def scaled(r: Expr, i: Expr) -> Expr:
        at = row(r, i)
        return Load(scale, tuple(ix.as_index(at[x]) for x in of_rows), kind)

    def element(r: Expr, i: Expr, s: Expr, j: Expr) -> Expr:
        e = placed(factor, {**none, **row(r, i), p.k: ix.as_index(s * k + j)})
        return e * scaled(r, i)

    sums = compute(
        (m, count, k),
        lambda i, x, j: reduce_sum(
            (parts, parts), lambda r, s: table_a[x, r, s] * element(r, i, s, j)
        ),
        name="p",
    )
    read = Tensor("p", kind, sums.shape) if plan.apart else sums
    products = compute(
        (count, m, n),
        lambda x, i, o: reduce_sum(k, lambda j: read[i, x, j] * q[x, o // lanes, j, o % lanes]),
        name="s",
    )

    def back(i: Expr, r: Expr, s: Expr, o: Expr) -> Expr:
        total = reduce_sum(count, lambda x: table_c[r, s, x] * products[x, i, o])
        total = total * undone(scaled(r, i))
        held = Tensor("sum", kind, ())
        assert t.body is not None
        env = {**none, **row(r, i), p.n: ix.as_index(s * n + o)}
        return put(placed(put_for(t.body, found, held, ()), env), held, total)

    y = compute((m, parts, parts, n), back, name="y")
    i, r, s, o = y.axes
    env = {**none, **row(r, i, stored=True), p.n: ix.as_index(s * n + o)}
    place = tuple(ix.as_index(env[x]) for x in t.axes)
    lies = scattered(t, layouts[t], y.axes, place)
    a, _, b = tables(plan.levels)
    how = _scheduled(sums, products, y, plan, lanes)
    _, best_ = reducing.options(scales, layouts, lanes, registers)[0]
    how[scales], _ = reducing.scheduled(scales, layouts, (), best_)
    first = ((scales, scale), *(((sums, read),) if plan.apart else ()))
    return Form(y, first, lies, how, {table_a: a, table_c: b}, q)


def _scheduled(
    sums: Tensor, products: Tensor, y: Tensor, plan: Plan, lanes: int
) -> dict[Tensor, Schedule]:
    """Return schedules with a panel of `vectors` at a time, of all products."""
    tile = f"split(i3, {lanes}); split(i3.o, {plan.vectors}); "
    inner = "i0.i, i3.o.i, k0, i1, i2, i3.i); unroll(k0); unroll(i1); unroll(i2); vectorize(i3.i)"
    over, inside = (
        ("k0.o, i1.o, k0.i", f"split(k0, {plan.deep}); ") if plan.deep else ("i1.o, k0", "")
    )
    turn = f"split(i2, {lanes}); reorder(i0, i2.o, k0, k1, i1, i2.i); unroll(k0); unroll(k1); "
    turn += "unroll(i1); vectorize(i2.i)"
    how = {
        y: f"split(i0, {plan.block}); {tile}reorder(i0.o, i3.o.o, {inner}; parallel(i0.o)"
        + ("; parallel(i3.o.o)" if plan.apart else ""),
        products: f"compute_at(y, i3.o.o); {inside}split(i2, {lanes}); split(i1, {plan.rows}); "
        f"reorder(i0, {over}, i1.i, i2.o, i2.i); unroll(i1.i); unroll(i2.o); vectorize(i2.i)",
        sums: f"{turn}; parallel(i0)" if plan.apart else f"compute_at(y, i0.o); {turn}",
    }
    return {t: parsed(text) for t, text in how.items()}


def tables(levels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return [x][r][s], [x][s][c], [r][c][x], nested `levels` times."""
    one = (np.reshape(A, (7, 2, 2)), np.reshape(B, (7, 2, 2)), np.reshape(C, (2, 2, 7)))
    out = one
    for _ in range(levels - 1):
        out = tuple(np.kron(x, y) for x, y in zip(out, one, strict=True))  # type: ignore[assignment]
    return out


def matrix(c: Contraction, p: Square) -> Pack:
    """Return the packing of b as a matrix of terms and columns."""
    axes = [x for e in c.b.index for x in axes_of(e)]
    env: dict[Expr, Expr] = {x: x if x in (p.k, p.n) else ix.as_index(0) for x in axes}
    index = tuple(ix.substitute(e, env) for e in c.b.index)
    buffer = Tensor("b", c.b.dtype, (p.k.extent, p.n.extent))
    return Pack(c.b.tensor, buffer, (p.k, p.n), index)


def combined(levels: int, lanes: int, how: Pack, b: np.ndarray) -> np.ndarray:
    """Return q[x, k, n] of the constant b, in panels: [x, n // lanes, k, n % lanes]."""
    w, b = packed(how, b), tables(levels)[1]
    parts = 2**levels
    k, n = (x // parts for x in w.shape)
    out = np.empty((len(b), k, n), w.dtype)
    for x, table in enumerate(b):
        some = [
            (table[s, c], w[s * k : (s + 1) * k, c * n : (c + 1) * n])
            for s, c in np.argwhere(table)
        ]
        for at, (sign, part) in enumerate(some):
            if at == 0:
                np.multiply(part, w.dtype.type(sign), out=out[x])
            elif sign > 0:
                np.add(out[x], part, out=out[x])
            else:
                np.subtract(out[x], part, out=out[x])
    panels = out.reshape(len(b), k, n // lanes, lanes)
    return np.ascontiguousarray(panels.transpose(0, 2, 1, 3))


# Errors grow by at most 2.4 per level (in norm, as Winograd's): 6 for two levels, where F(4 x 4, 3
# x 3) has 9; a third would be too much.
LEVELS = (1, 2)
FEW = 4  # of a part
# Fitted to 27 products, M x K x N from 49 x 160 x 960 to 3136 x 64 x 256; most are predicted within
# 3 %. Cycles per vector of the sums of a's parts, and of a product until it is in the result, in
# the unit of contraction.register_tiles; and the factor of that unit here.
SUMMED, ADDED, TAKEN = 6, 3.5, 0.96
HALVES = 1.02  # PRODUCT_COST_FACTOR if vectors are split, fitted to 26 products
# factor of SUM_CYCLES and RESULT_CYCLES, by registers (fewer come with smaller caches)
MOVED = {32: 1.0, 16: 4.5}
BYTES_PER_CYCLE = {32: 8, 16: 4}  # of the constant from memory, by registers
BESIDE = 0.2  # share of the time of what is not the bottleneck that is not hidden
STARTS = 0.965  # relative to the direct product
LATE = 0.83  # if its sum is in short blocks (contraction.L1_PANEL_TERMS), not modelled here
ROOM = 8_000_000  # of the sums of a's parts, which are read once per panel
# Bytes of a register tile's products, which stay near: tiles are one vector wide and at least
# MIN_TILE_ROWS high, which keeps a core busy.
HELD = 48_000
ENOUGH = 8
TALL = {32: (ENOUGH, 1), 16: (6, 2)}  # minimum rows and maximum vectors, by registers
PAGE = 4096  # of rows so far apart a cache holds no more than MIN_TILE_ROWS
CHUNKS = 6  # for threads, if there are blocks of MIN_BLOCK_ROWS
LEAST, TWICE = 7, 1.035
TILES = 6  # register tiles that are worth trying


def fits(p: Square, levels: int, lanes: int) -> bool:
    """True if all parts have whole vectors, and enough rows."""
    parts = 2**levels
    wide = p.n.size % (parts * lanes) == 0 and p.k.size % (parts * lanes) == 0
    return wide and over(p.high, parts) >= FEW


def best(
    p: Square, lanes: int, most: int, direct: float, registers: int = REGISTERS,
    starts: float = STARTS, halves: bool = False,
) -> Plan | None:  # fmt: skip
    """Return the fastest estimated plan; None if the direct product is better. direct: time of the
    direct product per term, in the unit of register tiles. max_time_ratio: below which Strassen
    pays. split_vectors: see contraction.register_tiles."""
    taken = HALVES if halves else TAKEN
    size = 4 * p.k.size * p.n.size / BYTES_PER_CYCLE[registers]
    some = [(_time(direct * p.k.size, size), 0)]
    for levels in LEVELS[:most]:
        if fits(p, levels, lanes):
            parts, count = 2**levels, 7**levels
            m, n, k = high(p, parts), p.n.size // parts, p.k.size // parts
            products = _tiles(m, n, k, lanes, count, registers, halves)[0][0] * k * taken
            moved = MOVED[registers] * m * (k * SUMMED + n * ADDED) / lanes
            some.append((_time(count * (products + moved), (7 / 4) ** levels * size), levels))
    least, levels = min(some)
    if not levels or least > starts * some[0][0]:
        return None
    return next(x for x in plans(p, lanes, most, registers, halves) if x.levels == levels)


def _time(busy: float, streams: float) -> float:
    return max(busy, streams) + BESIDE * min(busy, streams)


def plans(
    p: Square, lanes: int, most: int, registers: int = REGISTERS, halves: bool = False
) -> list[Plan]:
    """Return all plans; for each level the fastest estimated one first."""
    out = []
    for levels in LEVELS[:most]:
        if not fits(p, levels, lanes):
            continue
        parts, count = 2**levels, 7**levels
        m, n, k = high(p, parts), p.n.size // parts, p.k.size // parts
        deep = [d for d in range(DEEP, DEEP // 3, -1) if k % d == 0 and k > d][:1]
        size = count * 4 * k  # bytes of the sums for a row of each part
        whole = m * size <= ROOM
        for _, rows, vectors in _tiles(m, n, k, lanes, count, registers, halves):
            inside = min(max(HELD // (count * 4 * vectors * lanes) // rows, 1) * rows, m)
            own = (True, _block(m, rows, over(n, vectors * lanes)))
            ways = [(False, inside), own]
            if whole and over(m, inside) < CHUNKS:
                ways = [own, (False, inside)]
            for apart, block in ways:
                out += [Plan(levels, apart, block, rows, vectors, d) for d in (0, *deep)]
    return out


def _block(m: int, rows: int, panels: int) -> int:
    """Return the rows at a time, for enough chunks with few rows recomputed by an overlapping last
    block."""
    count, least = over(m, rows), over(LEAST, rows)

    def highest(blocks: int) -> int:
        """Return the tiles of a block for so many blocks; 0 if too many rows would be
        recomputed."""
        most = count if blocks == 1 else (count - 1) // (blocks - 1)
        high = min(most, int(TWICE * count) // blocks)
        return high if over(count, max(high, 1)) == blocks else 0

    blocks = range(over(CHUNKS, panels), count // least + 1)
    enough = (high for n in blocks if (high := highest(n)) >= least)
    few = (j for j in range(least, count + 1) if over(count, j) * j <= TWICE * count)
    return min(rows * next(chain(enough, few), count), m)


def _tiles(
    m: int, n: int, k: int, lanes: int, count: int, registers: int, halves: bool
) -> list[tuple[float, int, int]]:
    """Return register tiles whose panels divide the columns and whose products stay near."""
    pitch = count * 4 * k
    most = ENOUGH if pitch % PAGE == 0 else 14
    every = tiles(m, n, lanes, most, registers=registers, terms=k, halves=halves)
    some = [x for x in every if (n // lanes) % x[2] == 0]
    near = [x for x in some if count * 4 * lanes * x[1] * x[2] <= HELD]
    least, wide = TALL[registers]
    high = [x for x in near if x[1] >= min(m, least) and x[2] <= wide]
    return sorted(high or near)[:TILES]


def high(p: Square, parts: int) -> int:
    """Return the rows of a part, of all images."""
    return p.count * over(p.high, parts)
