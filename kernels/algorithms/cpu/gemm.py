"""GEMM, and convolutions as GEMM, on the CPU: AVX2 and AVX-512, by register tiles.

    gemm         b as it is in memory, or packed ahead of time if it is constant
    packed_gemm  panels of another b are copied together before use

b's panels are read in the order of the loops (Goto and van de Geijn, Anatomy of high-performance
matrix multiplication, 2008; section 4 on packing).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from superopt.kernels.algorithms.algorithm import GENERAL_TIME, Algorithm, Prediction, kib
from superopt.kernels.algorithms.contraction import (
    MIN_REUSE_ROWS,
    Contraction,
    axis_stride,
    element_count,
    match_contraction,
)
from superopt.kernels.algorithms.cpu.partition import (
    best_tile,
    height,
    packed_row_block,
    product_traffic,
    resident_row_block,
    shared_loops,
    tiles_of_part,
)
from superopt.kernels.algorithms.cpu.register_tiling import (
    L1_PANEL_TERMS,
    RegisterTiling,
    register_tiling,
    tile_limit,
)
from superopt.kernels.algorithms.cpu.small_n_gemm import recognise_small_n
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.loops.layout import Layout, ScatteredLayout
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.schedule import (
    CacheRead,
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from superopt.kernels.processor import Processor
from superopt.te.analysis.affine import affine
from superopt.te.analysis.walk import index_axes
from superopt.te.expr.node import Apply, Axis, Const, Load
from superopt.te.expr.tensor import Tensor

L2_PANEL_TERMS = 768  # K block: terms for which b's panel stays in L2
MIN_PANEL_READS = 3  # row tiles that read a panel for which K blocks pay
MIN_BLOCKED_TERMS = 384  # of a sum over blocked channels that has K blocks
# Rows that read a matrix, and its elements, from which packing pays; by 20 products of 8 to 1,024
# rows.
MIN_READER_ROWS, MIN_MATRIX_ELEMENTS = 12, 8192
MAX_PARALLEL_LOOPS = 3  # that threads share, and one more of blocks of rows
NON_BOTTLENECK_SHARE = 0.3  # share of the time of what is not the bottleneck that is not hidden
Product = tuple[Contraction, RegisterTiling]


@remember_match
def match_product(p: Problem) -> Product | None:
    """Match a contraction whose b is, or can be packed, along vectors, with its tile axes."""
    for lanes in dict.fromkeys(
        (p.lanes, p.multiply_lanes)
    ):  # groups may have a part of a vector each
        found = match_contraction(p.tensor, p.constants, lanes)
        if found is None:
            return None
        alone = prod(a.size for a in found.b_axes) == 1 and recognise_small_n(p) is None
        if found.b_axes and not alone and not _has_contiguous_columns(p, found):
            # an unpacked matrix: vectors of different rows are in different pages, and a wide tile
            # reads fewer of these per FMA (256 x 1024 x 1024: 9.0 ms by one vector, 5.0 by 4)
            near = found.b.tensor in p.constants or found.b.tensor in p.layouts
            halves = p.processor.splits_vectors and lanes == p.lanes and near
            tiling = register_tiling(p.tensor, found, p.layouts, lanes, p.processor, halves)
            return None if tiling is None else (found, tiling)
    return None


def _has_contiguous_columns(p: Problem, c: Contraction) -> bool:
    """True for few rows times a column-major matrix: each column is read once, and lanes run along
    the reduction."""
    rows = prod(a.size for a in c.a_axes)
    if rows >= MIN_REUSE_ROWS or c.b.tensor in p.constants or c.b.tensor in p.layouts:
        return False
    found = reduction(p.tensor)
    return found is not None and axis_stride(c.b, found.axes[-1]) == 1 != axis_stride(
        c.b, c.b_axes[-1]
    )


def gemm_options(p: Problem, product: Product) -> Iterator[Option]:
    """Yield the options of all register tiles and K blocks."""
    c, tiling = product
    for _, rows, vectors in sorted(tiling.register_tiles()):
        for k_block in k_block_sizes(p.tensor, c, p.layouts, p.processor):
            knobs = {"rows": rows, "vectors": vectors, "k_block": k_block}
            yield Option.make("gemm", **knobs)
            if can_pack(p, c, tiling):
                yield Option.make("packed_gemm", **knobs)


def predict_gemm(p: Problem, product: Product) -> Prediction:
    """Return the tile with the fewest estimated cycles; packed if that pays."""
    c, tiling = product
    k_block = best_k_block(p, c, tiling)
    packs = can_pack(p, c, tiling) and pays_to_pack(p, c, tiling)
    _, rows, vectors = best_tile(p, tiling, k_block in L1_PANEL_TERMS, packs)
    name = "packed_gemm" if packs else "gemm"
    return Prediction(Option.make(name, rows=rows, vectors=vectors, k_block=k_block), GENERAL_TIME)


def tile_time(p: Problem, c: Contraction, tiling: RegisterTiling, short_blocks: bool) -> float:
    """Return the estimated time of the best register tile, in vector FMAs of all threads.
    short_blocks: see `register_tiles`."""
    tiles = prod(a.size for a in c.a_axes) // max(height(tiling), 1)
    cycles, _, vectors = best_tile(p, tiling, short_blocks)
    time = cycles * tiles * tiling.terms
    if p.threads == 1:
        return time
    read = product_traffic(p, c, tiling, vectors)
    return max(time, read) + NON_BOTTLENECK_SHARE * min(time, read)


def schedule_gemm(p: Problem, product: Product, option: Option) -> Choice:
    """Return the choice of an option."""
    c, tiling = product
    tile = option["rows"], option["vectors"], option["k_block"]
    packs = option.algorithm == "packed_gemm"
    rows, vectors, _ = tile
    is_constant = c.b.tensor in p.constants
    unrolled = p.processor.unrolled_terms if is_constant else 1
    if packs:
        block = packed_row_block(p, tiling, rows, vectors)
    elif p.is_example:
        block = 0  # of a symbolic number of rows the last block would be computed whole
    else:
        block = resident_row_block(p, c, tiling, *tile)
    how = schedule_contraction(
        p.tensor, c, p.layouts, tiling, *tile, block, packs, unrolled, p.threads
    )
    packed = (c.b.tensor,) if is_constant else ()
    return Choice(option, p.tensor, {p.tensor: how}, packed)


def gemm_limits(p: Problem, product: Product, o: Option) -> Iterator[str]:
    """Yield what bounds the tile and the blocks of an option."""
    c, tiling = product
    rows, vectors, k_block = o["rows"], o["vectors"], o["k_block"]
    yield tile_limit(p, rows, vectors)
    panel = 4 * (k_block or tiling.terms) * vectors * tiling.lanes
    allowed = f"blocks of at most {L2_PANEL_TERMS} terms" if k_block else "the whole sum"
    yield f"panels of {kib(panel)} are read for all rows of a block: {allowed}"
    limit = p.processor.row_block_bytes
    block = resident_row_block(p, c, tiling, rows, vectors, k_block)
    if o.algorithm == "gemm" and block:
        yield f"blocks of {block * rows} rows, which stay in L2: at most {kib(limit)}"
    if o.algorithm == "packed_gemm":
        yield (
            f"panels are copied together before use: from {p.processor.min_packed_rows:g} rows on,"
            " or where vectors are unaligned"
        )


GEMM = Algorithm(
    ("gemm", "packed_gemm"),
    "GEMM, batched GEMM, convolution as implicit GEMM: register tiles",
    match_product,
    gemm_options,
    schedule_gemm,
    predict_gemm,
    limits=gemm_limits,
)


def schedule_contraction(
    t: Tensor,
    c: Contraction,
    layouts: Mapping[Tensor, Layout | ScatteredLayout],
    tiling: RegisterTiling,
    rows: int,
    vectors: int,
    k_block: int,
    row_block: int = 0,
    pack_b: bool = False,
    unrolled_terms: int = 1,
    threads: int = 1,
) -> Schedule:
    """Return the schedule with tiles of `rows` times `vectors`. k_block: terms of a K block, 0
    for one block. row_block: row tiles for which all of b is read before the next ones; 0: each
    panel of b is read for all rows. pack_b: copy b's panels before use. unrolled_terms: in a step
    of the loop, if its extent is a multiple; not where limits may end the loop (limit_loops.py),
    nor where these are terms of several rows: LLVM keeps them in registers, and sums in memory.
    threads: that share the kernel, and read as little as possible each."""
    m, n = tiling.m, tiling.n
    steps: list[Primitive] = [Split(n.name, tiling.lanes), Split(f"{n.name}.o", vectors)]
    outer = f"{n.name}.o.o"
    tile = [f"{n.name}.o.i", f"{n.name}.i"]
    panel_loops = [outer]
    if m is not None:
        steps.append(Split(m.name, rows))
        tile.insert(0, f"{m.name}.i")
    batch_loops = [x.name for x in t.axes if x not in (m, n)]
    row_loops = [] if m is None else [f"{m.name}.o"]
    found = reduction(t)
    assert found is not None
    is_split = bool(k_block) and m is not None
    inner_blocks = [_loop_block(c.a, k, layouts, is_split) for k in found.axes]
    k_loops = list(_reduction_loops(steps, found.axes, inner_blocks))
    outer_loops = (
        [*batch_loops[:1], *panel_loops, *batch_loops[1:], *row_loops]
        if batch_loops
        else [*panel_loops, *row_loops]
    )
    if (
        tiling.processor.has_few_registers
        and len(batch_loops) > 1
        and _prefers_row_order(c, batch_loops, tiling, vectors, t)
    ):
        outer_loops = [*batch_loops, *panel_loops, *row_loops]
    if row_block and m is not None:
        steps.append(Split(f"{m.name}.o", row_block))
        row_loops = [f"{m.name}.o.i"]
        outer_loops = [*batch_loops, f"{m.name}.o.o", *panel_loops, *row_loops]
    elif pack_b:
        outer_loops = [*batch_loops, *panel_loops, *row_loops]
    if threads > 1 and not pack_b:
        blocks = [f"{m.name}.o.o"] if row_block and m is not None else []
        outer_loops = [*shared_loops(t, c, tiling, vectors, panel_loops, blocks, threads)]
        outer_loops += row_loops
    k_block_loops: list[str] = []
    inner, inner_extent = _innermost_loop(found.axes, inner_blocks)
    if is_split:
        k, *within = k_loops  # within: a window, and the channels of a block
        each = _layout_block(c.a, found.axes[0], layouts.get(c.a.tensor))
        each *= prod(a.size for a in found.axes[1:])
        steps.append(Split(k, k_block // each))
        k_block_loops, k_loops = [f"{k}.o"], [f"{k}.i", *within]
        outer_loops = [x for x in outer_loops if x not in row_loops]
        k_block_loops += row_loops
        inner_extent = inner_extent if within else k_block // each
    shares = m is not None and _shares_terms(c.a, m, inner, unrolled_terms)
    if unrolled_terms > 1 and inner_extent % unrolled_terms == 0 and not shares:
        k = k_loops.pop()
        steps.append(Split(k, unrolled_terms))
        k_loops.append(f"{k}.o")
        tile.insert(0, f"{k}.i")
    steps.append(Reorder((*outer_loops, *k_block_loops, *k_loops, *tile)))
    steps += [Unroll(x) for x in tile[:-1]]
    steps.append(Vectorize(tile[-1]))
    if pack_b:
        steps.append(CacheRead(c.b.tensor.name, k_block_loops[0] if k_block_loops else outer))
    most = MAX_PARALLEL_LOOPS
    if row_block and threads > 1:
        most += 1
    if pack_b or most > MAX_PARALLEL_LOOPS:
        outer_loops = [x for x in outer_loops if x not in row_loops]
    steps += [Parallel(name) for name in outer_loops[:most]]
    return tuple(steps)


def _shares_terms(a: Load, m: Axis, k: Axis, terms: int) -> bool:
    """True if rows along `m` have elements in common among so many neighbouring terms of `k`."""
    forms = [f for f in map(affine, a.index) if f is not None]
    return any(0 < f.coefficient(m) < terms * f.coefficient(k) for f in forms)


def _prefers_row_order(
    c: Contraction, outer_names: Sequence[str], tiling: RegisterTiling, vectors: int, t: Tensor
) -> bool:
    """True if less is read again with image rows outermost (b once per row) than with panels of b
    outermost (a once per panel)."""
    high = prod(x.size for x in t.axes if x.name in outer_names[1:])
    panels = -(-tiling.n.size // (tiling.lanes * vectors))
    return element_count(c.b.tensor) * high < element_count(c.a.tensor) * panels


def k_block_sizes(
    t: Tensor,
    c: Contraction,
    layouts: Mapping[Tensor, Layout | ScatteredLayout],
    processor: Processor,
) -> list[int]:
    """Return the candidate K block sizes of one long sum, or of a sum over blocked channels, best
    first (0: no blocks)."""
    found = reduction(t)
    assert found is not None
    k, *window = found.axes
    block = _layout_block(c.a, k, layouts.get(c.a.tensor))
    n, each = k.size, block * prod(a.size for a in window)
    if block > 1:
        terms, allowed = n * (each // block), processor.channel_block_terms
        some = [d for d in reversed(allowed) if d % each == 0 and terms % d == 0]
        is_long = terms >= max(MIN_BLOCKED_TERMS, allowed.stop)
        reused = prod(a.size for a in c.a_axes) >= MIN_REUSE_ROWS
        return [some[0], 0] if some and n % block == 0 and is_long and reused else [0]
    if window:
        return [0]
    some = [d for d in range(L2_PANEL_TERMS, L2_PANEL_TERMS // 3, -1) if n % d == 0 and n > d]
    return [*some[:1], 0] if n > 2 * L2_PANEL_TERMS else [0, *some[:1]]


def best_k_block(p: Problem, c: Contraction, tiling: RegisterTiling) -> int:
    """Return the K block; 0 if a thread's part has few row tiles that read a panel again."""
    k_block = k_block_sizes(p.tensor, c, p.layouts, p.processor)[0]
    if p.threads == 1 or not k_block:
        return k_block
    _, rows, vectors = best_tile(p, tiling, k_block in L1_PANEL_TERMS)
    reads = tiles_of_part(p, tiling, rows, vectors)
    return k_block if reads >= MIN_PANEL_READS else 0


