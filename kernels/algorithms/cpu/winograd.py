"""Winograd convolution: Winograd, Arithmetic complexity of computations, 1980; Lavin and Gray,
arXiv:1509.09308, section 4.

For m outputs of r taps, a = m + r - 1 products instead of m r; in two dimensions the product of
both. Tiles of the image are transformed (v), multiplied with the transformed filter and summed over
channels (s), and the sums are transformed back (y), by matrices A and B for rows, D and E for
columns:

    d[.., x, j]  = sum(B[x, i] * image[.., i, j] for i)
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

from superopt.kernels.algorithms.contraction import Contraction
from superopt.kernels.algorithms.cpu.cook_toom import (
    distinct_rows,
    to_array,
    transform_matrices,
)
from superopt.kernels.algorithms.cpu.partition import (
    imbalance,
    reading_time,
    traffic,
    written_bytes,
)
from superopt.kernels.algorithms.cpu.tiled_convolution import (
    TiledConvolution,
    ceil_div,
    extended_tile_counts,
    stack_tile_counts,
    tile_begin,
    tile_counts,
    tile_store_index,
    transform_operation_counts,
    transformed_bytes,
)
from superopt.kernels.llvm.register_tiles import register_tiles
from superopt.kernels.loops.layout import Layout, ScatteredLayout
from superopt.kernels.loops.loop_nest import replace_reduction
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.schedule import Schedule, parse_schedule
from superopt.kernels.loops.substitution import (
    AlgorithmForm,
    replace_loads,
    scatter_layout,
    substitute_and_fold,
)
from superopt.kernels.processor import ZEN5, Processor
from superopt.te.expr import index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor, compute, reduce_sum


@dataclass(frozen=True, slots=True)
class Plan:
    """How tiles of m x m are computed: `block` rows of tiles at a time. separate: the whole image
    is transformed by a kernel before. Register tiles of the sums are `rows` times `columns` tiles,
    and some vectors of channels."""

    m: int
    separate: bool
    block: int
    rows: int
    columns: int
    vectors: int


def winograd_form(
    t: Tensor,
    c: Contraction,
    p: TiledConvolution,
    plan: Plan,
    layout: Layout | ScatteredLayout,
    lanes: int,
    threads: int = 1,
) -> AlgorithmForm:
    """Return the tensor by F(m x m, r x s), for a window of r x s. threads: that share it."""
    found = reduction(t)
    assert found is not None
    kind = found.dtype
    (given, n), k, (h, w) = p.stack_counts, p.k.size, p.output_sides
    rows_of_image, _ = tile_counts(p, plan.m)
    (down, right), least = p.dilations, plan.rows if plan.separate else plan.block
    high, wide = extended_tile_counts(p, plan.m, least, plan.columns)
    (a, b), (mh, mw) = p.input_tile_sides(plan.m), p.tile_sides(plan.m)
    table_b, table_a = Tensor("B", kind, (a, a)), Tensor("A", kind, (mh, a))
    table_e, table_d = Tensor("E", kind, (b, b)), Tensor("D", kind, (mw, b))
    high_u, wide_u = (distinct_rows(*form) for form in p.forms(plan.m))
    u = Tensor("u", kind, (high_u, wide_u, k, *p.reduction_sizes))
    factor = _input_factor(found, c)

    def at(q: Expr, ch: Expr, i: Expr, j: Expr) -> Expr:
        env: dict[Expr, Expr] = dict(zip(factor.axes, p.input_index(q, ch, i, j), strict=True))
        return substitute_and_fold(factor.body, env)

    def image_row(q: Expr, y: Expr) -> tuple[Expr, Expr]:
        """Return the image and the row of tiles in it, of a row of tiles of a stack."""
        if not p.is_stacked:
            return q, y
        return index.as_index(y // rows_of_image), index.as_index(y % rows_of_image)

    def columns(q: Expr, y: Expr, x: Expr, xi: Expr, j: Expr, ch: Expr) -> Expr:
        q, y = image_row(q, y)
        top = tile_begin(y, h, mh, down) * p.strides[0] + p.begin[0]
        left = tile_begin(x, w, mw, right) * p.strides[1] + p.begin[1]
        column = left + j * right
        return reduce_sum(a, lambda i: table_b[xi, i] * at(q, ch, top + i * down, column))

    d = compute((given, high, wide, a, b, p.channels), columns, name="d")
    v = compute(
        (a, b, given, high, wide, p.channels),
        lambda xi, nu, q, y, x, ch: reduce_sum(b, lambda j: table_e[nu, j] * d[q, y, x, xi, j, ch]),
        name="v",
    )
    read = Tensor("v", kind, v.shape) if plan.separate else v

    def sums(xi: Expr, nu: Expr, q: Expr, y: Expr, x: Expr, o: Expr) -> Expr:
        i, j = (
            index.apply("min", (index.as_index(x), index.as_index(n - 1)), INDEX)
            for x, n in ((xi, high_u), (nu, wide_u))
        )
        if p.depth is None:
            return reduce_sum(
                p.reduction_sizes, lambda ch: read[xi, nu, q, y, x, ch] * u[i, j, o, ch]
            )
        return reduce_sum(
            p.reduction_sizes,
            lambda z, ch: read[xi, nu, p.summed_image(q, z), y, x, ch] * u[i, j, o, z, ch],
        )

    s = compute((a, b, n, high, wide, k), sums, name="s")
    rows = compute(
        (n, high, wide, mh, b, k),
        lambda q, y, x, i, nu, o: reduce_sum(a, lambda xi: table_a[i, xi] * s[xi, nu, q, y, x, o]),
        name="o",
    )

    def back(q: Expr, y: Expr, x: Expr, i: Expr, j: Expr, o: Expr) -> Expr:
        total = reduce_sum(b, lambda nu: table_d[j, nu] * rows[q, y, x, i, nu, o])
        q, y = image_row(q, y)
        row, column = tile_begin(y, h, mh, down) + i * down, tile_begin(x, w, mw, right) + j * right
        env = p.output_axes(q, o, index.as_index(row), index.as_index(column))
        held = Tensor("sum", kind, ())
        assert t.body is not None
        after = substitute_and_fold(replace_reduction(t.body, found, held, ()), env)
        return replace_loads(after, held, total)

    y = compute((n, high, wide, mh, mw, k), back, name="y")
    q, ty, tx, i, j, o = y.axes
    # a row of tiles is a chunk, in which columns are stored in order
    image, within = image_row(q, ty)
    row = tile_store_index(within, i, h, mh, down)
    place = tuple(
        p.output_axes(
            image, o, row, index.as_index(tile_begin(tx, w, mw, right) + j * right)
        ).values()
    )
    lies = scatter_layout(t, layout, y.axes, place)
    stages = d, v, s, rows, y
    if plan.separate:
        # The blocks of a symbolic number of rows are one.
        is_divided = isinstance(high, int) and plan.block < high
        panels_first = not is_divided or _traffic(p, plan, lanes, threads)[1]
        how = _channel_schedules(stages, plan, lanes, is_divided, panels_first)
    else:
        how = _row_schedules(stages, plan, lanes)
    by_rows, by_columns = (transform_matrices(*form) for form in p.forms(plan.m))
    tables = {
        table_b: to_array(by_rows[2]), table_a: to_array(by_rows[0]),
        table_e: to_array(by_columns[2]), table_d: to_array(by_columns[0]),
    }  # fmt: skip
    return AlgorithmForm(y, ((v, read),) if plan.separate else (), lies, how, tables, u)


@dataclass(frozen=True, slots=True)
class _InputFactor:
    """The image factor of the product, over (n, channel, row, column)."""

    axes: tuple[Axis, ...]
    body: Expr


def _input_factor(reduction_expr: Reduce, c: Contraction) -> _InputFactor:
    """Return the image factor with a's index as free axes, so that it can be read anywhere."""
    axes = tuple(Axis(f"p{d}", n) for d, n in enumerate(c.a.tensor.shape))
    assert isinstance(reduction_expr.body, Apply)
    x = next(e for e in reduction_expr.body.args if c.a in _loads(e))
    env = {i: x for i, x in zip(c.a.index, axes, strict=True) if not isinstance(i, Const)}
    return _InputFactor(axes, _replace_indices(x, env))


