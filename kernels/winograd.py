"""Winograd convolution: Winograd, Arithmetic complexity of computations, 1980; Lavin and Gray,
arXiv:1509.09308, section 4.

For m outputs of r taps, a = m + r - 1 products instead of m r; in two dimensions the product of
both. Tiles of the image are transformed (v), multiplied with the transformed filter and summed over
channels (s), and the sums are transformed back (y), by matrices A and B for rows, D and E for
columns:

    d[.., x, j]  = sum(B[x, i] * picture[.., i, j] for i)
    v[x, z, ..]  = sum(E[z, j] * d[.., x, j] for j)
    s[x, z, .., k] = sum(v[x, z, .., c] * u[x, z, k, c] for c)
    o[.., i, z]  = sum(A[i, x] * s[x, z, ..] for x)
    y[.., i, j]  = sum(D[j, z] * o[.., i, z] for z)

At stride s, a = s m + r - s products: each phase of the input is a convolution of its own
(`cook_toom.transform_matrices`), and equal matrices u[x, z] are stored once.

Along a side with one tap nothing is transformed: the tile is 1 there, too.

If m does not divide a side, the last tile overlaps and recomputes some outputs. A dilated
convolution has tiles of every d-th output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from superopt.kernels.contraction import REGISTERS, Contraction, tiles
from superopt.kernels.cook_toom import array, distinct, matrices, work
from superopt.kernels.factor import Form, placed, put, scattered
from superopt.kernels.layout import Layout, Scatter
from superopt.kernels.nest import put_for
from superopt.kernels.picture import Picture, counts, over, start, stored
from superopt.kernels.schedule import Schedule, parsed
from superopt.kernels.transform import reduction
from superopt.te import index as ix
from superopt.te.dtype import INDEX
from superopt.te.expr import Tensor, compute, reduce_sum
from superopt.te.node import Apply, Axis, Const, Expr, Load, Reduce


@dataclass(frozen=True, slots=True)
class Plan:
    """How tiles of m x m are computed. apart: the whole image is transformed by a kernel before;
    else `block` rows of tiles at a time. Register tiles of the sums are `rows` times `columns`
    tiles, and some vectors of channels."""

    m: int
    apart: bool
    block: int
    rows: int
    columns: int
    vectors: int


def tiled(
    t: Tensor, c: Contraction, p: Picture, plan: Plan, layout: Layout | Scatter, lanes: int
) -> Form:
    """Return the tensor by F(m x m, r x s), for a window of r x s."""
    found = reduction(t)
    assert found is not None
    kind = found.dtype
    (given, n), k, (h, w) = p.pictures, p.k.size, p.sides
    (down, right), (high, wide) = p.steps, counts(p, plan.m)
    (a, b), (mh, mw) = p.reads(plan.m), p.tile(plan.m)
    table_b, table_a = Tensor("B", kind, (a, a)), Tensor("A", kind, (mh, a))
    table_e, table_d = Tensor("E", kind, (b, b)), Tensor("D", kind, (mw, b))
    high_u, wide_u = (distinct(*form) for form in p.forms(plan.m))
    u = Tensor("u", kind, (high_u, wide_u, k, *p.over))
    factor = _factor(found, c)

    def at(q: Expr, ch: Expr, i: Expr, j: Expr) -> Expr:
        env: dict[Expr, Expr] = dict(zip(factor.axes, p.given(q, ch, i, j), strict=True))
        return placed(factor.body, env)

    def columns(q: Expr, y: Expr, x: Expr, xi: Expr, j: Expr, ch: Expr) -> Expr:
        top = start(y, h, mh, down) * p.strides[0] + p.first[0]
        left = start(x, w, mw, right) * p.strides[1] + p.first[1]
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
        i, j = (
            ix.apply("min", (ix.as_index(x), ix.as_index(n - 1)), INDEX)
            for x, n in ((xi, high_u), (nu, wide_u))
        )
        if p.depth is None:
            return reduce_sum(p.over, lambda ch: read[xi, nu, q, y, x, ch] * u[i, j, o, ch])
        return reduce_sum(
            p.over, lambda z, ch: read[xi, nu, p.summed(q, z), y, x, ch] * u[i, j, o, z, ch]
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
    # a row of tiles is a chunk, in which columns are stored in order
    row = stored(ty, i, h, mh, down)
    place = tuple(p.made(q, o, row, ix.as_index(start(tx, w, mw, right) + j * right)).values())
    lies = scattered(t, layout, y.axes, place)
    how = (_by_channels if plan.apart else _by_rows)((d, v, s, rows, y), plan, lanes)
    by_rows, by_columns = (matrices(*form) for form in p.forms(plan.m))
    tables = {
        table_b: array(by_rows[2]), table_a: array(by_rows[0]),
        table_e: array(by_columns[2]), table_d: array(by_columns[0]),
    }  # fmt: skip
    return Form(y, ((v, read),) if plan.apart else (), lies, how, tables, u)


@dataclass(frozen=True, slots=True)
class _Factor:
    """The image factor of the product, over (n, channel, row, column)."""

    axes: tuple[Axis, ...]
    body: Expr


def _factor(found: Reduce, c: Contraction) -> _Factor:
    """Return the image factor with a's index as free axes, so that it can be read anywhere."""
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
    """Return `e` with whole index expressions replaced."""
    if e in env:
        return env[e]
    match e:
        case Load(t, index, dtype):
            return Load(t, tuple(_exchanged(i, env) for i in index), dtype)
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_exchanged(a, env) for a in args), dtype)
    return e


