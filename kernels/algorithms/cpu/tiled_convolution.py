"""Convolutions that Winograd can compute: matching, and the geometry of tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from superopt.kernels.algorithms.contraction import Contraction
from superopt.kernels.algorithms.cpu.cook_toom import (
    distinct_rows,
    error_amplification,
    has_points,
    transform_operations,
)
from superopt.kernels.loops.loop_transforms import reduction
from superopt.te.analysis import affine
from superopt.te.expr import index
from superopt.te.expr.node import Axis, Expr
from superopt.te.expr.symbolic_int import extend_to
from superopt.te.expr.tensor import Tensor

MAX_ERROR_AMPLIFICATION = (
    33.0  # limit on error amplification: that of F(4 x 4, 3 x 3), plus a quarter
)
TILE_SIDES = (2, 4)  # of tiles


@dataclass(frozen=True, slots=True)
class Depth:
    """The third spatial dimension, whose slices are summed: its axis in the result, the slices read
    for one output, and which these are: first + stride * i + dilation * k."""

    axis: Axis
    taps: int
    first: int
    stride: int
    dilation: int

    @property
    def reach(self) -> int:
        """The number of slices from the first to the last one that is read."""
        return (self.axis.size - 1) * self.stride + (self.taps - 1) * self.dilation + 1


@dataclass(frozen=True, slots=True)
class TiledConvolution:
    """A convolution: its axes, its window, where the first window begins, dilations and strides
    (one of both is 1 along each side). A 1-D one (w is None) is an image of one column; a 3-D one
    is many images, some of which are summed. is_stacked: the rows of tiles of all images follow
    each other, so that a block of rows has tiles of several images."""

    n: Axis
    k: Axis
    h: Axis
    w: Axis | None
    channels: int
    kernel: tuple[int, int]
    begin: tuple[int, int]
    dilations: tuple[int, int]
    strides: tuple[int, int]
    depth: Depth | None = None
    is_stacked: bool = False

    def stack_images(self) -> TiledConvolution:
        """Return the convolution with stacked images, where there are several of known sizes, none
        of which are summed."""
        d = self.depth
        sizes = [a.extent for a in (self.n, self.h, self.w) if a is not None]
        is_summed = d is not None and (d.taps, d.stride) != (1, 1)
        # comparing a symbolic number of images would add a guard
        if is_summed or not all(isinstance(n, int) for n in sizes) or self.image_counts[1] == 1:
            return self
        return replace(self, is_stacked=True)

    @property
    def output_sides(self) -> tuple[int, int]:
        """The rows and columns of the result."""
        return self.h.size, 1 if self.w is None else self.w.size

    @property
    def image_counts(self) -> tuple[int, int]:
        """The number of input images, and of result images."""
        n = self.n.size
        return (n, n) if self.depth is None else (n * self.depth.reach, n * self.depth.axis.size)

    @property
    def stack_counts(self) -> tuple[int, int]:
        """The number of stacks of input images, and of result images."""
        return (1, 1) if self.is_stacked else self.image_counts

    @property
    def taps(self) -> int:
        """The number of images that are summed."""
        return 1 if self.depth is None else self.depth.taps

    @property
    def window(self) -> tuple[int, ...]:
        """The elements of the filter that are read, along each spatial axis."""
        sides = self.kernel if self.w is not None else self.kernel[:1]
        return sides if self.depth is None else (self.depth.taps, *sides)

    @property
    def reduction_sizes(self) -> tuple[int, ...]:
        """The extents of its reduction, without the window."""
        return (self.channels,) if self.depth is None else (self.depth.taps, self.channels)

    def input_index(self, q: Expr, c: Expr, row: Expr, column: Expr) -> tuple[Expr, ...]:
        """Return the index of an element of input image q."""
        if self.w is None:
            return q, c, row
        if self.depth is None:
            return q, c, row, column
        n, z = self._split_image(q, self.depth.reach)
        return n, c, index.as_index(z + self.depth.first), row, column

    def output_axes(self, q: Expr, o: Expr, row: Expr, column: Expr) -> dict[Expr, Expr]:
        """Return the result's axes in order at an element of result image q."""
        if self.w is None:
            return {self.n: q, self.k: o, self.h: row}
        if self.depth is None:
            return {self.n: q, self.k: o, self.h: row, self.w: column}
        n, z = self._split_image(q, self.depth.axis.size)
        return {self.n: n, self.k: o, self.depth.axis: z, self.h: row, self.w: column}

    def summed_image(self, q: Expr, tap: Expr) -> Expr:
        """Return the input image that is term `tap` of result image q."""
        assert self.depth is not None
        n, z = self._split_image(q, self.depth.axis.size)
        slice_ = z * self.depth.stride + tap * self.depth.dilation
        return index.as_index(n * self.depth.reach + slice_)

    def _split_image(self, q: Expr, per_image: int) -> tuple[Expr, Expr]:
        if self.n.size == 1:
            return index.as_index(0), q
        return index.as_index(q // per_image), index.as_index(q % per_image)

    def tile_sides(self, m: int) -> tuple[int, int]:
        """Return the sides of a tile: 1 along a side where the window is 1."""
        high, wide = (m if r > 1 else 1 for r in self.kernel)
        return high, wide

    def forms(self, m: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Return (side, taps, stride) of a tile along both sides; for one tap the stride does not
        matter."""
        (h, w), (r, s), (below, beside) = self.tile_sides(m), self.kernel, self.strides
        return (h, r, below if r > 1 else 1), (w, s, beside if s > 1 else 1)

    def input_tile_sides(self, m: int) -> tuple[int, int]:
        """Return the sides of a tile's input; it takes so many products."""
        high, wide = (n * s + r - s for n, r, s in self.forms(m))
        return high, wide

    def tile_options(self) -> list[int]:
        """Return the tile sides that fit into the result and do not amplify errors too much."""
        return [m for m in TILE_SIDES if self.has_tiles(m)]

    def has_tiles(self, m: int) -> bool:
        """True if tiles of this side fit into the result and do not amplify errors too much."""
        sides = [x // d for x, d in zip(self.output_sides, self.dilations, strict=True)]
        forms = self.forms(m)
        fits = all(has_points(*f) and n >= f[0] for f, n in zip(forms, sides, strict=True))
        return fits and (prod(error_amplification(*f) for f in forms) <= MAX_ERROR_AMPLIFICATION)


def match_tiled_convolution(t: Tensor, c: Contraction) -> TiledConvolution | None:
    """Match a convolution that Winograd can compute; None otherwise."""
    found = reduction(t)
    if found is None or t.rank not in (3, 4, 5) or not t.rank == len(c.a.index) == len(c.b.index):
        return None
    kc, *over = found.axes
    if c.b.index[1:] != found.axes or prod(a.size for a in over[-2:]) == 1:
        return None
    k, n = c.b.index[0], t.axes[0]
    one = c.a.index[0] == index.as_index(0) and n.extent == 1
    if not (one or c.a.index[0] == n) or k != t.axes[1] or c.a.index[1] != kc:
        return None
    sides = [_window_side(i, a, t) for i, a in zip(c.a.index[2:], over, strict=True)]
    if [None if x is None else x[0] for x in sides] != [*t.axes[2:]]:
        return None
    some = [x for x in sides if x is not None]
    if any(1 not in x[2:] for x in some[-2:]) or not isinstance(kc.extent, int):
        return None
    assert isinstance(k, Axis)
    h, top, below, down = some[-2] if len(some) > 1 else some[0]
    w, left, beside, right = some[-1] if len(some) > 1 else (None, 0, 1, 1)
    kernel = (over[-1 if w is None else -2].size, 1 if w is None else over[-1].size)
    depth = None
    if t.rank == 5:
        axis, first, stride, apart = some[0]
        depth = Depth(axis, over[0].size, first, stride, apart)
    steps, strides = (down, right), (below, beside)
    return TiledConvolution(n, k, h, w, kc.extent, kernel, (top, left), steps, strides, depth)


def _window_side(i: Expr, tap_axis: Axis, t: Tensor) -> tuple[Axis, int, int, int] | None:
    """Match an input dimension: the result's axis, where the first window begins, stride,
    dilation."""
    form = affine.affine(i)
    if form is None or len(form.terms) != 2 or form.coefficient(tap_axis) < 1:
        return None
    ((side, step),) = [x for x in form.terms if x[0] != tap_axis]
    if step < 1 or not isinstance(side, Axis) or side not in t.axes:
        return None
    return side, form.base, step, form.coefficient(tap_axis) if tap_axis.size > 1 else 1


def tile_counts(p: TiledConvolution, m: int) -> tuple[int, int]:
    """Return the rows and columns of tiles of an image."""
    sides = zip(p.output_sides, p.dilations, p.tile_sides(m), strict=True)
    high, wide = (d * ceil_div(ceil_div(n, d), side) for n, d, side in sides)
    return high, wide


def stack_tile_counts(p: TiledConvolution, m: int) -> tuple[int, int]:
    """Return the rows and columns of tiles of a stack of images."""
    high, wide = tile_counts(p, m)
    return high * p.image_counts[1] if p.is_stacked else high, wide


def transform_operation_counts(p: TiledConvolution, m: int) -> tuple[float, float]:
    """Return the FMAs of the input and output transforms."""
    (a, b), (mh, _), (high, wide) = p.input_tile_sides(m), p.tile_sides(m), tile_counts(p, m)
    given, made = (n * high * wide for n in p.image_counts)
    (down, up), (right, left) = (transform_operations(*f) for f in p.forms(m))
    there, back = b * down + a * right, b * up + mh * left
    return given * there * p.channels, made * back * p.k.size


def transformed_bytes(p: TiledConvolution, m: int) -> tuple[int, int]:
    """Return the bytes of all transformed tiles, and of the transformed filter."""
    tiles = prod((*tile_counts(p, m), *p.input_tile_sides(m))) * p.image_counts[0]
    windows = prod(distinct_rows(*form) for form in p.forms(m)) * p.taps
    return 4 * tiles * p.channels, 4 * windows * p.k.size * p.channels


def extended_tile_counts(p: TiledConvolution, m: int, high: int, wide: int) -> tuple[int, int]:
    """Return the rows and columns of tiles, at least `high` and `wide`: of symbolic sizes there may
    be fewer, and the last tile is computed again. More than twice as many as there are would take
    long: that there are not is a guard."""
    out = []
    counts = stack_tile_counts(p, m)
    for n, dilation, least in zip(counts, p.dilations, (high, wide), strict=True):
        if dilation > 1 and n < least:
            raise ValueError(f"{n} tiles of a dilated convolution are fewer than {least}")
        if 2 * n <= least:
            raise ValueError(f"{n} tiles are at most half of {least}")
        out.append(n if dilation > 1 else extend_to(n, least))
    return out[0], out[1]


def tile_begin(tile: Expr, size: int, m: int, dilation: int) -> Expr:
    """Return where a tile begins. Outputs of a dilated convolution that read the same positions,
    every `dilation`-th, are a convolution of their own, whose tiles follow each other."""
    first, _, phase = _tile_begins(tile, size, m, dilation)
    return index.as_index(first * dilation + phase)


def tile_store_index(tile: Expr, i: Expr, size: int, m: int, dilation: int) -> Expr:
    """Return where element i of a tile is stored. Overlap with the previous tile is not stored
    twice (with other rounding, by another thread): it goes to the place of the first new element,
    which is stored after it."""
    first, new, phase = _tile_begins(tile, size, m, dilation)
    at = index.apply("max", (index.as_index(first + i), new), tile.dtype)
    return index.as_index(at * dilation + phase)


def _tile_begins(tile: Expr, size: int, m: int, dilation: int) -> tuple[Expr, Expr, Expr]:
    """Return the first element of a tile, and the first one that no earlier tile has, within its
    phase; and the phase."""
    if dilation == 1:
        begin, phase, own = index.as_index(tile * m), index.as_index(0), index.as_index(size)
    else:
        each = ceil_div(ceil_div(size, dilation), m)
        phase = index.as_index(tile // each)
        begin = index.as_index(tile % each * m)
        own = index.as_index((size - phase + dilation - 1) // dilation)
    first, new = (index.apply("min", (begin, index.as_index(own - n)), tile.dtype) for n in (m, 1))
    return first, new, phase


def ceil_div(n: int, d: int) -> int:
    """Return n / d, rounded up."""
    return -(-n // d)
