"""Split reductions over the channels and pixels of an image into a reduction of each channel and
one over channels: means and variances of group norms, and of layer norms over whole images.

m[n, g] = f(sum(x[n, g * c + k // w, k % w] for k))
=>  s[n, b] = sum(x[n, b, j] for j)
m[n, g] = f(sum(s[n, g * c + i] for i))

Channels are contiguous in memory: s uses vectors of them, where the single reduction would gather
each term. The flattened pixel index (k) disappears.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

from superopt.kernels.loops.layout import Layout
from superopt.kernels.loops.loop_transforms import reduction
from superopt.rules.te.match import Context
from superopt.rules.te.rewrite import load_te_rules
from superopt.te.analysis.walk import index_axes, loads
from superopt.te.expr.node import Axis, Expr, Load
from superopt.te.expr.tensor import Tensor

MIN_PIXELS = 8  # pixels of each channel, at least
SPLITTABLE_REDUCTIONS = ("sum", "max", "min")


def split_channel_reductions(
    current: Mapping[Tensor, Tensor],
    row_tensors: Collection[Tensor],
    layouts: Mapping[Tensor, Layout],
) -> dict[Tensor, Tensor]:
    """Return the definitions with such reductions split; channel reductions come before their
    readers. row_tensors: what is computed row by row. layouts: those of image tensors."""
    out: dict[Tensor, Tensor] = {}
    for t, now in current.items():
        made = None if t in row_tensors else _split_by_channel(now, layouts)
        if made is None:
            out[t] = now
        else:
            each, out_of = made
            out[each] = each
            out[t] = out_of
    return out


def _split_by_channel(t: Tensor, layouts: Mapping[Tensor, Layout]) -> tuple[Tensor, Tensor] | None:
    """Return the channel reductions, and the tensor in terms of them; None where it does not
    apply."""
    total = reduction(t)
    if total is None or total.fn not in SPLITTABLE_REDUCTIONS:
        return None
    over = set(total.axes)
    read = [x for x in loads(total.body) if any(over & index_axes(i) for i in x.index)]
    if not read or not all(_has_adjacent_channels(x, layouts) for x in read):
        return None
    if not any(over & index_axes(x.index[_channel_dim(x, layouts)]) for x in read):
        return None

    def is_channel(i: Expr, terms: Expr, *rest: Expr) -> bool:
        """True if the terms read image tensors at channel `i`, whose axes index nothing else."""
        (c,) = index_axes(i) - {*t.axes}
        if c.size < 2 or prod(a.size for a in rest if isinstance(a, Axis)) < MIN_PIXELS:
            return False
        some = [x for x in loads(terms) if _has_adjacent_channels(x, layouts)]
        dims = [_channel_dim(x, layouts) for x in some]
        if not some or any(x.index[d] != i for x, d in zip(some, dims, strict=True)):
            return False
        return not any(
            c in index_axes(at) for x, d in zip(some, dims, strict=True)
            for n, at in enumerate(x.index) if n != d
        )  # fmt: skip

    context = Context(conditions={"is_channel": is_channel})
    counted = load_te_rules("reductions", "digits-").rewrite_fully(t, context)
    made = load_te_rules("reductions", "channels-", "group-channels-").rewrite(counted, context)
    return None if made is None else (made.stored[0], made.tensor)


def _channel_dim(x: Load, layouts: Mapping[Tensor, Layout]) -> int:
    return layouts[x.tensor].parts[-1].axis


def _has_adjacent_channels(x: Load, layouts: Mapping[Tensor, Layout]) -> bool:
    """True if the tensor is an image whose channels are contiguous, in blocks or all of them."""
    layout = layouts.get(x.tensor)
    if layout is None:
        return False
    last = layout.parts[-1]
    return last.is_inner or last.axis != x.tensor.rank - 1
