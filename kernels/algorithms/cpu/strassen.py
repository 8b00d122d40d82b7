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

from superopt.kernels.algorithms.contraction import Contraction
from superopt.kernels.algorithms.cpu import reduction_schedules
from superopt.kernels.algorithms.cpu.gemm import L2_PANEL_TERMS
from superopt.kernels.algorithms.cpu.tiled_convolution import ceil_div
from superopt.kernels.algorithms.row_scaling import row_scales, unscale_factor
from superopt.kernels.llvm.register_tiles import register_tiles
from superopt.kernels.loops.layout import Layout, ScatteredLayout
from superopt.kernels.loops.loop_nest import replace_reduction
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.pack import pack_constant
from superopt.kernels.loops.schedule import Schedule, parse_schedule
from superopt.kernels.loops.substitution import (
    AlgorithmForm,
    replace_loads,
    scatter_layout,
    substitute_and_fold,
)
from superopt.kernels.loops.tile import Pack
from superopt.kernels.processor import ZEN5, Processor
from superopt.te.analysis.walk import index_axes
from superopt.te.expr import index as te_index
from superopt.te.expr.node import Apply, Axis, Expr, Load
from superopt.te.expr.tensor import Tensor, compute, reduce_sum

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
class StrassenProduct:
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
    def image_count(self) -> int:
        return 1 if self.images is None else self.images.size

    @property
    def rows_per_image(self) -> int:
        """The rows of an image."""
        return prod(a.size for a in self.rows)


@dataclass(frozen=True, slots=True)
class Plan:
    """levels: of recursion. separate: all sums of a's parts are computed by a kernel before; else
    those of `block` rows of each part at a time. Register tiles of the products are `rows` times
    `vectors`; k_block: terms of a K block, 0 for one block."""

    levels: int
    separate: bool
    block: int
    rows: int
    vectors: int
    k_block: int


def match_strassen_product(t: Tensor, c: Contraction) -> StrassenProduct | None:
    """Match a matrix product that Strassen can compute; None otherwise."""
    found = reduction(t)
    if found is None or not isinstance(found.body, Apply) or c.b not in found.body.args:
        return None
    if 0 in (x.size for x in (*t.axes, *found.axes)):
        return None
    long = [x for x in found.axes if x.size > 1]
    columns = [x for x in c.b_axes if x.size > 1]
    rows = tuple(x for x in t.axes if x.size > 1 and x not in columns)
    if len(long) != 1 or len(columns) != 1 or not set(rows) <= set(c.a_axes):
        return None
    several = len(rows) > 1 and rows[0] is t.axes[0]
    images, rows = (rows[0], rows[1:]) if several else (None, rows)
    return StrassenProduct(images, rows, columns[0], long[0])


