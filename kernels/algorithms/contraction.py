"""Contractions (sums of products): which operand is which, and their schedules.

    y[m, n] = sum(a[m, k] * b[k, n] for k)        a matrix product, or a convolution

Vectors run along n; each element of a is broadcast over a vector. A register tile has some rows of
m times some vectors of n. b is usually a constant, packed in the order in which it is read (Goto
and van de Geijn, Anatomy of high-performance matrix multiplication, 2008).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from superopt.kernels.llvm.register_tiles import (
    SMALL_REGISTER_FILE,
    VECTOR_REGISTERS,
    register_tiles,
)
from superopt.kernels.loops.layout import Layout, ScatteredLayout, effective_layout
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.schedule import (
    CacheRead,
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from superopt.te.analysis import affine
from superopt.te.analysis.walk import index_axes, is_window_load, loads
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load
from superopt.te.expr.tensor import Tensor

MAX_STRIDED_ROWS = 8  # rows of a tile at a large stride: more conflict in the L1 cache
MAX_NEAR_STRIDE = 16  # elements between rows up to which there are no such conflicts
MIN_RAGGED_VECTORS = 3  # results narrower than so many vectors use their width as vector length
MIN_REUSE_ROWS = 4  # from so many rows on, packing b pays
MAX_VECTOR_ELEMENTS = 16  # elements of the longest vector
L2_PANEL_TERMS = 768  # K block: terms for which b's panel stays in L2
# K blocks over channels, with 16 registers: terms for which a panel of two vectors stays in L1, and
# few enough channel blocks are read at a time for the hardware prefetcher; and minimum terms. On 55
# convolutions of 144 to 1280 channels this took 9 % less time if a comes from the last-level cache
# (a third less for 1024 channels of 40 x 40 pixels), and equal time if it comes from L2.
L1_PANEL_TERMS = range(64, 145)
MIN_BLOCKED_TERMS = 384


@dataclass(frozen=True, slots=True)
class Contraction:
    """A sum of products a * b. a_axes, b_axes: axes of the result that only a, or only b, depends
    on; batch_axes: those that both depend on (groups, batches)."""

    a: Load
    b: Load
    a_axes: tuple[Axis, ...]
    b_axes: tuple[Axis, ...]
    batch_axes: tuple[Axis, ...]


def match_contraction(
    t: Tensor, constants: Collection[Tensor], vector: int = MAX_VECTOR_ELEMENTS
) -> Contraction | None:
    """Match the sum of products that `t` is or contains; None if there is none. vector: number of
    neighbours in the result that read the same element of a, where groups are multiples of it."""
    found = reduction(t)
    if found is None or found.fn != "sum" or not found.dtype.is_float:
        return None
    match found.body:
        case Apply("mul", (x, y)):
            some = [list(loads(e)) for e in (x, y)]
        case _:
            return None
    if any(len(ls) != 1 for ls in some):
        return None
    a, b = some[0][0], some[1][0]
    alike = (a.tensor in constants) == (b.tensor in constants)
    in_a, in_b = _index_axes(a, vector), _index_axes(b, vector)
    # batch axes are not window positions: attention heads may be adjacent
    slid = [is_window_load(set(t.axes) - (in_a & in_b), found.axes, e) for e in (a, b)]
    if slid[0] != slid[1] and alike:  # windows slide over a
        turned = slid[1]
    else:
        turned = alike and _is_contiguous_along(t, a) and not _is_contiguous_along(t, b)
    if turned or (a.tensor in constants and b.tensor not in constants):
        a, b, in_a, in_b = b, a, in_b, in_a
    of_a = tuple(x for x in t.axes if x in in_a and x not in in_b)
    of_b = tuple(x for x in t.axes if x in in_b and x not in in_a)
    return Contraction(a, b, of_a, of_b, tuple(x for x in t.axes if x in in_a and x in in_b))


def _index_axes(e: Load, vector: int) -> set[Axis]:
    """Return the axes that an operand's index depends on."""
    return set[Axis]().union(*(_dependent_axes(i, vector) for i in e.index))


def _dependent_axes(e: Expr, vector: int) -> set[Axis]:
    """Return the axes that an index depends on. An axis that only selects a block of at least a
    vector does not count."""
    match e:
        case Apply("floordiv", (Axis(), Const(n))) if int(n) % vector == 0:
            return set()
        case Axis():
            return {e}
        case Apply(_, args) | Load(_, args):
            return set[Axis]().union(*(_dependent_axes(a, vector) for a in args))
    return index_axes(e)


def _is_contiguous_along(t: Tensor, e: Load) -> bool:
    """True if the last axis of `t` runs along the last dimension of the operand."""
    return bool(e.index) and bool(t.axes) and t.axes[-1] in index_axes(e.index[-1])


