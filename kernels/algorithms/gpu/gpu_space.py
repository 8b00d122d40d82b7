"""Options of a GPU kernel by the kind of computation: blocks of the result, which are programs, and
of reductions, one after the other.

    dot      a matrix product by blocks of both operands (tl.dot); windows are loops around it
    split    the same with split-K: several parts of the sum at a time, added by another kernel,
             if the result has too few blocks for all multiprocessors
    library  a matrix product or convolution by the vendor's library (vendor_gemm.py,
             vendor_convolution.py), with its epilogue; attention (vendor_attention.py)
    gated, apart  products of one operand, combined into one result (gated_gemm.py)
    tile     reductions over windows, by tiles of pixels and channels (window_tiles.py)
    across   reductions along contiguous terms: a block of terms for several rows at a time
    each     all else: a block of elements of the result, reductions term by term
    turn     transposes, in tiles of both orders
    rows     row kernels (plan/rewrites/reductions/row_fusion.py), a row at a time
    online   attention, by blocks of keys (online_attention.py), also in parts

Result axes are fused in memory order, so that a block is contiguous. Knobs are those of a schedule;
warps and stages go to Triton's compiler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from math import prod

from superopt.kernels.algorithms import contraction
from superopt.kernels.algorithms.digests import problem_digest
from superopt.kernels.algorithms.gpu import gated_gemm
from superopt.kernels.algorithms.gpu import vendor_attention as flash
from superopt.kernels.algorithms.gpu.attention_blocks import attention_choice, attention_options
from superopt.kernels.algorithms.gpu.blocks import (
    MULTIPROCESSORS,
    best_divisor,
    best_step,
    elementwise_schedule,
    fuse_axes,
    memory_order_axes,
    memory_stride,
    result_elements,
    split_sum,
)
from superopt.kernels.algorithms.gpu.gemm import (
    DerivedConstants,
    match_matrix_product,
    product_choice,
    with_contiguous_terms,
)
from superopt.kernels.algorithms.gpu.gemm_cost_model import rank_options
from superopt.kernels.algorithms.gpu.grouped_gemm import match_grouped
from superopt.kernels.algorithms.gpu.n_padding import (
    match_narrow_product,
    padded_choice,
    padded_options,
)
from superopt.kernels.algorithms.gpu.online_attention import match_online_attention
from superopt.kernels.algorithms.gpu.row_programs import (
    MAX_BLOCK_ELEMENTS,
    keeps_row_in_memory,
    row_options,
    schedule_row_programs,
)
from superopt.kernels.algorithms.gpu.small_m_gemm import small_m_options, small_m_schedule
from superopt.kernels.algorithms.gpu.transpose_tiles import (
    TRANSPOSE_TILE_SIDES,
    transpose_schedule,
    transposed_axes,
)
from superopt.kernels.algorithms.gpu.vendor_convolution import (
    convolution_choice,
    convolution_options,
)
from superopt.kernels.algorithms.gpu.vendor_gemm import vendor_choice, vendor_option
from superopt.kernels.algorithms.gpu.window_tiles import (
    tile_candidates,
    window_axes,
    window_schedule,
)
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.schedule import (
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from superopt.kernels.loops.substitution import scatter_layout
from superopt.kernels.triton.dot_limits import MIN_DOT_EXTENT
from superopt.te.analysis.walk import index_axes, loads
from superopt.te.expr.node import Axis, Reduce

VENDOR_FIRST_PRODUCTS = 2**33  # products from which the vendor's library is the unmeasured default
MAX_ELEMENTS = 1024  # of a result at a time
MAX_SUM_ELEMENTS = 256  # of a result at a time, if each is a sum
MAX_BLOCK_TERMS = 1024  # of a sum at a time
MAX_BLOCK_SUM_RESULTS = 512  # results up to which terms are taken in blocks, not one by one
MIN_RESULTS_PER_SM = 64  # for each multiprocessor; with fewer, sums are computed one at a time
# elements of a constant, for few rows, from which dots come first; dots tried
MIN_DOT_FIRST_ELEMENTS, MAX_SWAPPED_DOTS = 1 << 21, 8
ADJACENT_RESULTS, MAX_ADJACENT_TERMS = (
    16,
    512,
)  # results that are read contiguously; and terms of each, at most


def choose(
    p: Problem,
    requested: Option | None = None,
    vendor: bool = True,
    forms: bool = True,
    fallback: Mapping[str, Option] | None = None,
) -> Choice:
    """Return the choice of the requested option, if the problem has it; else of that of its key in
    `fallback`; else of the best option."""
    some = [requested]
    if requested is not None and fallback:
        some.append(fallback.get(problem_digest(p)))
    for o in some:
        if o is not None and o in options(p, vendor, forms):
            return build_choice(p, o)
    return build_choice(p, next(options(p, vendor, forms)))


def options(p: Problem, vendor: bool = True, forms: bool = True) -> Iterator[Option]:
    """Yield all options, the estimated fastest first. vendor: include vendor libraries. forms:
    allow algorithms that replace the sum by another computation, such as Winograd."""
    attention = match_online_attention(p.tensor) if p.row_axes else None
    if attention is not None:
        first, *rest = attention_options(attention)
        yield first
        yield from flash.sdpa_options(attention, p.layouts) if vendor and forms else ()
        yield from rest
        return
    if p.row_axes:
        yield from row_options(p)
        return
    gated = gated_gemm.match_gated(p)
    if gated is not None:
        yield from gated_gemm.gated_options(gated, vendor)
        return
    groups = match_grouped(p)
    matrix = match_matrix_product(p if groups is None else groups.problem)
    few = match_narrow_product(p) if matrix is None else None
    own = list(_other_options(p) if matrix is None else rank_options(matrix))
    own = own if few is None else [*padded_options(few), *own]
    if groups is not None:
        matrix = None  # no vendor library has it
    product = vendor_option(p, matrix) if vendor and matrix is not None else None
    theirs = (
        [product] if product is not None else [*convolution_options(p)] if vendor and forms else []
    )
    large = (
        product is not None and matrix is not None and prod(matrix.sizes) >= VENDOR_FIRST_PRODUCTS
    )
    yield from (*theirs, *own) if large else (*own[:1], *theirs, *own[1:])


def _other_options(p: Problem) -> Iterator[Option]:
    """Yield the options of a problem that is not a matrix product."""
    found = reduction(p.tensor)
    if found is not None:
        yield from _small_m_options(p, found)
        beside, n = _has_contiguous_terms(p, found), prod(a.size for a in found.axes)
        few = (
            result_elements(p.tensor) < MIN_RESULTS_PER_SM * MULTIPROCESSORS
            and n >= MIN_RESULTS_PER_SM
        )
        few = few or (result_elements(p.tensor) <= MAX_BLOCK_SUM_RESULTS and n >= ADJACENT_RESULTS)
        if beside or few:
            yield _block_sum_option(p, found)
    if transposed_axes(p) is not None:
        for side in TRANSPOSE_TILE_SIDES:
            yield Option.make("turn", rows=side, columns=max(TRANSPOSE_TILE_SIDES), warps=4)
    if found is not None and (both := window_axes(p)) is not None:
        for elements, wide, deep, warps in tile_candidates(p, found):
            columns = best_divisor(both[1].size, wide, MIN_DOT_EXTENT // 2)
            if columns:
                rows = elements >> (columns - 1).bit_length()
                more = {"deep": deep} if deep > 1 else {}
                yield Option.make("tile", rows=rows, columns=columns, **more, warps=warps)
    most = max(result_elements(p.tensor) // (2 * MULTIPROCESSORS), 64)
    elements = 1 << min(MAX_ELEMENTS if found is None else MAX_SUM_ELEMENTS, most).bit_length() - 1
    for n in dict.fromkeys((elements, 256, 512, 1024)):
        yield Option.make("each", elements=n, warps=max(1, min(4, n // 64)))


def _small_m_options(p: Problem, reduction_expr: Reduce) -> Iterator[Option]:
    """Yield the options of products of a constant with too few rows for blocks."""
    other = _with_contiguous_terms(p)
    turned = {} if other is None else {"turned": 1}
    if other is not None or _has_contiguous_terms(p, reduction_expr):
        m = match_matrix_product(p, swapped=True)
        dots = [] if m is None else list(islice(rank_options(m), MAX_SWAPPED_DOTS))
        few = list(small_m_options(p if other is None else other[0], reduction_expr, **turned))
        large = m is not None and m.sizes[0] * m.sizes[2] >= MIN_DOT_FIRST_ELEMENTS
        yield from (*dots, *few) if large else (*few, *dots)
    if other is not None:
        yield _block_sum_option(other[0], reduction_expr, **turned)


def build_choice(p: Problem, option: Option) -> Choice:
    """Return the choice of an option. Raises ValueError if the problem does not have it."""
    t = p.tensor
    match option.algorithm:
        case "library" if p.row_axes:
            attention = match_online_attention(t)
            whole = None if attention is None else flash.sdpa_choice(attention, p.layouts, option)
            if whole is not None:
                return whole
        case "library":
            m = match_matrix_product(p)
            whole = None if m is None else vendor_choice(p, m, option)
            if (whole := whole or convolution_choice(p, option)) is not None:
                return whole
        case "gated" | "apart" if (gated := gated_gemm.match_gated(p)) is not None:
            if (whole := gated_gemm.gated_choice(gated, option)) is not None:
                return whole
        case "dot" | "split":
            groups = match_grouped(p)
            own = p if groups is None else groups.problem
            m = match_matrix_product(own)
            if m is not None and groups is None:
                return product_choice(p, m, option)
            if m is None and (few := match_narrow_product(p)) is not None:
                return padded_choice(p, few, option)
            if m is None and (m := match_matrix_product(p, swapped=True)) is not None:
                return product_choice(p, m, option)
            if m is not None and groups is not None:
                how = product_choice(own, m, option)
                return replace(
                    how,
                    layout=groups.layout,
                    derived_constants={**groups.derived_constants, **how.derived_constants},
                )
        case "online" if p.row_axes and (attention := match_online_attention(t)) is not None:
            return attention_choice(attention, option)
        case "rows" if p.row_axes:
            knobs = dict(option.knobs)
            most = knobs.get("step", MAX_BLOCK_ELEMENTS)
            laid = schedule_row_programs(t, p.row_axes, knobs.get("high", 1), most)
            return Choice(option, t, laid, in_place=keeps_row_in_memory(t, p.row_axes, most))
        case "across" if "turned" in dict(option.knobs):
            other = _with_contiguous_terms(p)
            if other is not None:
                turned, constants = other
                x = turned.tensor
                lies = scatter_layout(x, turned.layouts.get(x), x.axes, x.axes)
                return Choice(
                    option,
                    x,
                    {x: _block_sum_schedule(turned, option)},
                    (),
                    lies,
                    derived_constants=constants,
                )
        case "across" if reduction(t) is not None:
            return Choice(option, t, {t: _block_sum_schedule(p, option)})
        case "turn":
            along = transposed_axes(p)
            if along is not None:
                return Choice(option, t, {t: transpose_schedule(p, along, option)})
        case "tile" if window_axes(p) is not None:
            deep = dict(option.knobs).get("deep", 1)
            windowed, total = (
                window_schedule(p, option["rows"], option["columns"], deep),
                reduction(t),
            )
            assert total is not None
            read = Counter(x.tensor for x in loads(total.body))
            once_read = (c for c, n in read.items() if n == 1 and c.shape and c in p.constants)
            return Choice(option, t, {t: windowed}, tuple(once_read))
        case "each":
            return Choice(option, t, {t: elementwise_schedule(p, option["elements"])})
    raise ValueError(f"{option} is not an option of {t.name}")


def launch_parameters(option: Option) -> tuple[int, int]:
    """Return the number of warps of an option's kernels, and of pipeline stages."""
    knobs = dict(option.knobs)
    return knobs.get("warps", 4), knobs.get("stages", 3)


