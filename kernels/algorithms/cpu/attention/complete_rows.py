"""Attention on the CPU, one block of rows at a time.

    s[i, j] = sum(q[i, c] * k[c, j] for c)
    p[i, j]                                   of the row s[i], for instance a softmax
    y[i, d] = sum(p[i, j] * v[j, d] for j)

The scores and probabilities of a block stay in the L2 cache. Like Dao et al., FlashAttention,
arXiv:2205.14135, section 3.1, but rows are complete: no sum is rescaled, and the rounding is that
of the separate operators.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from superopt.kernels.algorithms.algorithm import Algorithm, kib
from superopt.kernels.algorithms.contraction import Contraction, match_contraction
from superopt.kernels.algorithms.cpu import row_kernels
from superopt.kernels.algorithms.cpu.register_tiling import (
    RegisterTiling,
    register_tiling,
    tile_limit,
)
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.llvm.register_tiles import register_tiles
from superopt.kernels.loops.layout import Layout, ScatteredLayout, row_major
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.schedule import (
    ComputeAt,
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from superopt.kernels.processor import ZEN5, Processor
from superopt.te.analysis.walk import computed_tensors, loads
from superopt.te.expr.node import Axis
from superopt.te.expr.tensor import Tensor

MAX_BLOCK_BYTES = 400_000  # of a block's scores and probabilities, in a core's L2 cache
BLOCK_ROWS = (16, 32, 24, 48, 8, 4)  # candidates, best first
MAX_ROW_PARTS, MAX_PART_ROWS = (
    8,
    100,
)  # further candidates: rows / n for n up to the first; at most the second
EXP_VECTOR_COST = 25  # cost of an exponential of a vector, in vector FMAs
NON_DEFAULT_BLOCK_COST = 1.03  # relative time by which another block must beat the first candidate
MIN_HEADS_FOR_LARGE_PARTS = 12  # with fewer heads parts stay small, so that threads share them
MAX_COSTED_TERMS = 512  # longer sums cost the same per term when tiles are ranked
MIN_LONG_ROW_ELEMENTS = 1024  # from here on K and V come from beyond the L2 cache: 32 rows


@dataclass(frozen=True, slots=True)
class Attention:
    """The product `tensor`, whose first operand is computed by rows (`probabilities`), from the
    product `scores` (None if from memory). tiling, scores_tiling: the register tiles of both
    products."""

    tensor: Tensor
    contraction: Contraction
    tiling: RegisterTiling
    probabilities: Tensor
    scores: Tensor | None
    scores_tiling: RegisterTiling | None

    @property
    def m(self) -> Axis:
        assert self.tiling.m is not None
        return self.tiling.m


def match_attention(
    t: Tensor,
    constants: Collection[Tensor],
    layouts: Mapping[Tensor, Layout | ScatteredLayout],
    lanes: int,
    processor: Processor = ZEN5,
) -> Attention | None:
    """Match a product whose operand is computed by rows; None if `t` is none."""
    c = match_contraction(t, constants)
    if c is None or c.a.tensor.body is None or not c.b_axes:
        return None
    frame = register_tiling(t, c, layouts, lanes, processor)
    row = c.a.tensor
    if frame is None or frame.m is None or c.a.index[-2] != frame.m:
        return None
    found = [
        s
        for s in computed_tensors([row])
        if s is not row and match_contraction(s, constants) is not None
    ]
    if not found:
        return Attention(t, c, frame, row, None, None)
    scores = found[0]
    inner = match_contraction(scores, constants)
    if inner is None or len(found) > 1:
        return None
    within = {**layouts, scores: row_major(scores.rank)}
    before = register_tiling(scores, inner, within, lanes, processor)
    if before is None or before.m != scores.axes[-2]:
        return None
    return Attention(t, c, frame, row, scores, before)


def block_options(a: Attention) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (rows of a block; rows and vectors of the product's register tile; the same of the
    scores' tile), best first."""
    height, length = a.m.size, a.probabilities.axes[-1].size
    each = (2 if a.scores is not None else 1) * length * 4
    heads = prod(x.size for x in a.tensor.axes) // (height * a.tiling.n.size)
    most = MAX_PART_ROWS if heads >= MIN_HEADS_FOR_LARGE_PARTS else max(BLOCK_ROWS)
    parts = [n for k in range(1, MAX_ROW_PARTS + 1) if (n := -(-height // k)) <= most]
    fitting = [
        n
        for n in dict.fromkeys((*BLOCK_ROWS, *parts))
        if n <= height and n * each <= MAX_BLOCK_BYTES
    ]
    fitting = sorted(fitting, key=lambda n: _estimated_time(a, n)) or [min(BLOCK_ROWS[-1], height)]
    if length > MIN_LONG_ROW_ELEMENTS:
        fitting.sort(key=lambda n: n != max(BLOCK_ROWS[:2]))
    for block in fitting:
        some = sorted(_tiles(block, a.tiling))
        for _, high, wide in some[:2]:
            if a.scores_tiling is None:
                yield block, high, wide, 0, 0
                continue
            for _, r, v in sorted(_tiles(block, a.scores_tiling))[:2]:
                yield block, high, wide, r, v


def _estimated_time(a: Attention, block: int) -> float:
    """Return the estimated time of all blocks, in vector FMAs. The last block is as high as the
    others."""
    height, length = a.m.size, a.probabilities.axes[-1].size
    time = min(_tiles(block, a.tiling))[0] * a.tiling.terms
    if a.scores_tiling is not None:
        time += min(_tiles(block, a.scores_tiling))[0] * a.scores_tiling.terms
    time += EXP_VECTOR_COST * block * -(-length // a.tiling.lanes)
    return time * -(-height // block) * (1.0 if block == BLOCK_ROWS[0] else NON_DEFAULT_BLOCK_COST)


def _tiles(block: int, f: RegisterTiling) -> Iterator[tuple[float, int, int]]:
    """Yield the register tiles of a block with their estimated times."""
    terms = min(f.terms, MAX_COSTED_TERMS)
    return register_tiles(block, f.n.size, f.lanes, 8, f.registers_per_vector, f.processor, terms)


def schedule_attention(
    a: Attention, option: tuple[int, ...], lanes: int
) -> Mapping[Tensor, Schedule]:
    """Return the schedules of one option. lanes: elements of a row at a time."""
    block, high, wide, r, v = option
    t, m, n = a.tensor, a.m, a.tiling.n
    found = reduction(t)
    assert found is not None
    rest = [x.name for x in t.axes if x not in (m, n)]
    over = [x.name for x in found.axes]
    tile = [f"{m.name}.i.i", f"{n.name}.o.i", f"{n.name}.i"]
    outer = [*rest, f"{m.name}.o"]
    steps: list[Primitive] = [
        Split(n.name, a.tiling.lanes), Split(f"{n.name}.o", wide),
        Split(m.name, block), Split(f"{m.name}.i", high),
        Reorder((*outer, f"{n.name}.o.o", f"{m.name}.i.o", *over, *tile)),
        *(Unroll(x) for x in tile[:-1]), Vectorize(tile[-1]), *map(Parallel, outer),
    ]  # fmt: skip
    at = ComputeAt(t.name, f"{m.name}.o")
    out: dict[Tensor, Schedule] = {t: tuple(steps)}
    lead = a.probabilities.rank - 1
    of_row, some = (
        a.probabilities.axes[lead - 1].name,
        min(row_kernels.rows_per_block(a.probabilities, lead), block),
    )
    split = (Split(of_row, some),) if some > 1 else ()
    where = f"{of_row}.o" if split else of_row
    for s, how in row_kernels.schedule_row_stages(a.probabilities, lead, lanes, where).items():
        out[s] = (at, *split, *how) if s is a.probabilities else how
    if a.scores is not None and a.scores_tiling is not None:
        out[a.scores] = (at, *_schedule_product(a.scores, a.scores_tiling, r, v))
    return out


def _schedule_product(
    s: Tensor, frame: RegisterTiling, high: int, wide: int
) -> Iterator[Primitive]:
    m, n = frame.m, frame.n
    found = reduction(s)
    assert found is not None
    assert m is not None
    rest = [x.name for x in s.axes if x not in (m, n)]
    tile = [f"{m.name}.i", f"{n.name}.o.i", f"{n.name}.i"]
    yield from (Split(n.name, frame.lanes), Split(f"{n.name}.o", wide), Split(m.name, high))
    over = [x.name for x in found.axes]
    yield Reorder((*rest, f"{n.name}.o.o", f"{m.name}.o", *over, *tile))
    yield from map(Unroll, tile[:-1])
    yield Vectorize(tile[-1])


def attention_operands(a: Attention) -> list[Tensor]:
    """Return the operands in memory: V, and those of the scores."""
    bodies = [s.body for s in (a.tensor, a.scores) if s is not None and s.body is not None]
    return [x.tensor for b in bodies for x in loads(b) if x.tensor.body is None]


_KNOBS = ("block_rows", "rows", "vectors", "score_rows", "score_vectors")


@remember_match
def recognise_attention(p: Problem) -> Attention | None:
    """Match a product whose operand is computed by rows."""
    given = p.tensor, p.constants, p.layouts, p.lanes, p.processor
    return match_attention(*given) if p.row_axes else None


def attention_options(p: Problem, a: Attention) -> Iterator[Option]:
    """Yield options, best first."""
    for knobs in block_options(a):
        yield Option("attention", tuple(zip(_KNOBS, knobs, strict=True)))


def schedule_attention_blocks(p: Problem, a: Attention, option: Option) -> Choice:
    """Return the choice of an option."""
    knobs = tuple(option[k] for k in _KNOBS)
    packed = tuple(x for x in attention_operands(a) if x in p.constants)
    lanes = row_kernels.row_elements(replace(p, tensor=a.probabilities))
    return Choice(option, p.tensor, schedule_attention(a, knobs, lanes), packed)


def attention_limits(p: Problem, a: Attention, o: Option) -> Iterator[str]:
    """Yield what bounds the blocks of an option."""
    each = (2 if a.scores is not None else 1) * a.probabilities.axes[-1].size * 4
    yield (
        f"blocks of {o['block_rows']} rows: {kib(o['block_rows'] * each)} of complete scores and"
        f" weights, at most {kib(MAX_BLOCK_BYTES)} of L2"
    )
    yield tile_limit(p, o["rows"], o["vectors"])


ATTENTION = Algorithm(
    ("attention",), "attention: blocks of query rows, scores in L2", recognise_attention,
    attention_options, schedule_attention_blocks, exclusive=True, limits=attention_limits,
)  # fmt: skip