def _loads(e: Expr) -> list[Load]:
    match e:
        case Load():
            return [e]
        case Apply(_, args):
            return [x for a in args for x in _loads(a)]
    return []


def _replace_indices(e: Expr, env: Mapping[Expr, Expr]) -> Expr:
    """Return `e` with whole index expressions replaced."""
    if e in env:
        return env[e]
    match e:
        case Load(t, index, dtype):
            return Load(t, tuple(_replace_indices(i, env) for i in index), dtype)
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_replace_indices(a, env) for a in args), dtype)
    return e


# Measured slowdown of tiles of more than four vectors, which need more of the filter at a time.
WIDE_TILE_COST = 1.2
MAX_TILES_TRIED = 8  # to try
MAX_BLOCK_HEIGHTS = 4  # to try
MIN_COLUMN_PARTS = 8  # of a one-column image
MAX_CACHED_KERNEL_BYTES = 16 << 20  # larger filters come from memory each time
MIN_L3_TILE_BYTES = 4 << 20  # of tiles that come from L3 for each part of the channels
L2_BYTES_PER_FMA = 32  # half a vector
SHARED_WORK_COST_FACTOR = 1.05  # cost of sharing work among threads
SHARED_KERNEL_FMAS = 45_000  # of a thread in the 15 us that a further kernel takes
NON_BOTTLENECK_SHARE = 0.3  # share of the time of what is not the bottleneck that is not hidden
WinogradStages = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
_TRANSFORM = "reorder(i0, i1, i2, i4, k0, i3, i5); unroll(k0); unroll(i3); vectorize(i5)"
_BACK = "i1, i2, i5.o.i, i3, k0, i4, i5.i); unroll(k0); unroll(i4); vectorize(i5.i)"


