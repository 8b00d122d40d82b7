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
    rows     row kernels (plan/rows.py), a row at a time
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

from superopt.kernels import contraction as co
from superopt.kernels import gpu_flash as flash
from superopt.kernels import gpu_gates as gg
from superopt.kernels.factor import scattered
from superopt.kernels.gpu_attention import attended, attending
from superopt.kernels.gpu_blocks import (
    DOT,
    MULTIPROCESSORS,
    block,
    count,
    each,
    fused,
    side_by_side,
    step,
    stride,
    taken,
)
from superopt.kernels.gpu_cudnn import convolution, convolved
from superopt.kernels.gpu_few import by_columns, columns_of
from superopt.kernels.gpu_groups import grouped
from superopt.kernels.gpu_library import library, offered
from superopt.kernels.gpu_narrow import narrow, narrowed, widened
from superopt.kernels.gpu_products import Made, by_terms, matrix_of, multiplied
from superopt.kernels.gpu_ranking import ranked
from superopt.kernels.gpu_rows import LARGEST, by_rows, in_memory, short_and_long
from superopt.kernels.gpu_windows import tile, tiles, windows
from superopt.kernels.identity import computation
from superopt.kernels.online import online
from superopt.kernels.option import Option
from superopt.kernels.problem import Choice, Problem
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
from superopt.te.node import Axis, Reduce
from superopt.te.walk import axes_of, loads

LARGE = 2**33  # products from which the vendor's library is the unmeasured default
ELEMENTS = 1024  # of a result at a time
TERMS = 256  # of a result at a time, if each is a sum
TURNS = (64, 32)  # of the read and of the written contiguous axis
SUMMED = 1024  # of a sum at a time
ALONE = 512  # results up to which terms are taken in blocks, not one by one
FEW = 64  # for each multiprocessor; with fewer, sums are computed one at a time
# elements of a constant, for few rows, from which dots come first; dots tried
MATRIX, DOTS = 1 << 21, 8
BESIDE, TALL = 16, 512  # results that are read contiguously; and terms of each, at most


def choice(
    p: Problem,
    wanted: Option | None = None,
    vendor: bool = True,
    forms: bool = True,
    fallback: Mapping[str, Option] | None = None,
) -> Choice:
    """Return the choice of the requested option, if the problem has it; else of that of its key in
    `fallback`; else of the best option."""
    some = [wanted]
    if wanted is not None and fallback:
        some.append(fallback.get(computation(p)))
    for o in some:
        if o is not None and o in options(p, vendor, forms):
            return chosen(p, o)
    return chosen(p, next(options(p, vendor, forms)))


def options(p: Problem, vendor: bool = True, forms: bool = True) -> Iterator[Option]:
    """Yield all options, the estimated fastest first. vendor: include vendor libraries. forms:
    allow algorithms that replace the sum by another computation, such as Winograd."""
    attention = online(p.tensor) if p.lead else None
    if attention is not None:
        first, *rest = attending(attention)
        yield first
        yield from flash.offered(attention, p.layouts) if vendor and forms else ()
        yield from rest
        return
    if p.lead:
        yield from short_and_long(p)
        return
    gated = gg.gated_of(p)
    if gated is not None:
        yield from gg.ways(gated, vendor)
        return
    groups = grouped(p)
    matrix = matrix_of(p if groups is None else groups.problem)
    few = narrow(p) if matrix is None else None
    own = list(_others(p) if matrix is None else ranked(matrix))
    own = own if few is None else [*narrowed(few), *own]
    if groups is not None:
        matrix = None  # no vendor library has it
    product = offered(p, matrix) if vendor and matrix is not None else None
    theirs = [product] if product is not None else [*convolved(p)] if vendor and forms else []
    large = product is not None and matrix is not None and prod(matrix.sizes) >= LARGE
    yield from (*theirs, *own) if large else (*own[:1], *theirs, *own[1:])


