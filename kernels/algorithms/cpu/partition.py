"""How threads share a kernel: its parts and their order, computed from the work and the threads.

A kernel of t threads takes as long as the thread with the most parts. With p equal parts that is
ceil(p / t) parts, and the last one is waited for: threads do not begin together, and some are
slower. Few parts are unbalanced; many repeat what each part does once.

A thread has neighbouring parts, in each call the same, so that the order of the parts decides what
it reads. Constants come from the last-level cache; what other threads wrote comes from their
caches, which takes longer. The rates were measured on a Xeon (family 6, model 207) with 16 threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import ceil, inf, prod

from superopt.kernels.algorithms.contraction import Contraction, element_count
from superopt.kernels.algorithms.cpu.register_tiling import RegisterTiling
from superopt.kernels.algorithms.problem import Problem
from superopt.te.expr.symbolic_int import hint
from superopt.te.expr.tensor import Tensor

# Parts that threads wait for at the end of a kernel, on average (0.5 gave the same times), and
# register tiles that a call takes as long as: addresses, a ticket.
FINAL_WAIT_PARTS = 0.25
PART_TILES = 0.25
COPIED_PANEL_TILES = 2.0  # register tiles that copying a panel of b takes as long as
MAX_PARTS_PER_THREAD = 4  # to try
MIN_PARTS_PER_THREAD = 3
# Bytes that are read from the last-level cache, by one thread at most and by all together, while a
# thread makes a vector FMA: 20 and 165 GB, and 3.06e9 FMAs, in a second.
THREAD_BYTES_PER_FMA, SHARED_BYTES_PER_FMA = 6.5, 54.0
# A byte that another thread wrote takes as long as so many constant ones, an estimate: kernels that
# only move 25 to 50 KB a thread from core to core did so at 2 GB/s, but only the first thread that
# reads a line gets it from a core.
WRITTEN_BYTE_COST = 3
MIN_PANELS, ROWS_PER_COPY = 16, 96  # with fewer panels, each is copied again for so many rows


def min_parts(threads: int, fewest: int) -> int:
    """Return how many parts of about equal work are enough; `fewest` for one thread."""
    return fewest if threads == 1 else max(fewest, MIN_PARTS_PER_THREAD * threads)


def imbalance(parts: int, threads: int) -> float:
    """Return the time of equal parts, relative to work that threads share evenly."""
    if threads == 1:
        return 1.0
    return (-(-parts // threads) + FINAL_WAIT_PARTS) * threads / parts


@lru_cache(maxsize=1 << 14)
def divide_tiles(
    tiles: int, others: int, threads: int, fewest: int = 1, part_tiles: float = PART_TILES
) -> tuple[int, float]:
    """Return the number of parts into which a row of register tiles is divided, and the time
    relative to work that threads share evenly.

    others: how many such rows there are (panels, images), which are parts of their own. fewest:
    the least number of parts, for instance because more rows do not fit in a cache. part_tiles: the
    time of what each part repeats, in register tiles. The last part begins where it just fits.
    """
    if threads == 1:
        most = min(2 * fewest, tiles) if fewest > 1 else 1
        return min(range(fewest, most + 1), key=lambda n: -(-tiles // n) * n), 1.0
    most = min(tiles, max(2 * fewest, MAX_PARTS_PER_THREAD * threads))
    best, least = fewest, inf
    for n in range(fewest, most + 1):
        count = -(-n * others // threads) + FINAL_WAIT_PARTS
        time = (-(-tiles // n) + part_tiles) * count
        if time <= least:
            best, least = n, time
    return best, least * threads / (tiles * others)


def reading_time(size: float, threads: int) -> float:
    """Return the vector FMAs that all threads make while each reads so many bytes."""
    rate = min(THREAD_BYTES_PER_FMA, SHARED_BYTES_PER_FMA / threads)
    return threads * size / rate


def traffic(
    row_bytes: float, panel_bytes: float, row_parts: int, panels: int, threads: int
) -> tuple[float, bool]:
    """Return what a thread reads, in bytes of constants that take as long, if the parts are in the
    better order; and True if that order is panel by panel, and not row block by row block.

    row_bytes, panel_bytes: of all rows of a, and of all panels of b. Of the rows, a thread has
    written its share; in the order of row blocks it reads these.
    """
    by_rows, by_panels = min(row_parts, threads), min(panels, threads)
    rows_first = written_bytes(row_bytes, 1 / by_rows, threads) + panel_bytes * by_rows / threads
    panels_first = panel_bytes / by_panels
    share = by_panels / threads
    panels_first += WRITTEN_BYTE_COST * row_bytes * share * (1 - 1 / threads)
    panels_first += row_bytes * share / threads
    return min(rows_first, panels_first), panels_first < rows_first


def written_bytes(size: float, share: float, threads: int) -> float:
    """Return what a thread reads of a share of what all have written, of which it has written as
    much as possible, in bytes of constants that take as long."""
    own = min(share, 1 / threads)
    return size * (own + WRITTEN_BYTE_COST * (share - own))


def height(tiling: RegisterTiling) -> int:
    """Return the number of rows that register tiles run along."""
    return 1 if tiling.m is None else tiling.m.size


def panel_count(tiling: RegisterTiling, vectors: int) -> int:
    """Return the number of panels of so many vectors."""
    return -(-tiling.n.size // (tiling.lanes * vectors))


def best_tile(
    p: Problem, tiling: RegisterTiling, short_blocks: bool, packs: bool = False
) -> tuple[float, int, int]:
    """Return the register tile with the least time if threads share the kernel: its cycles, rows
    and vectors. short_blocks: see `register_tiles`. packs: panels of b are copied."""
    tiles = tiling.register_tiles(short_blocks)
    if p.threads == 1:
        return min(tiles)
    return min((time * _part_time(p, tiling, r, v, packs), r, v) for time, r, v in tiles)


def _part_time(p: Problem, tiling: RegisterTiling, rows: int, vectors: int, packs: bool) -> float:
    """Return the time of a register tile's parts, relative to work that threads share evenly."""
    panels, tiles = panel_count(tiling, vectors), -(-height(tiling) // rows)
    others = prod(a.size for a in p.tensor.axes) // max(height(tiling) * tiling.n.size, 1)
    if packs or others == 1:
        part_tiles = COPIED_PANEL_TILES if packs else PART_TILES
        return divide_tiles(tiles, panels * others, p.threads, 1, part_tiles)[1]
    return imbalance(panels * others, p.threads)


def tiles_of_part(p: Problem, tiling: RegisterTiling, rows: int, vectors: int) -> int:
    """Return the row tiles of a thread's part that read the same panel."""
    tiles = -(-height(tiling) // rows)
    if prod(a.size for a in p.tensor.axes) > height(tiling) * tiling.n.size:
        return tiles
    return -(-tiles // divide_tiles(tiles, panel_count(tiling, vectors), p.threads)[0])


def product_traffic(p: Problem, c: Contraction, tiling: RegisterTiling, vectors: int) -> float:
    """Return the vector FMAs that all threads make while they read a product's operands."""
    rows = prod(a.size for a in c.a_axes)
    sizes = 4 * element_count(c.a.tensor), 4 * element_count(c.b.tensor)
    read, _ = traffic(*sizes, max(rows, 1), panel_count(tiling, vectors), p.threads)
    return reading_time(read, p.threads)


def shared_loops(
    t: Tensor,
    c: Contraction,
    tiling: RegisterTiling,
    vectors: int,
    panel_loops: Sequence[str],
    row_blocks: Sequence[str],
    threads: int,
) -> list[str]:
    """Return the loops around the rows of a panel in the order in which threads read least.
    row_blocks: the loop over blocks of rows, if there is one."""
    others = [x for x in t.axes if x not in (tiling.m, tiling.n)]
    outermost = [x.name for x in others if x in c.batch_axes or x.extent == 1]  # b differs, or one
    rows = [x for x in others if x.name not in outermost]
    names = [*(x.name for x in rows), *row_blocks]
    if not names:
        return [*outermost, *panel_loops]
    parts = prod(hint(x.size) for x in rows) * (threads if row_blocks else 1)
    sizes = 4 * element_count(c.a.tensor), 4 * element_count(c.b.tensor)
    _, panels_first = traffic(*sizes, parts, panel_count(tiling, vectors), threads)
    shared = [*panel_loops, *names] if panels_first else [*names, *panel_loops]
    return [*outermost, *shared]


def resident_row_block(
    p: Problem, c: Contraction, tiling: RegisterTiling, rows: int, vectors: int, k_block: int
) -> int:
    """Return the row tiles whose rows of a stay in L2 while all of b is read, with blocks enough
    for all threads; 0 for all row tiles, or if a is not a matrix."""
    m, limit = tiling.m, tiling.processor.row_block_bytes
    if m is None or any(x.size > 1 for x in p.tensor.axes if x not in (m, tiling.n)):
        return 0
    size, tiles = 4 * m.size * (k_block or tiling.terms), -(-m.size // rows)
    is_matrix = element_count(c.a.tensor) == m.size * tiling.terms
    count = max(min(ceil(size / limit), tiles), 1) if is_matrix else 1
    if p.threads > 1:
        count, _ = divide_tiles(tiles, panel_count(tiling, vectors), p.threads, count)
    return -(-tiles // count) if count > 1 else 0


def packed_row_block(p: Problem, tiling: RegisterTiling, rows: int, vectors: int) -> int:
    """Return the row tiles that share one copy of a panel; 0 for all, if there are panels enough
    for the threads."""
    high = height(tiling)
    others = prod(a.size for a in p.tensor.axes) // (high * tiling.n.size)
    panels = others * panel_count(tiling, vectors)
    tiles = -(-high // rows)
    if p.threads > 1 and not p.is_example:
        count, _ = divide_tiles(tiles, panels, p.threads, 1, COPIED_PANEL_TILES)
        return -(-tiles // count) if count > 1 else 0
    count = max(tiles * rows // ROWS_PER_COPY, 1)
    return -(-tiles // count) if panels < MIN_PANELS and count > 1 else 0
