"""What a kernel is to compute, where that lies; and how it does."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from superopt.kernels import contraction as co
from superopt.kernels import strassen as st
from superopt.kernels.layout import Layout, Scatter, lying
from superopt.kernels.option import Option
from superopt.kernels.schedule import Schedule
from superopt.kernels.tile import Kernel
from superopt.te.expr import Tensor
from superopt.te.walk import loads, reductions


@dataclass(frozen=True, slots=True)
class Problem:
    """What is to be computed: a tensor from others in memory, where these lie, which of them are
    constants. width: bytes of a vector. lead: where it is computed row by row, of which stages are
    within it, how many axes say which row; else 0. tiles: may convolutions be computed in tiles
    (Winograd), of other roundings? levels: how often products of matrices may be cut (Strassen),
    of which constants become larger, too? unit: bytes of a vector that are multiplied at a time,
    where it takes several steps; 0: all. dilated: may such be in tiles? registers: of vectors.
    halved: are floats stored as halves, as was asked for (gpu_short.py)?"""

    tensor: Tensor
    layouts: Mapping[Tensor, Layout | Scatter]
    constants: Collection[Tensor]
    width: int
    lead: int = 0
    tiles: bool = True
    levels: int = max(st.LEVELS)
    unit: int = 0
    dilated: bool = True
    registers: int = co.REGISTERS
    halved: bool = False

    @property
    def lanes(self) -> int:
        return max(self.width * 8 // self.tensor.dtype.bits, 1)

    @property
    def parts(self) -> int:
        """The lanes of a vector that are multiplied at a time."""
        return max(min(self.unit or self.width, self.width) * 8 // self.tensor.dtype.bits, 1)

    @property
    def halves(self) -> bool:
        """Are vectors multiplied a part at a time?"""
        return self.parts < self.lanes

    def numbers(self) -> tuple[int, ...]:
        """What a problem's time hangs on most: elements of the result, terms of each one's sum,
        bytes of constants and of other operands, the extents of the result's last two axes as it
        lies, and the vector's bytes."""
        t = self.tensor
        sums = reductions(t.body)
        terms = prod(a.size for a in sums[0].axes) if sums else 1
        read = dict.fromkeys(x.tensor for x in loads(t.body)) if t.body is not None else {}
        fixed = sum(_bytes(x) for x in read if x in self.constants)
        other = sum(_bytes(x) for x in read if x not in self.constants)
        order = [t.axes[p.axis].size for p in lying(self.layouts.get(t), t.rank).parts]
        last = [1, 1, *order][-2:]
        return (prod(a.size for a in t.axes), terms, fixed, other, *last, self.width)


Direct = Callable[[Sequence[Tensor], Mapping[Tensor, Layout | Scatter]], Kernel]


@dataclass(frozen=True, slots=True)
class Choice:
    """How a kernel computes a tensor.

    root: what is computed in its place; lies: where, if not as the tensor does. packed: constants
    in the order in which they are read. made: constants that are made of others. first: what are
    kernels of their own before it, each with the buffer from which it is read. direct: of tensors
    that have no schedule, what makes the kernel, of what it reads and where all lies. settles: what
    is kept of rows may lie in the result (settled.py). programs: see Kernel.
    """

    option: Option
    root: Tensor
    schedules: Mapping[Tensor, Schedule] = field(default_factory=dict)
    packed: tuple[Tensor, ...] = ()
    lies: Scatter | None = None
    tables: Mapping[Tensor, np.ndarray] = field(default_factory=dict)
    first: tuple[tuple[Tensor, Tensor], ...] = ()
    made: Mapping[Tensor, tuple[Tensor, Callable[[np.ndarray], np.ndarray]]] = field(
        default_factory=dict
    )
    direct: Mapping[Tensor, Direct] = field(default_factory=dict)
    settles: bool = False
    programs: int = 0


def _bytes(t: Tensor) -> int:
    return prod(n for n in t.shape if isinstance(n, int)) * max(t.dtype.bits // 8, 1)