# --- reductions, and all else ---


def _with_contiguous_terms(p: Problem) -> tuple[Problem, DerivedConstants] | None:
    """Return the problem with the terms of its constant contiguous, for few rows; None if they are
    already, or there is no constant."""
    c, found = contraction.match_contraction(p.tensor, p.constants, 1), reduction(p.tensor)
    if c is None or found is None or c.b.tensor not in p.constants or not c.b_axes:
        return None
    last = found.axes[-1]
    if last.size < MIN_DOT_EXTENT or memory_stride(c.b, last, p.layouts) == 1:
        return None
    own = with_contiguous_terms(p, c.b, last, c.b_axes)
    again = reduction(own[0].tensor)
    return own if again is not None and _has_contiguous_terms(own[0], again) else None


def _block_sum_option(p: Problem, reduction_expr: Reduce, **extra_knobs: int) -> Option:
    """Return an option with blocks of rows and terms."""
    beside = bool(extra_knobs) or _has_contiguous_terms(p, reduction_expr)
    most = max(1, min(8, result_elements(p.tensor) // (4 * MULTIPROCESSORS)))
    rows = min(
        1 << most.bit_length() - 1 if beside else ADJACENT_RESULTS,
        max(result_elements(p.tensor), 1),
    )
    deep = best_step(
        prod(a.size for a in _mergeable_axes(p, reduction_expr)),
        MAX_BLOCK_TERMS if beside else MAX_ADJACENT_TERMS,
    )
    warps = 4 if deep * rows > 512 else 1
    return Option.make("across", rows=rows, deep=deep, warps=warps, **extra_knobs)


def _block_sum_schedule(p: Problem, o: Option) -> Schedule:
    found = reduction(p.tensor)
    if "high" in dict(o.knobs):
        return small_m_schedule(p, o)
    assert found is not None
    order = memory_order_axes(p)
    last = _mergeable_axes(p, found)
    outer = [a.name for a in found.axes if a not in last]
    steps: list[Primitive] = [Reorder((*(a.name for a in order), *(a.name for a in found.axes)))]
    k = fuse_axes(steps, last)
    terms = split_sum(k, prod(a.size for a in last), o["deep"])
    if not order:
        return (*steps, terms, Reorder((*outer, f"{k}.o", f"{k}.i")), Unroll(f"{k}.i"))
    name = fuse_axes(steps, order)
    steps += [Split(name, o["rows"]), terms]
    steps.append(Reorder((f"{name}.o", *outer, f"{k}.o", f"{k}.i", f"{name}.i")))
    return (*steps, Parallel(f"{name}.o"), Unroll(f"{k}.i"), Vectorize(f"{name}.i"))


def _mergeable_axes(p: Problem, reduction_expr: Reduce) -> list[Axis]:
    """Return the innermost reduction axes that can be fused: equally spaced in all operands."""
    last: list[Axis] = []
    over = set(reduction_expr.axes)
    some = [x for x in loads(reduction_expr.body) if any(over & index_axes(i) for i in x.index)]
    for a in reversed(reduction_expr.axes):
        inner = [b for b in last if b.size > 1]
        for x in some if inner and a.size > 1 else ():
            near, far = (memory_stride(x, b, p.layouts) for b in (inner[0], a))
            if near is None or far != near * prod(a.size for a in inner):
                return last
        last.insert(0, a)
    return last


def _has_contiguous_terms(p: Problem, reduction_expr: Reduce) -> bool:
    """True if the terms of the sum are contiguous, and the elements of the result are not."""
    last = reduction_expr.axes[-1]
    order = [a for a in memory_order_axes(p) if a.size > 1]
    if last.size < 32:
        return False
    some = [x for x in loads(reduction_expr.body) if x.tensor.shape]
    along = [memory_stride(x, last, p.layouts) for x in some]
    lane = [memory_stride(x, order[-1], p.layouts) for x in some] if order else []
    return 1 in along and not any(s == 1 for s in lane)
