"""Match a contraction whose operands are read in groups of terms (operands.py)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import gcd

from superopt.kernels.algorithms.contraction import Contraction, input_factor
from superopt.kernels.algorithms.cpu.dot_products.operands import Dimension, DotOperands
from superopt.kernels.llvm.dot_products.products import INT16_TYPES, LANES, DotType
from superopt.kernels.loops.element import is_range_guard
from superopt.kernels.loops.layout import Layout, ScatteredLayout, effective_layout
from superopt.kernels.loops.loop_transforms import reduction
from superopt.te.analysis.affine import affine, interval
from superopt.te.analysis.walk import index_axes, subexpressions
from superopt.te.expr import index as te_index
from superopt.te.expr.dtype import F32, I8, U8
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor

MAX_VECTOR_BLOCK_TERMS = 64  # as images' blocks of channels, so that a copy has whole vectors
MIN_TERMS_IN_PLACE = 4  # groups of a block: with fewer, a copy of whole blocks is faster


def match_operands(
    t: Tensor,
    c: Contraction,
    constants: Collection[Tensor],
    kind: DotType,
    uses_tiles: bool,
    layout: Layout | ScatteredLayout | None,
) -> DotOperands | None:
    """Match a contraction with a constant b whose columns are a multiple of 16; None for another.
    uses_tiles: of AMX; layout: of a."""
    found = reduction(t)
    if found is None or found.dtype != kind.total or c.b.tensor not in constants or c.batch_axes:
        return None
    given = ((F32,), F32) if kind.total == F32 else ((I8, U8), I8)
    if c.a.dtype not in given[0] or c.b.dtype != given[1]:
        return None
    if len(c.b_axes) != 1 or c.b_axes[0].size % LANES:
        return None
    if not any(_uncast(e) == c.b for e in getattr(found.body, "args", ())):
        return None
    if not all(isinstance(i, Axis | Const) for i in c.b.index):
        return None
    k = _blocked_axis(c.a, found.axes)
    if k is None or {i for i in c.b.index if isinstance(i, Axis)} != {c.b_axes[0], *found.axes}:
        return None
    window = tuple(x for x in found.axes if x != k)
    folded = None
    if window and 2 * k.size <= kind.tile_terms and kind.total != F32:
        folded = window[-1] if window[-1].size > 1 and _overlaps(c.a, window[-1]) else None
        window = window if folded is None else window[:-1]
    dimensions = _dimensions(c.a, k, folded)
    if dimensions is None:
        return None
    free = input_factor(found, c.a, {k})
    if not _free_axes(free.body) <= {k, *free.axes}:
        return None
    inner = {*window, *(x for d in dimensions[-1:] for x in index_axes(d.index))}
    nested = (n for n, d in enumerate(dimensions) if index_axes(d.index) & inner)
    axes = {d.number: free.axes[d.number] for d in dimensions}
    at = next(nested, len(dimensions))
    terms = kind.tile_terms
    in_place, shared = None, None
    if folded is None and kind.total != F32:
        shared = _block_terms_in_place(c.a, k, kind, layout)
        in_place = None if shared is None else _match_factor_in_place(found, c, layout)
    if in_place is not None and shared is not None:
        terms = shared
    elif not uses_tiles:
        own = -(-k.size // kind.group) * kind.group
        terms = _vector_block_terms(own if folded is None else own * folded.size, kind)
    n = c.b_axes[0]
    return DotOperands(
        kind, terms, c, n, k, folded, window, dimensions, at, free.body, axes,
        in_place,
    )  # fmt: skip


def _vector_block_terms(terms: int, kind: DotType) -> int:
    """Return the terms of a block for vector instructions. Pairs of int16 have no fixed number:
    blocks are those with the fewest zeros, in whole vectors if possible, the longest of these."""
    if kind not in INT16_TYPES:
        return min(kind.tile_terms, terms)
    some = range(min(kind.tile_terms, terms), min(MAX_VECTOR_BLOCK_TERMS, terms) + 1, kind.group)
    return min(some, key=lambda n: (-terms % n, n % LANES > 0, -n))


def _block_terms_in_place(
    a: Load, k: Axis, kind: DotType, layout: Layout | ScatteredLayout | None
) -> int | None:
    """Return the terms of a block if blocks follow each other in memory; None if they do not."""
    if a.dtype != kind.a or not isinstance(k.extent, int):
        return None
    dimension, *others = (d for d, i in enumerate(a.index) if k in index_axes(i))
    if others:
        return None
    inner = effective_layout(layout, a.tensor.rank).parts[-1]
    if a.index[dimension] != k or inner.axis != dimension or inner.border or inner.block > k.size:
        return None
    for count in range(-(-k.size // kind.tile_terms), k.size // kind.group + 1):
        terms = k.size // count
        fits = k.size % count == 0 and terms % kind.group == 0
        if fits and (inner.block == 1 or inner.block % terms == 0):
            return terms if terms >= MIN_TERMS_IN_PLACE * kind.group else None
    return None


def _match_factor_in_place(
    found: Reduce, c: Contraction, layout: Layout | ScatteredLayout | None
) -> Expr | None:
    """Return a's element as the kernel reads it, if that takes no more than a load: within the
    tensor, or within the border of zeros that its layout has."""
    x = next((e for e in getattr(found.body, "args", ()) if _uncast(e) != c.b), None)
    e = None if x is None else _uncast(x)
    if e == c.a:
        return e
    match e:
        case Apply("select", (guard, Load() as load, Const(value=0) as zero)) if load == c.a:
            if not is_range_guard(guard, load, zero):
                return None
            borders = effective_layout(layout, load.tensor.rank)
            for d, (i, n) in enumerate(zip(load.index, load.tensor.shape, strict=True)):
                ends, border = interval(i), borders.border(d)
                if ends is None or not isinstance(n, int):
                    return None
                if ends[0] < -border or ends[1] >= n + border:
                    return None
            return e
    return None


def _uncast(e: Expr) -> Expr:
    return e.args[0] if isinstance(e, Apply) and e.fn == "cast" else e


def _blocked_axis(a: Load, axes: Sequence[Axis]) -> Axis | None:
    """Return the summed axis that alone indexes dimensions of a, the longest of these."""
    together = {x for i in a.index if len(own := index_axes(i)) > 1 for x in own}
    used = set().union(*map(index_axes, a.index))
    alone = [x for x in axes if x in used and x not in together]
    return max(alone, key=lambda x: x.size, default=None)


def _overlaps(a: Load, folded: Axis) -> bool:
    """True if an axis steps over the pixels of a dimension of fixed size, beside another axis."""
    (only, *more) = [affine(i) for i in a.index if folded in index_axes(i)] or [None]
    if only is None or more or only.coefficient(folded) != 1:
        return False
    return len(only.terms) > 1 and all(isinstance(x.extent, int) for x, _ in only.terms)


def _dimensions(a: Load, k: Axis, folded: Axis | None) -> tuple[Dimension, ...] | None:
    """Return the dimensions of a that `k` does not index; None if an index is not affine."""
    out = []
    for number, i in enumerate(a.index):
        if k in index_axes(i) or not index_axes(i):
            continue
        is_row = folded is not None and folded in index_axes(i)
        if folded is not None and is_row:
            i = te_index.as_index(i - folded)
        if isinstance(i, Axis):  # its extent may be symbolic
            out.append(Dimension(number, i.extent, 0, 1, i, is_row))
            continue
        form, ends = affine(i), interval(i)
        if form is None or ends is None:
            return None
        step = gcd(*(c for _, c in form.terms))
        place = te_index.as_index(0)
        first, last = ends
        for axis, c in form.terms:
            place = te_index.as_index(place + axis * (c // step))
        place = te_index.as_index(place + (form.base - first) // step)
        out.append(Dimension(number, (last - first) // step + 1, first, step, place, is_row))
    return tuple(out)


def _free_axes(e: Expr) -> set[Axis]:
    """Return the axes in an expression, in indices and guards."""
    return {x for x in subexpressions(e) if isinstance(x, Axis)}
