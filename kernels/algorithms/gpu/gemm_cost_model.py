"""A cost model of GEMM blocks on a GPU, which ranks the options of gemm.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from math import prod

from superopt.kernels.algorithms.gpu.blocks import (
    ADD_PARTS_NS,
    BLOCK_START_NS,
    DOUBLE_STEP_FACTORS,
    ELEMENT_END_NS,
    ERF_NS,
    FEWER_WARPS_FACTOR,
    FP32_STEP_WAIT_NS,
    HIDDEN_TIME_SHARE,
    LARGE_FP32_BLOCK_FACTOR,
    LAUNCH_NS,
    MAX_BLOCKS_PER_SM,
    MAX_WARPS_PER_SM,
    MEMORY_BYTES_PER_NS,
    MIN_STEP_NS,
    MIN_WGMMA_ROWS,
    MORE_WARPS_FACTOR,
    MULTIPROCESSORS,
    PARTIAL_BYTES_PER_NS,
    PERSISTENT_BLOCK_COSTS,
    PIPELINE_STAGES,
    PRODUCTS_PER_NS,
    REGISTER_BLOCK_ELEMENTS,
    ROW_ELEMENT_NS,
    SHARED_MEMORY_BYTES,
    SM_BYTES_PER_NS,
    UNALIGNED_READ_FACTOR,
    WINDOW_STEP_FACTOR,
)
from superopt.kernels.algorithms.gpu.matrix_product import MatrixProduct, block_terms
from superopt.kernels.loops.option import Option
from superopt.kernels.triton.dot_limits import MIN_DOT_COLUMNS, MIN_DOT_EXTENT

BLOCK_SIDES = (16, 32, 64, 128)  # of blocks of the result
LARGE_BLOCK, MIN_LARGE_BLOCK_TERMS = (128, 256), 512  # and this block, from so many terms on
# Blocks of three equal sub-blocks: sizes between powers of two, for which the number of blocks
# matches the number of multiprocessors better.
THREE_PART_BLOCKS = ((192, 64), (192, 128), (64, 192))
SPLIT_K_PARTS = (1, 2, 3, 4, 6, 8, 9, 16)  # split-K factors
MIN_WAITING_STEPS = 16  # from so many steps on, latency is waited for
MAX_EPILOGUE_TERMS = 256  # up to so many terms the epilogue counts
MIN_EIGHT_WARP_ELEMENTS = 128 * 128  # elements of a block with eight warps
# Persistent programs of a multiprocessor, and elements and terms of their blocks, at least: smaller
# blocks run concurrently, which was faster.
MAX_PERSISTENT_PER_SM, MIN_PERSISTENT_ELEMENTS, MIN_PERSISTENT_TERMS = 2, 64 * 128, 64


@dataclass(frozen=True, slots=True)
class BlockTiming:
    """The timing of blocks: steps of a sum, each bounded by its loads and products and by latency;
    concurrent blocks per multiprocessor; elements per block. epilogue_cost: in erf per element;
    start_ns: of a block."""

    count: int
    step_ns: float
    min_step_ns: float
    blocks_per_sm: int
    elements: int
    epilogue_cost: float = 0.0
    start_ns: float = BLOCK_START_NS

    def concurrent_ns(self, blocks: int) -> float:
        """Return the ns of concurrent blocks of a multiprocessor, without their start."""
        end = ELEMENT_END_NS + self.epilogue_cost * ERF_NS[self.blocks_per_sm > 1]
        return (
            self.count * max(self.min_step_ns, blocks * self.step_ns) + blocks * self.elements * end
        )

    def total_ns(self, blocks: int) -> float:
        """Return the ns of all blocks, as many at once as fit."""
        full, rest = divmod(blocks, MULTIPROCESSORS * self.blocks_per_sm)
        last = min(self.blocks_per_sm, -(-rest // MULTIPROCESSORS))
        time = full * (self.start_ns + self.concurrent_ns(self.blocks_per_sm))
        return time + (self.start_ns + self.concurrent_ns(last) if rest else 0.0)

    def persistent_ns(self, blocks: int, programs: int) -> float:
        """Return the ns of persistent programs."""
        share, again = PERSISTENT_BLOCK_COSTS
        each = -(-blocks // programs)
        some = programs // MULTIPROCESSORS
        return self.start_ns + each * (share * self.concurrent_ns(some) + again)


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Rows, columns and terms of a block, split-K parts, warps, products per block (gates), and
    pipeline stages."""

    rows: int
    columns: int
    terms: int
    parts: int = 1
    warps: int = 4
    gates: int = 1
    stages: int = PIPELINE_STAGES

    @property
    def is_three_part(self) -> bool:
        return (self.rows, self.columns) in THREE_PART_BLOCKS

    def option(self, programs: int = 0) -> Option:
        knobs = {"rows": self.rows, "columns": self.columns, "k_block": self.terms,
                 "warps": self.warps, "stages": self.stages}  # fmt: skip
        more = {"parts": self.parts, "gates": self.gates}
        knobs |= {name: n for name, n in more.items() if n > 1}
        knobs |= {"programs": programs} if programs else {}
        return Option.make("gemm" if self.parts == 1 else "split_k_gemm", **knobs)