# Measured slowdown of wide register tiles, which need more of the filter at a time; of more
# vectors, 1.2.
WIDE = {32: {4: 1.05}, 16: {4: 1.1}}
TILES = 8  # to try
BLOCKS = 4  # to try
SHARES = 8  # of a one-column image
NEAR = {32: 800_000, 16: 400_000}  # of tiles, by registers
LARGE = 16 << 20  # larger filters come from memory each time
# Bytes per vector FMA, by registers: of a filter from memory, and from the last-level cache; and of
# tiles that do not stay in L2, and are written and read there.
MEMORY, LAST, AWAY = {32: 6, 16: 3}, {32: 12, 16: 6}, {32: 6, 16: 3}
FARTHER = 4 << 20  # tiles that come from the last-level cache for each part of the channels
TRANSFORM = {32: 1.4, 16: 2.4}  # of a transform's FMA, by registers
ALONE = 1.05  # cost of sharing work among threads
BESIDE = 0.3  # share of the time of what is not the bottleneck that is not hidden
Stages = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
_TRANSFORM = "reorder(i0, i1, i2, i4, k0, i3, i5); unroll(k0); unroll(i3); vectorize(i5)"
_BACK = "i1, i2, i5.o.i, i3, k0, i4, i5.i); unroll(k0); unroll(i4); vectorize(i5.i)"


def plans(p: Picture, m: int, lanes: int, registers: int = REGISTERS) -> list[tuple[float, Plan]]:
    """Return (estimated time in vector FMAs, plan) for tiles of m x m, fastest first."""
    (high, wide), (a, b), k = counts(p, m), p.reads(m), p.k.size
    given, made = p.pictures
    terms, kernel = p.channels * p.taps, prod(distinct(*f) for f in p.forms(m)) * k * 4
    size, (to, fro) = kernel * terms, _transforms(p, m)
    most = over(high, SHARES) if p.w is None else high  # else threads share no column
    out = []
    for block in sorted({over(high, n) for n in range(1, high + 1)}):
        if block > most:
            continue
        count = over(high, block)
        tiles_ = a * b * block * wide * p.channels * 4
        moved = 0 if tiles_ <= NEAR[registers] else tiles_ * count * given / AWAY[registers]
        far = tiles_ * count * made / LAST[registers] if tiles_ > FARTHER else 0
        again = LAST if size <= LARGE else MEMORY
        for time, *tile in sorted(_gemm(block, wide, k, lanes, registers))[:TILES]:
            busy = time * a * b * terms
            total = max(moved, far * over(k, tile[2] * lanes))
            # with small caches, loads for one or two register tiles do not overlap with others
            # (measured)
            few = registers < REGISTERS and 2 * tile[0] * tile[1] >= block * wide
            beside = 1.0 if few else BESIDE
            total += _overlapped(busy, size / MEMORY[registers], beside)
            total += (count * made - 1) * _overlapped(busy, size / again[registers], beside)
            for apart in (False, True) if count == 1 else (False,):
                # With one block, threads share what follows the transform; an image that is a term
                # of several sums is transformed for each, unless that is done before.
                slow = 1.0 if apart or count * made > 1 else ALONE
                turned = TRANSFORM[registers] * (to * (1 if apart else p.taps) + fro) / lanes
                out.append((total * slow + turned, Plan(m, apart, block, *tile)))
    some: dict[int, int] = {}
    for _, plan in sorted(out, key=lambda x: x[0]):
        some.setdefault(plan.block, len(some))
    return sorted((x for x in out if some[x[1].block] < BLOCKS), key=lambda x: x[0])


def _overlapped(a: float, b: float, beside: float) -> float:
    return max(a, b) + beside * min(a, b)


