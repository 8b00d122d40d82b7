"""GEMM and convolutions by AMX and by instructions that multiply groups of terms: of bfloat16 with
float32 sums, and of uint8 and int8 with int32 sums.

    amx_gemm, amx_int8_gemm   blocks of TILES times VECTORS tile registers, of ROWS times 16 sums
    bf16_gemm, int8_gemm      register tiles of ROWS times VECTORS vectors of 16 sums

A problem has those of bfloat16 only if it allows them (Problem.bf16_instructions). Panels of b
follow each other in memory. Rows are read again for each panel if b is larger than half of the L2
cache, else all panels for each block of rows. No block of the sum is needed: 32 rows of a and 32
columns of b with 3,072 terms are 400 KB together. oneDNN and BLIS block AMX alike: two by two
tiles, which four loads feed, so that loads (8 cycles each) take half as long as products (16 cycles
each).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from superopt.kernels.algorithms.algorithm import GENERAL_TIME, Algorithm, Prediction
from superopt.kernels.algorithms.contraction import (
    Contraction,
    element_count,
    match_contraction,
)
from superopt.kernels.algorithms.cpu.collapsed_spatial_axes import direct_time
from superopt.kernels.algorithms.cpu.dot_products.match_operands import match_operands
from superopt.kernels.algorithms.cpu.dot_products.operands import DotOperands
from superopt.kernels.algorithms.cpu.dot_products.register_tiles import register_tiles, tile_cost
from superopt.kernels.algorithms.cpu.gemm import match_product
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.llvm.dot_products.products import (
    DOT_TYPES,
    INT16_DOT,
    INT16_INT8_DOT,
    LANES,
    MAX_TILE_ROWS,
)
from superopt.kernels.loops.layout import effective_layout, row_major
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.schedule import (
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from superopt.kernels.loops.substitution import scatter_layout
from superopt.kernels.processor import AMX, AMX_INT8, AVX512_BF16, TILE_INSTRUCTIONS
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Axis
from superopt.te.expr.tensor import Tensor

MIN_TERMS = 16  # of the blocked sum
FLOAT_BYTES = 4
RESIDENT_BYTES = 1 << 20  # of b that stays in L2 beside a's rows
UNROLLED_PIXELS = 16
NARROW_CHANNEL_BLOCK = 64  # of images of 8 bits (plan/lowering/image_layouts.py)
MAX_PARALLEL_LOOPS = 3
MIN_PARTS_PER_THREAD = 4
# Of AMX: row tiles and column tiles of a block, in the order of preference.
TILE_BLOCKS = ((2, 2), (1, 2), (2, 1), (1, 1))
# In vector FMAs of float32, half a cycle each, on a Xeon (family 6, model 167): a product of tiles
# from L2 takes 1.5 cycles for each row and 2 more (7 rows 12.6 cycles, 14 rows 20, 16 rows 25), and
# a vector of a 4 cycles to round and store. The last-level cache gives 6.5 bytes.
TILE_ROW_TIME, TILE_TIME = 3.0, 4.0
ROUNDING_TIME = 8.0
PANEL_BYTES_PER_FMA = 6.5
HIDDEN_SHARE = 0.3  # of the time of what is not the bottleneck, that is not hidden


@dataclass(frozen=True, slots=True)
class DotGemm:
    """A product with its instructions, the axis of its rows, and another one of these if it has
    some (an image's height)."""

    instructions: str
    operands: DotOperands
    m: Axis
    other: Axis | None


@remember_match
def recognise_bf16(p: Problem) -> DotGemm | None:
    """Match a product of float32 with a constant that may be computed in bfloat16."""
    return _recognise(p, p.bf16_instructions)


@remember_match
def recognise_int8(p: Problem) -> DotGemm | None:
    """Match a product of uint8 with a constant of int8."""
    return _recognise(p, p.integer_instructions)


def _recognise(p: Problem, instructions: str) -> DotGemm | None:
    t = p.tensor
    if not instructions or p.row_axes:
        return None
    kind = DOT_TYPES[instructions]
    of_integers = not kind.total.is_float
    if not of_integers and t.dtype != F32:
        return None
    c = match_contraction(t, p.constants, LANES if of_integers else p.lanes, of_integers)
    uses_tiles = instructions in TILE_INSTRUCTIONS
    if c is not None and kind == INT16_DOT and _is_read_from_memory(c):
        kind = INT16_INT8_DOT
    operands = (
        None if c is None
        else match_operands(t, c, p.constants, kind, uses_tiles, p.layouts.get(c.a.tensor))
    )  # fmt: skip
    if c is None or operands is None or (operands.k.size < MIN_TERMS and not of_integers):
        return None
    parts = reversed(effective_layout(p.layouts.get(t), t.rank).parts)
    order = [a for a in dict.fromkeys(t.axes[x.axis] for x in parts) if a.size > 1]
    if order[:1] != [operands.n]:
        return None
    rows = [a for a in order if a in c.a_axes] or [*c.a_axes[-1:]]  # of one row: an axis of 1
    if not rows and of_integers:  # a general algorithm would not use these instructions
        rows = [a for a in t.axes if a != operands.n][-1:]
    if not rows:
        return None
    return DotGemm(instructions, operands, rows[0], rows[1] if len(rows) > 1 else None)


def _is_read_from_memory(c: Contraction) -> bool:
    """True if a constant of int16 would not stay in L2, so that it is kept in bytes."""
    return element_count(c.b.tensor) * INT16_DOT.bytes > RESIDENT_BYTES


# --- AMX ---


def amx_options(p: Problem, g: DotGemm) -> Iterator[Option]:
    """Yield the options of all blocks of tiles."""
    for tiles, vectors in TILE_BLOCKS:
        if vectors * LANES <= g.operands.n.size and tiles <= _max_row_tiles(g):
            rows = _tile_rows(g.m.size, 1 if _stacks_rows(g) else tiles)
            yield Option.make(_name(g), rows=rows, tiles=tiles, vectors=vectors)


def _stacks_rows(g: DotGemm) -> bool:
    """True if a row tile covers `m`, and tiles of a block follow each other along `other`."""
    return g.m.size <= MAX_TILE_ROWS and g.other is not None


def _max_row_tiles(g: DotGemm) -> int:
    if _stacks_rows(g):
        assert g.other is not None
        return g.other.size
    return -(-g.m.size // MAX_TILE_ROWS)


def _tile_rows(size: int, tiles: int) -> int:
    """Return the rows of a tile so that blocks of so many tiles cover `size` with the fewest rows
    computed twice."""
    blocks = -(-size // (tiles * MAX_TILE_ROWS))
    return -(-size // (tiles * blocks))


def _name(g: DotGemm) -> str:
    names = {AMX: "amx_gemm", AVX512_BF16: "bf16_gemm", AMX_INT8: "amx_int8_gemm"}
    return names.get(g.instructions, "int8_gemm")


def options_of(p: Problem, g: DotGemm) -> Iterator[Option]:
    """Yield the options of all blocks of tiles, or of all register tiles."""
    yield from amx_options(p, g) if g.instructions in TILE_INSTRUCTIONS else dot_options(p, g)


def predict(p: Problem, g: DotGemm) -> Prediction | None:
    """Return the option with the least estimated time."""
    some = options_of(p, g)
    best = min(((estimated_time(p, g, o), o) for o in some), key=lambda x: x[0], default=None)
    product = match_product(p)
    if best is None:
        return None
    if product is None:
        return Prediction(best[1], GENERAL_TIME)
    relative, direct = direct_time(p, product)
    direct = _with_panels(direct, element_count(g.operands.contraction.b.tensor) * FLOAT_BYTES)
    return Prediction(best[1], relative * best[0] / direct)


def _with_panels(busy: float, panel_bytes: float) -> float:
    """Return the time of a product that reads so many bytes of its constant."""
    reading = panel_bytes / PANEL_BYTES_PER_FMA
    return max(busy, reading) + HIDDEN_SHARE * min(busy, reading)


def estimated_time(p: Problem, g: DotGemm, o: Option) -> float:
    """Return the estimated time of an option, in vector FMAs of float32."""
    x = g.operands
    steps = x.block_count * prod(a.size for a in x.window)
    row_count = prod(a.size for a in x.contraction.a_axes)
    columns, groups = x.n.size // LANES, x.block_terms // x.type.group
    if g.instructions in TILE_INSTRUCTIONS:
        along = o["rows"] * (1 if _stacks_rows(g) else o["tiles"])
        covered = -(-g.m.size // along) * along * row_count // g.m.size
        if _stacks_rows(g):
            assert g.other is not None
            covered = covered * -(-g.other.size // o["tiles"]) * o["tiles"] // g.other.size
        each = TILE_ROW_TIME + TILE_TIME / o["rows"]
        loads = 1 + (1 / o["tiles"] + 1 / o["vectors"]) / 2
        busy = covered * columns * steps * each * loads / 2
    else:
        covered = -(-g.m.size // o["rows"]) * o["rows"] * row_count // g.m.size
        busy = covered * columns * steps * groups
        busy *= tile_cost(x.type, p, o["rows"], o["vectors"])
    rounding = 0.0
    if x.in_place is None:
        rounding = element_count(Tensor("a", x.type.a, x.shape)) / LANES * ROUNDING_TIME
    return _with_panels(busy, element_count(x.constant(1)) * x.type.bytes) + rounding


def schedule_groups(p: Problem, g: DotGemm, option: Option) -> Choice:
    """Return the choice of an option."""
    t, x = p.tensor, g.operands
    columns, vectors = x.n.size // LANES, option["vectors"]
    in_panel = vectors if columns % vectors == 0 else 1  # the last panel overlaps the one before
    b = x.constant(in_panel)
    schedules: dict[Tensor, Schedule] = {}
    producers: tuple[tuple[Tensor, Tensor], ...] = ()
    a = None
    if x.in_place is None:
        grouped = x.grouped_input()
        a = Tensor(grouped.name, grouped.dtype, grouped.shape)
        schedule = _grouping_schedule if x.folded is None else _row_schedule
        schedules[grouped] = schedule(grouped, x, p.threads)
        producers = ((grouped, a),)
    root = x.product(t, a, b, in_panel)
    is_amx = g.instructions in TILE_INSTRUCTIONS
    schedules[root] = (_tile_schedule if is_amx else _dot_schedule)(p, g, root, option)
    layout = scatter_layout(t, p.layouts.get(t) or row_major(t.rank), t.axes, t.axes)
    return Choice(
        option, root, schedules, (), layout, producers=producers,
        derived_constants={b: (x.contraction.b.tensor, x.transform(in_panel))},
        instructions=g.instructions,
    )  # fmt: skip


def schedule_symbolic(p: Problem, option: Option) -> Choice | None:
    """Return the choice of an option for a product of symbolic sizes; None if images have these."""
    g = recognise_int8(p) if "int8" in option.algorithm else recognise_bf16(p)
    return None if g is None else schedule_groups(p, g, option)


def _grouping_schedule(t: Tensor, x: DotOperands, threads: int) -> Schedule:
    """Return the schedule of grouped operands: vectors along terms, of a block of channels."""
    inner = t.axes[-1].name
    steps: list[Primitive] = [
        Split(inner, min(x.block_terms, LANES)),
        Unroll(f"{inner}.o"),
        Vectorize(f"{inner}.i"),
    ]
    return (*steps, *_parallel_loops([(a.name, a.size) for a in t.axes[:-2]], threads))


def _row_schedule(t: Tensor, x: DotOperands, threads: int) -> Schedule:
    """Return the schedule of overlapping rows: a vector of channels for each of some pixels."""
    inner = t.axes[-1].name
    steps: list[Primitive] = [
        Split(inner, x.channel_stride),
        Split(f"{inner}.o", min(UNROLLED_PIXELS, t.axes[-1].size // x.channel_stride)),
        Unroll(f"{inner}.o.i"),
        Vectorize(f"{inner}.i"),
    ]
    return (*steps, *_parallel_loops([(a.name, a.size) for a in t.axes[:-1]], threads))


def _parallel_loops(loops: list[tuple[str, int]], threads: int) -> list[Primitive]:
    """Return the outer loops that threads share, with as many parts as balance them."""
    out: list[Primitive] = []
    parts = 1
    for name, size in loops[:MAX_PARALLEL_LOOPS]:
        if parts >= MIN_PARTS_PER_THREAD * threads or threads == 1:
            break
        out.append(Parallel(name))
        parts *= size
    return out


def _tile_schedule(p: Problem, g: DotGemm, root: Tensor, option: Option) -> Schedule:
    """Return the schedule of a product by AMX."""
    m, n, tiles, vectors = g.m.name, g.operands.n.name, option["tiles"], option["vectors"]
    steps: list[Primitive] = [Split(n, LANES), Split(f"{n}.o", vectors), Split(m, option["rows"])]
    if _stacks_rows(g):
        assert g.other is not None
        steps.append(Split(g.other.name, tiles))
        stacked, rows = f"{g.other.name}.i", [(f"{g.other.name}.o", g.other.size // tiles)]
        rows.append((f"{m}.o", 1))
    else:
        steps.append(Split(f"{m}.o", tiles))
        stacked, rows = f"{m}.o.i", [(f"{m}.o.o", -(-g.m.size // (option["rows"] * tiles)))]
    split, panels = _panel_loops(g, vectors)
    steps += split
    *sums, pairs, pair = _summed_axes(root)
    tile = [stacked, f"{n}.o.i", f"{m}.i", f"{n}.i"]
    outer = _outer_loops(g, root, panels, rows)
    steps.append(Reorder((*(x for x, _ in outer), *sums, *tile, pairs, pair)))
    steps += [Unroll(x) for x in (*tile[:-1], pairs, pair)]
    return (*steps, Vectorize(tile[-1]), *_parallel_loops(outer, p.threads))


def _summed_axes(root: Tensor) -> list[str]:
    found = reduction(root)
    assert found is not None
    return [a.name for a in found.axes]


def _outer_loops(
    g: DotGemm, root: Tensor, panels: list[tuple[str, int]], rows: list[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Return the loops around the sum, with their extents, in the order of least traffic."""
    own = (g.m, g.operands.n, g.other if _stacks_rows(g) else None)
    batch = [(a.name, a.size) for a in root.axes if a not in own]
    if element_count(g.operands.constant(1)) * g.operands.type.bytes > RESIDENT_BYTES:
        return [*panels, *batch, *rows]
    return [*batch, *rows, *panels]


def _panel_loops(g: DotGemm, vectors: int) -> tuple[list[Primitive], list[tuple[str, int]]]:
    """Return the loops over panels, with their extents, and the splits that make them: those of a
    block of an image's channels are a loop of their own, so that its index does not depend on the
    block's."""
    name, width = f"{g.operands.n.name}.o.o", LANES * vectors
    count = g.operands.n.size // width
    in_block = NARROW_CHANNEL_BLOCK // width
    if g.operands.n.size % NARROW_CHANNEL_BLOCK or in_block == 1:
        return [], [(name, count)]
    return [Split(name, in_block)], [(f"{name}.o", count // in_block), (f"{name}.i", in_block)]


# --- AVX512-BF16 ---


def dot_options(p: Problem, g: DotGemm) -> Iterator[Option]:
    """Yield the options of all register tiles."""
    for rows, vectors in register_tiles(g.operands.type, p):
        fits = vectors * LANES <= g.operands.n.size and rows <= g.m.size
        fits &= g.operands.n.size % NARROW_CHANNEL_BLOCK > 0 or vectors in (1, 2, 4)
        if fits:
            yield Option.make(_name(g), rows=rows, vectors=vectors)


def _dot_schedule(p: Problem, g: DotGemm, root: Tensor, option: Option) -> Schedule:
    """Return the schedule of a product by AVX512-BF16."""
    m, n, vectors = g.m.name, g.operands.n.name, option["vectors"]
    steps: list[Primitive] = [Split(n, LANES), Split(f"{n}.o", vectors), Split(m, option["rows"])]
    *sums, pair = _summed_axes(root)
    tile = [f"{n}.o.i", f"{m}.i", f"{n}.i"]
    batch = [(a.name, a.size) for a in root.axes if a not in (g.m, g.operands.n)]
    split, panels = _panel_loops(g, vectors)
    steps += split
    rows = f"{m}.o", -(-g.m.size // option["rows"])
    outer = [*panels, *batch, rows]
    steps.append(Reorder((*(x for x, _ in outer), *sums, *tile, pair)))
    steps += [Unroll(x) for x in (*tile[:-1], pair)]
    return (*steps, Vectorize(tile[-1]), *_parallel_loops(outer, p.threads))


def _recognise_bf16_tiles(p: Problem) -> DotGemm | None:
    return recognise_bf16(p) if p.bf16_instructions in TILE_INSTRUCTIONS else None


def _recognise_bf16_vectors(p: Problem) -> DotGemm | None:
    return None if p.bf16_instructions in TILE_INSTRUCTIONS else recognise_bf16(p)


def _recognise_int8_tiles(p: Problem) -> DotGemm | None:
    return recognise_int8(p) if p.integer_instructions in TILE_INSTRUCTIONS else None


def _recognise_int8_vectors(p: Problem) -> DotGemm | None:
    return None if p.integer_instructions in TILE_INSTRUCTIONS else recognise_int8(p)


AMX_GEMM, BF16_GEMM, AMX_INT8_GEMM, INT8_GEMM = (
    Algorithm(
        (name,), computes, recognise, options_of, schedule_groups, predict,
        schedule_symbolic=schedule_symbolic,
    )
    for name, computes, recognise in (
        ("amx_gemm", "GEMM and convolution in bfloat16 by AMX", _recognise_bf16_tiles),
        ("bf16_gemm", "GEMM and convolution in bfloat16 by AVX512-BF16", _recognise_bf16_vectors),
        ("amx_int8_gemm", "GEMM and convolution of uint8 and int8 by AMX", _recognise_int8_tiles),
        ("int8_gemm", "GEMM and convolution of uint8 and int8", _recognise_int8_vectors),
    )
)  # fmt: skip
# the names of their options
BF16_ALGORITHMS = frozenset((*AMX_GEMM.names, *BF16_GEMM.names))
INT8_ALGORITHMS = frozenset((*AMX_INT8_GEMM.names, *INT8_GEMM.names))
