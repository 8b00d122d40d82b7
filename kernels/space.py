"""Which schedule a kernel gets, by the kind of computation that it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from superopt.kernels import contraction as co
from superopt.kernels.layout import Layout, Scatter
from superopt.kernels.schedule import Schedule
from superopt.te.expr import Tensor


@dataclass(frozen=True, slots=True)
class Choice:
    """How a kernel's tensors are computed, and which constants are packed for it."""

    schedules: dict[Tensor, Schedule] = field(default_factory=dict)
    packed: tuple[Tensor, ...] = ()


def choice(
    t: Tensor,
    layouts: Mapping[Tensor, Layout | Scatter],
    constants: Collection[Tensor],
    width: int,
) -> Choice:
    """For a tensor that is computed from others in memory. width: bytes of a vector."""
    found = co.contraction(t, constants)
    if found is not None and found.of_b:
        lanes = max(width * 8 // t.dtype.bits, 1)
        how = co.scheduled(t, found, layouts, lanes)
        if how is not None:
            packed = (found.b.tensor,) if found.b.tensor in constants else ()
            return Choice({t: how}, packed)
    return Choice()