@dataclass(frozen=True, slots=True)
class RegisterTiling:
    """The axes of a register tile: rows of `m` (None: one row) times vectors along `n`.

    lanes: elements of a vector, in `registers_per_vector` registers. separate_addresses: no row's
    address follows from another's. split_vectors: see `register_tiles`.
    """

    m: Axis | None
    n: Axis
    lanes: int
    registers_per_vector: int
    max_rows: int
    registers: int = VECTOR_REGISTERS
    terms: int = 1
    separate_addresses: bool = False
    split_vectors: bool = False

    def register_tiles(self, short_blocks: bool = False) -> Iterator[tuple[float, int, int]]:
        """Yield register tiles; see `register_tiles`. short_blocks: blocks of L1_PANEL_TERMS."""
        height = 1 if self.m is None else self.m.size
        some = self.lanes, self.max_rows, self.registers_per_vector, self.registers, self.terms
        return register_tiles(
            height, self.n.size, *some, short_blocks, self.separate_addresses, self.split_vectors
        )


def register_tiling(
    t: Tensor,
    c: Contraction,
    layouts: Mapping[Tensor, Layout | ScatteredLayout],
    lanes: int,
    registers: int = VECTOR_REGISTERS,
    split_vectors: bool = False,
) -> RegisterTiling | None:
    """Return the tile axes of a contraction whose b is, or can be packed, along vectors; None
    otherwise. split_vectors: see `register_tiles`."""
    out, given = effective_layout(layouts.get(t), t.rank), lanes
    order = [t.axes[p.axis] for p in reversed(out.parts)]  # innermost first
    along = [x for x in order if x in c.b_axes]
    across = list(dict.fromkeys(x for x in order if x in c.a_axes))
    if not along or along[0] != order[0]:
        return None
    n = along[0]
    width = n.size
    if not width:
        return None
    m = across[0] if across else None
    if m is not None and m.size < 4:
        m = max(across, key=lambda a: a.size)
    if width < lanes or (width % lanes and width < MIN_RAGGED_VECTORS * lanes):
        lanes = width  # the whole row, whose last vector is shorter
    most = (
        MAX_STRIDED_ROWS
        if m is not None and abs(_row_stride(c.a, m, layouts)) > MAX_NEAR_STRIDE
        else 14
    )
    found = reduction(t)
    terms = 1 if found is None else prod(a.size for a in found.axes)
    return RegisterTiling(
        m, n, lanes, -(-lanes // given), most, registers, terms, split_vectors=split_vectors
    )


def _row_stride(a: Load, m: Axis, layouts: Mapping[Tensor, Layout | ScatteredLayout]) -> int:
    """Return the distance of neighbouring rows, in elements."""
    step = axis_stride(buffer_load(a, layouts), m)
    return MAX_NEAR_STRIDE if step is None else step


def buffer_load(e: Load, layouts: Mapping[Tensor, Layout | ScatteredLayout]) -> Load:
    """Return the load with its buffer's index."""
    layout = layouts.get(e.tensor)
    if not isinstance(layout, Layout):
        return e
    shape = [n for n in e.tensor.shape if isinstance(n, int)]
    inside = Tensor(e.tensor.name, e.dtype, layout.shape(shape))
    return Load(inside, layout.buffer_index(e.index), e.dtype)


def schedule_contraction(
    t: Tensor,
    c: Contraction,
    layouts: Mapping[Tensor, Layout | ScatteredLayout],
    tiling: RegisterTiling,
    rows: int,
    vectors: int,
    block_terms: int,
    row_block: int = 0,
    pack_b: bool = False,
) -> Schedule:
    """Return the schedule with tiles of `rows` times `vectors`. block_terms: terms of a K block, 0
    for one block. row_block: row tiles for which all of b is read before the next ones; 0: each
    panel of b is read for all rows. pack_b: copy b's panels before use."""
    m, n = tiling.m, tiling.n
    steps: list[Primitive] = [Split(n.name, tiling.lanes), Split(f"{n.name}.o", vectors)]
    outer = f"{n.name}.o.o"
    tile = [f"{n.name}.o.i", f"{n.name}.i"]
    ways = [outer]
    if m is not None:
        steps.append(Split(m.name, rows))
        tile.insert(0, f"{m.name}.i")
    rest = [x.name for x in t.axes if x not in (m, n)]
    after = [] if m is None else [f"{m.name}.o"]
    found = reduction(t)
    assert found is not None
    over = list(_reduction_loops(steps, c, found.axes, layouts))
    first = [*rest[:1], *ways, *rest[1:], *after] if rest else [*ways, *after]
    if (
        tiling.registers == SMALL_REGISTER_FILE
        and len(rest) > 1
        and _prefers_row_order(c, rest, tiling, vectors, t)
    ):
        first = [*rest, *ways, *after]
    if row_block and m is not None:
        steps.append(Split(f"{m.name}.o", row_block))
        after = [f"{m.name}.o.i"]
        first = [*rest, f"{m.name}.o.o", *ways, *after]
    elif pack_b:
        first = [*rest, *ways, *after]
    if block_terms and m is not None:
        k, *within = over  # within: a window, and the channels of a block
        each = _layout_block(c.a, found.axes[0], layouts.get(c.a.tensor))
        each *= prod(a.size for a in found.axes[1:])
        steps.append(Split(k, block_terms // each))
        first, inner = [x for x in first if x not in after], [*after, f"{k}.i", *within]
        steps.append(Reorder((*first, f"{k}.o", *inner, *tile)))
    else:
        steps.append(Reorder((*first, *over, *tile)))
    steps += [Unroll(x) for x in tile[:-1]]
    steps.append(Vectorize(tile[-1]))
    if pack_b:
        steps.append(
            CacheRead(c.b.tensor.name, f"{k}.o" if block_terms and m is not None else outer)
        )
        first = [x for x in first if x not in after]
    steps += [Parallel(name) for name in first[:3]]
    return tuple(steps)


def _prefers_row_order(
    c: Contraction, outer_names: Sequence[str], f: RegisterTiling, vectors: int, t: Tensor
) -> bool:
    """True if less is read again with image rows outermost (b once per row) than with panels of b
    outermost (a once per panel)."""
    high = prod(x.size for x in t.axes if x.name in outer_names[1:])
    panels = -(-f.n.size // (f.lanes * vectors))
    return element_count(c.b.tensor) * high < element_count(c.a.tensor) * panels


def element_count(t: Tensor) -> int:
    """Return the number of elements of a tensor."""
    return prod(n for n in t.shape if isinstance(n, int))


def schedule_streamed_product(
    t: Tensor, c: Contraction, columns: int, terms: int, lanes: int
) -> Schedule:
    """Return the schedule of a vector-matrix product with a row-major matrix: a few matrix rows at
    a time, added to `columns` accumulators that stay in a cache."""
    n, found = c.b_axes[-1], reduction(t)
    assert found is not None
    rest = [x.name for x in t.axes if x != n]
    *outer, k = [x.name for x in found.axes]
    part, inner = f"{n.name}.o", f"{n.name}.i"
    steps: list[Primitive] = [
        Split(n.name, columns), Split(inner, 2 * lanes), Split(k, terms),
        Reorder((*rest, part, *outer, f"{k}.o", f"{inner}.o", f"{k}.i", f"{inner}.i")),
        Unroll(f"{k}.i"), Vectorize(f"{inner}.i"), *map(Parallel, (*rest, part)[:3]),
    ]  # fmt: skip
    return tuple(steps)


def sum_block_sizes(
    t: Tensor, c: Contraction, layouts: Mapping[Tensor, Layout | ScatteredLayout], registers: int
) -> list[int]:
    """Return the candidate K block sizes of one long sum, or of a sum over blocked channels, best
    first (0: no blocks)."""
    found = reduction(t)
    assert found is not None
    k, *window = found.axes
    block = _layout_block(c.a, k, layouts.get(c.a.tensor))
    n, each = k.size, block * prod(a.size for a in window)
    if block > 1:
        some = [
            d for d in reversed(L1_PANEL_TERMS) if d % each == 0 and n * (each // block) % d == 0
        ]
        long = (
            n * (each // block) >= MIN_BLOCKED_TERMS
            and prod(a.size for a in c.a_axes) >= MIN_REUSE_ROWS
        )
        fits = some and n % block == 0 and registers == SMALL_REGISTER_FILE
        return [*some[:1], 0] if fits and long else [0]
    if window:
        return [0]
    some = [d for d in range(L2_PANEL_TERMS, L2_PANEL_TERMS // 3, -1) if n % d == 0 and n > d]
    return [*some[:1], 0] if n > 2 * L2_PANEL_TERMS else [0, *some[:1]]


def _reduction_loops(
    steps: list[Primitive],
    c: Contraction,
    reduction_axes: tuple[Axis, ...],
    layouts: Mapping[Tensor, Layout | ScatteredLayout],
) -> Iterator[str]:
    """Yield the loops of the sum: blocks of a's layout outside, positions within a block
    innermost."""
    last = []
    for k in reduction_axes:
        block = _layout_block(c.a, k, layouts.get(c.a.tensor))
        if block > 1 and k.size > block and k.size % block == 0:
            steps.append(Split(k.name, block))
            last.append(f"{k.name}.i")
            yield f"{k.name}.o"
        else:
            yield k.name
    yield from last


def _layout_block(a: Load, k: Axis, layout: Layout | ScatteredLayout | None) -> int:
    """Return the block size of the axis `k` in a's layout; 1 if it is not blocked."""
    if not isinstance(layout, Layout):
        return 1
    for p in layout.parts:
        if p.is_inner and k in index_axes(a.index[p.axis]):
            return p.block
    return 1


def axis_stride(e: Load, axis: Axis) -> int | None:
    """Return the row-major distance of neighbours along `axis`, in elements; None if it varies."""
    step, size = 0, 1
    for i, n in zip(reversed(e.index), reversed(e.tensor.shape), strict=True):
        form = affine.affine(i)
        if form is None:
            return None
        step += form.coefficient(axis) * size
        assert isinstance(n, int)
        size *= n
    return step
