"""Read buffers at constant leading indices through views that begin there, so that the steps of a
recurrent network, which read different parts of one buffer, share one kernel that is compiled and
measured once.

y[i] = x[3, i] + x[3, i + 8]   =>   y[i] = v[0, i] + v[0, i + 8]   where v begins at x[3, 0]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

from superopt.te.analysis.inline import Inliner
from superopt.te.analysis.walk import computed_tensors, loads
from superopt.te.expr import index as te_index
from superopt.te.expr.node import Const, Expr, Load
from superopt.te.expr.tensor import Tensor

ALIGNMENT_BYTES = 16  # bytes: the alignment of buffers that Triton assumes


@dataclass(frozen=True, slots=True)
class BufferView:
    """A buffer that begins `offset` bytes into another one."""

    buffer: Tensor
    offset: int


def use_views(root: Tensor, buffers: Collection[Tensor]) -> tuple[Tensor, dict[Tensor, BufferView]]:
    """Return the tensor reading views of these row-major buffers, and the views."""
    places: dict[Tensor, list[tuple[Expr, ...]]] = {}
    for s in computed_tensors([root]):
        for x in loads(s.body) if s.body is not None else ():
            if x.tensor in buffers:
                places.setdefault(x.tensor, []).append(x.index)
    change: dict[Tensor, Tensor] = {}
    views: dict[Tensor, BufferView] = {}
    for b, some in places.items():
        fixed = _constant_prefix(some)
        shape = [n for n in b.shape if isinstance(n, int)]
        flat = sum(k * prod(shape[d + 1 :]) for d, k in enumerate(fixed))
        at = flat * max(b.dtype.bits // 8, 1)
        lead = len(fixed)
        if all(n == 1 for n in shape[:lead]) or at % ALIGNMENT_BYTES:
            continue
        change[b] = Tensor(b.name, b.dtype, (*[1] * lead, *shape[lead:]))
        views[change[b]] = BufferView(b, at)
    return (_ViewReader(change).tensor(root), views) if change else (root, {})


def _constant_prefix(indices: list[tuple[Expr, ...]]) -> list[int]:
    """Return the constant leading indices that all loads share."""
    out: list[int] = []
    for places in zip(*indices, strict=True):
        first = places[0]
        if not isinstance(first, Const) or any(i != first for i in places):
            break
        out.append(int(first.value))
    return out


class _ViewReader(Inliner):
    """Redirects loads to views, also in inlined stages."""

    def __init__(self, views: Mapping[Tensor, Tensor]) -> None:
        super().__init__({})
        self.views = views
        self.stages: dict[Tensor, Tensor] = {}

    def _expr(self, e: Expr) -> Expr:
        if not isinstance(e, Load):
            return super()._expr(e)
        index = tuple(map(self.expr, e.index))
        view = self.views.get(e.tensor)
        if view is None:
            return Load(self.tensor(e.tensor), index, e.dtype)
        start = [n == 1 and isinstance(i, Const) for i, n in zip(index, view.shape, strict=True)]
        lead = start.index(False) if False in start else len(start)
        return Load(view, (*[te_index.as_index(0)] * lead, *index[lead:]), e.dtype)

    def tensor(self, t: Tensor) -> Tensor:
        if t.body is None:
            return t
        if t not in self.stages:
            body = self.expr(t.body)
            self.stages[t] = t if body is t.body else Tensor(t.name, t.dtype, t.shape, t.axes, body)
        return self.stages[t]
