"""Plan software prefetches of buffers that do not stay in a core's L2 cache."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from superopt.kernels.llvm.address import LoopTerms
from superopt.kernels.loops.tile import For, Kernel, Stmt
from superopt.te.analysis.affine import affine, atoms_of
from superopt.te.analysis.walk import index_axes, loads
from superopt.te.expr import index as te_index
from superopt.te.expr.node import Apply, Axis, Dim, Expr, Load
from superopt.te.expr.symbolic_int import hint, least_at_level
from superopt.te.expr.tensor import Tensor

MIN_STREAMED_BYTES = 1 << 20  # of a buffer that does not stay in L2
# Bytes of a constant that does not stay in L2, by bytes of a vector: processors with narrower
# vectors have smaller caches. With 512 KiB, panels of 0.6 MB came late: products of 7 x 7 pixels
# reached 85 % of peak, and reach 94 % with prefetches.
MIN_PREFETCHED_CONSTANT_BYTES = {64: 1 << 20, 32: 1 << 18, 16: 1 << 18}
MIN_DECODED_BYTES = 1 << 16  # of a constant of integers that is read once
MIN_GROWING_BYTES = 1 << 17  # of a buffer of symbolic sizes at the example: it may be larger
MIN_SCATTERED_BYTES = 1 << 18  # of a buffer that is read in many distant places at a time
PAGE_BYTES = 4096
LINE_BYTES = 64  # bytes that memory gives at a time
MAX_PANEL_BYTES = 1 << 19  # of a part that stays in L2 together with the next one
STREAM_DISTANCE_BYTES = 12288  # ahead in what is read once
MAX_SINGLE_PASS_ROWS = 2  # rows of a product that reads the constant once
DOT_DISTANCE_BYTES = 4096  # ahead in rows of dot products: the hardware stops at each page
STRIDED_DISTANCE_BYTES = 2048  # ahead at large strides, which the hardware prefetcher misses


@dataclass(frozen=True, slots=True)
class Prefetch:
    """What to prefetch when a buffer is read: the bytes `distance_bytes` ahead. For the next part
    of `part_bytes`: repeat_loops, which read a part again, with the weight of each loop's step:
    each repetition prefetches a share of the next part, so that memory is busy evenly; part_loops:
    those along the part. fresh_elements: per unrolled window axis, the range of elements that
    trigger a prefetch."""

    distance_bytes: int
    part_bytes: int = 0
    repeat_loops: tuple[tuple[Axis, Dim], ...] = ()
    part_loops: tuple[Axis, ...] = ()
    fresh_elements: tuple[tuple[Axis, int, int], ...] = ()

    @property
    def repeat_count(self) -> int:
        """The number of times a part is read."""
        return prod(a.size for a, _ in self.repeat_loops)


def plan_prefetches(
    kernel: Kernel, width: int, constants: Collection[Tensor] = ()
) -> dict[Tensor, Prefetch]:
    """Return the prefetches of large buffers, for vectors of `width` bytes. constants: parameters
    that are constant beside those that the kernel packs.

    For a constant whose part is read several times before the next one: that next part; else the
    bytes soon after. What is read once in sequence is prefetched only if it is integers, which take
    time to decode: one row times 4096 x 4096 weights of 4 bits took 1.47 ms, and takes 1.12 ms.
    Such a constant does not stay in L2 if it is smaller, either: the weights of other products are
    read before it is read again. One row times 768 x 768 weights of 4 bits, in a decoder, took
    47 us, and takes 29 us. For other buffers, only strided reads (windows that do not touch),
    reads in many places at a time (where tables define sums), and rows of symbolic number, such as
    the keys of a decoder: dot products with 132 of 64 elements in 12 heads took 43 us, and take 31.
    """
    fixed = {*constants, *(p.buffer for p in kernel.packs)}
    parts = bool(kernel.tables)
    other = MIN_SCATTERED_BYTES if parts else MIN_STREAMED_BYTES
    constant = MIN_PREFETCHED_CONSTANT_BYTES[width]

    def least_bytes(p: Tensor) -> int:
        if p in fixed:
            return constant if p.dtype.is_float else min(constant, MIN_DECODED_BYTES)
        return other if parts or not _is_symbolic(p) else min(other, MIN_GROWING_BYTES)

    large = {p for p in kernel.params if _buffer_bytes(p) > least_bytes(p)}
    out: dict[Tensor, Prefetch] = {}
    for load, loops, axes, over in _buffer_reads(kernel.body, large, ()) if large else ():
        own = (*axes, *over)
        buffer = load.tensor
        if buffer in fixed:
            used = set().union(*map(index_axes, load.index))
            tile = prod(hint(a.size) for a in own if a in used)
            told = [(f.axis, f.kind == "unroll", f.axis in used) for f in loops]
            size = max(buffer.dtype.bits // 8, 1)
            first, part = _repeated_part(told, tile, MAX_PANEL_BYTES // size)
            part *= size
            rows = _rows(load, axes)
            one_pass = part >= _buffer_bytes(buffer) and rows <= MAX_SINGLE_PASS_ROWS
            if not one_pass and _buffer_bytes(buffer) <= constant:
                continue
            if one_pass and buffer.dtype.is_float:
                continue  # one sequential stream: prefetching costs more than it saves
            if one_pass or part > MAX_PANEL_BYTES:
                out[buffer] = Prefetch(STREAM_DISTANCE_BYTES)
            else:
                out[buffer] = Prefetch(
                    -(-STREAM_DISTANCE_BYTES // part) * part,
                    part,
                    *_repeat_and_part_loops(told[first:]),
                )
        elif parts and _crosses_pages(load, loops):
            out[buffer] = Prefetch(STRIDED_DISTANCE_BYTES)
        elif not parts and over and _is_symbolic(buffer) and _is_read_once(load, loops, axes):
            out[buffer] = Prefetch(DOT_DISTANCE_BYTES)
        elif _buffer_bytes(buffer) > other and not parts and _is_strided(load, loops, own):
            out[buffer] = Prefetch(
                STRIDED_DISTANCE_BYTES, fresh_elements=_fresh_elements(load, loops, own)
            )
    return out


def prefetch_address(
    prefetch: Prefetch, loop_terms: LoopTerms, constant: int, size: int
) -> tuple[LoopTerms, int] | None:
    """Return the address to prefetch at a read, both in elements of `size` bytes; None if another
    read prefetches its cache line."""
    count = prefetch.repeat_count
    times = least_at_level(count)
    along = [c for atoms, c in loop_terms if atoms[0] in prefetch.part_loops]
    if times == 1 or not along or min(along) < times:
        return loop_terms, constant + prefetch.distance_bytes // size
    if constant % (LINE_BYTES // size * times):
        return None
    # rounded up: shares overlap, and nothing is left out
    slower = [
        (place, c)
        for atoms, step in loop_terms
        for place, c in _times(
            atoms, -(-step // count) if atoms[0] in prefetch.part_loops else step
        )
    ]
    share = prefetch.part_bytes // size // count
    turns = [x for a, weight in prefetch.repeat_loops for x in _times((a,), share * weight)]
    return (*slower, *turns), constant // times + prefetch.distance_bytes // size


def _times(atoms: tuple[Expr, ...], factor: Dim) -> LoopTerms:
    """Return the terms of a product of atoms and a factor, which may be symbolic."""
    terms = te_index.polynomial(te_index.as_index(factor)).items()
    return tuple(((*atoms, *more), c) for more, c in terms)


def _is_symbolic(t: Tensor) -> bool:
    return any(not isinstance(n, int) for n in t.shape)


def _rows(load: Load, tile_axes: Sequence[Axis]) -> int:
    """Return how many elements of a tile read the same element."""
    used = set().union(*map(index_axes, load.index))
    return prod(hint(a.size) for a in tile_axes if a not in used)


def _is_read_once(load: Load, loops: Sequence[For], tile_axes: Sequence[Axis]) -> bool:
    """True if no loop reads an element again."""
    used = set().union(*map(index_axes, load.index))
    once = all(f.axis in used or hint(f.axis.size) == 1 for f in loops)
    return once and _rows(load, tile_axes) == 1


def _crosses_pages(load: Load, loops: Sequence[For]) -> bool:
    """True if each step of the innermost loop reads another page."""
    written = [f for f in loops if f.kind != "unroll"]
    if not written:
        return False
    inner = written[-1].axis
    others: dict[Expr, Expr] = {f.axis: te_index.as_index(0) for f in loops if f.axis is not inner}
    pitch = max(load.dtype.bits // 8, 1)
    moved = 0
    for i, n in zip(reversed(load.index), reversed(load.tensor.sizes), strict=True):
        form = affine(te_index.substitute(i, others))
        moved += pitch * (0 if form is None else abs(form.coefficient(inner)))
        pitch *= hint(n)
    return moved >= PAGE_BYTES


def _is_strided(load: Load, loops: Sequence[For], tile_axes: Collection[Axis]) -> bool:
    """True if neighbours in a tile are strided in some dimension: each step of an axis begins
    beyond the elements of the others."""
    first: dict[Expr, Expr] = {f.axis: te_index.as_index(0) for f in loops}
    for form in (affine(te_index.substitute(i, first)) for i in load.index):
        some = [] if form is None else [(form.coefficient(a), hint(a.size)) for a in tile_axes]
        reached = 1  # elements without a gap
        for step, size in sorted(x for x in some if x[0] > 0):
            if step > reached:
                return True
            reached += step * (size - 1)
    return False


def _fresh_elements(
    load: Load, loops: Sequence[For], tile_axes: Collection[Axis]
) -> tuple[tuple[Axis, int, int], ...]:
    """Return, for overlapping unrolled windows, the elements (from, to) that no earlier window
    reads, in loop steps or, in a tile, no later one."""
    moved = [f.axis for f in loops if f.kind != "unroll"]
    out = []
    for form in filter(None, (affine(_without_clamp(i)) for i in load.index)):
        for a in (f.axis for f in loops if f.kind == "unroll" and form.coefficient(f.axis) == 1):
            n = hint(a.size)
            inside, around = (
                [c for b in axes if 0 < (c := form.coefficient(b)) < n]
                for axes in (tile_axes, moved)
            )
            if inside:
                out.append((a, 0, min(inside)))
            elif around:
                out.append((a, n - min(around), n))
    return tuple(out)


def _without_clamp(index: Expr) -> Expr:
    """Return the index without the clamps of partial last tiles."""
    clamps = [a for a in atoms_of(index) if isinstance(a, Apply) and a.fn == "min"]
    return te_index.substitute(
        index, {a: max(a.args, key=lambda x: len(index_axes(x))) for a in clamps}
    )


LoopUse = tuple[Axis, bool, bool]  # is it unrolled? does the address depend on it?


def _buffer_reads(
    body: Sequence[Stmt], buffers: Collection[Tensor], loops: tuple[For, ...]
) -> Iterator[tuple[Load, tuple[For, ...], tuple[Axis, ...], tuple[Axis, ...]]]:
    """Yield reads of these buffers, with their loops, tile axes, and those of a sum in the tile."""
    for s in body:
        if isinstance(s, For):
            yield from _buffer_reads(s.body, buffers, (*loops, s))
            continue
        for load in loads(s.value):
            if load.tensor in buffers:
                yield load, loops, tuple(s.axes), tuple(getattr(s, "over", ()))


def _repeated_part(loops: Sequence[LoopUse], tile: int, most: int) -> tuple[int, int]:
    """Return the elements that a loop reads again in each step before others are read, and the
    loop that moves from such a part to the next one; all elements if no loop does. If a part of
    more than `most` elements has parts that are read again, these are meant."""
    begin, moved, found = 0, False, None
    for n, (axis, written, used) in enumerate(loops):
        if moved and not used and not written and hint(axis.size) > 1:
            part = tile * prod(hint(a.size) for a, _, more in loops[n:] if more)
            if found is None or part < found[1]:
                found = begin, part
            if part <= most:
                break
            begin, moved = n, False
        moved |= used
    return found or (0, tile * prod(hint(a.size) for a, _, used in loops if used))


def _repeat_and_part_loops(
    loops: Sequence[LoopUse],
) -> tuple[tuple[tuple[Axis, Dim], ...], tuple[Axis, ...]]:
    """Return the loops that read a part again, and those along it; empty if they are not nested
    so."""
    some = [(axis, used) for axis, written, used in loops if not written and hint(axis.size) > 1]
    first = next((n for n, (_, used) in enumerate(some) if used), len(some))
    begin = next((n for n, (_, used) in enumerate(some) if n > first and not used), len(some))
    end = next((n for n, (_, used) in enumerate(some) if n > begin and used), len(some))
    if not all(used for _, used in some[end:]):
        return (), ()
    again: list[tuple[Axis, Dim]] = []
    count = 1
    for axis, _ in reversed(some[begin:end]):
        again.append((axis, te_index.dim(count)))
        count *= axis.size
    return tuple(again), tuple(axis for axis, _ in some[end:])


def _buffer_bytes(t: Tensor) -> int:
    return prod(map(hint, t.sizes)) * max(t.dtype.bits // 8, 1)
