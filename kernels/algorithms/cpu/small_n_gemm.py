"""Small-N GEMM and convolutions with few output channels: vectors run along the reduction.

    y[k, h] = sum(x[c, h + r] * b[k, c, r] for c, r)

With, say, three channels k, vectors of channels would leave most lanes empty. If the reduced
elements are contiguous, each lane sums a part, and the lanes are added at the end:

    p[h, k, l] = sum(x[c * lanes + l, h + r] * b[k, c * lanes + l, r] for c, r)
    y[k, h] = sum(p[h, k, l] for l)

Terms of the last vector that are beyond the sum are masked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from superopt.kernels.algorithms import contraction
from superopt.kernels.algorithms.algorithm import Algorithm, Prediction
from superopt.kernels.algorithms.cpu.register_tiling import register_tiling
from superopt.kernels.algorithms.cpu.row_kernels import parallel_loops
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.loops.layout import Layout, ScatteredLayout, effective_layout
from superopt.kernels.loops.loop_nest import mask_term, replace_reduction
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.schedule import (
    ComputeAt,
    Parallel,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from superopt.kernels.loops.substitution import replace_loads, scatter_layout
from superopt.kernels.processor import ZEN5
from superopt.te.analysis.inline import substitute_axes
from superopt.te.expr import index as te_index
from superopt.te.expr.node import Axis, Expr
from superopt.te.expr.tensor import Tensor, compare, compute, reduce_sum

OPERAND_REGISTERS = 4  # vector registers that hold no accumulators
LANE_SUM_COST = 10.0  # cost of adding the lanes of a vector, in vector FMAs
MAX_OUTPUTS = (
    10  # outputs of a position: with more, each FMA waits for its own part of the constant
)
MAX_UNROLLED_BLOCKS = 8  # of a masked sum
MAX_TIME_RATIO = 0.75  # relative to vectors along the outputs


@dataclass(frozen=True, slots=True)
class SmallNGemm:
    """root: the result, a sum over lanes, stored as `layout`; partial_sums: the sums in lanes; k:
    the axis of outputs, None for one output; m: the axis along which several positions are computed
    at a time; b: the constant; is_masked: lanes of the last vector are beyond the sum."""

    root: Tensor
    layout: ScatteredLayout
    partial_sums: Tensor
    k: Axis | None
    m: Axis
    b: Tensor
    registers: int
    is_masked: bool = False

    @property
    def row_options(self) -> tuple[int, ...]:
        """Positions at a time, best first. Accumulators and one operand of each output are in
        registers; the last block overlaps the one before."""
        k, places = 1 if self.k is None else self.k.size, self.m.size
        held = min((self.registers - OPERAND_REGISTERS) // k, (self.registers - 1) // k - 1)
        most = max(1, min(held, places))
        least = max(1, most // 2)
        best = min(range(least, most + 1), key=lambda r: -(-places // r) * (r + 1))
        return tuple(dict.fromkeys((best, most, least)))


def match_small_n_gemm(
    t: Tensor,
    constants: Collection[Tensor],
    layouts: Mapping[Tensor, Layout | ScatteredLayout],
    lanes: int,
    registers: int = ZEN5.vector_registers,
) -> SmallNGemm | None:
    """Match a contraction with few outputs; None if this does not pay."""
    c, found = contraction.match_contraction(t, constants), reduction(t)
    if c is None or found is None or len(c.b_axes) > 1 or not c.a_axes or c.batch_axes:
        return None
    k = c.b_axes[0] if c.b_axes else None
    beside = _contiguous_axis(c, layouts)
    if c.b.tensor not in constants or beside is None or beside[0] not in found.axes:
        return None
    along, block = beside
    if along.extent == 0:  # a sum of nothing
        return None
    vectors = max(block // lanes, 1)  # of a block, each at an index that is known to be within it
    blocks = -(-along.size // (lanes * vectors))
    is_masked = along.size % (lanes * vectors) != 0
    if is_masked and (block > 1 or not isinstance(along.extent, int)):
        return None
    count, terms = 1 if k is None else k.size, prod(a.size for a in found.axes)
    steps = terms // along.size * blocks * vectors
    if count > MAX_OUTPUTS or count * (steps + LANE_SUM_COST) > MAX_TIME_RATIO * terms:
        return None
    outputs = () if k is None else (k,)
    others = [a for a in t.axes if a != k]
    over = [a for a in found.axes if a != along]
    m = max(reversed(others), key=lambda a: a.size)
    body, each = found.body, (*(a.size for a in over), blocks, vectors)

    def part(*index: Expr) -> Expr:
        *at, lane = index
        own: dict[Axis, Expr] = dict(zip((*others, *outputs), at, strict=True))

        def term(*sums: Expr) -> Expr:
            *rest, part, vector = sums
            own.update(zip(over, rest, strict=True))
            place = te_index.as_index((part * vectors + vector) * lanes + lane)
            e = substitute_axes(body, own | {along: place})
            return mask_term(found, e, compare("lt", place, along.size)) if is_masked else e

        return reduce_sum(each, term)

    sizes = (*(a.size for a in (*others, *outputs)), lanes)
    parts = compute(sizes, part, name="p")
    held = Tensor("sum", found.dtype, ())
    total = reduce_sum(lanes, lambda lane: parts[(*others, *outputs, lane)])
    assert t.body is not None
    whole = replace_loads(replace_reduction(t.body, found, held, ()), held, total)
    root = Tensor("y", t.dtype, t.shape, t.axes, whole)
    lies = scatter_layout(t, layouts.get(t), t.axes, t.axes)
    return SmallNGemm(root, lies, parts, k, m, c.b.tensor, registers, is_masked)


def _contiguous_axis(
    c: contraction.Contraction, layouts: Mapping[Tensor, Layout | ScatteredLayout]
) -> tuple[Axis, int] | None:
    """Return the axis along which the other operand is contiguous, and the length of contiguous
    runs (1: all)."""
    layout = layouts.get(c.a.tensor)
    if isinstance(layout, ScatteredLayout) or not c.a.index:
        return None
    part = effective_layout(layout, c.a.tensor.rank).parts[-1]
    at = c.a.index[part.axis]
    return (at, part.block) if isinstance(at, Axis) else None


def schedule_small_n_gemm(f: SmallNGemm, rows: int) -> dict[Tensor, Schedule]:
    """Return the schedules. rows: positions at a time."""
    t, (found, sums) = f.root, (reduction(f.root), reduction(f.partial_sums))
    assert found is not None
    assert sums is not None
    others = [a for a in t.axes if a != f.k]
    outer = [a.name for a in others if a != f.m]
    (lane,) = found.axes
    *places, within = f.partial_sums.axes
    each = places[others.index(f.m)].name
    first = [a.name for a in places[: len(others)] if a.name != each]
    held = [a.name for a in places[len(others) :]]  # of outputs
    tile = [f"{f.m.name}.i", *([] if f.k is None else [f.k.name])]
    chunks = parallel_loops([a for a in t.axes if a.name in outer])
    blocks = sums.axes[-2]
    # of unrolled steps only the last one has a mask
    unrolled = [blocks.name] if f.is_masked and blocks.size <= MAX_UNROLLED_BLOCKS else []
    return {
        t: (
            Split(f.m.name, rows),
            Reorder((*outer, f"{f.m.name}.o", *tile, lane.name)),
            *map(Unroll, tile), Vectorize(lane.name), *map(Parallel, chunks),
        ),
        f.partial_sums: (
            ComputeAt(t.name, f"{f.m.name}.o"),
            Reorder((*first, *(a.name for a in sums.axes), each, *held, within.name)),
            *map(Unroll, (*unrolled, each, *held)), Vectorize(within.name),
        ),
    }  # fmt: skip


@remember_match
def recognise_small_n(p: Problem) -> SmallNGemm | None:
    """Match a contraction with one output, or with few that are contiguous in the result."""
    c = contraction.match_contraction(p.tensor, p.constants, p.lanes)
    found = match_small_n_gemm(
        p.tensor, p.constants, p.layouts, p.lanes, p.processor.vector_registers
    )
    if c is None or found is None or all(a.size == 1 for a in c.b_axes):
        return found
    return None if register_tiling(p.tensor, c, p.layouts, p.lanes) is None else found


def small_n_options(p: Problem, found: SmallNGemm) -> Iterator[Option]:
    """Yield options, best first."""
    yield from (Option.make("small_n_gemm", rows=n) for n in found.row_options)


def predict_small_n(p: Problem, found: SmallNGemm) -> Prediction:
    """Return the best option: the algorithm pays wherever it is recognised."""
    return Prediction(Option.make("small_n_gemm", rows=found.row_options[0]), 0.0)


def schedule_small_n(p: Problem, found: SmallNGemm, option: Option) -> Choice:
    """Return the choice of an option."""
    how = schedule_small_n_gemm(found, option["rows"])
    return Choice(option, found.root, how, (found.b,), found.layout)


SMALL_N_GEMM = Algorithm(
    ("small_n_gemm",),
    "GEMM and convolution with few columns: vectors along the sum",
    recognise_small_n,
    small_n_options,
    schedule_small_n,
    predict_small_n,
)
