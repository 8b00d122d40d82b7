"""A cost model of GEMM blocks on a GPU, which ranks the options of gemm.py."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product
from math import prod

from superopt.kernels.gpu_blocks import (
    AGAIN,
    BEGIN,
    BYTES,
    DOT,
    END,
    ERF,
    FEWER,
    HIDDEN,
    IN_TURNS,
    MEMORY,
    MORE,
    MOST,
    MULTIPROCESSORS,
    NARROW,
    PARTIAL,
    PRODUCTS,
    ROOM,
    ROUGH,
    ROW,
    SHARED,
    STAGES,
    START,
    STEP,
    TWICE,
    WAITS,
    WARPS,
    WGMMA,
    WIDER,
    WINDOWED,
)
from superopt.kernels.gpu_products import Matrix, terms_of
from superopt.kernels.option import Option

SIDES = (16, 32, 64, 128)  # of blocks of the result
WIDE, LONG = (128, 256), 512  # and this block, from so many terms on
# Blocks of three equal sub-blocks: sizes between powers of two, for which the number of blocks
# matches the number of multiprocessors better.
THIRDS = ((192, 64), (192, 128), (64, 192))
PARTS = (1, 2, 3, 4, 6, 8, 9, 16)  # split-K factors
MANY = 16  # from so many steps on, latency is waited for
SHORT = 256  # up to so many terms the epilogue counts
LARGE = 128 * 128  # elements of a block with eight warps
# Persistent programs of a multiprocessor, and elements and terms of their blocks, at least: smaller
# blocks run concurrently, which was faster.
TOGETHER, AREA, TERMS = 2, 64 * 128, 64


@dataclass(frozen=True, slots=True)
class Steps:
    """The timing of blocks: steps of a sum, each bounded by its loads and products and by latency;
    concurrent blocks per multiprocessor; elements per block. epilogue_cost: in erf per element;
    start_ns: of a block."""

    count: int
    step: float
    least: float
    near: int
    area: int
    ends: float = 0.0
    begin: float = BEGIN

    def together(self, blocks: int) -> float:
        """Return the ns of concurrent blocks of a multiprocessor, without their start."""
        end = END + self.ends * ERF[self.near > 1]
        return self.count * max(self.least, blocks * self.step) + blocks * self.area * end

    def all(self, blocks: int) -> float:
        """Return the ns of all blocks, as many at once as fit."""
        full, rest = divmod(blocks, MULTIPROCESSORS * self.near)
        last = min(self.near, -(-rest // MULTIPROCESSORS))
        time = full * (self.begin + self.together(self.near))
        return time + (self.begin + self.together(last) if rest else 0.0)

    def turns(self, blocks: int, programs: int) -> float:
        """Return the ns of persistent programs."""
        share, again = IN_TURNS
        each = -(-blocks // programs)
        some = programs // MULTIPROCESSORS
        return self.begin + each * (share * self.together(some) + again)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows, columns and terms of a block, split-K parts, warps, products per block (gates), and
    pipeline stages."""

    rows: int
    columns: int
    deep: int
    parts: int = 1
    warps: int = 4
    gates: int = 1
    stages: int = STAGES

    @property
    def thirds(self) -> bool:
        return (self.rows, self.columns) in THIRDS

    def option(self, programs: int = 0) -> Option:
        knobs = {"rows": self.rows, "columns": self.columns, "deep": self.deep,
                 "warps": self.warps, "stages": self.stages}  # fmt: skip
        more = {"parts": self.parts, "gates": self.gates}
        knobs |= {name: n for name, n in more.items() if n > 1}
        knobs |= {"programs": programs} if programs else {}
        return Option.of("dot" if self.parts == 1 else "split", **knobs)


