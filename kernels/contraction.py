"""Sums of products: which operand is which, and how their loops are tiled for registers.

    y[m, n] = sum(a[m, k] * b[k, n] for k)        a product of matrices, or a convolution

Along n go vectors of b; each element of a is one factor for all of a vector. What is in registers
is a tile of some m times some vectors. b is a constant most often, and lies in the order in which
it is read (Goto and van de Geijn, Anatomy of high-performance matrix multiplication, 2008).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from superopt.kernels.layout import Layout, Scatter, lying
from superopt.kernels.schedule import (
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from superopt.kernels.transform import reduction
from superopt.kernels.walk import axes_of, loads
from superopt.te import affine
from superopt.te.expr import Tensor
from superopt.te.node import Apply, Axis, Load

ACCUMULATORS = 28  # of 32 registers, the others for operands
LATENCY = 4  # cycles until a sum can be added to again
PER_CYCLE = 2  # products, and loads
FAR = 2  # cycles for a vector from the second cache
STRIDED = 8  # rows of a matrix at a time: more may fall on the same places of the first cache
NEAR = 16  # elements between neighbouring rows that are no such case
NARROW = 3  # vectors, below which a result's width is taken as it is
DEEP = 768  # terms of a sum that b's panel holds, so that it stays in the second cache


@dataclass(frozen=True, slots=True)
class Contraction:
    """A sum of products a * b. own: the axes of the result that only a, and only b, hang on; both:
    those of both (groups, batches)."""

    a: Load
    b: Load
    of_a: tuple[Axis, ...]
    of_b: tuple[Axis, ...]
    both: tuple[Axis, ...]


def contraction(t: Tensor, constants: Collection[Tensor]) -> Contraction | None:
    """The sum of products that `t` is, or is made of."""
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
    if (a.tensor in constants and b.tensor not in constants) or (
        (a.tensor in constants) == (b.tensor in constants) and _lane(t, a) and not _lane(t, b)
    ):
        a, b = b, a
    in_a, in_b = (set[Axis]().union(*map(axes_of, e.index)) for e in (a, b))
    of_a = tuple(x for x in t.axes if x in in_a and x not in in_b)
    of_b = tuple(x for x in t.axes if x in in_b and x not in in_a)
    return Contraction(a, b, of_a, of_b, tuple(x for x in t.axes if x in in_a and x in in_b))


def _lane(t: Tensor, e: Load) -> bool:
    """Does the last axis of `t` go along the last dimension of what is read?"""
    return bool(e.index) and bool(t.axes) and t.axes[-1] in axes_of(e.index[-1])


def tiles(
    m: int, n: int, lanes: int, most: int = 14, registers: int = 1
) -> Iterator[tuple[float, int, int]]:
    """Register tiles of `rows` times `vectors`: (cycles that all of them take, rows, vectors).

    most: rows at most. registers: that a vector is. Vectors of b come from the second cache, a
    row's numbers from the first.
    """
    for vectors in range(1, 9):
        wide = vectors * registers
        if lanes * vectors > max(n, lanes):
            break
        for rows in range(1, max(min(m, most), 1) + 1):
            if rows * wide > ACCUMULATORS or rows * wide + wide + 1 > 32:
                break
            loads = max((rows + wide) / PER_CYCLE, FAR * wide)
            step = max(rows * wide / PER_CYCLE, loads, LATENCY)
            count = -(-m // rows) * -(-n // (lanes * vectors))
            yield count * (step + 0.25), rows, vectors


def scheduled(
    t: Tensor,
    c: Contraction,
    layouts: Mapping[Tensor, Layout | Scatter],
    lanes: int,
) -> Schedule | None:
    """A schedule for a contraction whose b lies, or can be laid, along vectors. None: not so."""
    out, given = lying(layouts.get(t), t.rank), lanes
    order = [t.axes[p.axis] for p in reversed(out.parts)]  # the axes, the innermost first
    along = [x for x in order if x in c.of_b]
    across = list(dict.fromkeys(x for x in order if x in c.of_a))
    if not along or along[0] != order[0]:
        return None
    n = along[0]
    width = _extent(n)
    m = across[0] if across else None
    if m is not None and _extent(m) < 4:
        m = max(across, key=_extent)
    if width < lanes or (width % lanes and width < NARROW * lanes):
        lanes = width  # all of it, in vectors of which the last one is shorter
    most = STRIDED if m is not None and abs(_apart(c.a, m, layouts)) > NEAR else 14
    full = -(-lanes // given)
    some = tiles(1 if m is None else _extent(m), width, lanes, most, full)
    _, rows, vectors = min(some)
    return _written(t, c, layouts, (m, rows), (n, vectors, lanes))


def _apart(a: Load, m: Axis, layouts: Mapping[Tensor, Layout | Scatter]) -> int:
    """How many elements are between those of neighbouring rows."""
    layout = layouts.get(a.tensor)
    if isinstance(layout, Layout):
        shape = [n for n in a.tensor.shape if isinstance(n, int)]
        inside = Tensor(a.tensor.name, a.dtype, layout.shape(shape))
        step = strides(Load(inside, layout.place(a.index), a.dtype), m)
    else:
        step = strides(a, m)
    return NEAR if step is None else step


def _written(
    t: Tensor,
    c: Contraction,
    layouts: Mapping[Tensor, Layout | Scatter],
    by_m: tuple[Axis | None, int],
    by_n: tuple[Axis, int, int],
) -> Schedule:
    (m, rows), (n, vectors, lanes) = by_m, by_n
    steps: list[Primitive] = [Split(n.name, lanes), Split(f"{n.name}.o", vectors)]
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
    over = list(_reduced(steps, c, found.axes, layouts))
    first = [*rest[:1], *ways, *rest[1:], *after] if rest else [*ways, *after]
    deep = _deep(found.axes)
    if deep and m is not None and len(over) == 1:
        (k,) = over
        steps.append(Split(k, deep))
        first, inner = [x for x in first if x not in after], [*after, f"{k}.i"]
        steps.append(Reorder((*first, f"{k}.o", *inner, *tile)))
    else:
        steps.append(Reorder((*first, *over, *tile)))
    steps += [Unroll(x) for x in tile[:-1]]
    steps.append(Vectorize(tile[-1]))
    steps += _shared(first)
    return tuple(steps)


def _deep(over: tuple[Axis, ...]) -> int:
    """The terms of a block, where one long sum is taken in blocks; else 0."""
    if len(over) != 1 or _extent(over[0]) <= 2 * DEEP:
        return 0
    n = _extent(over[0])
    return next((d for d in range(DEEP, DEEP // 3, -1) if n % d == 0), 0)


def _shared(first: list[str]) -> list[Primitive]:
    """Several threads do the steps of the outer loops."""
    return [Parallel(name) for name in first[:3]]


def _reduced(
    steps: list[Primitive],
    c: Contraction,
    over: tuple[Axis, ...],
    layouts: Mapping[Tensor, Layout | Scatter],
) -> Iterator[str]:
    """The loops of the sum: blocks of a's layout outside, what is within a block innermost."""
    last = []
    for k in over:
        block = _block(c.a, k, layouts.get(c.a.tensor))
        if block > 1 and _extent(k) > block and _extent(k) % block == 0:
            steps.append(Split(k.name, block))
            last.append(f"{k.name}.i")
            yield f"{k.name}.o"
        else:
            yield k.name
    yield from last


def _block(a: Load, k: Axis, layout: Layout | Scatter | None) -> int:
    if not isinstance(layout, Layout):
        return 1
    for p in layout.parts:
        if p.within and k in axes_of(a.index[p.axis]):
            return p.block
    return 1


def _extent(a: Axis) -> int:
    assert isinstance(a.extent, int)
    return a.extent


def strides(e: Load, axis: Axis) -> int | None:
    """How far apart in memory, row by row, neighbours along `axis` are; None where it varies."""
    step, size = 0, 1
    for i, n in zip(reversed(e.index), reversed(e.tensor.shape), strict=True):
        form = affine.affine(i)
        if form is None:
            return None
        step += form.coefficient(axis) * size
        assert isinstance(n, int)
        size *= n
    return step