def _others(p: Problem) -> Iterator[Option]:
    """Yield the options of what is no matrix product."""
    found = reduction(p.tensor)
    if found is not None:
        yield from _few_rows(p, found)
        beside, n = _beside(p, found), prod(a.size for a in found.axes)
        few = count(p.tensor) < FEW * MULTIPROCESSORS and n >= FEW
        few = few or (count(p.tensor) <= ALONE and n >= BESIDE)
        if beside or few:
            yield _across_of(p, found)
    if _turned(p) is not None:
        for side in TURNS:
            yield Option.of("turn", rows=side, columns=max(TURNS), warps=4)
    if found is not None and (both := windows(p)) is not None:
        for elements, wide, deep, warps in tiles(p, found):
            columns = block(both[1].size, wide, DOT // 2)
            if columns:
                rows = elements >> (columns - 1).bit_length()
                more = {"deep": deep} if deep > 1 else {}
                yield Option.of("tile", rows=rows, columns=columns, **more, warps=warps)
    most = max(count(p.tensor) // (2 * MULTIPROCESSORS), 64)
    elements = 1 << min(ELEMENTS if found is None else TERMS, most).bit_length() - 1
    for n in dict.fromkeys((elements, 256, 512, 1024)):
        yield Option.of("each", elements=n, warps=max(1, min(4, n // 64)))


def _few_rows(p: Problem, found: Reduce) -> Iterator[Option]:
    """Yield the options of products of a constant with too few rows for blocks."""
    other = _by_terms(p)
    turned = {} if other is None else {"turned": 1}
    if other is not None or _beside(p, found):
        m = matrix_of(p, sideways=True)
        dots = [] if m is None else list(islice(ranked(m), DOTS))
        few = list(by_columns(p if other is None else other[0], found, **turned))
        large = m is not None and m.sizes[0] * m.sizes[2] >= MATRIX
        yield from (*dots, *few) if large else (*few, *dots)
    if other is not None:
        yield _across_of(other[0], found, **turned)


def chosen(p: Problem, option: Option) -> Choice:
    """Return the choice of an option. Raises ValueError if the problem does not have it."""
    t = p.tensor
    match option.algorithm:
        case "library" if p.lead:
            attention = online(t)
            whole = None if attention is None else flash.flash(attention, p.layouts, option)
            if whole is not None:
                return whole
        case "library":
            m = matrix_of(p)
            whole = None if m is None else library(p, m, option)
            if (whole := whole or convolution(p, option)) is not None:
                return whole
        case "gated" | "apart" if (gated := gg.gated_of(p)) is not None:
            if (whole := gg.chosen(gated, option)) is not None:
                return whole
        case "dot" | "split":
            groups = grouped(p)
            own = p if groups is None else groups.problem
            m = matrix_of(own)
            if m is not None and groups is None:
                return multiplied(p, m, option)
            if m is None and (few := narrow(p)) is not None:
                return widened(p, few, option)
            if m is None and (m := matrix_of(p, sideways=True)) is not None:
                return multiplied(p, m, option)
            if m is not None and groups is not None:
                how = multiplied(own, m, option)
                return replace(how, lies=groups.lies, made={**groups.made, **how.made})
        case "online" if p.lead and (attention := online(t)) is not None:
            return attended(attention, option)
        case "rows" if p.lead:
            knobs = dict(option.knobs)
            most = knobs.get("step", LARGEST)
            laid = by_rows(t, p.lead, knobs.get("high", 1), most)
            return Choice(option, t, laid, settles=in_memory(t, p.lead, most))
        case "across" if "turned" in dict(option.knobs):
            other = _by_terms(p)
            if other is not None:
                turned, constants = other
                x = turned.tensor
                lies = scattered(x, turned.layouts.get(x), x.axes, x.axes)
                return Choice(option, x, {x: _across(turned, option)}, (), lies, made=constants)
        case "across" if reduction(t) is not None:
            return Choice(option, t, {t: _across(p, option)})
        case "turn":
            along = _turned(p)
            if along is not None:
                return Choice(option, t, {t: _turning(p, along, option)})
        case "tile" if windows(p) is not None:
            deep = dict(option.knobs).get("deep", 1)
            windowed, total = tile(p, option["rows"], option["columns"], deep), reduction(t)
            assert total is not None
            read = Counter(x.tensor for x in loads(total.body))
            once_read = (c for c, n in read.items() if n == 1 and c.shape and c in p.constants)
            return Choice(option, t, {t: windowed}, tuple(once_read))
        case "each":
            return Choice(option, t, {t: each(p, option["elements"])})
    raise ValueError(f"{option} is not an option of {t.name}")


def told(option: Option) -> tuple[int, int]:
    """Return the number of warps of an option's kernels, and of pipeline stages."""
    knobs = dict(option.knobs)
    return knobs.get("warps", 4), knobs.get("stages", 3)


# --- reductions, and all else ---


def _turned(p: Problem) -> list[Axis] | None:
    """Return consecutive axes along which an operand is contiguous but the result is not; None if
    there are none."""
    order = side_by_side(p)
    if p.tensor.body is None or not order or reduction(p.tensor) is not None:
        return None
    for x in loads(p.tensor.body):
        steps = {a: stride(x, a, p.layouts) for a in order}
        found = [n for n, a in enumerate(order[:-1]) if steps[a] == 1 and a.size >= DOT // 2]
        if not found or steps[order[-1]] in (None, 0, 1):
            continue
        first = last = found[-1]
        size = order[last].size
        while first and steps[order[first - 1]] == size:
            first -= 1
            size *= order[first].size
        if size >= DOT:
            return order[first : last + 1]
    return None


def _turning(p: Problem, along: list[Axis], o: Option) -> Schedule:
    """Return the schedule of tiles in which both reads and writes are contiguous."""
    order = side_by_side(p)
    inner = order[-1].name
    rest = [a.name for a in order[:-1] if a not in along]
    steps: list[Primitive] = [Reorder((*rest, *(a.name for a in along), inner))]
    name = fused(steps, along)
    size = prod(a.size for a in along)
    steps += [
        Split(name, min(o["rows"], size)),
        Split(inner, min(o["columns"], order[-1].size)),
    ]
    outer = [*rest, f"{name}.o", f"{inner}.o"]
    steps.append(Reorder((*outer, f"{name}.i", f"{inner}.i")))
    return (*steps, *map(Parallel, outer), Unroll(f"{name}.i"), Vectorize(f"{inner}.i"))


def _by_terms(p: Problem) -> tuple[Problem, Made] | None:
    """Return the problem with the terms of its constant contiguous, for few rows; None if they are
    already, or there is no constant."""
    c, found = co.contraction(p.tensor, p.constants, 1), reduction(p.tensor)
    if c is None or found is None or c.b.tensor not in p.constants or not c.of_b:
        return None
    last = found.axes[-1]
    if last.size < DOT or stride(c.b, last, p.layouts) == 1:
        return None
    own = by_terms(p, c.b, last, c.of_b)
    again = reduction(own[0].tensor)
    return own if again is not None and _beside(own[0], again) else None


def _across_of(p: Problem, found: Reduce, **more: int) -> Option:
    """Return an option with blocks of rows and terms."""
    beside = bool(more) or _beside(p, found)
    most = max(1, min(8, count(p.tensor) // (4 * MULTIPROCESSORS)))
    rows = min(1 << most.bit_length() - 1 if beside else BESIDE, max(count(p.tensor), 1))
    deep = step(prod(a.size for a in _together(p, found)), SUMMED if beside else TALL)
    warps = 4 if deep * rows > 512 else 1
    return Option.of("across", rows=rows, deep=deep, warps=warps, **more)


def _across(p: Problem, o: Option) -> Schedule:
    found = reduction(p.tensor)
    if "high" in dict(o.knobs):
        return columns_of(p, o)
    assert found is not None
    order = side_by_side(p)
    last = _together(p, found)
    outer = [a.name for a in found.axes if a not in last]
    steps: list[Primitive] = [Reorder((*(a.name for a in order), *(a.name for a in found.axes)))]
    k = fused(steps, last)
    terms = taken(k, prod(a.size for a in last), o["deep"])
    if not order:
        return (*steps, terms, Reorder((*outer, f"{k}.o", f"{k}.i")), Unroll(f"{k}.i"))
    name = fused(steps, order)
    steps += [Split(name, o["rows"]), terms]
    steps.append(Reorder((f"{name}.o", *outer, f"{k}.o", f"{k}.i", f"{name}.i")))
    return (*steps, Parallel(f"{name}.o"), Unroll(f"{k}.i"), Vectorize(f"{name}.i"))


def _together(p: Problem, found: Reduce) -> list[Axis]:
    """Return the innermost reduction axes that can be fused: equally spaced in all operands."""
    last: list[Axis] = []
    over = set(found.axes)
    some = [x for x in loads(found.body) if any(over & axes_of(i) for i in x.index)]
    for a in reversed(found.axes):
        inner = [b for b in last if b.size > 1]
        for x in some if inner and a.size > 1 else ():
            near, far = (stride(x, b, p.layouts) for b in (inner[0], a))
            if near is None or far != near * prod(a.size for a in inner):
                return last
        last.insert(0, a)
    return last


def _beside(p: Problem, found: Reduce) -> bool:
    """True if the terms of the sum are contiguous, and the elements of the result are not."""
    last = found.axes[-1]
    order = [a for a in side_by_side(p) if a.size > 1]
    if last.size < 32:
        return False
    some = [x for x in loads(found.body) if x.tensor.shape]
    along = [stride(x, last, p.layouts) for x in some]
    lane = [stride(x, order[-1], p.layouts) for x in some] if order else []
    return 1 in along and not any(s == 1 for s in lane)
