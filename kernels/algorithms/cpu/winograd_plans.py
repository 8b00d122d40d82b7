"""Plans of Winograd convolutions: which there are, and how long each is estimated to take."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from superopt.kernels.algorithms.cpu.cook_toom import distinct_rows
from superopt.kernels.algorithms.cpu.partition import (
    imbalance,
    reading_time,
    traffic,
    written_bytes,
)
from superopt.kernels.algorithms.cpu.tiled_convolution import (
    TiledConvolution,
    ceil_div,
    stack_tile_counts,
    transform_operation_counts,
    transformed_bytes,
)
from superopt.kernels.llvm.register_tiles import register_tiles
from superopt.kernels.processor import ZEN5, Processor

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


def candidate_plans(
    p: TiledConvolution,
    m: int,
    lanes: int,
    processor: Processor = ZEN5,
    threads: int = 1,
    of_integers: bool = False,
) -> list[tuple[float, Plan]]:
    """Return (estimated time in vector FMAs, plan) for tiles of m x m, fastest first. Times are
    those of all threads together, with what they wait. of_integers: tiles and filters are of int16,
    and a pair of instructions multiplies and adds two of a vector's lanes, as two FMAs do."""
    element = 2 if of_integers else 4
    (high, wide), (a, b), k = stack_tile_counts(p, m), p.input_tile_sides(m), p.k.size
    given, made = p.stack_counts
    terms, kernel = (
        p.channels * p.taps,
        prod(distinct_rows(*f, of_integers) for f in p.forms(m)) * k * element,
    )
    size, (to, fro) = kernel * terms, transform_operation_counts(p, m)
    most = ceil_div(high, MIN_COLUMN_PARTS) if p.w is None else high  # else threads share no column
    out = []
    for block in sorted({ceil_div(high, n) for n in range(1, high + 1)}):
        if block > most:
            continue
        count = ceil_div(high, block)
        tiles_ = a * b * block * wide * p.channels * element
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
    read, _ = plan_traffic(p, plan, lanes, threads)
    moved = reading_time(read, threads)
    parts = p.stack_counts[1] * ceil_div(stack_tile_counts(p, plan.m)[0], plan.block)
    if plan.separate:
        parts *= ceil_div(p.k.size, plan.vectors * lanes)
    time = _overlapped_time(time * imbalance(parts, threads), moved, NON_BOTTLENECK_SHARE)
    if plan.separate:
        tiles = written_bytes(transformed_bytes(p, plan.m)[0], 1, threads) / threads
        time += threads * SHARED_KERNEL_FMAS + reading_time(tiles, threads)
    return time


def plan_traffic(p: TiledConvolution, plan: Plan, lanes: int, threads: int) -> tuple[float, bool]:
    """Return what a thread reads, and whether it does panel by panel (partition.traffic)."""
    blocks = ceil_div(stack_tile_counts(p, plan.m)[0], plan.block)
    panels = ceil_div(p.k.size, plan.vectors * lanes) if plan.separate else 1
    return traffic(*transformed_bytes(p, plan.m), blocks, panels, threads)


def _overlapped_time(a: float, b: float, share: float) -> float:
    return max(a, b) + share * min(a, b)


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
