"""Contractions by algorithms with fewer products: Winograd's for convolutions, Strassen's for
matrix products; which of them a problem allows, and when they pay."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from superopt.kernels import contraction as co
from superopt.kernels import strassen as st
from superopt.kernels import winograd as wi
from superopt.kernels.cook_toom import transformed_kernel
from superopt.kernels.factor import Form
from superopt.kernels.layout import row_major
from superopt.kernels.option import Option
from superopt.kernels.picture import Picture
from superopt.kernels.picture import picture as find
from superopt.kernels.problem import Choice, Problem
from superopt.te.dtype import F32

# --- Winograd ---

STARTS = {32: 0.7, 16: 0.82}  # relative to the direct convolution, below which Winograd pays
# The same on processors that execute a vector in two halves: of 16 convolutions estimated at 0.44
# to 1.04 (stride two, 5 x 5, small images) all took less than estimated, by up to 0.15.
HALVES = 0.93
_KNOBS = ("m", "apart", "block", "rows", "columns", "vectors")


def winograd(plan: wi.Plan) -> Option:
    return Option("winograd", tuple((k, int(getattr(plan, k))) for k in _KNOBS))


def pictured(p: Problem, c: co.Contraction) -> Picture | None:
    """Return the convolution if Winograd is allowed and can compute it."""
    if not p.tiles or c.b.tensor not in p.constants or p.tensor.dtype != F32:
        return None
    found = find(p.tensor, c)
    if found is None or min(found.channels, found.k.size) < p.lanes:
        return None
    return found if p.dilated or max(found.steps) == 1 else None


def tiled(p: Problem, c: co.Contraction) -> tuple[float, wi.Plan] | None:
    """Return the fastest estimated Winograd plan, as (time, plan)."""
    picture = pictured(p, c)
    sides = () if picture is None else picture.fitting()
    some = (wi.plans(picture, m, p.lanes, p.registers)[0] for m in sides if picture is not None)
    return min(some, key=lambda x: x[0], default=None)


def paying(p: Problem, c: co.Contraction, direct: float) -> tuple[float, wi.Plan] | None:
    """Return that plan if it is enough below the time of the direct convolution."""
    found = tiled(p, c)
    starts = HALVES if p.halves else STARTS[p.registers]
    return found if found is not None and found[0] <= starts * direct else None


def in_tiles(p: Problem, c: co.Contraction, option: Option) -> Choice:
    """Return the choice of a Winograd option. Raises ValueError if the problem has no such
    tiles."""
    picture = pictured(p, c)
    if picture is None or option["m"] not in picture.fitting():
        raise ValueError(f"{option}: {p.tensor.name} has no Winograd convolution of such tiles")
    m, apart, *rest = (option[k] for k in _KNOBS)
    layout = p.layouts.get(p.tensor) or row_major(p.tensor.rank)
    plan = wi.Plan(m, bool(apart), *rest)
    made = wi.tiled(p.tensor, c, picture, plan, layout, p.lanes)
    return _formed(option, made, c, partial(transformed_kernel, picture.forms(m)))


def _formed(
    option: Option, made: Form, c: co.Contraction, make: Callable[[np.ndarray], np.ndarray]
) -> Choice:
    return Choice(
        option, made.root, made.schedules, (made.kernel,), made.lies, made.tables,
        made.first,
        {made.kernel: (c.b.tensor, make)},
    )  # fmt: skip


# --- Strassen ---

_CUT = ("levels", "apart", "block", "rows", "vectors", "deep")


def parts(plan: st.Plan) -> Option:
    return Option("strassen", tuple((k, int(getattr(plan, k))) for k in _CUT))


def square(p: Problem, c: co.Contraction) -> st.Square | None:
    """Return the matrix product if Strassen is allowed and can compute it."""
    if not p.levels or c.b.tensor not in p.constants or p.tensor.dtype != F32:
        return None
    return st.square(p.tensor, c)


def in_parts(p: Problem, c: co.Contraction, option: Option) -> Choice:
    """Return the choice of a Strassen option. Raises ValueError if it does not fit the problem."""
    found = square(p, c)
    levels, apart, *rest = (option[k] for k in _CUT)
    if found is None or levels > p.levels or not st.fits(found, levels, p.lanes):
        raise ValueError(f"{option}: {p.tensor.name} has no matrix product that Strassen splits so")
    layout = p.layouts.get(p.tensor) or row_major(p.tensor.rank)
    plan = st.Plan(levels, bool(apart), *rest)
    made = st.cut(p.tensor, c, found, plan, {**p.layouts, p.tensor: layout}, p.lanes, p.registers)
    return _formed(option, made, c, partial(st.combined, levels, p.lanes, st.matrix(c, found)))
