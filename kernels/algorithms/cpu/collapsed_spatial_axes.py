"""Collapse the two spatial axes of a convolution into one, if the image width is not a multiple of
a register tile's height.

    y[h, w, n] = sum(x[h * s + i, w * s + j, k] * b[i, j, k, n] for i, j, k)

is, with r = h * W + w, a product whose rows are all pixels of the image. 7 x 7 pixels in tiles of 4
take 13 tiles instead of two per image row. If windows are adjacent, the elements of a at a tile's
rows are contiguous; otherwise each row has its own address.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

from superopt.kernels.algorithms.algorithm import GENERAL_TIME, Algorithm, Prediction
from superopt.kernels.algorithms.contraction import (
    Contraction,
    axis_stride,
    buffer_load,
    element_count,
    match_contraction,
)
from superopt.kernels.algorithms.cpu.gemm import (
    Product,
    best_k_block,
    k_block_sizes,
    match_product,
    schedule_contraction,
    tile_time,
)
from superopt.kernels.algorithms.cpu.partition import best_tile, divide_tiles, panel_count
from superopt.kernels.algorithms.cpu.register_tiling import (
    L1_PANEL_TERMS,
    RegisterTiling,
    register_tiling,
)
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.loops.element import is_range_guard
from superopt.kernels.loops.layout import Layout, Part, ScatteredLayout, effective_layout
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.schedule import Schedule
from superopt.kernels.loops.substitution import scatter_layout
from superopt.te.analysis.affine import interval
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import index_axes
from superopt.te.expr import index
from superopt.te.expr.node import Apply, Axis, Expr, Load, Reduce
from superopt.te.expr.symbolic_int import hint
from superopt.te.expr.tensor import Tensor

MAX_ADDRESSED_ROWS = 6  # rows of a tile with an address each: registers for addresses are few


@dataclass(frozen=True, slots=True)
class CollapsedProduct:
    """root: the result, with one axis for two, stored as `layout`. is_contiguous: a's elements at
    neighbouring rows follow each other in memory."""

    root: Tensor
    layout: ScatteredLayout
    contraction: Contraction
    tiling: RegisterTiling
    is_contiguous: bool


def collapse_spatial_axes(
    t: Tensor,
    c: Contraction,
    tiling: RegisterTiling,
    constants: Collection[Tensor],
    layouts: Mapping[Tensor, Layout | ScatteredLayout],
) -> CollapsedProduct | None:
    """Return the product with two adjacent axes of `t` collapsed into rows; None if there are
    none."""
    parts, w = effective_layout(layouts.get(t), t.rank).parts, tiling.m
    order = [t.axes[p.axis] for p in parts]
    if w is None or w not in order[1:] or t.body is None:
        return None
    h = order[order.index(w) - 1]
    if order.count(h) + order.count(w) > 2 or h not in c.a_axes or min(h.size, w.size) < 2:
        return None
    if any(index_axes(e) & {h, w} for e in _guards(t.body, layouts)):
        return None
    name = next(x for x in (f"r{n}" for n in count()) if x not in {a.name for a in t.axes})
    r, wide = Axis(name, h.size * w.size), w.size
    env: dict[Axis, Expr] = {h: index.as_index(r // wide), w: index.as_index(r % wide)}
    axes = tuple(r if a == h else a for a in t.axes if a != w)
    root = Tensor("y", t.dtype, tuple(a.extent for a in axes), axes, substitute_axes(t.body, env))
    new = match_contraction(root, constants)
    if new is None or new.b_axes != c.b_axes or r not in new.a_axes:
        return None
    along = Layout(tuple(_collapsed_part(p, t, axes, r) for p in parts if t.axes[p.axis] != w))
    within = {**layouts, root: along}
    of = register_tiling(root, new, within, tiling.lanes, tiling.processor, tiling.split_vectors)
    if of is None or of.m != r:
        return None
    touch = _is_contiguous(c, h, w, layouts)
    most = tiling.max_rows if touch else min(tiling.max_rows, MAX_ADDRESSED_ROWS)
    lies = scatter_layout(t, layouts.get(t), axes, tuple(env.get(a, a) for a in t.axes))
    return CollapsedProduct(
        root,
        lies,
        new,
        replace(
            of,
            max_rows=most,
            registers_per_vector=tiling.registers_per_vector,
            separate_addresses=not touch,
        ),
        touch,
    )


def _collapsed_part(p: Part, t: Tensor, axes: tuple[Axis, ...], r: Axis) -> Part:
    """Return the layout part over the new axes: r, which has no border, replaces h."""
    own = t.axes[p.axis]
    return replace(p, axis=axes.index(own)) if own in axes else Part(axes.index(r))


@remember_match
def recognise_collapsed(p: Problem) -> CollapsedProduct | None:
    """Match a product with two spatial axes that can be one."""
    product = match_product(p)
    if product is None:
        return None
    return collapse_spatial_axes(p.tensor, *product, p.constants, p.layouts)


def collapsed_options(p: Problem, f: CollapsedProduct) -> Iterator[Option]:
    """Yield the options of all register tiles and K blocks."""
    for _, rows, vectors in sorted(f.tiling.register_tiles()):
        for k_block in _k_blocks(p):
            yield Option.make("collapsed_gemm", rows=rows, vectors=vectors, k_block=k_block)


def _k_blocks(p: Problem) -> list[int]:
    product = match_product(p)
    assert product is not None
    return k_block_sizes(p.tensor, product[0], p.layouts, p.processor)


def predict_collapsed(p: Problem, f: CollapsedProduct) -> Prediction:
    """Return the best tile, relative to tiles of each image row."""
    product = match_product(p)
    assert product is not None
    assert f.tiling.m is not None
    assert product[1].m is not None
    collapsed = replace(p, tensor=f.root)
    k_block = _k_blocks(p)[0] and best_k_block(collapsed, f.contraction, f.tiling)
    short = k_block in L1_PANEL_TERMS
    costs = f.tiling.processor
    ratio = costs.collapsed_block_max_time_ratio if k_block else costs.collapsed_max_time_ratio
    image_rows = f.tiling.m.size // product[1].m.size
    (one, rows, vectors), (other, *_) = (
        best_tile(q, x, short) for q, x in ((replace(p, tensor=f.root), f.tiling), (p, product[1]))
    )
    option = Option.make("collapsed_gemm", rows=rows, vectors=vectors, k_block=k_block)
    return Prediction(option, one / (ratio[f.is_contiguous] * image_rows * other))


def direct_time(p: Problem, product: Product) -> tuple[float, float]:
    """Return the time of a product by register tiles, of each image row or collapsed: relative, as
    in Prediction, and in vector FMAs."""
    short = best_k_block(p, *product) in L1_PANEL_TERMS
    one = recognise_collapsed(p)
    if one is not None and (relative := predict_collapsed(p, one).relative_time) < GENERAL_TIME:
        return relative, tile_time(replace(p, tensor=one.root), product[0], one.tiling, short)
    return GENERAL_TIME, tile_time(p, product[0], product[1], short)


def schedule_collapsed_gemm(p: Problem, f: CollapsedProduct, option: Option) -> Choice:
    """Return the choice of an option."""
    is_constant = f.contraction.b.tensor in p.constants
    unrolled = p.processor.unrolled_terms if is_constant else 1
    tile = option["rows"], option["vectors"], option["k_block"], unrolled
    how = schedule_collapsed(f, p.layouts, *tile, p.threads)
    packed = (f.contraction.b.tensor,) if is_constant else ()
    return Choice(option, f.root, {f.root: how}, packed, f.layout)


def schedule_symbolic_collapsed(p: Problem, option: Option) -> Choice | None:
    """Return the choice of an option for images of fixed size, of which there may be any number;
    None for others."""
    if sum(not isinstance(a.extent, int) for a in p.tensor.axes[1:]):
        return None
    f = recognise_collapsed(p)
    return None if f is None else schedule_collapsed_gemm(p, f, option)


COLLAPSED_GEMM = Algorithm(
    ("collapsed_gemm",),
    "convolution as implicit GEMM: rows of a register tile run over the whole image",
    recognise_collapsed,
    collapsed_options,
    schedule_collapsed_gemm,
    predict_collapsed,
    schedule_symbolic=schedule_symbolic_collapsed,
)


def schedule_collapsed(
    f: CollapsedProduct,
    layouts: Mapping[Tensor, Layout | ScatteredLayout],
    rows: int,
    vectors: int,
    k_block: int,
    unrolled_terms: int = 1,
    threads: int = 1,
) -> Schedule:
    """Return the schedule with tiles of `rows` times `vectors`; see `schedule_contraction`. Row
    blocks are as large as a's rows stay in L2, with enough for all threads; among those, the last
    block overlaps the fewest tiles."""
    assert f.tiling.m is not None
    high = f.tiling.m.size
    tiles, every = -(-high // rows), max(math.prod(hint(a.size) for a in f.contraction.a_axes), 1)
    each = 4 * element_count(f.contraction.a.tensor) * rows // every
    least = min(-(-tiles * each // f.tiling.processor.collapsed_row_bytes), tiles)
    others = math.prod(hint(a.size) for a in f.root.axes) // (high * f.tiling.n.size)
    others *= panel_count(f.tiling, vectors)
    parts, _ = divide_tiles(tiles, others, threads, least)
    tile = rows, vectors, k_block, -(-tiles // parts) if parts > 1 else 0
    return schedule_contraction(
        f.root, f.contraction, layouts, f.tiling, *tile,
        unrolled_terms=unrolled_terms, threads=threads,
    )  # fmt: skip


def _is_contiguous(
    c: Contraction,
    h: Axis,
    w: Axis,
    layouts: Mapping[Tensor, Layout | ScatteredLayout],
) -> bool:
    """True if a's elements at neighbouring rows follow each other in memory."""
    if isinstance(layouts.get(c.a.tensor), ScatteredLayout):
        return False
    read = buffer_load(c.a, layouts)
    steps = []
    for own in (h, w):
        others: dict[Expr, Expr] = {
            a: index.as_index(0) for i in read.index for a in index_axes(i) if a != own
        }
        place = tuple(index.substitute(i, others) for i in read.index)
        steps.append(axis_stride(Load(read.tensor, place, read.dtype), own))
    return steps[1] is not None and steps[0] == w.size * steps[1]


def _guards(e: Expr, layouts: Mapping[Tensor, Layout | ScatteredLayout]) -> Iterator[Expr]:
    """Yield guards, except those of reads past an edge that a zero border covers."""
    match e:
        case Apply("select", (guard, Load() as load, zero)) if is_range_guard(guard, load, zero):
            lies = layouts.get(load.tensor)
            for d, (i, n) in enumerate(zip(load.index, load.tensor.shape, strict=True)):
                border = lies.border(d) if isinstance(lies, Layout) else 0
                where = interval(i)
                if not isinstance(n, int):
                    is_inside = index.is_in_range(i, index.as_index(n))
                else:
                    is_inside = where is not None and -border <= where[0] <= where[1] < n + border
                if not is_inside:
                    yield guard
        case Apply(fn, args):
            yield from args[:1] if fn == "select" else ()
            for a in args:
                yield from _guards(a, layouts)
        case Reduce(_, _, body):
            yield from _guards(body, layouts)