def ranked(m: Matrix) -> Iterator[Option]:
    """Yield options by estimated time: the best of each block shape, and after each two of these
    one of the others, which the compiler may treat differently."""
    first: list[tuple[float, Option]] = []
    rest: list[tuple[float, Option]] = []
    for b in _blocks(m, 1, THIRDS):
        best, *others = sorted(_ways(m, b), key=lambda x: x[0])
        first.append(best)
        rest += others
    again = (o for _, o in sorted(rest, key=lambda x: x[0]))
    for n, (_, o) in enumerate(sorted(first, key=lambda x: x[0])):
        yield o
        yield from islice(again, n % 2)
    yield from again


def varied(o: Option, stages: int, more: int) -> Option:
    """Return the option with so many stages, and with its warps doubled up to 8."""
    knobs = {**dict(o.knobs), "stages": stages}
    knobs["warps"] = min(8, knobs["warps"] << more)
    return Option(o.algorithm, tuple(knobs.items()))


def blocks(m: Matrix, gates: int = 1) -> Iterator[tuple[float, Option]]:
    """Yield (estimated ns, option) of block shapes. gates: products of the same rows, with a block
    each (gated_gemm.py)."""
    for b in _blocks(m, gates):
        yield _whole(m, b, _steps(m, b, b.warps).all(_count(m, b))), b.option()


