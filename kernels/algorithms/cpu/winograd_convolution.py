"""Convolutions by Winograd's algorithm on the CPU (winograd.py): where it is allowed, and where it
pays."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from superopt.kernels.algorithms.algorithm import Algorithm, Prediction
from superopt.kernels.algorithms.contraction import Contraction, match_contraction
from superopt.kernels.algorithms.cpu import winograd
from superopt.kernels.algorithms.cpu.collapsed_spatial_axes import direct_time
from superopt.kernels.algorithms.cpu.cook_toom import transform_kernel
from superopt.kernels.algorithms.cpu.gemm import match_product
from superopt.kernels.algorithms.cpu.tiled_convolution import (
    TiledConvolution,
    match_tiled_convolution,
)
from superopt.kernels.algorithms.cpu.winograd_plans import Plan, candidate_plans
from superopt.kernels.algorithms.problem import Choice, Problem, remember_match
from superopt.kernels.loops.layout import row_major
from superopt.kernels.loops.option import Option
from superopt.te.expr.dtype import F32

_KNOBS = ("m", "separate", "block", "rows", "columns", "vectors")
Winograd = tuple[Contraction, TiledConvolution]


@remember_match
def recognise_winograd(p: Problem) -> Winograd | None:
    """Match a convolution that Winograd may and can compute."""
    product = match_product(p)
    if product is None or not p.allow_winograd or p.tensor.dtype != F32:
        return None
    found = _match_convolution(p, product[0])
    if found is None or min(found.channels, found.k.size) < p.lanes:
        return None
    dilated = max(found.dilations) > 1
    return (product[0], found) if p.allow_dilated_winograd or not dilated else None


def _match_convolution(p: Problem, c: Contraction | None) -> TiledConvolution | None:
    if c is None or c.b.tensor not in p.constants:
        return None
    found = match_tiled_convolution(p.tensor, c)
    # of symbolic sizes each image has blocks of its own
    return found if found is None or p.is_example else found.stack_images()


def winograd_options(p: Problem, found: Winograd) -> Iterator[Option]:
    """Yield the options of all tiles."""
    for m in _tile_sides(p, found[1]):
        for _, plan in candidate_plans(found[1], m, p.lanes, p.processor, p.threads):
            yield _option(plan)


def _option(plan: Plan) -> Option:
    return Option("winograd", tuple((k, int(getattr(plan, k))) for k in _KNOBS))


def predict_winograd(p: Problem, found: Winograd) -> Prediction | None:
    """Return the fastest estimated plan, relative to the direct convolution."""
    product, best = match_product(p), _best_plan(p, found[1])
    if product is None or best is None:
        return None
    relative, direct = direct_time(p, product)
    ratio = best[0] / (p.processor.winograd_max_time_ratio * direct)
    return Prediction(_option(best[1]), relative * ratio) if ratio <= 1 else None


def _best_plan(p: Problem, convolution: TiledConvolution) -> tuple[float, Plan] | None:
    """Return the fastest estimated plan with its time in vector FMAs."""
    some = (
        candidate_plans(convolution, m, p.lanes, p.processor, p.threads)[0]
        for m in _tile_sides(p, convolution)
    )
    return min(some, key=lambda x: x[0], default=None)


def _tile_sides(p: Problem, convolution: TiledConvolution) -> list[int]:
    return [m for m in convolution.tile_options() if m <= p.max_winograd_tile]


def estimated_product_cost(p: Problem) -> float | None:
    """Return the estimated time of a contraction, direct or by Winograd, in vector FMAs; None if it
    is none."""
    product = match_product(p)
    if product is None:
        return None
    found, (_, direct) = recognise_winograd(p), direct_time(p, product)
    best = None if found is None else _best_plan(p, found[1])
    return (
        best[0]
        if best is not None and best[0] <= p.processor.winograd_max_time_ratio * direct
        else direct
    )


def schedule_winograd(p: Problem, found: Winograd, option: Option) -> Choice:
    """Return the choice of an option. Raises ValueError if the problem has no such tiles."""
    c, convolution = found
    if not convolution.has_tiles(option["m"]):
        raise ValueError(f"{option}: {p.tensor.name} has no Winograd convolution of such tiles")
    m, separate, *rest = (option[k] for k in _KNOBS)
    layout = p.layouts.get(p.tensor) or row_major(p.tensor.rank)
    plan = Plan(m, bool(separate), *rest)
    form = winograd.winograd_form(p.tensor, c, convolution, plan, layout, p.lanes, p.threads)
    transform = partial(transform_window, convolution.forms(m), convolution.window)
    return Choice.of_form(option, form, c.b.tensor, transform)


def transform_window(
    forms: tuple[tuple[int, int, int], ...], window: tuple[int, ...], w: np.ndarray
) -> np.ndarray:
    """Return the transformed filter. Where no output reads the last columns of the filter, since
    the image is narrow, the window is smaller."""
    return transform_kernel(forms, w[(slice(None), slice(None), *map(slice, window))])


def schedule_symbolic_winograd(p: Problem, option: Option) -> Choice:
    """Return the choice of an option for a convolution of symbolic sizes."""
    c = match_contraction(p.tensor, p.constants, p.lanes)
    convolution = _match_convolution(p, c)
    if c is None or convolution is None:
        raise NotImplementedError(f"{p.tensor.name} is no convolution for Winograd's algorithm")
    return schedule_winograd(p, (c, convolution), option)


WINOGRAD = Algorithm(
    ("winograd",), "convolution by Winograd's minimal filtering", recognise_winograd,
    winograd_options, schedule_winograd, predict_winograd,
    schedule_symbolic=schedule_symbolic_winograd,
)  # fmt: skip
