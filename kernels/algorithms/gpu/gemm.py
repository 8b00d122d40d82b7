"""GEMM on a GPU: blocks of the result and of the sum, multiplied by tensor cores (tl.dot).

    gemm          a block of the result for each program; windows are loops around it
    split_k_gemm  several parts of the sum at a time, added by another kernel, if the result has too
                  few blocks for all multiprocessors

gemm_cost_model.py ranks the blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import log, sqrt

import numpy as np

from superopt.kernels.algorithms.algorithm import Algorithm
from superopt.kernels.algorithms.gpu.blocks import (
    L2_BYTES,
    MULTIPROCESSORS,
    SUBBLOCKS,
    elements_per_program,
    elementwise_schedule,
    fuse_axes,
    memory_order_axes,
    split_sum,
)
from superopt.kernels.algorithms.gpu.gemm_cost_model import rank_options
from superopt.kernels.algorithms.gpu.matrix_product import (
    MatrixProduct,
    match_matrix_product,
    recognise_gemm,
)
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.loops.loop_nest import replace_reduction
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.schedule import (
    Fuse,
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from superopt.kernels.loops.substitution import replace_loads, scatter_layout, substitute_and_fold
from superopt.kernels.triton.dot_limits import MIN_DOT_EXTENT
from superopt.te.analysis.walk import index_axes
from superopt.te.expr import index
from superopt.te.expr.node import Apply, Axis, Dim, Expr, Load, Reduce
from superopt.te.expr.symbolic_int import hint, is_symbolic
from superopt.te.expr.tensor import Tensor


def gemm_options(p: Problem, m: MatrixProduct) -> Iterator[Option]:
    """Yield options by estimated time."""
    yield from rank_options(m)


def product_choice(p: Problem, m: MatrixProduct, o: Option) -> Choice:
    """Return the choice of an option for this product, with split-K or without."""
    own, made = p, None
    fixed = m.contraction.b.tensor in p.constants
    turned = fixed and (m.operand_bytes != 2 or m.is_swapped or o["columns"] < MIN_DOT_EXTENT)
    if turned:
        own, made = with_contiguous_terms(
            p, m.contraction.b, m.reduction_axes[-1], m.contraction.b_axes
        )
        found = match_matrix_product(own, m.is_swapped)
        assert found is not None
        m = found
    packed = (m.contraction.b.tensor,) if fixed and not turned else ()
    t = own.tensor
    if o.algorithm == "split_k_gemm":
        how = split_k_choice(own, m, o, packed)
    else:
        lies = None if own is p else scatter_layout(t, own.layouts.get(t), t.axes, t.axes)
        how = Choice(
            o, t, {t: dot_schedule(m, o)}, packed, lies, programs=dict(o.knobs).get("programs", 0)
        )
    return how if made is None else replace(how, derived_constants=made)


DerivedConstants = Mapping[Tensor, tuple[Tensor, Callable[[np.ndarray], np.ndarray]]]


@lru_cache(maxsize=1 << 12)
def transposed_constant(t: Tensor, order: tuple[int, ...], shape: tuple[Dim, ...]) -> Tensor:
    """Return the constant with its dimensions in this order: one tensor for all readers."""
    return Tensor(f"{t.name}_turned", t.dtype, shape)


def transpose_array(array: np.ndarray, t: Tensor, order: Sequence[int]) -> np.ndarray:
    """Return a constant's array with its dimensions in this order."""
    shape = [n for n in t.shape if isinstance(n, int)]
    return np.ascontiguousarray(array.reshape(shape).transpose(order))


def with_contiguous_terms(
    p: Problem, b: Load, last: Axis, columns: Sequence[Axis]
) -> tuple[Problem, DerivedConstants]:
    """Return the problem with a constant whose terms along `last` are contiguous, and the constants
    made. Tensor cores read 32-bit operands so, and Triton 3.6 sometimes transposes them wrongly in
    a pipelined loop; and a program with few results reads a contiguous range."""
    t = p.tensor
    first = [d for d, i in enumerate(b.index) if index_axes(i) & set(columns)]
    end = [d for d, i in enumerate(b.index) if last in index_axes(i) and d not in first]
    order = [*first, *(d for d in range(b.tensor.rank) if d not in (*first, *end)), *end]
    turned = transposed_constant(b.tensor, tuple(order), tuple(b.tensor.shape[d] for d in order))

    def make(array: np.ndarray) -> np.ndarray:
        return transpose_array(array, b.tensor, order)

    def read(e: Expr) -> Expr:
        match e:
            case Load(x, index, dtype) if x is b.tensor:
                return Load(turned, tuple(index[d] for d in order), dtype)
            case Apply(fn, args, dtype):
                return Apply(fn, tuple(map(read, args)), dtype)
            case Reduce(fn, axes, body, dtype):
                return Reduce(fn, axes, read(body), dtype)
        return e

    assert t.body is not None
    root = Tensor(t.name, t.dtype, t.shape, t.axes, read(t.body))
    layouts = {(root if x is t else x): y for x, y in p.layouts.items()}
    constants = {*p.constants, turned}
    return replace(p, tensor=root, layouts=layouts, constants=constants), {turned: (b.tensor, make)}


