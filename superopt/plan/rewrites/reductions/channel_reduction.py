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
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from superopt.kernels.loops.layout import Layout
from superopt.kernels.loops.loop_transforms import reduction
from superopt.plan.lowering.polyphase import replace_reduction
from superopt.te.analysis.affine import affine
from superopt.te.analysis.inline import substitute_axes
from superopt.te.analysis.walk import index_axes, loads, subexpressions
from superopt.te.expr import index as te_index
from superopt.te.expr.node import Apply, Axis, Const, Expr, Load, Reduce
from superopt.te.expr.tensor import Tensor

MIN_PIXELS = 8  # pixels of each channel, at least
SPLITTABLE_REDUCTIONS = ("sum", "max", "min")


@dataclass(frozen=True, slots=True)
class _ChannelIndex:
    """The channel that is read: group * size + within_group, each an axis; group None for all
    channels."""

    group: Axis | None
    within_group: Axis

    @property
    def count(self) -> int:
        return self.within_group.size * (1 if self.group is None else self.group.size)


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
    counted = _split_digits(total)
    read = [
        x for x in loads(counted.body) if x.tensor in layouts and _has_adjacent_channels(x, layouts)
    ]
    some = {x.index[layouts[x.tensor].parts[-1].axis] for x in read}
    places = {i for x in read for n, i in enumerate(x.index) if n != _channel_dim(x, layouts)}
    channels = _match_channel_index(some.pop(), t, counted) if len(some) == 1 else None
    if channels is None or any(channels.within_group in index_axes(i) for i in places):
        return None
    rest = tuple(a for a in counted.axes if a != channels.within_group)
    if prod(a.size for a in rest) < MIN_PIXELS:
        return None
    one = Axis("channel", channels.count)
    env: dict[Axis, Expr] = {channels.within_group: one}
    axes = [*t.axes, one]
    at: list[Expr] = [*t.axes, channels.within_group]
    if channels.group is not None:
        size = channels.within_group.size
        env = {
            channels.group: te_index.as_index(one // size),
            channels.within_group: te_index.as_index(one % size),
        }
        g = axes.index(channels.group)
        del axes[g], at[g]
        at[-1] = te_index.as_index(channels.group * size + channels.within_group)
    body = substitute_axes(Reduce(total.fn, rest, counted.body, total.dtype), env)
    if channels.group is not None:  # restores group * size + within_group
        body = _replace_index(body, te_index.as_index(one // size * size + one % size), one)
    shape = tuple(a.size for a in axes)
    each = Tensor("channels", total.dtype, shape, tuple(axes), body)
    sums = Reduce(
        total.fn, (channels.within_group,), Load(each, tuple(at), total.dtype), total.dtype
    )
    assert t.body is not None
    whole = replace_reduction(t.body, total, sums)
    return each, Tensor(t.name, t.dtype, t.shape, t.axes, whole)


def _replace_index(e: Expr, index: Expr, replacement: Expr) -> Expr:
    """Return `e` with `replacement` in place of `index` in loads."""
    match e:
        case Load(t, at, dtype):
            return Load(t, tuple(replacement if i == index else i for i in at), dtype)
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_replace_index(a, index, replacement) for a in args), dtype)
        case Reduce(fn, axes, body, dtype):
            return Reduce(fn, axes, _replace_index(body, index, replacement), dtype)
    return e


def _channel_dim(x: Load, layouts: Mapping[Tensor, Layout]) -> int:
    return layouts[x.tensor].parts[-1].axis


def _has_adjacent_channels(x: Load, layouts: Mapping[Tensor, Layout]) -> bool:
    """True if the tensor is an image whose channels are contiguous, in blocks or all of them."""
    layout = layouts.get(x.tensor)
    if layout is None:
        return False
    last = layout.parts[-1]
    return last.is_inner or last.axis != x.tensor.rank - 1


def _match_channel_index(index: Expr, t: Tensor, total: Reduce) -> _ChannelIndex | None:
    form = affine(index)
    if form is None or form.base:
        return None
    over = [(a, c) for a, c in form.terms if a in total.axes]
    own = [(a, c) for a, c in form.terms if a in t.axes and a.size > 1]
    if len(over) != 1 or over[0][1] != 1 or over[0][0].size < 2:
        return None
    within = over[0][0]
    if not own:
        return _ChannelIndex(None, within)
    if len(own) != 1 or own[0][1] != within.size:
        return None
    return _ChannelIndex(own[0][0], within)


def _split_digits(total: Reduce) -> Reduce:
    """Return the reduction with one axis for each digit of an axis that is only read as k // w, k
    // h % w, ..."""
    axes: list[Axis] = []
    env: dict[Axis, Expr] = {}
    for a in total.axes:
        cuts = _digit_boundaries(a, total.body)
        if len(cuts) < 3:
            axes.append(a)
            continue
        place: Expr = Const(0, a.dtype)
        own = []
        for n, (low, high) in enumerate(pairwise(cuts)):
            digit = Axis(f"{a.name}.{n}", high // low)
            place = te_index.as_index(place + digit * low)
            own.append(digit)
        env[a] = place
        axes += reversed(own)
    if not env:
        return total
    body = substitute_axes(total.body, {**env})
    return Reduce(total.fn, tuple(axes), body, total.dtype)


def _digit_boundaries(a: Axis, body: Expr) -> list[int]:
    """Return 1, ..., extent, where each divides the next: the divisors of the axis; an empty list
    if the axis is read otherwise."""
    cuts = {1, a.size}
    for e in subexpressions(body):
        match e:
            case Apply("floordiv", (x, Const(d))) if x == a:
                cuts.add(int(d))
            case Apply("mod", (x, Const(m))) if x == a:
                cuts.add(int(m))
            case Apply("mod", (Apply("floordiv", (x, Const(d))), Const(m))) if x == a:
                cuts |= {int(d), int(d) * int(m)}
    found = sorted(cuts)
    return found if all(high % low == 0 for low, high in pairwise(found)) else []