def _over(sums: Tensor) -> str:
    found = reduction(sums)
    assert found is not None
    return ", ".join(a.name for a in found.axes)


def _by_rows(stages: Stages, plan: Plan, lanes: int) -> dict[Tensor, Schedule]:
    """Return schedules with rows of tiles at a time, and of these some output channels at a
    time."""
    d, v, s, rows, y = stages
    tile = f"split(i5, {lanes}); "
    how = {
        y: f"split(i1, {plan.block}); {tile}split(i5.o, {plan.vectors}); "
        f"reorder(i0, i1.o, i5.o.o, i1.i, i2, i5.o.i, i3, k0, i4, i5.i); "
        "unroll(k0); unroll(i4); vectorize(i5.i); parallel(i0); parallel(i1.o)",
        rows: f"compute_at(y, i5.o.i); {_TRANSFORM}",
        s: f"compute_at(y, i5.o.o); {tile}split(i3, {plan.rows}); split(i4, {plan.columns}); "
        f"reorder(i0, i1, i2, i3.o, i4.o, {_over(s)}, i3.i, i4.i, i5.o, i5.i); "
        "unroll(i3.i); unroll(i4.i); unroll(i5.o); vectorize(i5.i)",
        v: f"compute_at(y, i1.o); {tile}reorder(i2, i3, i4, i5.o, i0, k0, i1, i5.i); "
        "unroll(k0); unroll(i1); vectorize(i5.i)",
        d: f"compute_at(v, i5.o); {_TRANSFORM}",
    }
    return {t: parsed(text) for t, text in how.items()}


def _by_channels(stages: Stages, plan: Plan, lanes: int) -> dict[Tensor, Schedule]:
    """Return schedules with all tiles at a time, for the output channels of a register tile."""
    d, v, s, rows, y = stages
    tile = f"split(i5, {lanes}); "
    how = {
        y: f"{tile}split(i5.o, {plan.vectors}); reorder(i0, i5.o.o, {_BACK}; "
        "parallel(i0); parallel(i5.o.o)",
        rows: f"compute_at(y, i5.o.i); {_TRANSFORM}",
        s: f"compute_at(y, i5.o.o); {tile}split(i3, {plan.rows}); split(i4, {plan.columns}); "
        f"reorder(i0, i1, i2, i3.o, i4.o, {_over(s)}, i3.i, i4.i, i5.o, i5.i); "
        "unroll(i3.i); unroll(i4.i); unroll(i5.o); vectorize(i5.i)",
        v: f"{tile}reorder(i2, i3, i4, i5.o, i0, k0, i1, i5.i); "
        "unroll(k0); unroll(i1); vectorize(i5.i); parallel(i2); parallel(i3); parallel(i4)",
        d: f"compute_at(v, i5.o); {_TRANSFORM}",
    }
    return {t: parsed(text) for t, text in how.items()}


@lru_cache
def _gemm(
    block: int, wide: int, k: int, lanes: int, registers: int
) -> list[tuple[float, int, int, int]]:
    """Return register tiles of the sums: estimated time, rows and columns of tiles, vectors."""
    out = []
    for time, n, vectors in tiles(block * wide, k, lanes, registers=registers):
        each = time / (over(block * wide, n) * over(k, vectors * lanes) * n * vectors)
        for by_row in range(1, min(block, n) + 1):
            if n % by_row == 0 and n // by_row <= wide:
                by_column = n // by_row
                count = over(block, by_row) * over(wide, by_column) * over(k, vectors * lanes)
                wider = WIDE[registers].get(vectors, 1.0 if vectors < 4 else 1.2)
                slow = wider * (each if registers < REGISTERS else _few(n))
                slow *= 1.02 if by_row == 1 and registers == REGISTERS else 1
                out.append((count * n * vectors * slow, by_row, by_column, vectors))
    return out


def _few(n: int) -> float:
    """Return the measured slowdown of register tiles of n tiles: with few, the filter is read more
    often; with many, no registers are left to load ahead."""
    return 1.1 if n <= 3 else 1.02 if n <= 4 else 1.0 if n <= 8 else 1.05


def _transforms(p: Picture, m: int) -> tuple[float, float]:
    """Return the FMAs of the input and output transforms."""
    (a, b), (mh, _), (high, wide) = p.reads(m), p.tile(m), counts(p, m)
    given, made = (n * high * wide for n in p.pictures)
    (down, up), (right, left) = (work(*f) for f in p.forms(m))
    there, back = b * down + a * right, b * up + mh * left
    return given * there * p.channels, made * back * p.k.size
