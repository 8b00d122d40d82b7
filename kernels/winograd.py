"""Convolutions by fewer products: Winograd, Arithmetic complexity of computations, 1980; Lavin and
Gray, arXiv:1509.09308, section 4.

For m outputs of a kernel of r, a = m + r - 1 products instead of m r; in two dimensions the product
of both. Tiles of the picture are transformed (v), multiplied with the transformed kernel and
summed over channels (s), and the sums are transformed back (y), by matrices A and B for rows, D and
E for columns:

    d[.., x, j]  = sum(B[x, i] * picture[.., i, j] for i)
    v[x, z, ..]  = sum(E[z, j] * d[.., x, j] for j)
    s[x, z, .., k] = sum(v[x, z, .., c] * u[x, z, k, c] for c)
    o[.., i, z]  = sum(A[i, x] * s[x, z, ..] for x)
    y[.., i, j]  = sum(D[j, z] * o[.., i, z] for z)

Along a side where the kernel has one element nothing is transformed: a tile has one, too.

Where m does not divide a side, the last tile begins where it just fits, and gives some elements
once more. A dilated kernel has tiles of every d-th element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from superopt.kernels.contraction import REGISTERS, Contraction, tiles
from superopt.kernels.cook_toom import array, matrices
from superopt.kernels.factor import Form, placed, put, scattered
from superopt.kernels.layout import Layout, Scatter
from superopt.kernels.nest import put_for
from superopt.kernels.picture import Picture, counts, extent, over, start, stored
from superopt.kernels.schedule import Schedule, parsed
from superopt.kernels.transform import reduction
from superopt.te import index as ix
from superopt.te.expr import Tensor, compute, reduce_sum
from superopt.te.node import Apply, Axis, Const, Expr, Load, Reduce


@dataclass(frozen=True, slots=True)
class Plan:
    """How tiles of m x m are computed. apart: all of the picture is transformed before, by a kernel
    of its own; else `block` rows of tiles at a time. Register tiles of the sums are of `rows` times
    `columns` tiles, and some vectors of channels."""

    m: int
    apart: bool
    block: int
    rows: int
    columns: int
    vectors: int


def tiled(
    t: Tensor, c: Contraction, p: Picture, plan: Plan, layout: Layout | Scatter, lanes: int
) -> Form:
    """The tensor by F(m x m, r x s), for a kernel of r x s."""
    found = reduction(t)
    assert found is not None
    kind = found.dtype
    (given, n), k, (h, w) = p.pictures, extent(p.k), p.sides
    (down, right), (high, wide) = p.steps, counts(p, plan.m)
    (a, b), (mh, mw) = p.reads(plan.m), p.tile(plan.m)
    table_b, table_a = Tensor("B", kind, (a, a)), Tensor("A", kind, (mh, a))
    table_e, table_d = Tensor("E", kind, (b, b)), Tensor("D", kind, (mw, b))
    u = Tensor("u", kind, (a, b, k, *p.over))
    factor = _factor(found, c)

    def at(q: Expr, ch: Expr, i: Expr, j: Expr) -> Expr:
        env: dict[Expr, Expr] = dict(zip(factor.axes, p.given(q, ch, i, j), strict=True))
        return placed(factor.body, env)

    def columns(q: Expr, y: Expr, x: Expr, xi: Expr, j: Expr, ch: Expr) -> Expr:
        top, left = start(y, h, mh, down) + p.first[0], start(x, w, mw, right) + p.first[1]
        column = left + j * right
        return reduce_sum(a, lambda i: table_b[xi, i] * at(q, ch, top + i * down, column))

    d = compute((given, high, wide, a, b, p.channels), columns, name="d")
    v = compute(
        (a, b, given, high, wide, p.channels),
        lambda xi, nu, q, y, x, ch: reduce_sum(b, lambda j: table_e[nu, j] * d[q, y, x, xi, j, ch]),
        name="v",
    )
    read = Tensor("v", kind, v.shape) if plan.apart else v

    def sums(xi: Expr, nu: Expr, q: Expr, y: Expr, x: Expr, o: Expr) -> Expr:
        if p.depth is None:
            return reduce_sum(p.over, lambda ch: read[xi, nu, q, y, x, ch] * u[xi, nu, o, ch])
        return reduce_sum(
            p.over, lambda z, ch: read[xi, nu, p.summed(q, z), y, x, ch] * u[xi, nu, o, z, ch]
        )

    s = compute((a, b, n, high, wide, k), sums, name="s")
    rows = compute(
        (n, high, wide, mh, b, k),
        lambda q, y, x, i, nu, o: reduce_sum(a, lambda xi: table_a[i, xi] * s[xi, nu, q, y, x, o]),
        name="o",
    )

    def back(q: Expr, y: Expr, x: Expr, i: Expr, j: Expr, o: Expr) -> Expr:
        total = reduce_sum(b, lambda nu: table_d[j, nu] * rows[q, y, x, i, nu, o])
        row, column = start(y, h, mh, down) + i * down, start(x, w, mw, right) + j * right
        env = p.made(q, o, ix.as_index(row), ix.as_index(column))
        held = Tensor("sum", kind, ())
        assert t.body is not None
        after = placed(put_for(t.body, found, held, ()), env)
        return put(after, held, total)

    y = compute((n, high, wide, mh, mw, k), back, name="y")
    q, ty, tx, i, j, o = y.axes
    row = stored(ty, i, h, mh, down)  # a row of tiles is a chunk, in which columns have their order
    place = tuple(p.made(q, o, row, ix.as_index(start(tx, w, mw, right) + j * right)).values())
    lies = scattered(t, layout, y.axes, place)
    how = (_by_channels if plan.apart else _by_rows)((d, v, s, rows, y), plan, lanes)
    by_rows, by_columns = (matrices(*x) for x in zip((mh, mw), p.kernel, strict=True))
    tables = {
        table_b: array(by_rows[2]), table_a: array(by_rows[0]),
        table_e: array(by_columns[2]), table_d: array(by_columns[0]),
    }  # fmt: skip
    return Form(y, (v, read) if plan.apart else None, lies, how, tables, u)


@dataclass(frozen=True, slots=True)
class _Factor:
    """The factor of a product that is the picture, by (n, channel, row, column)."""

    axes: tuple[Axis, ...]
    body: Expr


def _factor(found: Reduce, c: Contraction) -> _Factor:
    """With a's index as axes of their own, so that it can be read anywhere."""
    axes = tuple(Axis(f"p{d}", n) for d, n in enumerate(c.a.tensor.shape))
    assert isinstance(found.body, Apply)
    x = next(e for e in found.body.args if c.a in _loads(e))
    env = {i: x for i, x in zip(c.a.index, axes, strict=True) if not isinstance(i, Const)}
    return _Factor(axes, _exchanged(x, env))