def candidate_plans(
    p: TiledConvolution, m: int, lanes: int, processor: Processor = ZEN5, threads: int = 1
) -> list[tuple[float, Plan]]:
    """Return (estimated time in vector FMAs, plan) for tiles of m x m, fastest first. Times are
    those of all threads together, with what they wait."""
    (high, wide), (a, b), k = stack_tile_counts(p, m), p.input_tile_sides(m), p.k.size
    given, made = p.stack_counts
    terms, kernel = p.channels * p.taps, prod(distinct_rows(*f) for f in p.forms(m)) * k * 4
    size, (to, fro) = kernel * terms, transform_operation_counts(p, m)
    most = ceil_div(high, MIN_COLUMN_PARTS) if p.w is None else high  # else threads share no column
    out = []
    for block in sorted({ceil_div(high, n) for n in range(1, high + 1)}):
        if block > most:
            continue
        count = ceil_div(high, block)
        tiles_ = a * b * block * wide * p.channels * 4
        moved, far = _tile_moves(tiles_, count * given, count * made, processor)
        in_cache = size <= MAX_CACHED_KERNEL_BYTES
        again = processor.winograd_l3_bytes if in_cache else processor.winograd_memory_bytes
        for time, *tile in sorted(_sum_tiles(block, wide, k, lanes, processor))[:MAX_TILES_TRIED]:
            busy = time * a * b * terms
            total = max(moved, far * ceil_div(k, tile[2] * lanes))
            # with small caches, loads for one or two register tiles do not overlap (measured)
            few = processor.has_few_registers and 2 * tile[0] * tile[1] >= block * wide
            beside = 1.0 if few else NON_BOTTLENECK_SHARE
            once = size / processor.winograd_memory_bytes
            total += _overlapped_time(busy, once, beside)
            total += (count * made - 1) * _overlapped_time(busy, size / again, beside)
            for separate in (False, True) if count == 1 or threads > 1 else (False,):
                # With one block, threads share what follows the transform; an image that is a term
                # of several sums is transformed for each, unless that is done before.
                slow = 1.0 if separate or count * made > 1 else SHARED_WORK_COST_FACTOR
                turned = (to * (1 if separate else p.taps) + fro) / lanes
                turned *= processor.winograd_transform_cost
                if separate and count > 1:  # each block reads the filter from L2 again
                    stored, reread = _tile_moves(tiles_ * count, given, made, processor)
                    total = max(stored, reread * ceil_div(k, tile[2] * lanes))
                    total += _overlapped_time(count * made * busy, once, beside)
                    total += (count * made - 1) * beside * size / L2_BYTES_PER_FMA
                plan = Plan(m, separate, block, *tile)
                time = total * slow + turned
                if threads > 1:
                    time = _time_of_threads(p, plan, lanes, threads, time)
                out.append((time, plan))
    some: dict[int, int] = {}
    for _, plan in sorted(out, key=lambda x: x[0]):
        some.setdefault(plan.block, len(some))
    return sorted((x for x in out if some[x[1].block] < MAX_BLOCK_HEIGHTS), key=lambda x: x[0])


def _tile_moves(size: int, reads: int, sums: int, processor: Processor) -> tuple[float, float]:
    """Return the time to move blocks of tiles that do not stay in L2, and those that come from the
    last-level cache, for each part of the channels."""
    stays, near = size <= processor.winograd_tile_bytes, size <= MIN_L3_TILE_BYTES
    return (
        0 if stays else size * reads / processor.winograd_spill_bytes,
        0 if near else size * sums / processor.winograd_l3_bytes,
    )


def _time_of_threads(
    p: TiledConvolution, plan: Plan, lanes: int, threads: int, time: float
) -> float:
    """Return the time of a plan that several threads share."""
    read, _ = _traffic(p, plan, lanes, threads)
    moved = reading_time(read, threads)
    parts = p.stack_counts[1] * ceil_div(stack_tile_counts(p, plan.m)[0], plan.block)
    if plan.separate:
        parts *= ceil_div(p.k.size, plan.vectors * lanes)
    time = _overlapped_time(time * imbalance(parts, threads), moved, NON_BOTTLENECK_SHARE)
    if plan.separate:
        tiles = written_bytes(transformed_bytes(p, plan.m)[0], 1, threads) / threads
        time += threads * SHARED_KERNEL_FMAS + reading_time(tiles, threads)
    return time


