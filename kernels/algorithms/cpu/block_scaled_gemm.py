"""Products with weights that are scaled in blocks of terms, on the CPU.

    y[m, n] = sum(x[m, b, k] * (q[b, k, n] * s[b, n]))

    block_sums  few rows: sums of each block in registers, scaled once
                p[m, n, b] = sum(x[m, b, k] * q[b, k, n]);  y[m, n] = sum(p[m, n, b] * s[b, n])
    folded_zeros
                the same for q - z, where z[b, n] is no constant number: c is the middle of all q
                p[m, n, b] = sum(x[m, b, k] * (q[b, k, n] - c));  r[m, b] = sum(x[m, b, k])
                y[m, n] = sum((p[m, n, b] - (z[b, n] - c) * r[m, b]) * s[b, n])
    block_gemm  many rows: a panel of weights is decoded into a cache, and read for all rows
                w[b, k, n] = q[b, k, n] * s[b, n];          y[m, n] = sum(x[m, b, k] * w[b, k, n])

q is an expression of packed constants, such as bit fields of words: it is decoded where it is read.
The constants are packed in one order for both, so that programs for all sizes share them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod

from superopt.kernels.algorithms.algorithm import Algorithm
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
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
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import index_axes, loads, operands, with_operands
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor, const

PANEL_VECTORS = 4  # of columns: enough accumulators of one row to hide the latency of an FMA
MIN_GEMM_ROWS = 16  # from which decoding a panel once pays
# Of decoded weights, so that a panel stays in L1: on a Xeon (family 6, model 167) 16 to 64 rows
# take 0.74 to 0.9 of the time of 512 terms, which stay in L2, and 128 to 512 rows the same.
MAX_PANEL_TERMS = 128
MIN_PARTS_PER_THREAD = 2  # else rows are divided, too, and each part decodes its panel
MAX_UNROLLED_WORDS = 4  # of a block
Form = tuple[Tensor, Mapping[Tensor, Schedule]]


@dataclass(frozen=True, slots=True)
class BlockScaledProduct:
    """A sum over `block` and `inner` axes of x * (q * s), where `inner` does not change s.
    rounds_rows: x may be rounded to 8 bits in each block, as x * (s * q) says."""

    reduce: Reduce
    x: Expr
    q: Expr
    s: Expr
    rounds_rows: bool = False

    @property
    def block(self) -> Axis:
        return self.reduce.axes[0]

    @property
    def inner(self) -> tuple[Axis, ...]:
        return self.reduce.axes[1:]


def match_block_scaled(t: Tensor) -> BlockScaledProduct | None:
    """Match a sum over blocks, words and fields of x * (q * s) or x * (s * q), with s of blocks and
    columns, and columns along the last axis."""
    found = reduction(t)
    if found is None or found.fn != "sum" or len(found.axes) != 3 or not t.axes:
        return None
    match found.body:
        case Apply("mul", (x, Apply("mul", (q, s)))) if found.dtype.bits == 32:
            scale_axes = {found.axes[0], t.axes[-1]}
            rounds_rows = loaded_axes(q) == scale_axes
            if rounds_rows:
                q, s = s, q
            weight_axes = loaded_axes(q) | loaded_axes(s)
            fits = loaded_axes(s) == scale_axes
            fits &= weight_axes.isdisjoint(t.axes[:-1]) and t.axes[-1] not in loaded_axes(x)
            return BlockScaledProduct(found, x, q, s, rounds_rows) if fits else None
    return None


def _split_zero_point(found: BlockScaledProduct, column: Axis) -> tuple[Expr, Expr] | None:
    """Return the integers and their zero points, both less the middle of all integers, if the
    product's weights are differences of these; zero points are of blocks and columns."""
    match found.q:
        case Apply("sub", (Apply("cast", (Apply("bitand", (_, Const(mask))),)) as q, z)) if (
            loaded_axes(z) == {found.block, column}
        ):
            middle = const((int(mask) + 1) // 2, found.reduce.dtype)
            return q - middle, z - middle
    return None


def row_axes(t: Tensor) -> tuple[Axis, ...]:
    """Return the axes of the rows of a block-scaled product; none for another tensor."""
    return () if match_block_scaled(t) is None else t.axes[:-1]


def loaded_axes(e: Expr) -> set[Axis]:
    return {a for x in loads(e) for i in x.index for a in index_axes(i)}


@remember_match
def recognise(p: Problem) -> BlockScaledProduct | None:
    """Match a block-scaled product whose weights are constants."""
    found = match_block_scaled(p.tensor)
    if found is None:
        return None
    read = {x.tensor for e in (found.q, found.s) for x in loads(e)}
    return found if read <= set(p.constants) else None


def options(p: Problem, found: BlockScaledProduct) -> Iterator[Option]:
    """Yield options, best first."""
    few_rows = _fitting_rows(p, p.processor.block_sum_rows)
    # products are distributed over sums
    folds = p.allow_winograd and _split_zero_point(found, p.tensor.axes[-1]) is not None
    few = Option.make("folded_zeros" if folds else "block_sums", rows=few_rows)
    rows, vectors = p.processor.block_tile
    many = [
        Option.make("block_gemm", rows=_fitting_rows(p, rows), vectors=vectors, blocks=n)
        for n in _block_counts(found)
    ]
    yield from (few, *many) if row_count(p.tensor) < MIN_GEMM_ROWS else (*many, few)


def row_count(t: Tensor) -> int:
    return prod(a.size for a in t.axes[:-1])


def tile_axis(t: Tensor) -> Axis | None:
    """Return the axis of rows along which register tiles run: the longest."""
    return max(t.axes[:-1], key=lambda a: a.size, default=None)


def _fitting_rows(p: Problem, most: int) -> int:
    m = tile_axis(p.tensor)
    return min(most, 1 if m is None else max(m.size, 1))


def _block_counts(found: BlockScaledProduct) -> list[int]:
    """Return how many blocks are decoded at a time: as many as stay in L2, and all."""
    count, terms = found.block.size, prod(a.size for a in found.inner)
    some = (n for n in range(count, 0, -1) if count % n == 0 and n * terms <= MAX_PANEL_TERMS)
    return list(dict.fromkeys((next(some, 1), count)))


def _tiles_per_part(p: Problem, rows: int, panel: int) -> int:
    """Return how many row tiles a thread computes with a panel of weights that it decodes; 0 if
    all, because there are enough panels for all threads, or the number of rows is symbolic."""
    panels, m = -(-p.tensor.axes[-1].size // panel), tile_axis(p.tensor)
    if m is None or p.is_example or p.threads == 1 or panels >= MIN_PARTS_PER_THREAD * p.threads:
        return 0
    tiles = -(-m.size // rows)
    parts = -(-MIN_PARTS_PER_THREAD * p.threads // panels)
    return max(-(-tiles // parts), -(-MIN_GEMM_ROWS // rows))


def schedule(p: Problem, found: BlockScaledProduct, option: Option) -> Choice:
    """Return the choice of an option."""
    m = tile_axis(p.tensor)
    tile = "" if m is None else m.name
    columns = p.tensor.axes[-1].size
    lanes = min(p.lanes, columns)
    panel = min(PANEL_VECTORS * lanes, columns // lanes * lanes)
    loops = _Loops(tile, option["rows"], lanes, panel, _tiles_per_part(p, option["rows"], panel))
    if option.algorithm != "block_gemm":
        form = partial(_block_sums, loops, option.algorithm == "folded_zeros")
    else:
        form = partial(_block_gemm, loops, option["vectors"], option["blocks"])
    root, schedules = form(p.tensor)
    packed = tuple(dict.fromkeys(x.tensor for e in (found.q, found.s) for x in loads(e)))
    return Choice(option, root, schedules, packed, restage=form)


BLOCK_SCALED_GEMM = Algorithm(
    ("block_sums", "folded_zeros", "block_gemm"),
    "products with weights of few bits, scaled in blocks",
    recognise,
    options,
    schedule,
    exclusive=True,
)


@dataclass(frozen=True, slots=True)
class _Loops:
    """The axis of tiles of `rows` rows ("": one row), lanes of a vector, columns of a panel.
    tiles_per_part: row tiles of `block_gemm` that a thread computes at a time; 0: all."""

    tile_axis: str
    rows: int
    lanes: int
    panel: int
    tiles_per_part: int = 0

    def split_rows(self, t: Tensor) -> tuple[list[Primitive], list[str], list[str]]:
        """Return the steps that make row tiles, the loops over tiles, and those of a tile."""
        others = [a.name for a in t.axes[:-1] if a.name != self.tile_axis]
        if not self.tile_axis:
            return [], others, []
        steps: list[Primitive] = [Split(self.tile_axis, self.rows)]
        return steps, [*others, f"{self.tile_axis}.o"], [f"{self.tile_axis}.i"]


def _block_sums(loops: _Loops, folds_zeros: bool, t: Tensor) -> Form:
    """Return the tensor by sums of blocks, and its schedules. folds_zeros: take zero points times
    the sum of a block's terms from its sum."""
    found = match_block_scaled(t)
    assert found is not None
    zeros = _split_zero_point(found, t.axes[-1]) if folds_zeros else None
    q = found.q if zeros is None else zeros[0]
    axes = (*t.axes, found.block)
    partial_sums = _block_sum("partial", axes, found.inner, found.x * q)
    total: Expr = partial_sums[axes]
    row_sums: Tensor | None = None
    if zeros is not None:
        row_axes = (*t.axes[:-1], found.block)
        row_sums = _block_sum("row_sums", row_axes, found.inner, found.x)
        total = total - zeros[1] * row_sums[row_axes]
    root = with_sum(t, found.reduce, Reduce("sum", (found.block,), total * found.s, total.dtype))

    n, (word, field) = t.axes[-1].name, (a.name for a in found.inner)
    steps, outer, tile = loops.split_rows(t)
    steps += [Split(n, loops.panel), Split(f"{n}.i", loops.lanes)]
    tile = [*tile, f"{n}.i.o", f"{n}.i.i"]
    steps += [Reorder((f"{n}.o", *outer, found.block.name, *tile)), *map(Unroll, tile[:-1])]
    schedules = {root: (*steps, Vectorize(tile[-1]), Parallel(f"{n}.o"))}

    own = partial_sums.axes
    names = dict(zip((a.name for a in t.axes), (a.name for a in own), strict=False))
    rows = [names[a.name] for a in t.axes[:-1] if a.name == loops.tile_axis]
    others = [names[a.name] for a in t.axes[:-1] if a.name != loops.tile_axis]
    n = names[n]
    tile = [*rows, f"{n}.o", f"{n}.i"]
    unrolled = [word] if found.inner[0].size <= MAX_UNROLLED_WORDS else []
    at_block = ComputeAt(root.name, found.block.name)
    schedules[partial_sums] = (
        Split(n, loops.lanes), Reorder((*others, own[-1].name, word, *tile, field)),
        *map(Unroll, (*unrolled, *tile[:-1], field)), Vectorize(tile[-1]), at_block,
    )  # fmt: skip
    if row_sums is not None:
        schedules[row_sums] = (Vectorize(field), at_block)
    return root, schedules


def _block_sum(name: str, axes: tuple[Axis, ...], inner: tuple[Axis, ...], term: Expr) -> Tensor:
    """Return the sum of a term over the inner axes, a tensor along the other ones."""
    own = tuple(Axis(f"i{d}", a.extent) for d, a in enumerate(axes))
    sums = Reduce("sum", inner, term, term.dtype)
    moved = substitute_axes(sums, dict(zip(axes, own, strict=True)))
    return Tensor(name, moved.dtype, tuple(a.extent for a in own), own, moved)


def _block_gemm(loops: _Loops, vectors: int, blocks: int, t: Tensor) -> Form:
    """Return the tensor as a product with decoded weights, and its schedules."""
    found = match_block_scaled(t)
    assert found is not None
    axes = (*found.reduce.axes, t.axes[-1])
    own = tuple(Axis(f"i{d}", a.extent) for d, a in enumerate(axes))
    body = Apply("mul", (found.q, found.s), found.reduce.dtype)
    moved = substitute_axes(body, dict(zip(axes, own, strict=True)))
    weights = Tensor("weights", moved.dtype, tuple(a.extent for a in own), own, moved)
    product = Apply("mul", (found.x, Load(weights, axes, moved.dtype)), moved.dtype)
    root = with_sum(t, found.reduce, Reduce("sum", found.reduce.axes, product, moved.dtype))

    n, block, inner = t.axes[-1].name, found.block.name, [a.name for a in found.inner]
    steps, outer, tile = loops.split_rows(t)
    width = min(vectors * loops.lanes, loops.panel)
    steps += [Split(n, loops.panel), Split(f"{n}.i", width), Split(f"{n}.i.i", loops.lanes)]
    tile = [*tile, f"{n}.i.i.o", f"{n}.i.i.i"]
    parts = [f"{n}.o"]
    if loops.tiles_per_part:
        tiles = outer.pop()
        steps.append(Split(tiles, loops.tiles_per_part))
        parts, outer = [*parts, f"{tiles}.o"], [*outer, f"{tiles}.i"]
    outer.append(f"{n}.i.o")
    if blocks < found.block.size:
        steps.append(Split(block, blocks))
        at, outer, inner = f"{block}.o", [f"{block}.o", *outer], [f"{block}.i", *inner]
    else:
        at, inner = parts[-1], [block, *inner]
    steps += [Reorder((*parts, *outer, *inner, *tile)), *map(Unroll, tile[:-1])]
    how = (*steps, Vectorize(tile[-1]), *map(Parallel, parts))

    *_, field, n = (a.name for a in own)
    decode: Schedule = (
        Split(n, loops.lanes), Unroll(field), Unroll(f"{n}.o"), Vectorize(f"{n}.i"),
        ComputeAt(root.name, at),
    )  # fmt: skip
    return root, {root: how, weights: decode}


def with_sum(t: Tensor, old: Reduce, new: Reduce) -> Tensor:
    """Return the tensor with its sum replaced."""

    def substitute(e: Expr) -> Expr:
        if e == old:
            return new
        return with_operands(e, [substitute(x) for x in operands(e)]) if isinstance(e, Apply) else e

    assert t.body is not None
    return Tensor(t.name, t.dtype, t.shape, t.axes, substitute(t.body))
