"""Blocks of a result on a GPU: axes in the order in which they lie, and what a multiprocessor
takes for a block. The numbers are an H100's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from superopt.kernels import contraction as co
from superopt.kernels.layout import Layout, Scatter, lying
from superopt.kernels.problem import Problem
from superopt.kernels.schedule import (
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
MULTIPROCESSORS = 132  # programs below which some have nothing to do (an H100's)
EACH = 16  # terms that take as long as it takes to begin a block of them
# In ns: a step that waits, a kernel, and one more that adds parts; in one of them the bytes that
# all multiprocessors read from the second cache, and the products that they do, of float32 and of
# halves.
STEP, START, AGAIN = 150.0, 1500.0, 2000.0
BYTES = 4000.0
PRODUCTS = {False: 100_000.0, True: 250_000.0}
SOFT, FUNCTIONS = 600.0, 2000.0  # a step of attention; and exponentials in a ns
ROOM, MOST = 128 * 128, 8  # elements of blocks, and these, that a multiprocessor has at a time


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


def side_by_side(p: Problem) -> list[Axis]:
    """The result's axes in the order in which it lies."""
    parts = lying(p.layouts.get(p.tensor), p.tensor.rank).parts
    return [p.tensor.axes[x.axis] for x in parts]


def count(t: Tensor) -> int:
    return prod(map(co.extent, t.axes))


def stride(x: Load, a: Axis, layouts: Mapping[Tensor, Layout | Scatter]) -> int | None:
    return co.strides(co.in_memory(x, layouts), a)
