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
from dataclasses import dataclass
from math import prod

from superopt.kernels import contraction as co
from superopt.kernels import rows
from superopt.kernels.layout import Layout, Scatter, row_major
from superopt.kernels.schedule import (
    ComputeAt,
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from superopt.kernels.transform import reduction
from superopt.te.expr import Tensor
from superopt.te.node import Axis
from superopt.te.walk import loads, stages

ROOM = 400_000  # of a block's scores and probabilities, in a core's L2 cache
BLOCKS = (16, 32, 24, 48, 8, 4)  # candidates, best first
PARTS, MOST = 8, 100  # further candidates: rows / n for n up to the first; at most the second
POWER = 25  # cost of an exponential of a vector, in vector FMAs
OTHER = 1.03  # relative time by which another block must beat the first candidate
HEADS = 12  # with fewer heads parts stay small, so that threads share them
TERMS = 512  # longer sums cost the same per term when tiles are ranked
LONG = 1024  # from here on K and V come from beyond the L2 cache: 32 rows


@dataclass(frozen=True, slots=True)
class Attention:
    """The product `tensor`, whose first operand is computed by rows (`probabilities`), from the
    product `scores` (None if from memory). tiling, scores_tiling: the register tiles of both
    products."""

    t: Tensor
    c: co.Contraction
    frame: co.Frame
    row: Tensor
    scores: Tensor | None
    before: co.Frame | None

    @property
    def m(self) -> Axis:
        assert self.frame.m is not None
        return self.frame.m


def attention(
    t: Tensor,
    constants: Collection[Tensor],
    layouts: Mapping[Tensor, Layout | Scatter],
    lanes: int,
    registers: int = co.REGISTERS,
) -> Attention | None:
    """Match a product whose operand is computed by rows; None if `t` is none."""
    c = co.contraction(t, constants)
    if c is None or c.a.tensor.body is None or not c.of_b:
        return None
    frame = co.frame(t, c, layouts, lanes, registers)
    row = c.a.tensor
    if frame is None or frame.m is None or c.a.index[-2] != frame.m:
        return None
    found = [s for s in stages([row]) if s is not row and co.contraction(s, constants) is not None]
    if not found:
        return Attention(t, c, frame, row, None, None)
    scores = found[0]
    inner = co.contraction(scores, constants)
    if inner is None or len(found) > 1:
        return None
    within = {**layouts, scores: row_major(scores.rank)}
    before = co.frame(scores, inner, within, lanes, registers)
    if before is None or before.m != scores.axes[-2]:
        return None
    return Attention(t, c, frame, row, scores, before)


def options(a: Attention) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (rows of a block; rows and vectors of the product's register tile; the same of the
    scores' tile), best first."""
    height, length = a.m.size, a.row.axes[-1].size
    each = (2 if a.scores is not None else 1) * length * 4
    heads = prod(x.size for x in a.t.axes) // (height * a.frame.n.size)
    most = MOST if heads >= HEADS else max(BLOCKS)
    parts = [n for k in range(1, PARTS + 1) if (n := -(-height // k)) <= most]
    fitting = [n for n in dict.fromkeys((*BLOCKS, *parts)) if n <= height and n * each <= ROOM]
    fitting = sorted(fitting, key=lambda n: _time(a, n)) or [min(BLOCKS[-1], height)]
    if length > LONG:
        fitting.sort(key=lambda n: n != max(BLOCKS[:2]))
    for block in fitting:
        some = sorted(_tiles(block, a.frame))
        for _, high, wide in some[:2]:
            if a.before is None:
                yield block, high, wide, 0, 0
                continue
            for _, r, v in sorted(_tiles(block, a.before))[:2]:
                yield block, high, wide, r, v


def _time(a: Attention, block: int) -> float:
    """Return the estimated time of all blocks, in vector FMAs. The last block is as high as the
    others."""
    height, length = a.m.size, a.row.axes[-1].size
    time = min(_tiles(block, a.frame))[0] * a.frame.terms
    if a.before is not None:
        time += min(_tiles(block, a.before))[0] * a.before.terms
    time += POWER * block * -(-length // a.frame.lanes)
    return time * -(-height // block) * (1.0 if block == BLOCKS[0] else OTHER)


def _tiles(block: int, f: co.Frame) -> Iterator[tuple[float, int, int]]:
    """Yield the register tiles of a block with their estimated times."""
    terms = min(f.terms, TERMS)
    return co.tiles(block, f.n.size, f.lanes, 8, f.each, f.registers, terms)


def scheduled(a: Attention, option: tuple[int, ...], lanes: int) -> Mapping[Tensor, Schedule]:
    """Return the schedules of one option. lanes: elements of a row at a time."""
    block, high, wide, r, v = option
    t, m, n = a.t, a.m, a.frame.n
    found = reduction(t)
    assert found is not None
    rest = [x.name for x in t.axes if x not in (m, n)]
    over = [x.name for x in found.axes]
    tile = [f"{m.name}.i.i", f"{n.name}.o.i", f"{n.name}.i"]
    outer = [*rest, f"{m.name}.o"]
    steps: list[Primitive] = [
        Split(n.name, a.frame.lanes), Split(f"{n.name}.o", wide),
        Split(m.name, block), Split(f"{m.name}.i", high),
        Reorder((*outer, f"{n.name}.o.o", f"{m.name}.i.o", *over, *tile)),
        *(Unroll(x) for x in tile[:-1]), Vectorize(tile[-1]), *map(Parallel, outer),
    ]  # fmt: skip
    at = ComputeAt(t.name, f"{m.name}.o")
    out: dict[Tensor, Schedule] = {t: tuple(steps)}
    lead = a.row.rank - 1
    of_row, some = a.row.axes[lead - 1].name, min(rows.block(a.row, lead), block)
    split = (Split(of_row, some),) if some > 1 else ()
    where = f"{of_row}.o" if split else of_row
    for s, how in rows.within(a.row, lead, lanes, where).items():
        out[s] = (at, *split, *how) if s is a.row else how
    if a.scores is not None and a.before is not None:
        out[a.scores] = (at, *_product(a.scores, a.before, r, v))
    return out


def _product(s: Tensor, frame: co.Frame, high: int, wide: int) -> Iterator[Primitive]:
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


def operands(a: Attention) -> list[Tensor]:
    """Return the operands in memory: V, and those of the scores."""
    bodies = [s.body for s in (a.t, a.scores) if s is not None and s.body is not None]
    return [x.tensor for b in bodies for x in loads(b) if x.tensor.body is None]
