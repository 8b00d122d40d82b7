"""Contractions by algorithms with fewer products: Winograd's for convolutions, Strassen's for
matrix products; which of them a problem allows, and when they pay."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from superopt.kernels.algorithms import contraction, strassen, winograd
from superopt.kernels.algorithms.cook_toom import transform_kernel
from superopt.kernels.algorithms.problem import Choice, Problem
from superopt.kernels.algorithms.tiled_convolution import TiledConvolution
from superopt.kernels.algorithms.tiled_convolution import match_tiled_convolution as find
from superopt.kernels.llvm.register_tiles import VECTOR_REGISTERS
from superopt.kernels.loops.layout import row_major
from superopt.kernels.loops.option import Option
from superopt.kernels.loops.substitution import AlgorithmForm
from superopt.te.expr.dtype import F32

# --- Winograd ---

WINOGRAD_MAX_TIME_RATIO = {
    32: 0.7,
    16: 0.82,
}  # relative to the direct convolution, below which Winograd pays
# The same on processors that execute a vector in two halves: of 16 convolutions estimated at 0.44
# to 1.04 (stride two, 5 x 5, small images) all took less than estimated, by up to 0.15.
WINOGRAD_SPLIT_VECTOR_MAX_TIME_RATIO = 0.93
_WINOGRAD_KNOBS = ("m", "apart", "block", "rows", "columns", "vectors")


def winograd_option(plan: winograd.Plan) -> Option:
    return Option("winograd", tuple((k, int(getattr(plan, k))) for k in _WINOGRAD_KNOBS))


def winograd_convolution(p: Problem, c: contraction.Contraction) -> TiledConvolution | None:
    """Return the convolution if Winograd is allowed and can compute it."""
    if not p.allow_winograd or c.b.tensor not in p.constants or p.tensor.dtype != F32:
        return None
    found = find(p.tensor, c)
    if found is None or min(found.channels, found.k.size) < p.lanes:
        return None
    return found if p.allow_dilated_winograd or max(found.dilations) == 1 else None


def best_winograd_plan(
    p: Problem, c: contraction.Contraction
) -> tuple[float, winograd.Plan] | None:
    """Return the fastest estimated Winograd plan, as (time, plan)."""
    picture = winograd_convolution(p, c)
    sides = () if picture is None else picture.tile_options()
    some = (
        winograd.candidate_plans(picture, m, p.lanes, p.registers)[0]
        for m in sides
        if picture is not None
    )
    return min(some, key=lambda x: x[0], default=None)


def profitable_winograd_plan(
    p: Problem, c: contraction.Contraction, direct_time: float
) -> tuple[float, winograd.Plan] | None:
    """Return that plan if it is enough below the time of the direct convolution."""
    found = best_winograd_plan(p, c)
    starts = (
        WINOGRAD_SPLIT_VECTOR_MAX_TIME_RATIO
        if p.splits_vectors
        else WINOGRAD_MAX_TIME_RATIO[p.registers]
    )
    return found if found is not None and found[0] <= starts * direct_time else None


def winograd_choice(p: Problem, c: contraction.Contraction, option: Option) -> Choice:
    """Return the choice of a Winograd option. Raises ValueError if the problem has no such
    tiles."""
    picture = winograd_convolution(p, c)
    if picture is None or option["m"] not in picture.tile_options():
        raise ValueError(f"{option}: {p.tensor.name} has no Winograd convolution of such tiles")
    m, apart, *rest = (option[k] for k in _WINOGRAD_KNOBS)
    layout = p.layouts.get(p.tensor) or row_major(p.tensor.rank)
    plan = winograd.Plan(m, bool(apart), *rest)
    made = winograd.winograd_form(p.tensor, c, picture, plan, layout, p.lanes)
    return _form_choice(option, made, c, partial(transform_kernel, picture.forms(m)))


def _form_choice(
    option: Option,
    form: AlgorithmForm,
    c: contraction.Contraction,
    make: Callable[[np.ndarray], np.ndarray],
) -> Choice:
    return Choice(
        option, form.root, form.schedules, (form.transformed_constant,), form.layout, form.tables,
        form.producers,
        {form.transformed_constant: (c.b.tensor, make)},
    )  # fmt: skip


# --- Strassen ---

# Fitted to 27 products, M x K x N from 49 x 160 x 960 to 3136 x 64 x 256; most are predicted within
# 3 %. Cycles per vector of the sums of a's parts, and of a product until it is in the result, in
# the unit of `register_tiles`; and the factor of that unit here.
SUM_CYCLES, RESULT_CYCLES, PRODUCT_COST_FACTOR = 6, 3.5, 0.96
SPLIT_VECTOR_COST_FACTOR = 1.02  # PRODUCT_COST_FACTOR if vectors are split, fitted to 26 products
# factor of SUM_CYCLES and RESULT_CYCLES, by registers (fewer come with smaller caches)
MOVE_COST_FACTOR = {32: 1.0, 16: 4.5}
BYTES_PER_CYCLE = {32: 8, 16: 4}  # of the constant from memory, by registers
NON_BOTTLENECK_SHARE = 0.2  # share of the time of what is not the bottleneck that is not hidden
STRASSEN_MAX_TIME_RATIO = 0.965  # relative to the direct product
STRASSEN_MAX_SHORT_BLOCK_TIME_RATIO = (
    0.83  # if its sum is in short blocks (contraction.L1_PANEL_TERMS), not modelled here
)
_STRASSEN_KNOBS = ("levels", "apart", "block", "rows", "vectors", "deep")


def strassen_option(plan: strassen.Plan) -> Option:
    return Option("strassen", tuple((k, int(getattr(plan, k))) for k in _STRASSEN_KNOBS))


def strassen_product(p: Problem, c: contraction.Contraction) -> strassen.StrassenProduct | None:
    """Return the matrix product if Strassen is allowed and can compute it."""
    if not p.strassen_levels or c.b.tensor not in p.constants or p.tensor.dtype != F32:
        return None
    return strassen.match_strassen_product(p.tensor, c)


def profitable_strassen_plan(
    p: strassen.StrassenProduct,
    lanes: int,
    max_levels: int,
    direct: float,
    registers: int = VECTOR_REGISTERS,
    max_time_ratio: float = STRASSEN_MAX_TIME_RATIO,
    split_vectors: bool = False,
) -> strassen.Plan | None:
    """Return the fastest estimated plan; None if the direct product is better. direct: time of the
    direct product per term, in the unit of register tiles. max_time_ratio: below which Strassen
    pays. split_vectors: see `register_tiles`."""
    taken = SPLIT_VECTOR_COST_FACTOR if split_vectors else PRODUCT_COST_FACTOR
    size = 4 * p.k.size * p.n.size / BYTES_PER_CYCLE[registers]
    some = [(_estimated_strassen_time(direct * p.k.size, size), 0)]
    for levels in strassen.LEVELS[:max_levels]:
        if strassen.can_split(p, levels, lanes):
            parts, count = 2**levels, 7**levels
            m, n, k = strassen.part_rows(p, parts), p.n.size // parts, p.k.size // parts
            tiles = strassen.register_tile_options(m, n, k, lanes, count, registers, split_vectors)
            products = tiles[0][0] * k * taken
            moved = MOVE_COST_FACTOR[registers] * m * (k * SUM_CYCLES + n * RESULT_CYCLES) / lanes
            some.append(
                (
                    _estimated_strassen_time(count * (products + moved), (7 / 4) ** levels * size),
                    levels,
                )
            )
    least, levels = min(some)
    if not levels or least > max_time_ratio * some[0][0]:
        return None
    return next(
        x
        for x in strassen.candidate_plans(p, lanes, max_levels, registers, split_vectors)
        if x.levels == levels
    )


def _estimated_strassen_time(busy: float, streams: float) -> float:
    return max(busy, streams) + NON_BOTTLENECK_SHARE * min(busy, streams)


def strassen_choice(p: Problem, c: contraction.Contraction, option: Option) -> Choice:
    """Return the choice of a Strassen option. Raises ValueError if it does not fit the problem."""
    found = strassen_product(p, c)
    levels, apart, *rest = (option[k] for k in _STRASSEN_KNOBS)
    if (
        found is None
        or levels > p.strassen_levels
        or not strassen.can_split(found, levels, p.lanes)
    ):
        raise ValueError(f"{option}: {p.tensor.name} has no matrix product that Strassen splits so")
    layout = p.layouts.get(p.tensor) or row_major(p.tensor.rank)
    plan = strassen.Plan(levels, bool(apart), *rest)
    made = strassen.strassen_form(
        p.tensor, c, found, plan, {**p.layouts, p.tensor: layout}, p.lanes, p.registers
    )
    return _form_choice(
        option,
        made,
        c,
        partial(strassen.combine_constant, levels, p.lanes, strassen.constant_matrix(c, found)),
    )
