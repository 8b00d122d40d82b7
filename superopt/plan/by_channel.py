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

from superopt.kernels.layout import Layout
from superopt.kernels.transform import reduction
from superopt.plan.phases import replaced
from superopt.te import index as ix
from superopt.te.affine import affine
from superopt.te.expr import Tensor
from superopt.te.inline import placed
from superopt.te.node import Apply, Axis, Const, Expr, Load, Reduce
from superopt.te.walk import axes_of, loads, parts

PLACES = 8  # pixels of each channel, at least
FOLDS = ("sum", "max", "min")


@dataclass(frozen=True, slots=True)
class _Channels:
    """The channel that is read: group * size + within_group, each an axis; group None for all
    channels."""

    group: Axis | None
    within: Axis

    @property
    def count(self) -> int:
        return self.within.size * (1 if self.group is None else self.group.size)


def by_channel(
    current: Mapping[Tensor, Tensor], leads: Collection[Tensor], lying: Mapping[Tensor, Layout]
) -> dict[Tensor, Tensor]:
    """Return the definitions with such reductions split; channel reductions come before their
    readers. row_tensors: what is computed row by row. layouts: those of image tensors."""
    out: dict[Tensor, Tensor] = {}
    for t, now in current.items():
        made = None if t in leads else _apart(now, lying)
        if made is None:
            out[t] = now
        else:
            each, out_of = made
            out[each] = each
            out[t] = out_of
    return out


def _apart(t: Tensor, lying: Mapping[Tensor, Layout]) -> tuple[Tensor, Tensor] | None:
    """Return the channel reductions, and the tensor in terms of them; None where it does not
    apply."""
    total = reduction(t)
    if total is None or total.fn not in FOLDS:
        return None
    over = set(total.axes)
    read = [x for x in loads(total.body) if any(over & axes_of(i) for i in x.index)]
    if not read or not all(_in_blocks(x, lying) for x in read):
        return None
    counted = _digits(total)
    read = [x for x in loads(counted.body) if x.tensor in lying and _in_blocks(x, lying)]
    some = {x.index[lying[x.tensor].parts[-1].axis] for x in read}
    places = {i for x in read for n, i in enumerate(x.index) if n != _channel(x, lying)}
    channels = _channels(some.pop(), t, counted) if len(some) == 1 else None
    if channels is None or any(channels.within in axes_of(i) for i in places):
        return None
    rest = tuple(a for a in counted.axes if a != channels.within)
    if prod(a.size for a in rest) < PLACES:
        return None
    one = Axis("channel", channels.count)
    env: dict[Axis, Expr] = {channels.within: one}
    axes = [*t.axes, one]
    at: list[Expr] = [*t.axes, channels.within]
    if channels.group is not None:
        size = channels.within.size
        env = {
            channels.group: ix.as_index(one // size),
            channels.within: ix.as_index(one % size),
        }
        g = axes.index(channels.group)
        del axes[g], at[g]
        at[-1] = ix.as_index(channels.group * size + channels.within)
    body = placed(Reduce(total.fn, rest, counted.body, total.dtype), env)
    if channels.group is not None:  # restores group * size + within_group
        body = _with(body, ix.as_index(one // size * size + one % size), one)
    shape = tuple(a.size for a in axes)
    each = Tensor("channels", total.dtype, shape, tuple(axes), body)
    sums = Reduce(total.fn, (channels.within,), Load(each, tuple(at), total.dtype), total.dtype)
    assert t.body is not None
    whole = replaced(t.body, total, sums)
    return each, Tensor(t.name, t.dtype, t.shape, t.axes, whole)


def _with(e: Expr, index: Expr, short: Expr) -> Expr:
    """Return `e` with `replacement` in place of `index` in loads."""
    match e:
        case Load(t, at, dtype):
            return Load(t, tuple(short if i == index else i for i in at), dtype)
        case Apply(fn, args, dtype):
            return Apply(fn, tuple(_with(a, index, short) for a in args), dtype)
        case Reduce(fn, axes, body, dtype):
            return Reduce(fn, axes, _with(body, index, short), dtype)
    return e


def _channel(x: Load, lying: Mapping[Tensor, Layout]) -> int:
    return lying[x.tensor].parts[-1].axis


def _in_blocks(x: Load, lying: Mapping[Tensor, Layout]) -> bool:
    """True if the tensor is an image whose channels are contiguous, in blocks or all of them."""
    layout = lying.get(x.tensor)
    if layout is None:
        return False
    last = layout.parts[-1]
    return last.within or last.axis != x.tensor.rank - 1


def _channels(index: Expr, t: Tensor, total: Reduce) -> _Channels | None:
    form = affine(index)
    if form is None or form.base:
        return None
    over = [(a, c) for a, c in form.terms if a in total.axes]
    own = [(a, c) for a, c in form.terms if a in t.axes and a.size > 1]
    if len(over) != 1 or over[0][1] != 1 or over[0][0].size < 2:
        return None
    within = over[0][0]
    if not own:
        return _Channels(None, within)
    if len(own) != 1 or own[0][1] != within.size:
        return None
    return _Channels(own[0][0], within)


def _digits(total: Reduce) -> Reduce:
    """Return the reduction with one axis for each digit of an axis that is only read as k // w, k
    // h % w, ..."""
    axes: list[Axis] = []
    env: dict[Axis, Expr] = {}
    for a in total.axes:
        cuts = _cuts(a, total.body)
        if len(cuts) < 3:
            axes.append(a)
            continue
        place: Expr = Const(0, a.dtype)
        own = []
        for n, (low, high) in enumerate(pairwise(cuts)):
            digit = Axis(f"{a.name}.{n}", high // low)
            place = ix.as_index(place + digit * low)
            own.append(digit)
        env[a] = place
        axes += reversed(own)
    if not env:
        return total
    body = placed(total.body, {**env})
    return Reduce(total.fn, tuple(axes), body, total.dtype)


def _cuts(a: Axis, body: Expr) -> list[int]:
    """Return 1, ..., extent, where each divides the next: the divisors of the axis; an empty list
    if the axis is read otherwise."""
    cuts = {1, a.size}
    for e in parts(body):
        match e:
            case Apply("floordiv", (x, Const(d))) if x == a:
                cuts.add(int(d))
            case Apply("mod", (x, Const(m))) if x == a:
                cuts.add(int(m))
            case Apply("mod", (Apply("floordiv", (x, Const(d))), Const(m))) if x == a:
                cuts |= {int(d), int(d) * int(m)}
    found = sorted(cuts)
    return found if all(high % low == 0 for low, high in pairwise(found)) else []
