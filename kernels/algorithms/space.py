"""The options of a kernel on the CPU by the kind of computation, and the one estimated to be the
fastest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from superopt.kernels.algorithms import (
    attention,
    collapsed_spatial_axes,
    contraction,
    forms,
    panel_packing,
    reduction_schedules,
    strassen,
    tree_walk,
    winograd,
)
from superopt.kernels.algorithms import row_kernels as rows
from superopt.kernels.algorithms.grouped_convolution import GroupedProducts, match_groups
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.algorithms.small_n_gemm import SmallNGemm, match_small_n_gemm
from superopt.kernels.algorithms.small_n_gemm import schedule_small_n_gemm as in_lanes
from superopt.kernels.llvm.register_tiles import SMALL_REGISTER_FILE
from superopt.kernels.loops.elementwise_schedule import (
    TILE_ELEMENTS,
    default_schedule,
    transpose_schedule,
)
from superopt.kernels.loops.layout import effective_layout
from superopt.kernels.loops.loop_transforms import initial_loops, reduction
from superopt.kernels.loops.option import Option

MAX_TRANSPOSE_SIDE = 16  # elements of a side of a transposed tile


def choose(p: Problem, requested: Option | None = None) -> Choice:
    """Return the choice of the requested option, if the problem has it; else of the best one."""
    first = best_option(p)
    if requested is not None and requested != first and requested in options(p):
        return build_choice(p, requested)
    return build_choice(p, first)


def best_option(p: Problem) -> Option:
    """Return the option that is estimated to be the fastest."""
    fused = _match_attention(p)
    if fused is not None:
        return _attention_option(*next(attention.block_options(fused)))
    if tree_walk.is_tree_walk(p.tensor):
        return Option.make("walk", trees=tree_walk.MAX_TREES)
    if p.row_axes:
        return Option.make("rows", lanes=_row_elements(p))
    found = _match_product(p)
    if found is not None:
        c, frame = found
        directly, time = _direct_option(p, c, frame)
        if (tiled := forms.profitable_winograd_plan(p, c, time)) is not None:
            return forms.winograd_option(tiled[1])
        square = forms.strassen_product(p, c)
        if square is not None:
            rows = square.image_count * square.rows_per_image
            times = rows // (1 if frame.m is None else frame.m.size)
            row = times * min(frame.register_tiles())[0]
            starts = (
                forms.STRASSEN_MAX_SHORT_BLOCK_TIME_RATIO
                if _block_terms(p, c)[0] in contraction.L1_PANEL_TERMS
                else forms.STRASSEN_MAX_TIME_RATIO
            )
            plan = forms.profitable_strassen_plan(
                square, p.lanes, p.strassen_levels, row, p.registers, starts, frame.split_vectors
            )
            if plan is not None:
                return forms.strassen_option(plan)
        if flowing := list(_streamed_options(p, c)):
            return flowing[0]
        if (narrow := _match_small_n(p)) is not None:
            return Option.make("few", rows=narrow.row_options[0])
        return directly
    each = _match_groups(p)
    some = reduction_schedules.reduction_options(p.tensor, p.layouts, p.lanes, p.registers)
    if each is not None and not (some and _prefers_whole_vectors(p, each)):
        _, rows, vectors = min(each.tiling.register_tiles())
        return Option.make("groups", rows=rows, vectors=vectors)
    if some:
        return min(some, key=lambda x: x[0])[1]
    if transpose_schedule(p.tensor, p.layouts, transpose_side(p)) is not None:
        return Option.make("turning", lanes=transpose_side(p))
    return Option.make("loops", lanes=TILE_ELEMENTS)


def transpose_side(p: Problem) -> int:
    """Return the side of a transposed tile: so many vectors must be in registers."""
    return min(p.lanes, MAX_TRANSPOSE_SIDE)


def estimated_product_cost(p: Problem) -> float | None:
    """Return the estimated time of a contraction, direct or by Winograd, in vector FMAs; None if it
    is none."""
    found = _match_product(p)
    if found is None:
        return None
    _, time = _direct_option(p, *found)
    tiled = forms.profitable_winograd_plan(p, found[0], time)
    return time if tiled is None else tiled[0]


def _row_elements(p: Problem) -> int:
    """Return the elements of rows at a time: with few registers all of a short row, else as few as
    hide latency (18 softmaxes and norms of 33 to 30,522 elements)."""
    if p.registers != SMALL_REGISTER_FILE:
        return TILE_ELEMENTS
    return 2 * TILE_ELEMENTS if p.tensor.axes[-1].size <= 2 * TILE_ELEMENTS else TILE_ELEMENTS // 4


def _direct_option(
    p: Problem, c: contraction.Contraction, frame: contraction.RegisterTiling
) -> tuple[Option, float]:
    """Return the option of register tiles, and its estimated time in vector FMAs."""
    deep = _block_terms(p, c)[0]
    short = deep in contraction.L1_PANEL_TERMS
    how, of = "direct", frame
    if (one := _match_collapsed(p, c, frame)) and collapsed_spatial_axes.is_profitable(
        one, frame, short
    ):
        how, of = "flat", one.tiling
    elif panel_packing.can_pack(p, c, frame) and panel_packing.is_profitable(p, c, frame):
        how = "packing"
    time, rows_, vectors = min(of.register_tiles(short))
    times = prod(a.size for a in c.a_axes) // max(1 if of.m is None else of.m.size, 1)
    option = Option.make(how, rows=rows_, vectors=vectors, deep=deep)
    return option, time * times * of.terms


def _block_terms(p: Problem, c: contraction.Contraction) -> list[int]:
    """Return K block sizes, best first."""
    return contraction.sum_block_sizes(p.tensor, c, p.layouts, p.registers)


def options(p: Problem) -> Iterator[Option]:
    """Yield all options, the estimated fastest first."""
    first = best_option(p)
    yield first
    yield from (o for o in dict.fromkeys(_options(p)) if o != first)


def _options(p: Problem) -> Iterator[Option]:
    fused = _match_attention(p)
    if fused is not None:
        yield from (_attention_option(*some) for some in attention.block_options(fused))
        return
    if tree_walk.is_tree_walk(p.tensor):
        yield from (Option.make("walk", trees=n) for n in (8, 16, 32))
        return
    if p.row_axes:
        yield from (
            Option.make("rows", lanes=n)
            for n in (TILE_ELEMENTS // 4, TILE_ELEMENTS // 2, TILE_ELEMENTS, 2 * TILE_ELEMENTS)
        )
        return
    found = _match_product(p)
    if found is not None:
        c, frame = found
        yield from _streamed_options(p, c)
        narrow = _match_small_n(p)
        yield from (
            () if narrow is None else (Option.make("few", rows=n) for n in narrow.row_options)
        )
        for _, rows, vectors in sorted(frame.register_tiles()):
            for deep in _block_terms(p, c):
                knobs = {"rows": rows, "vectors": vectors, "deep": deep}
                yield Option.make("direct", **knobs)
                if panel_packing.can_pack(p, c, frame):
                    yield Option.make("packing", **knobs)
        if one := _match_collapsed(p, c, frame):
            for _, rows_, vectors in sorted(one.tiling.register_tiles()):
                for deep in _block_terms(p, c):
                    yield Option.make("flat", rows=rows_, vectors=vectors, deep=deep)
        picture = forms.winograd_convolution(p, c)
        if picture is not None:
            for m in picture.tile_options():
                yield from (
                    forms.winograd_option(x)
                    for _, x in winograd.candidate_plans(picture, m, p.lanes, p.registers)
                )
        square = forms.strassen_product(p, c)
        if square is not None:
            yield from map(
                forms.strassen_option,
                strassen.candidate_plans(
                    square, p.lanes, p.strassen_levels, p.registers, frame.split_vectors
                ),
            )
    each = _match_groups(p)
    if each is not None:
        for _, rows, vectors in sorted(each.tiling.register_tiles()):
            yield Option.make("groups", rows=rows, vectors=vectors)
    for _, option in sorted(
        reduction_schedules.reduction_options(p.tensor, p.layouts, p.lanes, p.registers),
        key=lambda x: x[0],
    ):
        yield option
    if transpose_schedule(p.tensor, p.layouts, transpose_side(p)) is not None:
        yield Option.make("turning", lanes=transpose_side(p))
    if found is None:
        yield from (
            Option.make("loops", lanes=n)
            for n in (TILE_ELEMENTS // 4, TILE_ELEMENTS // 2, TILE_ELEMENTS, 2 * TILE_ELEMENTS)
        )


def build_choice(p: Problem, option: Option) -> Choice:
    """Return the choice of an option. Raises ValueError or KeyError if the problem does not have
    it."""
    match option.algorithm:
        case "direct" | "packing":
            c, frame = _require_product(p, option)
            tile = option["rows"], option["vectors"], option["deep"]
            near = option.algorithm == "packing"
            block = panel_packing.row_block(p.tensor, frame, *tile[:2]) if near else 0
            how = contraction.schedule_contraction(
                p.tensor, c, p.layouts, frame, *tile, block, near
            )
            packed = (c.b.tensor,) if c.b.tensor in p.constants else ()
            return Choice(option, p.tensor, {p.tensor: how}, packed)
        case "flat":
            c, frame = _require_product(p, option)
            if one := _match_collapsed(p, c, frame):
                rows_, wide, deep = option["rows"], option["vectors"], option["deep"]
                how = collapsed_spatial_axes.schedule_collapsed(one, p.layouts, rows_, wide, deep)
                packed = (
                    (one.contraction.b.tensor,) if one.contraction.b.tensor in p.constants else ()
                )
                return Choice(option, one.root, {one.root: how}, packed, one.layout)
        case "streamed":
            c, frame = _require_product(p, option)
            how = contraction.schedule_streamed_product(
                p.tensor, c, option["columns"], option["terms"], frame.lanes
            )
            return Choice(option, p.tensor, {p.tensor: how})
        case "few":
            if (narrow := _match_small_n(p)) is not None:
                how_ = in_lanes(narrow, option["rows"])
                return Choice(option, narrow.root, how_, (narrow.b,), narrow.layout)
        case "groups":
            return _groups_choice(p, option)
        case "winograd":
            return forms.winograd_choice(p, _require_product(p, option)[0], option)
        case "strassen":
            return forms.strassen_choice(p, _require_product(p, option)[0], option)
        case "along" | "across":
            how, order = reduction_schedules.schedule_reduction(
                p.tensor, p.layouts, p.constants, option
            )
            return Choice(option, p.tensor, {p.tensor: how}, order)
        case "attention":
            fused = _match_attention(p)
            if fused is not None:
                knobs = tuple(option[k] for k in _ATTENTION_KNOBS)
                held = [x for x in attention.attention_operands(fused) if x in p.constants]
                lanes = _row_elements(replace(p, tensor=fused.probabilities))
                return Choice(
                    option, p.tensor, attention.schedule_attention(fused, knobs, lanes), tuple(held)
                )
        case "rows" if p.row_axes:
            laid = rows.schedule_rows(p.tensor, p.row_axes, option["lanes"])
            return Choice(option, p.tensor, laid, in_place=True)
        case "walk" if tree_walk.is_tree_walk(p.tensor):
            return Choice(option, p.tensor, tree_walk.schedule_tree_walk(p.tensor, option["trees"]))
        case "turning":
            turned = transpose_schedule(p.tensor, p.layouts, option["lanes"])
            if turned is not None:
                return Choice(option, p.tensor, {p.tensor: turned})
        case "loops":
            if option["lanes"] == TILE_ELEMENTS:
                return Choice(option, p.tensor)
            layout = effective_layout(p.layouts.get(p.tensor), p.tensor.rank)
            how = default_schedule(initial_loops(p.tensor), layout, option["lanes"])
            return Choice(option, p.tensor, {p.tensor: how})
    raise ValueError(f"{option} is not an option of {p.tensor.name}")


def _match_product(p: Problem) -> tuple[contraction.Contraction, contraction.RegisterTiling] | None:
    for lanes in dict.fromkeys(
        (p.lanes, p.multiply_lanes)
    ):  # groups may have a part of a vector each
        found = contraction.match_contraction(p.tensor, p.constants, lanes)
        if found is None:
            return None
        alone = prod(a.size for a in found.b_axes) == 1 and _match_small_n(p) is None
        if found.b_axes and not alone and not _has_contiguous_columns(p, found):
            # an unpacked matrix: vectors of different rows are in different pages, and a wide tile
            # reads fewer of these per FMA (256 x 1024 x 1024: 9.0 ms by one vector, 5.0 by 4)
            near = found.b.tensor in p.constants or found.b.tensor in p.layouts
            halves = p.splits_vectors and lanes == p.lanes and near
            frame = contraction.register_tiling(
                p.tensor, found, p.layouts, lanes, p.registers, halves
            )
            return None if frame is None else (found, frame)
    return None


def _has_contiguous_columns(p: Problem, c: contraction.Contraction) -> bool:
    """True for few rows times a column-major matrix: each column is read once, and lanes run along
    the reduction."""
    rows = prod(a.size for a in c.a_axes)
    if rows >= contraction.MIN_REUSE_ROWS or c.b.tensor in p.constants or c.b.tensor in p.layouts:
        return False
    found = reduction(p.tensor)
    return found is not None and contraction.axis_stride(
        c.b, found.axes[-1]
    ) == 1 != contraction.axis_stride(c.b, c.b_axes[-1])


def _streamed_options(p: Problem, c: contraction.Contraction) -> Iterator[Option]:
    """Yield options for one row times a row-major matrix that is not constant, best first."""
    rows, n, found = prod(a.size for a in c.a_axes), c.b_axes[-1], reduction(p.tensor)
    if rows > 1 or found is None or c.b.tensor in p.constants or c.b.tensor in p.layouts:
        return
    if p.tensor.axes[-1] != n or contraction.axis_stride(c.b, n) != 1 or n.size < 2 * p.lanes:
        return
    for columns in (2048, 4096, 1024):
        terms_ = [n for n in (8, 4, 7, 6, 5, 3, 11, 13, 2, 1) if found.axes[-1].size % n == 0]
        for terms in terms_[:2]:
            yield Option.make("streamed", columns=columns, terms=terms)


def _require_product(
    p: Problem, option: Option
) -> tuple[contraction.Contraction, contraction.RegisterTiling]:
    found = _match_product(p)
    if found is None:
        raise ValueError(f"{option}: {p.tensor.name} is not a contraction")
    return found


def _match_collapsed(
    p: Problem, c: contraction.Contraction, row_tiling: contraction.RegisterTiling
) -> collapsed_spatial_axes.CollapsedProduct | None:
    return collapsed_spatial_axes.collapse_spatial_axes(
        p.tensor, c, row_tiling, p.constants, p.layouts
    )


def _match_small_n(p: Problem) -> SmallNGemm | None:
    return match_small_n_gemm(p.tensor, p.constants, p.layouts, p.lanes, p.registers)


def _match_groups(p: Problem) -> GroupedProducts | None:
    return match_groups(p.tensor, p.constants, p.layouts, p.lanes, p.registers)


def _prefers_whole_vectors(p: Problem, groups: GroupedProducts) -> bool:
    """True if a vector holds at least four groups. With long vectors it is faster to run along all
    of them than within each (128 channels at 56 x 56 in groups of 4: 266 us instead of 589)."""
    size = groups.tiling.n.size
    return p.registers != SMALL_REGISTER_FILE and p.lanes % size == 0 and p.lanes >= 4 * size


def _groups_choice(p: Problem, option: Option) -> Choice:
    each = _match_groups(p)
    if each is None:
        raise ValueError(f"{option}: {p.tensor.name} is not a grouped product")
    knobs = option["rows"], option["vectors"], 0
    how = contraction.schedule_contraction(
        each.root, each.contraction, p.layouts, each.tiling, *knobs
    )
    packed = (each.contraction.b.tensor,) if each.contraction.b.tensor in p.constants else ()
    return Choice(option, each.root, {each.root: how}, packed, each.layout)


_ATTENTION_KNOBS = ("block", "rows", "vectors", "before", "wide")


def _attention_option(*knobs: int) -> Option:
    return Option("attention", tuple(zip(_ATTENTION_KNOBS, knobs, strict=True)))


def _match_attention(p: Problem) -> attention.Attention | None:
    given = p.tensor, p.constants, p.layouts, p.lanes, p.registers
    return attention.match_attention(*given) if p.row_axes else None
