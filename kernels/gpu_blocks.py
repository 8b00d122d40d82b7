"""Blocks of a result on a GPU: axes in the order in which they lie, and what a multiprocessor
takes for a block. The numbers are an H100's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from superopt.kernels import contraction as co
from superopt.kernels.layout import Layout, Scatter, lying
from superopt.kernels.problem import Problem
from superopt.kernels.schedule import (
    Cover,
    Fuse,
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Vectorize,
)
from superopt.kernels.transform import reduction
from superopt.te.expr import Tensor
from superopt.te.node import Axis, Load

DOT = 16  # the least extent of a dot's blocks
NARROW = 8  # but for columns, where several products share rows: tensor cores have no less
MULTIPROCESSORS = 132  # programs below which some have nothing to do (an H100's)
FAR = 0.6  # of the terms of blocks that divide a sum, which have no masks
EACH = 16  # terms that take as long as it takes to begin a block of them
# Of a multiprocessor: bytes of shared memory, warps, and blocks at a time; rows of a block from
# which on groups of warps multiply together.
SHARED, WARPS, MOST, WGMMA = 227_000, 64, 16, 64
CACHE = 1 << 25  # bytes, of what all of them share, that stay there while a kernel runs
STAGES = 4  # steps of a sum that are under way at a time
# Elements of blocks in registers: where so many steps are, and where fewer are.
ROOM = {True: 20_000, False: 40_000}
THIRD = 3  # blocks of which an extent is no power of two are three of these
# Fitted to 5,628 measurements of 259 products of halves, of which what is chosen takes 3.6 % more
# than the best, in ns: a kernel, one more that adds parts; a block's begin, an element of its end;
# a step of a sum at least, by whether groups multiply; an element of the rows that is read, and how
# much longer where channels are no whole vectors. In a ns, of a multiprocessor: products of halves,
# by whether groups multiply, and bytes that it reads; of all, bytes from memory, and of parts.
START, AGAIN, BEGIN, END = 1460.0, 1440.0, 920.0, 0.05
# And an erf of it, of 5 more products: where a multiprocessor has one block at a time, and more.
ERF = {False: 0.38, True: 0.2}
STEP = {True: 139.0, False: 180.0}
ROW, ROUGH = 0.02, 6.0
PRODUCTS = {True: 2580.0, False: 950.0}
BYTES, MEMORY, PARTIAL = 82.0, 4200.0, 5700.0
# Of steps with twice as many terms, by 1,416 measurements of 74 products, of halves or not: what
# such a step takes of two others, and how much longer it waits; a block's begin, and as much less
# where there is one step and so no loop. And of tall blocks of pictures' windows, in halves.
TWICE = {True: (0.95, 1.7, 300.0), False: (1.1, 2.0, 0.0)}
WINDOWED = {True: 1.2, False: 1.1}
# By 901 measurements of 24 products, of halves or not, and 707 of 184 ones of models
# (gpu_ways.json and gpu_ways_models.json in docs/benchmarks): a step by fewer warps than such a
# block has else, and by more; of float32, what a step of the largest blocks takes of that,
# and one of three under way of a long sum at least; of programs that take blocks in turns, what a block takes of one alone, and the next one's begin; and what counts of the time that what
# is in memory takes longer.
FEWER, MORE = 0.96, 1.04
WIDER, WAITS = 0.93, 460.0
IN_TURNS = 1.04, 100.0
HIDDEN = 0.03


def elements_of(t: Tensor) -> int:
    """Of a result at a time, where each takes little: as many programs as keep all busy."""
    return max(64, min(512, 1 << max(count(t) // (2 * MULTIPROCESSORS), 1).bit_length() - 1))


def each(p: Problem, elements: int) -> Schedule:
    order = side_by_side(p)
    found = reduction(p.tensor)
    over = [] if found is None else [a.name for a in found.axes]
    if not order:
        return ()
    steps: list[Primitive] = [Reorder((*(a.name for a in order), *over))]
    name = fused(steps, order)
    steps += [Split(name, min(elements, max(count(p.tensor), 1)))]
    steps.append(Reorder((f"{name}.o", *over, f"{name}.i")))
    return (*steps, Parallel(f"{name}.o"), Vectorize(f"{name}.i"))


def fused(steps: list[Primitive], axes: Sequence[Axis]) -> str:
    """The name of the axes as one, which follow each other."""
    name = axes[0].name
    for a in axes[1:]:
        steps.append(Fuse(name, a.name))
        name = f"{name}_{a.name}"
    return name


def block(n: int, most: int, least: int) -> int:
    """The factor of n, of at most `most`, by which blocks waste the least: of what is beyond them,
    for they are powers of two, and for each of them; 0 where it has none of at least `least`."""
    some = [d for d in range(least, min(n, most) + 1) if n % d == 0]
    return min(some, key=lambda d: ((1 << (d - 1).bit_length()) + EACH) / d, default=0)


def step(n: int, most: int) -> int:
    """Of a sum of n terms at a time, of at most `most`: a factor of n, by which blocks waste the
    least, or a power of two, as `most` is one, whose last block goes beyond the sum, where that is
    far less."""
    divides = block(n, most, 1)
    covers = min((most, most // 2, most // 4), key=lambda d: _terms(n, d))
    return covers if _terms(n, covers) < FAR * _terms(n, divides) else divides


def _terms(n: int, d: int) -> int:
    """How many terms blocks of d of n take as long as."""
    return -(-n // d) * ((1 << (d - 1).bit_length()) + EACH)


def taken(axis: str, n: int, d: int) -> Primitive:
    """A sum of n terms, d at a time."""
    return Cover(axis, d) if n % d else Split(axis, d)


def side_by_side(p: Problem) -> list[Axis]:
    """The result's axes in the order in which it lies."""
    parts = lying(p.layouts.get(p.tensor), p.tensor.rank).parts
    return [p.tensor.axes[x.axis] for x in parts]


def count(t: Tensor) -> int:
    return prod(a.size for a in t.axes)


def stride(x: Load, a: Axis, layouts: Mapping[Tensor, Layout | Scatter]) -> int | None:
    return co.strides(co.in_memory(x, layouts), a)