def rank_options(m: MatrixProduct) -> Iterator[Option]:
    """Yield options by estimated time: the best of each block shape, and after each two of these
    one of the others, which the compiler may treat differently."""
    first: list[tuple[float, Option]] = []
    rest: list[tuple[float, Option]] = []
    for b in _block_candidates(m, 1, THREE_PART_BLOCKS):
        best, *others = sorted(_block_variants(m, b), key=lambda x: x[0])
        first.append(best)
        rest += others
    again = (o for _, o in sorted(rest, key=lambda x: x[0]))
    for n, (_, o) in enumerate(sorted(first, key=lambda x: x[0])):
        yield o
        yield from islice(again, n % 2)
    yield from again


def vary_option(o: Option, stages: int, warp_doublings: int) -> Option:
    """Return the option with so many stages, and with its warps doubled up to 8."""
    knobs = {**dict(o.knobs), "stages": stages}
    knobs["warps"] = min(8, knobs["warps"] << warp_doublings)
    return Option(o.algorithm, tuple(knobs.items()))


def block_times(m: MatrixProduct, gates: int = 1) -> Iterator[tuple[float, Option]]:
    """Yield (estimated ns, option) of block shapes. gates: products of the same rows, with a block
    each (gated_gemm.py)."""
    for b in _block_candidates(m, gates):
        yield _total_ns(m, b, _block_timing(m, b, b.warps).total_ns(_block_count(m, b))), b.option()


