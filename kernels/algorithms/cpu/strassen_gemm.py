"""GEMM by Strassen's algorithm on the CPU (strassen.py): where it is allowed, and where it pays."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from superopt.kernels.algorithms.algorithm import Algorithm, Prediction
from superopt.kernels.algorithms.contraction import Contraction
from superopt.kernels.algorithms.cpu import strassen
from superopt.kernels.algorithms.cpu.collapsed_spatial_axes import direct_time
from superopt.kernels.algorithms.cpu.gemm import k_block_sizes, match_product
from superopt.kernels.algorithms.cpu.register_tiling import L1_PANEL_TERMS, RegisterTiling
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.loops.layout import row_major
from superopt.kernels.loops.option import Option
from superopt.kernels.processor import ZEN5, Processor
from superopt.te.expr.dtype import F32

# Cycles per vector of the sums of a's parts, and of a product until it is in the result, in the
# unit of `register_tiles`; fitted with the Strassen costs of processor.ZEN5, most within 3 %.
SUM_CYCLES, RESULT_CYCLES = 6, 3.5
NON_BOTTLENECK_SHARE = 0.2  # share of the time of what is not the bottleneck that is not hidden
STRASSEN_MAX_TIME_RATIO = 0.965  # relative to the direct product
STRASSEN_MAX_SHORT_BLOCK_TIME_RATIO = (
    0.83  # if its sum is in short blocks (register_tiling.L1_PANEL_TERMS), not modelled here
)
_KNOBS = ("levels", "separate", "block", "rows", "vectors", "k_block")
Strassen = tuple[Contraction, RegisterTiling, strassen.StrassenProduct]


@remember_match
def recognise_strassen(p: Problem) -> Strassen | None:
    """Match a matrix product that Strassen may and can compute."""
    product = match_product(p)
    if product is None or not p.strassen_levels or p.tensor.dtype != F32:
        return None
    c, tiling = product
    if c.b.tensor not in p.constants:
        return None
    found = strassen.match_strassen_product(p.tensor, c)
    return None if found is None else (c, tiling, found)


def strassen_options(p: Problem, found: Strassen) -> Iterator[Option]:
    """Yield the options of all levels and tiles."""
    _, tiling, square = found
    how = p.lanes, p.strassen_levels, p.processor, tiling.split_vectors
    yield from map(_option, strassen.candidate_plans(square, *how))


def _option(plan: strassen.Plan) -> Option:
    return Option("strassen", tuple((k, int(getattr(plan, k))) for k in _KNOBS))


def predict_strassen(p: Problem, found: Strassen) -> Prediction | None:
    """Return the fastest estimated plan, relative to the direct product."""
    c, tiling, square = found
    rows = square.image_count * square.rows_per_image
    tiles = rows // (1 if tiling.m is None else tiling.m.size)
    short = k_block_sizes(p.tensor, c, p.layouts, p.processor)[0] in L1_PANEL_TERMS
    most = STRASSEN_MAX_SHORT_BLOCK_TIME_RATIO if short else STRASSEN_MAX_TIME_RATIO
    direct = tiles * min(tiling.register_tiles())[0]
    best = fastest_strassen_plan(
        square, p.lanes, p.strassen_levels, direct, p.processor, most, tiling.split_vectors
    )
    if best is None:
        return None
    relative, _ = direct_time(p, (c, tiling))
    return Prediction(_option(best[1]), relative * best[0])


def fastest_strassen_plan(
    p: strassen.StrassenProduct,
    lanes: int,
    max_levels: int,
    direct: float,
    processor: Processor = ZEN5,
    max_time_ratio: float = STRASSEN_MAX_TIME_RATIO,
    split_vectors: bool = False,
) -> tuple[float, strassen.Plan] | None:
    """Return the fastest estimated plan, with its time over `max_time_ratio` times that of the
    direct product; None if the direct product is better. direct: time of the direct product per
    term, in the unit of register tiles. split_vectors: see `register_tiles`."""
    size = 4 * p.k.size * p.n.size / processor.strassen_bytes_per_fma
    whole = _estimated_time(direct * p.k.size, size)
    some = [(whole, 0)]
    for levels in strassen.LEVELS[:max_levels]:
        if strassen.can_split(p, levels, lanes):
            parts, count = 2**levels, 7**levels
            m, n, k = strassen.part_rows(p, parts), p.n.size // parts, p.k.size // parts
            tiles = strassen.register_tile_options(m, n, k, lanes, count, processor, split_vectors)
            products = tiles[0][0] * k * processor.strassen_product_cost
            moved = processor.strassen_move_cost * m * (k * SUM_CYCLES + n * RESULT_CYCLES) / lanes
            time = _estimated_time(count * (products + moved), (7 / 4) ** levels * size)
            some.append((time, levels))
    least, levels = min(some)
    if not levels or least > max_time_ratio * whole:
        return None
    plans = strassen.candidate_plans(p, lanes, max_levels, processor, split_vectors)
    return least / (max_time_ratio * whole), next(x for x in plans if x.levels == levels)


def _estimated_time(busy: float, streams: float) -> float:
    return max(busy, streams) + NON_BOTTLENECK_SHARE * min(busy, streams)


def schedule_strassen(p: Problem, found: Strassen, option: Option) -> Choice:
    """Return the choice of an option. Raises ValueError if it does not fit the problem."""
    c, _, square = found
    levels, separate, *rest = (option[k] for k in _KNOBS)
    if levels > p.strassen_levels or not strassen.can_split(square, levels, p.lanes):
        raise ValueError(f"{option}: {p.tensor.name} has no matrix product that Strassen splits so")
    layout = p.layouts.get(p.tensor) or row_major(p.tensor.rank)
    plan = strassen.Plan(levels, bool(separate), *rest)
    form = strassen.strassen_form(
        p.tensor,
        c,
        square,
        plan,
        {**p.layouts, p.tensor: layout},
        p.lanes,
        p.processor.vector_registers,
    )
    matrix = strassen.constant_matrix(c, square)
    combine = partial(strassen.combine_constant, levels, p.lanes, matrix)
    return Choice.of_form(option, form, c.b.tensor, combine)


STRASSEN = Algorithm(
    ("strassen",), "GEMM and 1x1 convolution by Strassen's algorithm", recognise_strassen,
    strassen_options, schedule_strassen, predict_strassen,
)  # fmt: skip
