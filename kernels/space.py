"""Which schedule a kernel gets, by the kind of computation that it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from superopt.kernels import contraction as co
from superopt.kernels import reducing as re
from superopt.kernels import winograd as wi
from superopt.kernels.cook_toom import POINTS, transformed_kernel
from superopt.kernels.layout import Layout, Scatter, row_major
from superopt.kernels.schedule import Schedule
from superopt.te.dtype import F32
from superopt.te.expr import Tensor


@dataclass(frozen=True, slots=True)
class Choice:
    """How a kernel computes a tensor.

    root: what is computed in its place; lies: where, if not as the tensor does. packed: constants
    in the order in which they are read. made: constants that are made of others. first: what is a
    kernel of its own before it, and the buffer from which that is read.
    """

    root: Tensor
    schedules: Mapping[Tensor, Schedule] = field(default_factory=dict)
    packed: tuple[Tensor, ...] = ()
    lies: Scatter | None = None
    tables: Mapping[Tensor, np.ndarray] = field(default_factory=dict)
    first: tuple[Tensor, Tensor] | None = None
    made: Mapping[Tensor, tuple[Tensor, Callable[[np.ndarray], np.ndarray]]] = field(
        default_factory=dict
    )


def choice(
    t: Tensor,
    layouts: Mapping[Tensor, Layout | Scatter],
    constants: Collection[Tensor],
    width: int,
) -> Choice:
    """For a tensor that is computed from others in memory. width: bytes of a vector."""
    lanes = max(width * 8 // t.dtype.bits, 1)
    found = co.contraction(t, constants)
    if found is None or not found.of_b:
        return _reduced(t, layouts, constants, lanes)
    fast = _winograd(t, found, layouts, constants, lanes)
    if fast is not None:
        return fast
    how = co.scheduled(t, found, layouts, lanes)
    if how is None:
        return _reduced(t, layouts, constants, lanes)
    return Choice(t, {t: how}, (found.b.tensor,) if found.b.tensor in constants else ())


def _reduced(
    t: Tensor,
    layouts: Mapping[Tensor, Layout | Scatter],
    constants: Collection[Tensor],
    lanes: int,
) -> Choice:
    found = re.scheduled(t, layouts, constants, lanes)
    return Choice(t) if found is None else Choice(t, {t: found[0]}, found[1])


BYTES_PER_CYCLE = 6  # of weights that come from memory
STARTS = 0.75  # part of a direct convolution's time below which tiles pay


def _winograd(
    t: Tensor,
    c: co.Contraction,
    layouts: Mapping[Tensor, Layout | Scatter],
    constants: Collection[Tensor],
    lanes: int,
) -> Choice | None:
    """A convolution in tiles, where that takes less time by the count of its products."""
    p = wi.picture(t, c) if c.b.tensor in constants and t.dtype == F32 else None
    if p is None or p.channels < lanes or not isinstance(p.k.extent, int) or p.k.extent < lanes:
        return None
    sides = [
        x.extent // d for x, d in zip((p.h, p.w), p.steps, strict=True) if isinstance(x.extent, int)
    ]
    direct = wi.size(p) / lanes
    some = []
    for m in POINTS:
        if min(sides) >= m:
            sums, transforms, size = wi.products(p, m)
            busy, streams = (sums + transforms) / lanes, size / BYTES_PER_CYCLE
            some.append((max(busy, streams) + 0.3 * min(busy, streams), m))
    if not some or min(some)[0] > STARTS * direct:
        return None
    made = wi.tiled(t, c, p, min(some)[1], layouts.get(t) or row_major(t.rank), lanes)
    source = {made.kernel: (c.b.tensor, partial(transformed_kernel, made.m))}
    return Choice(
        made.root, made.schedules, (made.kernel,), made.lies, made.tables, made.first, source
    )
