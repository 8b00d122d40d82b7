"""Convolutions of uint8 and int8 by Winograd's algorithm in int16 (cpu/winograd_integers.py), on
processors that multiply these by VPMADDWD. The result is exact."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from superopt.kernels.algorithms.algorithm import Algorithm, Prediction
from superopt.kernels.algorithms.contraction import Contraction, input_factor
from superopt.kernels.algorithms.cpu.cook_toom import has_integer_points
from superopt.kernels.algorithms.cpu.dot_products.gemm import (
    DotGemm,
    dot_options,
    estimated_time,
    recognise_int8,
)
from superopt.kernels.algorithms.cpu.tiled_convolution import (
    TiledConvolution,
    match_tiled_convolution,
)
from superopt.kernels.algorithms.cpu.winograd import winograd_form
from superopt.kernels.algorithms.cpu.winograd_integers import (
    Integers,
    divisor,
    int16_element,
    is_exact,
    largest_sum,
    transform_filter,
)
from superopt.kernels.algorithms.cpu.winograd_plans import Plan, candidate_plans
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.llvm.dot_products.products import INT16_TYPES, LANES, SUM_BYTES
from superopt.kernels.loops.layout import row_major
from superopt.kernels.loops.loop_transforms import reduction
from superopt.kernels.loops.option import Option

TILE_SIDES = (2, 3, 4)
_KNOBS = ("m", "separate", "block", "rows", "columns", "vectors")
# A Winograd convolution, and the direct product that it replaces.
IntegerWinograd = tuple[TiledConvolution, DotGemm]


@remember_match
def recognise_integer_winograd(p: Problem) -> IntegerWinograd | None:
    """Match a convolution of integers that Winograd's algorithm computes exactly."""
    direct = recognise_int8(p)
    if direct is None or direct.operands.type not in INT16_TYPES or not p.allow_winograd:
        return None
    if p.is_example or p.tensor.rank != 4:
        return None
    c = direct.operands.contraction
    found, convolution = reduction(p.tensor), match_tiled_convolution(p.tensor, c)
    if found is None or convolution is None or max(convolution.dilations) > 1:
        return None
    if convolution.channels % LANES or int16_element(input_factor(found, c.a).body) is None:
        return None
    return (convolution, direct) if _tile_sides(p, convolution) else None


def _tile_sides(p: Problem, convolution: TiledConvolution) -> list[int]:
    """Return the sides of the tiles that are exact and fit into the result."""
    limit = p.sum_limit or largest_sum(convolution)
    out = []
    for m in TILE_SIDES:
        forms = convolution.forms(m)
        fits = all(n >= f[0] for f, n in zip(forms, convolution.output_sides, strict=True))
        fits &= m <= p.max_winograd_tile and all(has_integer_points(*f) for f in forms)
        if fits and is_exact(forms, limit):
            out.append(m)
    return out


def winograd_options(p: Problem, found: IntegerWinograd) -> Iterator[Option]:
    """Yield the options of all tiles."""
    for m in _tile_sides(p, found[0]):
        for _, plan in _plans(p, found[0], m):
            yield _option(plan)


def _plans(p: Problem, convolution: TiledConvolution, m: int) -> list[tuple[float, Plan]]:
    """Return (estimated time in vector FMAs, plan), fastest first, with panels of whole
    vectors."""
    lanes = p.width // SUM_BYTES
    registers = LANES // lanes
    out = []
    for time, plan in candidate_plans(
        convolution, m, lanes, p.processor, p.threads, of_integers=True
    ):
        vectors = plan.vectors // registers
        if plan.vectors % registers == 0 and convolution.k.size // LANES % vectors == 0:
            out.append((time, replace(plan, vectors=vectors)))
    return out


def _option(plan: Plan) -> Option:
    return Option("int8_winograd", tuple((k, int(getattr(plan, k))) for k in _KNOBS))


def predict_winograd(p: Problem, found: IntegerWinograd) -> Prediction | None:
    """Return the fastest estimated plan, relative to the direct product."""
    convolution, direct = found
    plans = (_plans(p, convolution, m)[:1] for m in _tile_sides(p, convolution))
    best = min((x for some in plans for x in some), key=lambda x: x[0], default=None)
    if best is None:
        return None
    own = min(estimated_time(p, direct, o) for o in dot_options(p, direct))
    ratio = best[0] / (p.processor.winograd_max_time_ratio * own)
    return Prediction(_option(best[1]), ratio) if ratio <= 1 else None


def schedule_winograd(p: Problem, found: IntegerWinograd, option: Option) -> Choice:
    """Return the choice of an option."""
    convolution, direct = found
    c: Contraction = direct.operands.contraction
    m, separate, *rest = (option[k] for k in _KNOBS)
    plan, forms = Plan(m, bool(separate), *rest), convolution.forms(m)
    layout = p.layouts.get(p.tensor) or row_major(p.tensor.rank)
    shape = convolution.k.size, convolution.channels, plan.vectors
    form = winograd_form(
        p.tensor, c, convolution, plan, layout, LANES, p.threads, Integers(shape, divisor(forms))
    )
    transform = partial(transform_filter, forms, convolution.window, plan.vectors)
    return Choice(
        option, form.root, form.schedules, (), form.layout, form.tables, form.producers,
        {form.transformed_constant: (c.b.tensor, transform)}, instructions=direct.instructions,
    )  # fmt: skip


INT8_WINOGRAD = Algorithm(
    ("int8_winograd",), "convolution of uint8 and int8 by Winograd's minimal filtering",
    recognise_integer_winograd, winograd_options, schedule_winograd, predict_winograd,
)  # fmt: skip
