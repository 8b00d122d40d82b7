"""Blocks of a result on a GPU: axes in memory order, and the cost model of a multiprocessor. The
numbers are an H100's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from superopt.kernels.algorithms import contraction
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.layout import Layout, ScatteredLayout, effective_layout
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.schedule import (
    Cover,
    Fuse,
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Vectorize,
)
from superopt.te.expr.node import Axis, Load
from superopt.te.expr.symbolic_int import hint, is_symbolic
from superopt.te.expr.tensor import Tensor

MULTIPROCESSORS = 132  # of an H100; with fewer programs some are idle
MASKED_BLOCK_MAX_RATIO = (
    0.6  # padded terms over those of blocks that divide the sum, which need no masks
)
BLOCK_START_TERMS = 16  # terms that take as long as starting a block of them
# Of a multiprocessor: bytes of shared memory, warps, and concurrent blocks; rows of a block from
# which warp groups multiply together (WGMMA).
SHARED_MEMORY_BYTES, MAX_WARPS_PER_SM, MAX_BLOCKS_PER_SM, MIN_WGMMA_ROWS = 227_000, 64, 16, 64
L2_BYTES = 1 << 25  # L2 capacity that persists during a kernel
PIPELINE_STAGES = 4  # steps of a sum in flight
# elements of blocks in registers, by whether PIPELINE_STAGES steps are in flight
REGISTER_BLOCK_ELEMENTS = {True: 20_000, False: 40_000}
SUBBLOCKS = 3  # of a block with an extent that is no power of two
# Fitted to 5,628 measurements of 259 fp16 products; the choice takes 3.6 % more than the best. In
# ns: a launch; another kernel that adds parts; starting a block; an element of its epilogue; the
# lower bound of a step, by whether WGMMA is used; loading an element of the rows, and its factor if
# channels are no whole vectors. Per ns, of a multiprocessor: fp16 products, by WGMMA, and bytes it
# loads; of the GPU: bytes from memory, and of partial sums.
LAUNCH_NS, ADD_PARTS_NS, BLOCK_START_NS, ELEMENT_END_NS = 1460.0, 1440.0, 920.0, 0.05
# An erf of an element, from 5 more products: with one block per multiprocessor at a time, and with
# more.
ERF_NS = {False: 0.38, True: 0.2}
MIN_STEP_NS = {True: 139.0, False: 180.0}
ROW_ELEMENT_NS, UNALIGNED_READ_FACTOR = 0.02, 6.0
PRODUCTS_PER_NS = {True: 2580.0, False: 950.0}
SM_BYTES_PER_NS, MEMORY_BYTES_PER_NS, PARTIAL_BYTES_PER_NS = 82.0, 4200.0, 5700.0
# Steps with twice as many terms, by 1,416 measurements of 74 products, by whether they are 16-bit:
# time relative to two other steps, latency relative to one; a block's added start, subtracted for a
# single step, which needs no loop. And tall blocks of image windows, by 16 bits.
DOUBLE_STEP_FACTORS = {True: (0.95, 1.7, 300.0), False: (1.1, 2.0, 0.0)}
WINDOW_STEP_FACTOR = {True: 1.2, False: 1.1}
# By 901 measurements of 24 products, 16-bit or not, and 707 of 184 products of models
# (docs/benchmarks/gpu_ways.json and gpu_ways_models.json): factors of a step with
# fewer and with more warps than usual; for fp32: factor of a step of the largest blocks, and lower
# bound of a step of long sums with three in flight; for persistent programs: factor of a block, and
# the next one's start; and the share of the memory time that is not hidden.
FEWER_WARPS_FACTOR, MORE_WARPS_FACTOR = 0.96, 1.04
LARGE_FP32_BLOCK_FACTOR, FP32_STEP_WAIT_NS = 0.93, 460.0
PERSISTENT_BLOCK_COSTS = 1.04, 100.0
HIDDEN_TIME_SHARE = 0.03


def elements_per_program(t: Tensor) -> int:
    """Return how many cheap elements of a result a program computes, so that all multiprocessors
    are busy."""
    return max(
        64,
        min(512, 1 << max(hint(result_elements(t)) // (2 * MULTIPROCESSORS), 1).bit_length() - 1),
    )


def elementwise_schedule(p: Problem, elements_at_once: int) -> Schedule:
    """Return the schedule of `elements_at_once` elements of the result, with reductions term by
    term."""
    order = memory_order_axes(p)
    found = reduction(p.tensor)
    over = [] if found is None else [a.name for a in found.axes]
    if not order:
        return ()
    steps: list[Primitive] = [Reorder((*(a.name for a in order), *over))]
    name = fuse_axes(steps, order)
    count = result_elements(p.tensor)
    steps += [
        Split(
            name, elements_at_once if is_symbolic(count) else min(elements_at_once, max(count, 1))
        )
    ]
    steps.append(Reorder((f"{name}.o", *over, f"{name}.i")))
    return (*steps, Parallel(f"{name}.o"), Vectorize(f"{name}.i"))


def fuse_axes(steps: list[Primitive], axes: Sequence[Axis]) -> str:
    """Fuse consecutive axes into one; return its name."""
    name = axes[0].name
    for a in axes[1:]:
        steps.append(Fuse(name, a.name))
        name = f"{name}_{a.name}"
    return name


def best_divisor(n: int, max_size: int, min_size: int) -> int:
    """Return the divisor of n in [min_size, max_size] that wastes the least: blocks are padded to
    powers of two, and each has a start cost; 0 if there is none."""
    some = [d for d in range(min_size, min(n, max_size) + 1) if n % d == 0]
    return min(some, key=lambda d: ((1 << (d - 1).bit_length()) + BLOCK_START_TERMS) / d, default=0)


def best_step(n: int, max_size: int) -> int:
    """Return how many of n terms to take at a time, at most max_size: the best divisor of n, or a
    power of two (as max_size is) whose last block is masked, if that is far cheaper."""
    divides = best_divisor(n, max_size, 1)
    covers = min((max_size, max_size // 2, max_size // 4), key=lambda d: _padded_terms(n, d))
    return (
        covers
        if _padded_terms(n, covers) < MASKED_BLOCK_MAX_RATIO * _padded_terms(n, divides)
        else divides
    )


def _padded_terms(n: int, d: int) -> int:
    """Return the cost of n terms in blocks of d, in terms."""
    return -(-n // d) * ((1 << (d - 1).bit_length()) + BLOCK_START_TERMS)


def split_sum(axis: str, n: int, d: int) -> Primitive:
    """Return the primitive that splits a sum of n terms into blocks of d."""
    return Cover(axis, d) if is_symbolic(n) or n % d else Split(axis, d)


def memory_order_axes(p: Problem) -> list[Axis]:
    """Return the result's axes in memory order."""
    parts = effective_layout(p.layouts.get(p.tensor), p.tensor.rank).parts
    return [p.tensor.axes[x.axis] for x in parts]


def result_elements(t: Tensor) -> int:
    """Return the number of elements of a result."""
    return prod(a.size for a in t.axes)


def memory_stride(
    x: Load, a: Axis, layouts: Mapping[Tensor, Layout | ScatteredLayout]
) -> int | None:
    """Return the distance in memory of neighbours along an axis; None if it varies."""
    return contraction.axis_stride(contraction.buffer_load(x, layouts), a)