def _reduction_loops(
    steps: list[Primitive], axes: Sequence[Axis], blocks: Sequence[int]
) -> Iterator[str]:
    """Yield the loops of the sum: blocks of a's index outside, positions within a block
    innermost."""
    last = []
    for k, block in zip(axes, blocks, strict=True):
        if _has_blocks(k, block):
            steps.append(Split(k.name, block))
            last.append(f"{k.name}.i")
            yield f"{k.name}.o"
        else:
            yield k.name
    yield from last


def _has_blocks(k: Axis, block: int) -> bool:
    return block > 1 and k.size > block and k.size % block == 0


def _innermost_loop(axes: Sequence[Axis], blocks: Sequence[int]) -> tuple[Axis, int]:
    """Return the axis of the last loop of `_reduction_loops`, and its extent; 1 if it is
    symbolic."""
    inner = [(k, n) for k, n in zip(axes, blocks, strict=True) if _has_blocks(k, n)]
    last = axes[-1]
    return inner[-1] if inner else (last, last.extent if isinstance(last.extent, int) else 1)


def _loop_block(
    a: Load, k: Axis, layouts: Mapping[Tensor, Layout | ScatteredLayout], is_split: bool
) -> int:
    """Return the terms of an inner loop over `k`; 1 if it is one loop: a block of a's layout or, if
    `k` is not in K blocks, a dimension of a that is merged with another one, such as the elements
    of a head. Its quotient and remainder by them, which each step would compute, are loops."""
    block = _layout_block(a, k, layouts.get(a.tensor))
    return block if block > 1 or is_split else _merged_extent(a, k)