def strassen_form(
    t: Tensor,
    c: Contraction,
    p: StrassenProduct,
    plan: Plan,
    layouts: Mapping[Tensor, Layout | ScatteredLayout],
    lanes: int,
    registers: int,
) -> AlgorithmForm:
    """Return the tensor by Strassen's products."""
    found = reduction(t)
    assert found is not None
    assert isinstance(found.body, Apply)
    kind, parts = found.dtype, 2**plan.levels
    count, m, n, k = 7**plan.levels, part_rows(p, parts), p.n.size // parts, p.k.size // parts
    table_a = Tensor("A", kind, (count, parts, parts))
    table_c = Tensor("C", kind, (parts, parts, count))
    q = Tensor("q", kind, (count, n // lanes, k, lanes))  # in panels of a vector's columns
    factor = next(e for e in found.body.args if e is not c.b)
    none: dict[Expr, Expr] = dict.fromkeys((*t.axes, *found.axes), te_index.as_index(0))

    each = m // p.image_count
    twice = parts * each - p.rows_per_image  # rows that the last part computes again
    chunked = plan.block > twice and (p.image_count == 1 or each % plan.block == 0)

    def row(part: Expr, i: Expr, stored: bool = False) -> dict[Expr, Expr]:
        """Return the row axes at row i of a part. stored: a row that another part computes, too, is
        not stored twice (with other rounding, by another thread): it goes to the place of the first
        new row, which the same chunk stores after it."""
        out: dict[Expr, Expr] = {}
        if p.images is not None:
            out[p.images], i = te_index.as_index(i // each), te_index.as_index(i % each)
        begin = te_index.as_index(part * each), te_index.as_index(p.rows_per_image - each)
        at = te_index.as_index(te_index.apply("min", begin, part.dtype) + i)
        if stored and twice and chunked:
            at = te_index.apply("max", (at, begin[0]), part.dtype)
        for x in reversed(p.rows):
            out[x] = te_index.as_index(at % x.size) if x is not p.rows[0] else te_index.as_index(at)
            at = at // x.size
        return out

    of_rows = (*(() if p.images is None else (p.images,)), *p.rows)
    scales = row_scales(factor, of_rows, p.k, none)
    scale = Tensor("scale", kind, scales.shape)

    def scaled(r: Expr, i: Expr) -> Expr:
        at = row(r, i)
        return Load(scale, tuple(te_index.as_index(at[x]) for x in of_rows), kind)

    def element(r: Expr, i: Expr, s: Expr, j: Expr) -> Expr:
        e = substitute_and_fold(factor, {**none, **row(r, i), p.k: te_index.as_index(s * k + j)})
        return e * scaled(r, i)

    sums = compute(
        (m, count, k),
        lambda i, x, j: reduce_sum(
            (parts, parts), lambda r, s: table_a[x, r, s] * element(r, i, s, j)
        ),
        name="p",
    )
    read = Tensor("p", kind, sums.shape) if plan.separate else sums
    products = compute(
        (count, m, n),
        lambda x, i, o: reduce_sum(k, lambda j: read[i, x, j] * q[x, o // lanes, j, o % lanes]),
        name="s",
    )

    def back(i: Expr, r: Expr, s: Expr, o: Expr) -> Expr:
        total = reduce_sum(count, lambda x: table_c[r, s, x] * products[x, i, o])
        total = total * unscale_factor(scaled(r, i))
        held = Tensor("sum", kind, ())
        assert t.body is not None
        env = {**none, **row(r, i), p.n: te_index.as_index(s * n + o)}
        return replace_loads(
            substitute_and_fold(replace_reduction(t.body, found, held, ()), env), held, total
        )

    y = compute((m, parts, parts, n), back, name="y")
    i, r, s, o = y.axes
    env = {**none, **row(r, i, stored=True), p.n: te_index.as_index(s * n + o)}
    place = tuple(te_index.as_index(env[x]) for x in t.axes)
    lies = scatter_layout(t, layouts[t], y.axes, place)
    a, _, b = coefficient_tables(plan.levels)
    how = _schedules(sums, products, y, plan, lanes)
    _, best_ = reduction_schedules.reduction_options(scales, layouts, lanes, registers)[0]
    how[scales], _ = reduction_schedules.schedule_reduction(scales, layouts, (), best_)
    first = ((scales, scale), *(((sums, read),) if plan.separate else ()))
    return AlgorithmForm(y, first, lies, how, {table_a: a, table_c: b}, q)


def _schedules(
    sums: Tensor, products: Tensor, y: Tensor, plan: Plan, lanes: int
) -> dict[Tensor, Schedule]:
    """Return schedules with a panel of `vectors` at a time, of all products."""
    tile = f"split(i3, {lanes}); split(i3.o, {plan.vectors}); "
    inner = "i0.i, i3.o.i, k0, i1, i2, i3.i); unroll(k0); unroll(i1); unroll(i2); vectorize(i3.i)"
    over, inside = (
        ("k0.o, i1.o, k0.i", f"split(k0, {plan.k_block}); ") if plan.k_block else ("i1.o, k0", "")
    )
    turn = f"split(i2, {lanes}); reorder(i0, i2.o, k0, k1, i1, i2.i); unroll(k0); unroll(k1); "
    turn += "unroll(i1); vectorize(i2.i)"
    how = {
        y: f"split(i0, {plan.block}); {tile}reorder(i0.o, i3.o.o, {inner}; parallel(i0.o)"
        + ("; parallel(i3.o.o)" if plan.separate else ""),
        products: f"compute_at(y, i3.o.o); {inside}split(i2, {lanes}); split(i1, {plan.rows}); "
        f"reorder(i0, {over}, i1.i, i2.o, i2.i); unroll(i1.i); unroll(i2.o); vectorize(i2.i)",
        sums: f"{turn}; parallel(i0)" if plan.separate else f"compute_at(y, i0.o); {turn}",
    }
    return {t: parse_schedule(text) for t, text in how.items()}


def coefficient_tables(levels: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return [x][r][s], [x][s][c], [r][c][x], nested `levels` times."""
    one = (np.reshape(A, (7, 2, 2)), np.reshape(B, (7, 2, 2)), np.reshape(C, (2, 2, 7)))
    out = one
    for _ in range(levels - 1):
        out = tuple(np.kron(x, y) for x, y in zip(out, one, strict=True))  # type: ignore[assignment]
    return out


def constant_matrix(c: Contraction, p: StrassenProduct) -> Pack:
    """Return the packing of b as a matrix of terms and columns."""
    axes = [x for e in c.b.index for x in index_axes(e)]
    env: dict[Expr, Expr] = {x: x if x in (p.k, p.n) else te_index.as_index(0) for x in axes}
    index = tuple(te_index.substitute(e, env) for e in c.b.index)
    buffer = Tensor("b", c.b.dtype, (p.k.extent, p.n.extent))
    return Pack(c.b.tensor, buffer, (p.k, p.n), index)


def combine_constant(levels: int, lanes: int, pack: Pack, b: np.ndarray) -> np.ndarray:
    """Return q[x, k, n] of the constant b, in panels: [x, n // lanes, k, n % lanes]."""
    w, b = pack_constant(pack, b), coefficient_tables(levels)[1]
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
MIN_PART_ROWS = 4  # of a part
MAX_SUM_BYTES = 8_000_000  # of the sums of a's parts, which are read once per panel
# Bytes of a register tile's products, which stay near: tiles are one vector wide and at least
# MIN_TILE_ROWS high, which keeps a core busy.
MAX_PRODUCT_BYTES = 48_000
MIN_TILE_ROWS = 8
PAGE_BYTES = 4096  # of rows so far apart a cache holds no more than MIN_TILE_ROWS
MIN_CHUNKS = 6  # for threads, if there are blocks of MIN_BLOCK_ROWS
MIN_BLOCK_ROWS, MAX_RECOMPUTE_RATIO = 7, 1.035
MAX_TILES_TRIED = 6  # register tiles that are worth trying


def can_split(p: StrassenProduct, levels: int, lanes: int) -> bool:
    """True if all parts have whole vectors, and enough rows."""
    parts = 2**levels
    wide = p.n.size % (parts * lanes) == 0 and p.k.size % (parts * lanes) == 0
    return wide and ceil_div(p.rows_per_image, parts) >= MIN_PART_ROWS


def candidate_plans(
    p: StrassenProduct,
    lanes: int,
    max_levels: int,
    processor: Processor = ZEN5,
    split_vectors: bool = False,
) -> list[Plan]:
    """Return all plans; for each level the fastest estimated one first."""
    out = []
    for levels in LEVELS[:max_levels]:
        if not can_split(p, levels, lanes):
            continue
        parts, count = 2**levels, 7**levels
        m, n, k = part_rows(p, parts), p.n.size // parts, p.k.size // parts
        blocks = [
            d for d in range(L2_PANEL_TERMS, L2_PANEL_TERMS // 3, -1) if k % d == 0 and k > d
        ][:1]
        size = count * 4 * k  # bytes of the sums for a row of each part
        whole = m * size <= MAX_SUM_BYTES
        for _, rows, vectors in register_tile_options(
            m, n, k, lanes, count, processor, split_vectors
        ):
            inside = min(
                max(MAX_PRODUCT_BYTES // (count * 4 * vectors * lanes) // rows, 1) * rows, m
            )
            own = (True, _block_rows(m, rows, ceil_div(n, vectors * lanes)))
            ways = [(False, inside), own]
            if whole and ceil_div(m, inside) < MIN_CHUNKS:
                ways = [own, (False, inside)]
            for separate, block in ways:
                out += [Plan(levels, separate, block, rows, vectors, d) for d in (0, *blocks)]
    return out


def _block_rows(m: int, rows: int, panels: int) -> int:
    """Return the rows at a time, for enough chunks with few rows recomputed by an overlapping last
    block."""
    count, least = ceil_div(m, rows), ceil_div(MIN_BLOCK_ROWS, rows)

    def highest(blocks: int) -> int:
        """Return the tiles of a block for so many blocks; 0 if too many rows would be
        recomputed."""
        most = count if blocks == 1 else (count - 1) // (blocks - 1)
        high = min(most, int(MAX_RECOMPUTE_RATIO * count) // blocks)
        return high if ceil_div(count, max(high, 1)) == blocks else 0

    blocks = range(ceil_div(MIN_CHUNKS, panels), count // least + 1)
    enough = (high for n in blocks if (high := highest(n)) >= least)
    few = (
        j for j in range(least, count + 1) if ceil_div(count, j) * j <= MAX_RECOMPUTE_RATIO * count
    )
    return min(rows * next(chain(enough, few), count), m)


def register_tile_options(
    m: int, n: int, k: int, lanes: int, count: int, processor: Processor, split_vectors: bool
) -> list[tuple[float, int, int]]:
    """Return register tiles whose panels divide the columns and whose products stay near."""
    pitch = count * 4 * k
    most = MIN_TILE_ROWS if pitch % PAGE_BYTES == 0 else 14
    every = register_tiles(
        m, n, lanes, most, processor=processor, terms=k, split_vectors=split_vectors
    )
    some = [x for x in every if (n // lanes) % x[2] == 0]
    near = [x for x in some if count * 4 * lanes * x[1] * x[2] <= MAX_PRODUCT_BYTES]
    least, wide = processor.strassen_tile
    high = [x for x in near if x[1] >= min(m, least) and x[2] <= wide]
    return sorted(high or near)[:MAX_TILES_TRIED]


def part_rows(p: StrassenProduct, parts: int) -> int:
    """Return the rows of a part, of all images."""
    return p.image_count * ceil_div(p.rows_per_image, parts)