def _loads(e: Expr) -> list[Load]:
    match e:
        case Load():
            return [e]
        case Apply(_, args):
            return [x for a in args for x in _loads(a)]
    return []


def _exchanged(e: Expr, env: Mapping[Expr, Expr]) -> Expr:
    """`e` with some of its indices replaced as they stand."""
    if e in env:
        return env[e]
    match e:
        case Load(t, index, dtype):
            return Load(t, tuple(_exchanged(i, env) for i in index), dtype)
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_exchanged(a, env) for a in args), dtype)
    return e


# How much slower wide register tiles are, as measured: they need more of the kernel at a time.
WIDE = {1: 1.0, 2: 1.0, 3: 1.0, 4: 1.05}
TILES = 8  # register tiles that are worth trying
ROOM = 700_000  # bytes of a block's tiles and sums: most of a core's second cache
NEAR = {32: ROOM, 16: ROOM // 2}
ONCE = 700  # terms of a panel that is not near, since it is read for few tiles
SHARES = 8  # parts at least of what is one column
Stages = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
_TRANSFORM = "reorder(i0, i1, i2, i4, k0, i3, i5); unroll(k0); unroll(i3); vectorize(i5)"
_BACK = "i1, i2, i5.o.i, i3, k0, i4, i5.i); unroll(k0); unroll(i4); vectorize(i5.i)"


def plans(p: Picture, m: int, lanes: int, registers: int = REGISTERS) -> list[Plan]:
    """Those for tiles of m x m, the one that should be the fastest first.

    Where the kernel does not stay in a cache it may be better to read it once, for all tiles:
    these are transformed before, and a part of the outputs' channels is computed at a time.
    """
    grid, sizes = counts(p, m), (prod(p.reads(m)), p.channels * p.taps, extent(p.k))
    # Where it has several terms it would be transformed for each of them anew.
    first = p.taps > 1 or _streams(grid, sizes, lanes, registers)
    own = _block(*grid, sizes, registers)
    if p.w is None:  # there are no columns that several threads could share
        own = min(own, over(grid[0], SHARES))
    out = []
    for apart in (first, not first):
        near = (own, over(own, 2), 2 * own)
        for block in [grid[0]] if apart else dict.fromkeys(min(b, grid[0]) for b in near):
            some = sorted(_gemm(block, grid[1], sizes[2], lanes, registers))[:TILES]
            out += [Plan(m, apart, block, *tile) for _, *tile in some]
    return out


def _block(high: int, wide: int, sizes: tuple[int, int, int], registers: int) -> int:
    """Rows of tiles whose transforms and sums stay in the second cache; or more, where that is
    small, and the kernel does not stay there either: it is read for each block."""
    products, channels, k = sizes
    beyond = registers < REGISTERS and products * channels * k * 4 > 4 * ROOM
    block = max(
        1, min(high, NEAR[registers] * (1 + 3 * beyond) // (products * wide * (channels + k) * 4))
    )
    return over(high, over(high, block))


def _streams(
    grid: tuple[int, int], sizes: tuple[int, int, int], lanes: int, registers: int
) -> bool:
    """Is less read from beyond the second cache where the kernel is read once, and the picture for
    each part of the channels, than the other way round?"""
    (high, wide), (count, channels, k) = grid, sizes
    each, kernel = count * high * wide * 4, count * channels * k * 4
    if kernel < 2 * ROOM:
        return False
    _, _, vectors = min(tiles(high * wide, k, lanes, registers=registers))
    part = each * vectors * lanes
    parts = over(k, vectors * lanes)
    by_rows = over(high, _block(high, wide, sizes, registers)) * kernel
    return kernel + parts * (each * channels + (2 * part if part > ROOM else 0)) < by_rows


def _over(sums: Tensor) -> str:
    found = reduction(sums)
    assert found is not None
    return ", ".join(a.name for a in found.axes)


def _by_rows(stages: Stages, plan: Plan, lanes: int) -> dict[Tensor, Schedule]:
    """Rows of tiles at a time, from the picture to the result."""
    d, v, s, rows, y = stages
    tile = f"split(i5, {lanes}); "
    how = {
        y: f"split(i1, {plan.block}); {tile}reorder(i0, i1.o, i1.i, i2, i5.o, i3, k0, i4, i5.i); "
        "unroll(k0); unroll(i4); vectorize(i5.i); parallel(i0); parallel(i1.o)",
        rows: f"compute_at(y, i5.o); {_TRANSFORM}",
        s: f"compute_at(y, i1.o); {tile}split(i3, {plan.rows}); split(i4, {plan.columns}); "
        f"split(i5.o, {plan.vectors}); "
        f"reorder(i0, i1, i2, i5.o.o, i3.o, i4.o, {_over(s)}, i3.i, i4.i, i5.o.i, i5.i); "
        "unroll(i3.i); unroll(i4.i); unroll(i5.o.i); vectorize(i5.i)",
        v: f"compute_at(y, i1.o); {tile}reorder(i2, i3, i4, i5.o, i0, k0, i1, i5.i); "
        "unroll(k0); unroll(i1); vectorize(i5.i)",
        d: f"compute_at(v, i5.o); {_TRANSFORM}",
    }
    return {t: parsed(text) for t, text in how.items()}


def _by_channels(stages: Stages, plan: Plan, lanes: int) -> dict[Tensor, Schedule]:
    """All tiles at a time, for as many channels of the result as a register tile has."""
    d, v, s, rows, y = stages
    tile = f"split(i5, {lanes}); "
    how = {
        y: f"{tile}split(i5.o, {plan.vectors}); reorder(i0, i5.o.o, {_BACK}; "
        "parallel(i0); parallel(i5.o.o)",
        rows: f"compute_at(y, i5.o.i); {_TRANSFORM}",
        s: f"compute_at(y, i5.o.o); {tile}split(i3, {plan.rows}); split(i4, {plan.columns}); "
        f"reorder(i0, i1, i2, i3.o, i4.o, {_over(s)}, i3.i, i4.i, i5.o, i5.i); "
        "unroll(i3.i); unroll(i4.i); unroll(i5.o); vectorize(i5.i)",
        v: f"{tile}reorder(i2, i5.o, i3, i4, i0, k0, i1, i5.i); "
        "unroll(k0); unroll(i1); vectorize(i5.i); parallel(i2); parallel(i5.o); parallel(i3)",
        d: f"compute_at(v, i4); {_TRANSFORM}",
    }
    return {t: parsed(text) for t, text in how.items()}


def _gemm(
    block: int, wide: int, k: int, lanes: int, registers: int
) -> list[tuple[float, int, int, int]]:
    """Register tiles of the sums: what they should take, rows and columns of tiles, vectors."""
    out = []
    for time, n, vectors in tiles(block * wide, k, lanes, registers=registers, terms=ONCE):
        each = time / (over(block * wide, n) * over(k, vectors * lanes) * n * vectors)
        for by_row in range(1, min(block, n) + 1):
            if n % by_row == 0 and n // by_row <= wide:
                by_column = n // by_row
                count = over(block, by_row) * over(wide, by_column) * over(k, vectors * lanes)
                slow = each if registers < REGISTERS else WIDE.get(vectors, 1.2) * _few(n)
                slow *= 1.02 if by_row == 1 and registers == REGISTERS else 1
                out.append((count * n * vectors * slow, by_row, by_column, vectors))
    return out


def _few(n: int) -> float:
    """How much slower register tiles of so many tiles are, as measured: of few, the kernel is read
    more often; of many, nothing is left for what comes next."""
    return 1.1 if n <= 3 else 1.02 if n <= 4 else 1.0 if n <= 8 else 1.05


def products(p: Picture, m: int) -> tuple[float, float, float]:
    """(multiply-adds of the sums, those of the transforms, bytes of the transformed kernel)."""
    (a, b), (mh, mw), (high, wide) = p.reads(m), p.tile(m), counts(p, m)
    given, made = (n * high * wide for n in p.pictures)
    k, c = extent(p.k), p.channels
    down, right = p.kernel[0] > 1, p.kernel[1] > 1  # along which something is transformed
    there, back = a * b * (a * down + b * right) * c, mh * b * (a * down + mw * right) * k
    sums, size = made * a * b * k * c * p.taps, 4 * a * b * k * c * p.taps
    return sums, 0.7 * (given * there + made * back), size