def _block_candidates(
    m: MatrixProduct, gates: int, extra_sides: Sequence[tuple[int, int]] = ()
) -> Iterator[BlockShape]:
    rows, columns, terms = m.sizes
    last = m.reduction_axes[-1].size
    most = _max_step_terms(m, gates)
    # terms at a time; with twice as many there are half as many steps
    few = block_terms(m, most)
    deeps = {few, block_terms(m, 2 * most)} if gates == 1 and last >= m.min_dot_terms else {few}
    narrow = BLOCK_SIDES if gates == 1 else (MIN_DOT_COLUMNS, *BLOCK_SIDES)
    sides = [
        *product(BLOCK_SIDES, narrow),
        *([LARGE_BLOCK] if terms >= MIN_LARGE_BLOCK_TERMS else []),
        *extra_sides,
    ]
    for (h, w), deep, parts in product(sides, sorted(deeps), SPLIT_K_PARTS):
        if h >= 2 * max(rows, MIN_DOT_EXTENT) or w >= 2 * max(columns, MIN_DOT_EXTENT):
            continue
        if parts > 1 and (last < m.min_dot_terms or last % (parts * deep)):
            continue
        wide = gates * w
        if gates > 1 and (parts > 1 or wide > max(LARGE_BLOCK)):
            continue
        warps = 8 if h * wide >= MIN_EIGHT_WARP_ELEMENTS else 4 if h * wide >= 32 * 64 else 2
        if gates > 1:  # with several dots each warp computes all columns: others only help to load
            warps = min(warps, 1 << (max(h, wide // 4) // MIN_DOT_EXTENT).bit_length() - 1)
        b = BlockShape(h, w, deep, parts, warps, gates)
        if b.is_three_part:
            if deep > few or h > rows or w > columns or not _allows_three_parts(m, h * w, deep):
                continue
            b = replace(b, warps=4)
        steps = -(-terms // (parts * deep))
        if deep > few and steps > 1 and _shared_bytes(m, b) > SHARED_MEMORY_BYTES:
            continue  # with fewer stages, which was never faster
        yield b


def _allows_three_parts(m: MatrixProduct, area: int, deep: int) -> bool:
    """True if a block may be three sub-blocks: not for short sums or padded term blocks."""
    long = m.sizes[2] >= 2 * MIN_PERSISTENT_TERMS
    return (
        deep & (deep - 1) == 0
        and long
        and (area <= MIN_EIGHT_WARP_ELEMENTS or _has_light_epilogue(m))
    )


def _has_light_epilogue(m: MatrixProduct) -> bool:
    """True if few warps have registers for large blocks: without an epilogue that needs more, and
    with sums long enough to dominate it."""
    return not (m.epilogue_cost or m.reads_each_row) and m.sizes[2] >= 2 * MIN_PERSISTENT_TERMS


def _block_variants(m: MatrixProduct, b: BlockShape) -> Iterator[tuple[float, Option]]:
    """Yield a block with other warps, fewer stages, or persistent programs, with estimated
    times."""
    fewer = replace(b, stages=PIPELINE_STAGES - 1)
    some = [b, fewer]
    if b.rows * b.columns == MIN_EIGHT_WARP_ELEMENTS:
        some += [replace(x, warps=4) for x in some] if _has_light_epilogue(m) else []
    elif not b.is_three_part:
        some += [replace(fewer, warps=min(8, 2 * b.warps))]
    for x in dict.fromkeys(some):
        count, steps = _block_count(m, x), _block_timing(m, x, b.warps)
        yield _total_ns(m, x, steps.total_ns(count)), x.option()
        programs = _persistent_programs(m, x, steps.blocks_per_sm)
        if 0 < programs < count:
            yield _total_ns(m, x, steps.persistent_ns(count, programs)), x.option(programs)


def _block_count(m: MatrixProduct, b: BlockShape) -> int:
    """Return the number of blocks."""
    rows, columns, _ = m.sizes
    batch = prod(a.size for a in m.batch)
    return b.parts * batch * -(-rows // b.rows) * -(-columns // b.columns)


def _block_timing(m: MatrixProduct, b: BlockShape, warps: int) -> BlockTiming:
    """Return the timing of a block. warps: the default of such a block."""
    terms, last, size = m.sizes[2], m.reduction_axes[-1].size, m.operand_bytes
    h, wide, deep = b.rows, b.gates * b.columns, b.terms
    few = block_terms(m, _max_step_terms(m, b.gates))
    steps, whole = -(-terms // (b.parts * deep)), 1 << (deep - 1).bit_length()
    room = REGISTER_BLOCK_ELEMENTS[b.stages == PIPELINE_STAGES] // (h * wide)
    near = max(
        1,
        min(
            SHARED_MEMORY_BYTES // _shared_bytes(m, b),
            MAX_WARPS_PER_SM // b.warps,
            room,
            MAX_BLOCKS_PER_SM,
        ),
    )
    groups = h >= MIN_WGMMA_ROWS and warps >= 4  # warp groups multiply together
    products = PRODUCTS_PER_NS[groups] * 2 / size
    read = (
        h
        * whole
        * ROW_ELEMENT_NS
        * (UNALIGNED_READ_FACTOR if last % (16 // size) or last < m.min_dot_terms else 1)
    )
    step = max(h * wide * whole / products, (h + wide) * deep * size / SM_BYTES_PER_NS, read)
    least = MIN_STEP_NS[groups]
    if not m.is_narrow and b.stages < PIPELINE_STAGES and steps >= MIN_WAITING_STEPS:
        least = max(least, FP32_STEP_WAIT_NS)
    if not m.is_narrow and (h, b.columns) == LARGE_BLOCK:
        step *= LARGE_FP32_BLOCK_FACTOR
    if b.warps != warps:
        step *= FEWER_WARPS_FACTOR if b.warps < warps else MORE_WARPS_FACTOR
    if m.window_size > 1 and h > MIN_WGMMA_ROWS:
        step, least = (
            step * WINDOW_STEP_FACTOR[m.is_narrow],
            least * WINDOW_STEP_FACTOR[m.is_narrow],
        )
    begin = BLOCK_START_NS
    if deep > few:
        twice, later, more = DOUBLE_STEP_FACTORS[m.is_narrow]
        step, least = step * twice, least * later * deep / (2 * few)
        begin += more if steps > 1 else -more
    ends = m.epilogue_cost if b.gates == 1 and terms <= MAX_EPILOGUE_TERMS else 0.0
    return BlockTiming(steps, step, least, near, h * wide, ends, begin)


def _total_ns(m: MatrixProduct, b: BlockShape, blocks_ns: float) -> float:
    """Return the total ns with the launch: bounded by memory traffic, plus combining split-K parts.
    blocks_ns: of all blocks."""
    rows, columns, terms = m.sizes
    batch, size = prod(a.size for a in m.batch), m.operand_bytes
    moved = (rows * terms / m.window_size + rows * columns) * batch * size / MEMORY_BYTES_PER_NS
    whole = LAUNCH_NS + max(blocks_ns, moved) + HIDDEN_TIME_SHARE * blocks_ns + (b.columns > b.rows)
    added = ADD_PARTS_NS + b.parts * rows * columns * batch * 8 / PARTIAL_BYTES_PER_NS
    return whole + (added if b.parts > 1 else 0.0)


def _persistent_programs(m: MatrixProduct, b: BlockShape, blocks_per_sm: int) -> int:
    """Return the number of persistent programs; 0 for none. blocks_per_sm: concurrent blocks of a
    multiprocessor."""
    size = m.operand_bytes
    # stores go through shared memory while the next block is loaded there
    kept = b.rows * b.columns * size // (1 if b.warps > 4 else 4)
    together = min(
        SHARED_MEMORY_BYTES // (_shared_bytes(m, b) + kept), blocks_per_sm, MAX_PERSISTENT_PER_SM
    )
    return MULTIPROCESSORS * together if _allows_persistent(m, b) else 0


def _allows_persistent(m: MatrixProduct, b: BlockShape) -> bool:
    """True if persistent programs may take such blocks: not if per-row epilogue loads or window
    addresses would stall between two blocks."""
    plain = (
        b.parts == b.gates == 1
        and not b.is_three_part
        and not m.reads_each_row
        and m.window_size == 1
    )
    return (
        plain
        and b.rows * b.columns >= MIN_PERSISTENT_ELEMENTS
        and m.sizes[2] >= MIN_PERSISTENT_TERMS
    )


def _max_step_terms(m: MatrixProduct, gates: int) -> int:
    """Return the default terms of a step."""
    if m.operand_bytes == 1:
        return 128
    short = m.is_narrow or (gates > 1 and m.contraction.b.dtype.bits == 16)
    return 64 if short else 32


def _shared_bytes(m: MatrixProduct, b: BlockShape) -> int:
    """Return the bytes of shared memory of a block."""
    whole, size = 1 << (b.terms - 1).bit_length(), m.operand_bytes
    return b.stages * (b.rows + b.gates * b.columns) * whole * size
