"""Convolutions that are computed in tiles: which ones they are, and where tiles lie."""

from __future__ import annotations

from dataclasses import dataclass

from superopt.kernels.contraction import Contraction
from superopt.kernels.cook_toom import amplification, known
from superopt.kernels.transform import reduction
from superopt.te import affine
from superopt.te import index as ix
from superopt.te.expr import Tensor
from superopt.te.node import Axis, Expr

MOST = 33.0  # by what rounding may grow: that of F(4 x 4, 3 x 3), and a quarter more
SIDES = (2, 4)  # of tiles


@dataclass(frozen=True, slots=True)
class Picture:
    """A convolution at stride 1: its axes, its kernel's sides, how far from an output's place its
    window begins, and how far apart what it reads is (dilations)."""

    n: Axis
    k: Axis
    h: Axis
    w: Axis
    channels: int
    kernel: tuple[int, int]
    first: tuple[int, int]
    steps: tuple[int, int]

    def tile(self, m: int) -> tuple[int, int]:
        """The sides of a tile: 1, where the kernel has one row or column."""
        high, wide = (m if r > 1 else 1 for r in self.kernel)
        return high, wide

    def reads(self, m: int) -> tuple[int, int]:
        """The sides of what a tile is computed from; so many products take its place."""
        (high, wide), (r, s) = self.tile(m), self.kernel
        return high + r - 1, wide + s - 1

    @property
    def size(self) -> int:
        """The multiply-adds of the direct convolution."""
        n, k, h, w = (extent(x) for x in (self.n, self.k, self.h, self.w))
        return n * k * h * w * self.channels * self.kernel[0] * self.kernel[1]

    def fitting(self) -> list[int]:
        """The tiles that it is not smaller than, and that do not round too badly."""
        sides = [extent(x) // d for x, d in zip((self.h, self.w), self.steps, strict=True)]
        out = []
        for m in SIDES:
            pairs = list(zip(self.tile(m), self.kernel, sides, strict=True))
            if all(known(t, r) and n >= t for t, r, n in pairs):
                (a, b), (c, d) = ((t, r) for t, r, _ in pairs)
                if amplification(a, b) * amplification(c, d) <= MOST:
                    out.append(m)
        return out


def picture(t: Tensor, c: Contraction) -> Picture | None:
    """The convolution that a contraction is, if tiles can compute it."""
    found = reduction(t)
    if found is None or len(found.axes) != 3 or t.rank != 4 or len(c.a.index) != 4:
        return None
    kc, kh, kw = found.axes
    if c.b.index[1:] != (kc, kh, kw) or extent(kh) * extent(kw) == 1:
        return None
    k, n = c.b.index[0], t.axes[0]
    one = c.a.index[0] == ix.as_index(0) and n.extent == 1
    if not (one or c.a.index[0] == n) or k not in t.axes or c.a.index[1] != kc:
        return None
    sides = []
    for i, over in ((c.a.index[2], kh), (c.a.index[3], kw)):
        form = affine.affine(i)
        if form is None or len(form.terms) != 2 or form.coefficient(over) < 1:
            return None
        ((side, step),) = [x for x in form.terms if x[0] != over]
        if step != 1 or side not in t.axes:
            return None
        apart = form.coefficient(over) if extent(over) > 1 else 1
        sides.append((side, form.base, apart))
    (h, top, down), (w, left, right) = sides
    if (n, k, h, w) != t.axes or not isinstance(kc.extent, int):
        return None
    assert isinstance(k, Axis)
    kernel = (extent(kh), extent(kw))
    return Picture(n, k, h, w, kc.extent, kernel, (top, left), (down, right))


def counts(p: Picture, m: int) -> tuple[int, int]:
    """Rows and columns of tiles."""
    sides = zip((extent(p.h), extent(p.w)), p.steps, p.tile(m), strict=True)
    high, wide = (d * over(over(n, d), side) for n, d, side in sides)
    return high, wide


def start(tile: Expr, size: int, m: int, apart: int) -> Expr:
    """Where a tile begins. The outputs of a dilated convolution that read the same places, every
    `apart`-th, are a convolution by themselves: its tiles come after each other."""
    first, _, phase = _begins(tile, size, m, apart)
    return ix.as_index(first * apart + phase)


def stored(tile: Expr, i: Expr, size: int, m: int, apart: int) -> Expr:
    """Where element i of a tile goes. What the tile before has given is not given again, rounded
    otherwise, by another thread: it goes to the place of the first element that is new, which is
    stored after it."""
    first, new, phase = _begins(tile, size, m, apart)
    at = ix.apply("max", (ix.as_index(first + i), new), tile.dtype)
    return ix.as_index(at * apart + phase)


def _begins(tile: Expr, size: int, m: int, apart: int) -> tuple[Expr, Expr, Expr]:
    """The first element of a tile, and the first that no tile before it has, among the outputs of
    its phase; and the phase."""
    if apart == 1:
        begin, phase, own = ix.as_index(tile * m), ix.as_index(0), ix.as_index(size)
    else:
        each = over(over(size, apart), m)
        phase = ix.as_index(tile // each)
        begin = ix.as_index(tile % each * m)
        own = ix.as_index((size - phase + apart - 1) // apart)
    first, new = (ix.apply("min", (begin, ix.as_index(own - n)), tile.dtype) for n in (m, 1))
    return first, new, phase


def over(n: int, d: int) -> int:
    """n / d, rounded up."""
    return -(-n // d)


def extent(a: Axis) -> int:
    assert isinstance(a.extent, int)
    return a.extent