def _blocks(m: Matrix, gates: int, more: Sequence[tuple[int, int]] = ()) -> Iterator[Block]:
    rows, columns, terms = m.sizes
    last = m.over[-1].size
    most = _most(m, gates)
    # terms at a time; with twice as many there are half as many steps
    few = terms_of(m, most)
    deeps = {few, terms_of(m, 2 * most)} if gates == 1 and last >= DOT else {few}
    narrow = SIDES if gates == 1 else (NARROW, *SIDES)
    sides = [*product(SIDES, narrow), *([WIDE] if terms >= LONG else []), *more]
    for (h, w), deep, parts in product(sides, sorted(deeps), PARTS):
        if h >= 2 * max(rows, DOT) or w >= 2 * max(columns, DOT):
            continue
        if parts > 1 and (last < DOT or last % (parts * deep)):
            continue
        wide = gates * w
        if gates > 1 and (parts > 1 or wide > max(WIDE)):
            continue
        warps = 8 if h * wide >= LARGE else 4 if h * wide >= 32 * 64 else 2
        if gates > 1:  # with several dots each warp computes all columns: others only help to load
            warps = min(warps, 1 << (max(h, wide // 4) // DOT).bit_length() - 1)
        b = Block(h, w, deep, parts, warps, gates)
        if b.thirds:
            if deep > few or h > rows or w > columns or not _thirds(m, h * w, deep):
                continue
            b = replace(b, warps=4)
        steps = -(-terms // (parts * deep))
        if deep > few and steps > 1 and _shared(m, b) > SHARED:
            continue  # with fewer stages, which was never faster
        yield b


def _thirds(m: Matrix, area: int, deep: int) -> bool:
    """True if a block may be three sub-blocks: not for short sums or padded term blocks."""
    long = m.sizes[2] >= 2 * TERMS
    return deep & (deep - 1) == 0 and long and (area <= LARGE or _plain(m))


def _plain(m: Matrix) -> bool:
    """True if few warps have registers for large blocks: without an epilogue that needs more, and
    with sums long enough to dominate it."""
    return not (m.ends or m.beside) and m.sizes[2] >= 2 * TERMS


def _ways(m: Matrix, b: Block) -> Iterator[tuple[float, Option]]:
    """Yield a block with other warps, fewer stages, or persistent programs, with estimated
    times."""
    fewer = replace(b, stages=STAGES - 1)
    some = [b, fewer]
    if b.rows * b.columns == LARGE:
        some += [replace(x, warps=4) for x in some] if _plain(m) else []
    elif not b.thirds:
        some += [replace(fewer, warps=min(8, 2 * b.warps))]
    for x in dict.fromkeys(some):
        count, steps = _count(m, x), _steps(m, x, b.warps)
        yield _whole(m, x, steps.all(count)), x.option()
        programs = _programs(m, x, steps.near)
        if 0 < programs < count:
            yield _whole(m, x, steps.turns(count, programs)), x.option(programs)


def _count(m: Matrix, b: Block) -> int:
    """Return the number of blocks."""
    rows, columns, _ = m.sizes
    batch = prod(a.size for a in m.batch)
    return b.parts * batch * -(-rows // b.rows) * -(-columns // b.columns)


def _steps(m: Matrix, b: Block, warps: int) -> Steps:
    """Return the timing of a block. warps: the default of such a block."""
    terms, last, size = m.sizes[2], m.over[-1].size, 2 if m.half else 4
    h, wide, deep = b.rows, b.gates * b.columns, b.deep
    few = terms_of(m, _most(m, b.gates))
    steps, whole = -(-terms // (b.parts * deep)), 1 << (deep - 1).bit_length()
    room = ROOM[b.stages == STAGES] // (h * wide)
    near = max(1, min(SHARED // _shared(m, b), WARPS // b.warps, room, MOST))
    groups = h >= WGMMA and warps >= 4  # warp groups multiply together
    products = PRODUCTS[groups] * 2 / size
    read = h * whole * ROW * (ROUGH if last % (16 // size) or last < DOT else 1)
    step = max(h * wide * whole / products, (h + wide) * deep * size / BYTES, read)
    least = STEP[groups]
    if not m.half and b.stages < STAGES and steps >= MANY:
        least = max(least, WAITS)
    if not m.half and (h, b.columns) == WIDE:
        step *= WIDER
    if b.warps != warps:
        step *= FEWER if b.warps < warps else MORE
    if m.windows > 1 and h > WGMMA:
        step, least = step * WINDOWED[m.half], least * WINDOWED[m.half]
    begin = BEGIN
    if deep > few:
        twice, later, more = TWICE[m.half]
        step, least = step * twice, least * later * deep / (2 * few)
        begin += more if steps > 1 else -more
    ends = m.ends if b.gates == 1 and terms <= SHORT else 0.0
    return Steps(steps, step, least, near, h * wide, ends, begin)


def _whole(m: Matrix, b: Block, time: float) -> float:
    """Return the total ns with the launch: bounded by memory traffic, plus combining split-K parts.
    blocks_ns: of all blocks."""
    rows, columns, terms = m.sizes
    batch, size = prod(a.size for a in m.batch), 2 if m.half else 4
    moved = (rows * terms / m.windows + rows * columns) * batch * size / MEMORY
    whole = START + max(time, moved) + HIDDEN * time + (b.columns > b.rows)
    added = AGAIN + b.parts * rows * columns * batch * 8 / PARTIAL
    return whole + (added if b.parts > 1 else 0.0)


def _programs(m: Matrix, b: Block, near: int) -> int:
    """Return the number of persistent programs; 0 for none. blocks_per_sm: concurrent blocks of a
    multiprocessor."""
    size = 2 if m.half else 4
    # stores go through shared memory while the next block is loaded there
    kept = b.rows * b.columns * size // (1 if b.warps > 4 else 4)
    together = min(SHARED // (_shared(m, b) + kept), near, TOGETHER)
    return MULTIPROCESSORS * together if _in_turns(m, b) else 0


def _in_turns(m: Matrix, b: Block) -> bool:
    """True if persistent programs may take such blocks: not if per-row epilogue loads or window
    addresses would stall between two blocks."""
    plain = b.parts == b.gates == 1 and not b.thirds and not m.beside and m.windows == 1
    return plain and b.rows * b.columns >= AREA and m.sizes[2] >= TERMS


def _most(m: Matrix, gates: int) -> int:
    """Return the default terms of a step."""
    short = m.half or (gates > 1 and m.c.b.dtype.bits == 16)
    return 64 if short else 32


def _shared(m: Matrix, b: Block) -> int:
    """Return the bytes of shared memory of a block."""
    whole, size = 1 << (b.deep - 1).bit_length(), 2 if m.half else 4
    return b.stages * (b.rows + b.gates * b.columns) * whole * size