def _merged_extent(a: Load, k: Axis) -> int:
    """Return n if a is read at k // n and k % n; else 1."""
    found: dict[str, set[int]] = {"floordiv": set(), "mod": set()}
    for i in a.index:
        match i:
            case Apply("floordiv" | "mod" as fn, (Axis() as axis, Const(n))) if axis == k:
                found[fn].add(int(n))
    both = found["floordiv"] & found["mod"]
    return both.pop() if len(both) == 1 else 1


def _layout_block(a: Load, k: Axis, layout: Layout | ScatteredLayout | None) -> int:
    """Return the block size of the axis `k` in a's layout; 1 if it is not blocked."""
    if not isinstance(layout, Layout):
        return 1
    for p in layout.parts:
        if p.is_inner and k in index_axes(a.index[p.axis]):
            return p.block
    return 1


def can_pack(p: Problem, c: Contraction, tiling: RegisterTiling) -> bool:
    """True if b is contiguous along vectors, not constant, and not also a, which would be copied
    with it."""
    known = c.b.tensor in p.constants or c.b.tensor in p.layouts or c.b.tensor is c.a.tensor
    return not known and tiling.m is not None and axis_stride(c.b, tiling.n) == 1


def pays_to_pack(p: Problem, c: Contraction, tiling: RegisterTiling) -> bool:
    """True if b does not fit in L1, and its vectors are unaligned or enough rows read it."""
    if (
        tiling.m is None
        or tiling.m.size < MIN_READER_ROWS
        or tiling.terms * tiling.n.size < MIN_MATRIX_ELEMENTS
    ):
        return False
    return tiling.m.size >= p.processor.min_packed_rows or tiling.n.size % tiling.lanes != 0