def dot_schedule(m: MatrixProduct, o: Option) -> Schedule:
    """Return the schedule of a tl.dot option."""
    steps: list[Primitive] = [
        Reorder(tuple(a.name for a in (*m.batch, *m.rows, *m.columns, *m.reduction_axes)))
    ]
    row, column = fuse_axes(steps, m.rows), fuse_axes(steps, m.columns)
    last = m.reduction_axes[-1].size
    if last >= m.min_dot_terms:
        *window, k = [a.name for a in m.reduction_axes]
    else:
        window, k, last = [], fuse_axes(steps, m.reduction_axes), m.sizes[2]
    high, wide = (
        o[name] if is_symbolic(n) else min(o[name], n)
        for name, n in zip(("rows", "columns"), m.sizes, strict=False)
    )
    steps += [Split(row, high), Split(column, wide), split_sum(k, last, o["k_block"])]
    outer = [*(a.name for a in m.batch), f"{row}.o", f"{column}.o"]
    lines = _row_blocks_per_group(m, o)
    if lines > 1:
        steps.append(Split(f"{row}.o", lines))
        outer[-2:] = [f"{row}.o.o", f"{column}.o", f"{row}.o.i"]
    ends, apart = [f"{row}.i", f"{column}.i"], list[str]()
    for n, size in enumerate((high, wide)):
        if size % SUBBLOCKS == 0 and size == o[("rows", "columns")[n]]:
            steps.append(Split(ends[n], size // SUBBLOCKS))
            apart.append(f"{ends[n]}.o")
            ends[n] = f"{ends[n]}.i"
    inner = [f"{k}.i", *ends]
    steps.append(Reorder((*outer, *window, f"{k}.o", *apart, *inner)))
    for name in window[1:]:
        steps.append(Fuse(window[0], name))
        window[0] = f"{window[0]}_{name}"
    if window:
        steps.append(Fuse(window[0], f"{k}.o"))
    steps += [Parallel(x) for x in outer]
    steps += [Unroll(x) for x in apart]
    return (*steps, Unroll(f"{k}.i"), Unroll(ends[0]), Vectorize(ends[1]))


def _row_blocks_per_group(m: MatrixProduct, o: Option) -> int:
    """Return how many row blocks precede the next column block (grouped ordering): if operands
    exceed L2, concurrent blocks should read as little as possible."""
    rows, columns, terms = map(hint, m.sizes)
    gates, windows = dict(o.knobs).get("gates", 1), hint(m.window_size)
    read = (rows / windows + gates * columns) * terms * m.contraction.b.dtype.bits / 8
    count = -(-rows // o["rows"])
    if read <= L2_BYTES or count * -(-columns // o["columns"]) <= MULTIPROCESSORS:
        return 1
    best = sqrt(MULTIPROCESSORS * gates * o["columns"] / o["rows"])
    return min((n for n in range(1, count + 1) if count % n == 0), key=lambda n: abs(log(n / best)))


def split_k_choice(p: Problem, m: MatrixProduct, o: Option, packed: tuple[Tensor, ...]) -> Choice:
    """Return the choice with the sum's last axis in parts; the epilogue adds them."""
    t, found, parts = p.tensor, reduction(p.tensor), o["parts"]
    assert found is not None
    k = m.reduction_axes[-1]
    n = k.size // parts
    if n * parts != k.size:
        raise ValueError(f"{o}: {k.size} terms do not split into {parts} equal parts")
    part, rest, again = Axis("part", parts), Axis(f"{k.name}r", n), Axis("part", parts)
    body = substitute_and_fold(found.body, {k: index.as_index(part * n + rest)})
    over = tuple(rest if a == k else a for a in found.axes)
    order = memory_order_axes(p)
    axes = (part, *order)
    shape = tuple(a.extent for a in axes)
    before = Tensor("parts", found.dtype, shape, axes, Reduce("sum", over, body, found.dtype))
    buffer, held = Tensor("summed", found.dtype, shape), Tensor("held", found.dtype, t.shape)
    total = Reduce("sum", (again,), Load(buffer, (again, *order), found.dtype), found.dtype)
    assert t.body is not None
    root = Tensor(
        t.name,
        t.dtype,
        t.shape,
        t.axes,
        replace_loads(replace_reduction(t.body, found, held, t.axes), held, total),
    )
    own = {x: y for x, y in p.layouts.items() if x != t}
    lies = p.layouts.get(t)
    inner = match_matrix_product(replace(p, tensor=before, layouts=own), m.is_swapped)
    assert inner is not None
    outer = replace(p, tensor=root, layouts=own if lies is None else {**own, root: lies})
    schedules = {
        before: dot_schedule(inner, o),
        root: elementwise_schedule(outer, elements_per_program(t)),
    }
    return Choice(
        o, root, schedules, packed, scatter_layout(t, lies, t.axes, t.axes), {}, ((before, buffer),)
    )


GEMM = Algorithm(
    ("gemm", "split_k_gemm"),
    "GEMM, batched GEMM, convolution as implicit GEMM: tensor cores",
    recognise_gemm,
    gemm_options,
    product_choice,
    exclusive=True,
)
