"""A constant as blocks of other tensors: concatenated, sliced, transposed, reshaped, repeated,
padded.

A block is found from its first element. The offset of that element in a source determines the
offset of each neighbor; the block extends along every axis while the elements match. The rest of
the constant is cut off and covered in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from superopt.ir.graph import Node, Value, constant, node
from superopt.ops import OPS

MAX_PIECES = 64  # blocks of one constant
MAX_CANDIDATE_OFFSETS = 6  # candidate offsets of an element in a source
Box = tuple[slice, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A tensor that blocks are taken from. values: its elements in float64, flat. tolerance: the
    allowed difference of each element, None if all bits must be equal. bits: the elements as
    bits."""

    value: Value
    shape: tuple[int, ...]
    values: np.ndarray
    tolerance: np.ndarray | None
    bits: np.ndarray

    def matches(self, offsets: np.ndarray, bits: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return where the elements at flat offsets equal the given ones."""
        if self.tolerance is None:
            return np.asarray(self.bits[offsets] == bits)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.abs(self.values[offsets] - values) <= self.tolerance[offsets])

    def find(self, bits: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the first flat offsets of an element."""
        if self.tolerance is None:
            return np.flatnonzero(self.bits == bits)[:MAX_CANDIDATE_OFFSETS]
        with np.errstate(invalid="ignore"):
            return np.flatnonzero(np.abs(self.values - values) <= self.tolerance)[
                :MAX_CANDIDATE_OFFSETS
            ]


def bits_of(array: np.ndarray) -> np.ndarray:
    """Return the elements as unsigned integers of their bits, so that 0.0 differs from -0.0."""
    return np.ascontiguousarray(array).reshape(array.shape).view(f"u{array.dtype.itemsize}")


def cover_by_blocks(array: np.ndarray, sources: Sequence[Source]) -> Value | None:
    """Return `array` as an expression of blocks of the sources, preferring earlier sources. None if
    a part of it is neither a block nor padding."""
    if array.dtype.itemsize not in (1, 2, 4, 8) or not array.size:
        return None
    with np.errstate(all="ignore"):
        wide = array.astype(np.float64)
    return _Cover(array, bits_of(array), wide, sources).cover(
        tuple(slice(0, n) for n in array.shape)
    )


@dataclass(slots=True)
class _Cover:
    """A constant, its bits and its elements in float64. pieces: blocks made so far."""

    array: np.ndarray
    bits: np.ndarray
    values: np.ndarray
    sources: Sequence[Source]
    pieces: int = 0

    def cover(self, box: Box) -> Value | None:
        self.pieces += 1
        if self.pieces > MAX_PIECES:
            return None
        best = self.best_block(box)
        if best is None:
            return None
        extent, piece = best
        whole = tuple(s.stop - s.start for s in box)
        short = [a for a in range(len(whole)) if extent[a] < whole[a]]
        if not short:
            return piece
        axis = max(short, key=lambda a: whole[a] // extent[a] if len(short) == 1 else -extent[a])
        cut = box[axis].start + extent[axis]
        parts: list[Value] = []
        for part in (slice(box[axis].start, cut), slice(cut, box[axis].stop)):
            found = self.cover((*box[:axis], part, *box[axis + 1 :]))
            if found is None:
                return None
            parts += _concat_operands(found, axis)
        return node(OPS["Concat"], parts, axis=axis)

    def best_block(self, box: Box) -> tuple[tuple[int, ...], Value] | None:
        """Return the largest block that begins at the start of the box."""
        whole = tuple(s.stop - s.start for s in box)
        same = self.uniform_extent(box)
        if same == whole:
            return same, self.uniform_block(box, same)
        best: tuple[int, tuple[int, ...], Value] | None = None
        for source in self.sources:
            for first, steps in self.candidate_strides(source, box):
                extent = self.block_extent(source, box, first, steps)
                size = int(np.prod(extent))
                if best is not None and size <= best[0]:
                    continue
                made = strided_block(source, first, steps, extent)
                if made is not None:
                    best = size, extent, made
                if size == int(np.prod(whole)) and made is not None:
                    return extent, made
        if same is not None and (best is None or int(np.prod(same)) >= best[0]):
            return same, self.uniform_block(box, same)
        if best is None:
            return None
        _, extent, piece = best
        return extent, piece

    def uniform_block(self, box: Box, extent: tuple[int, ...]) -> Value:
        """Return a block filled with the first element of the box."""
        first = self.array[tuple(slice(s.start, s.start + 1) for s in box)]
        return constant(np.broadcast_to(first, extent).copy())

    def uniform_extent(self, box: Box) -> tuple[int, ...] | None:
        """Return the extent of the constant block at the start of the box: the whole box, or zeros,
        which pad."""
        corner = tuple(s.start for s in box)
        here = self.bits[box] == self.bits[corner]
        if here.all():
            return tuple(s.stop - s.start for s in box)
        return _good_prefix(here) if self.values[corner] == 0 else None

    def candidate_strides(self, source: Source, box: Box) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield offsets of the first element of the box in a source, with the stride of each axis
        (0: no neighbor, or the same element)."""
        corner = tuple(s.start for s in box)
        at = source.find(self.bits[corner], self.values[corner])
        if not len(at):
            return
        beside: list[np.ndarray] = []
        for a, s in enumerate(box):
            if s.stop - s.start == 1:
                beside.append(np.array([], np.int64))
                continue
            next_ = (*corner[:a], s.start + 1, *corner[a + 1 :])
            beside.append(source.find(self.bits[next_], self.values[next_]))
        for first in at:
            choices = [[int(b - first) for b in offsets] or [0] for offsets in beside]
            for steps in product(*choices):
                yield int(first), steps

    def block_extent(
        self, source: Source, box: Box, offset: int, steps: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the extent of the block along each axis."""
        places = np.asarray(offset)
        size = source.bits.size
        shape: list[int] = []
        for a, (s, step) in enumerate(zip(box, steps, strict=True)):
            n = s.stop - s.start
            if step > 0:
                n = min(n, (size - 1 - offset) // step + 1)
            elif step < 0:
                n = min(n, offset // -step + 1)
            line = tuple(slice(t.start, t.start + (n if k == a else 1)) for k, t in enumerate(box))
            at = offset + step * np.arange(n)
            good = source.matches(at, self.bits[line].reshape(-1), self.values[line].reshape(-1))
            n = n if good.all() else int(np.argmin(good))
            shape.append(max(n, 1))
            places = places[..., None] + step * np.arange(shape[-1])
        region = tuple(slice(s.start, s.start + n) for s, n in zip(box, shape, strict=True))
        inside = (places >= 0) & (places < size)
        at = np.where(inside, places, 0)
        return _good_prefix(inside & source.matches(at, self.bits[region], self.values[region]))


def _good_prefix(good: np.ndarray) -> tuple[int, ...]:
    """Return the extents of a large box that begins at the first element and contains only True."""
    extent = list(good.shape)
    while not good.all():
        cuts: list[tuple[float, int, int]] = []
        for a in range(good.ndim):
            along = good.all(axis=tuple(k for k in range(good.ndim) if k != a))
            n = int(np.argmin(along)) if not along.all() else extent[a]
            if 0 < n < extent[a]:
                cuts.append((n / extent[a], a, n))
        if not cuts:  # the first row fails along every axis: halve the longest axis
            a = int(np.argmax(extent))
            cuts = [(0.5, a, extent[a] // 2)]
        _, a, n = max(cuts)
        good = good[tuple(slice(0, n) if k == a else slice(None) for k in range(good.ndim))]
        extent[a] = n
    return tuple(extent)


def _concat_operands(v: Value, axis: int) -> list[Value]:
    """Return the operands of a Concat along the axis, else the value itself."""
    if isinstance(v, Node) and v.op.name == "Concat" and v.attr("axis") == axis:
        return [x for x in v.inputs if x is not None]
    return [v]


def strided_block(
    source: Source, offset: int, steps: tuple[int, ...], extent: tuple[int, ...]
) -> Value | None:
    """Return the block whose element i is the source's at first + sum(steps * i), as Slice,
    Reshape, Transpose and Expand. None if these operators do not suffice."""
    axes = [a for a, (s, n) in enumerate(zip(steps, extent, strict=True)) if s and n > 1]
    places = np.asarray(offset)
    for a in axes:
        places = places[..., None] + steps[a] * np.arange(extent[a])
    index = np.unravel_index(places.reshape(-1), source.shape) if source.shape else ()
    starts, ends, jumps, counts = [], [], [], []
    flat = np.zeros(places.size, np.int64)
    for i in index:
        seen = np.unique(i)
        jump = int(seen[1] - seen[0]) if len(seen) > 1 else 1
        if len(seen) > 2 and not (np.diff(seen) == jump).all():
            return None
        starts.append(int(seen[0]))
        ends.append(int(seen[-1]) + 1)
        jumps.append(jump)
        counts.append(len(seen))
        flat = flat * len(seen) + (i - seen[0]) // jump
    if int(np.prod(counts)) != places.size:
        return None
    order = sorted(axes, key=lambda a: -_stride(flat, axes, extent, a))
    sizes = [extent[a] for a in order]
    if not np.array_equal(
        np.arange(places.size).reshape(sizes).transpose([order.index(a) for a in axes]).reshape(-1),
        flat,
    ):
        return None
    v = source.value
    if tuple(counts) != source.shape:
        v = node(
            OPS["Slice"], [v], starts=tuple(starts), ends=tuple(ends),
            axes=tuple(range(len(counts))), steps=tuple(jumps),
        )  # fmt: skip
    # the other axes have size 1 and lead, so that the transpose puts them in place
    rest = [a for a in range(len(extent)) if a not in axes]
    shape = (*(1 for _ in rest), *sizes)
    if shape != tuple(counts):
        v = node(OPS["Reshape"], [v], shape=shape)
    now = [*rest, *order]
    if now != sorted(now):
        v = node(OPS["Transpose"], [v], perm=tuple(now.index(a) for a in range(len(extent))))
    if any(extent[a] > 1 for a in rest):
        v = node(OPS["Expand"], [v], shape=tuple(extent))
    return v


def _stride(flat: np.ndarray, axes: list[int], extent: tuple[int, ...], axis: int) -> int:
    """Return the distance of neighbors along an axis in the slice."""
    k = axes.index(axis)
    after = int(np.prod([extent[a] for a in axes[k + 1 :]], dtype=np.int64))
    return int(flat[after] - flat[0])