def _traffic(p: TiledConvolution, plan: Plan, lanes: int, threads: int) -> tuple[float, bool]:
    """Return what a thread reads, and whether it does panel by panel (partition.traffic)."""
    blocks = ceil_div(stack_tile_counts(p, plan.m)[0], plan.block)
    panels = ceil_div(p.k.size, plan.vectors * lanes) if plan.separate else 1
    return traffic(*transformed_bytes(p, plan.m), blocks, panels, threads)


def _overlapped_time(a: float, b: float, share: float) -> float:
    return max(a, b) + share * min(a, b)


def _reduction_loops(sums: Tensor) -> str:
    found = reduction(sums)
    assert found is not None
    return ", ".join(a.name for a in found.axes)


def _row_schedules(stages: WinogradStages, plan: Plan, lanes: int) -> dict[Tensor, Schedule]:
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
        f"reorder(i0, i1, i2, i3.o, i4.o, {_reduction_loops(s)}, i3.i, i4.i, i5.o, i5.i); "
        "unroll(i3.i); unroll(i4.i); unroll(i5.o); vectorize(i5.i)",
        v: f"compute_at(y, i1.o); {tile}reorder(i2, i3, i4, i5.o, i0, k0, i1, i5.i); "
        "unroll(k0); unroll(i1); vectorize(i5.i)",
        d: f"compute_at(v, i5.o); {_TRANSFORM}",
    }
    return {t: parse_schedule(text) for t, text in how.items()}


def _channel_schedules(
    stages: WinogradStages, plan: Plan, lanes: int, is_divided: bool, panels_first: bool
) -> dict[Tensor, Schedule]:
    """Return schedules with all tiles at a time, or blocks of their rows, for the output channels
    of a register tile."""
    d, v, s, rows, y = stages
    tile, panel = f"split(i5, {lanes}); ", "i5.o.o"
    loops, back, split = [panel], _BACK, ""
    if is_divided:
        split, back = f"split(i1, {plan.block}); ", _BACK.replace("i1", "i1.i", 1)
        loops = [panel, "i1.o"] if panels_first else ["i1.o", panel]
    how = {
        y: f"{split}{tile}split(i5.o, {plan.vectors}); reorder(i0, {', '.join(loops)}, {back}; "
        f"parallel(i0); {'; '.join(f'parallel({x})' for x in loops)}",
        rows: f"compute_at(y, i5.o.i); {_TRANSFORM}",
        s: f"compute_at(y, {loops[-1]}); {tile}split(i3, {plan.rows}); split(i4, {plan.columns}); "
        f"reorder(i0, i1, i2, i3.o, i4.o, {_reduction_loops(s)}, i3.i, i4.i, i5.o, i5.i); "
        "unroll(i3.i); unroll(i4.i); unroll(i5.o); vectorize(i5.i)",
        v: f"{tile}reorder(i2, i3, i4, i5.o, i0, k0, i1, i5.i); "
        "unroll(k0); unroll(i1); vectorize(i5.i); parallel(i2); parallel(i3); parallel(i4)",
        d: f"compute_at(v, i5.o); {_TRANSFORM}",
    }
    return {t: parse_schedule(text) for t, text in how.items()}


@lru_cache
def _sum_tiles(
    block: int, wide: int, k: int, lanes: int, processor: Processor
) -> list[tuple[float, int, int, int]]:
    """Return register tiles of the sums: estimated time, rows and columns of tiles, vectors."""
    out = []
    for time, n, vectors in register_tiles(block * wide, k, lanes, processor=processor):
        each = time / (ceil_div(block * wide, n) * ceil_div(k, vectors * lanes) * n * vectors)
        for by_row in range(1, min(block, n) + 1):
            if n % by_row == 0 and n // by_row <= wide:
                by_column = n // by_row
                count = (
                    ceil_div(block, by_row)
                    * ceil_div(wide, by_column)
                    * ceil_div(k, vectors * lanes)
                )
                wide_cost = processor.winograd_wide_cost if vectors == 4 else WIDE_TILE_COST
                wider = 1.0 if vectors < 4 else wide_cost
                slow = wider * (each if processor.has_few_registers else _tile_cost_factor(n))
                slow *= processor.winograd_narrow_cost if vectors == 1 else 1
                slow *= 1.02 if by_row == 1 and not processor.has_few_registers else 1
                out.append((count * n * vectors * slow, by_row, by_column, vectors))
    return out


def _tile_cost_factor(n: int) -> float:
    """Return the measured slowdown of register tiles of n tiles: with few, the filter is read more
    often; with many, no registers are left to load ahead."""
    return 1.1 if n <= 3 else 1.02 if n <= 4 else 1.0 if n <= 8 else 1.05
