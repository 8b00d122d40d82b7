"""Choose layouts: blocks of channels with a border of zeros for images, row-major for the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from superopt.kernels.element import ranged_read
from superopt.kernels.layout import Layout, Part
from superopt.plan.phases import Written
from superopt.te import affine
from superopt.te.expr import Tensor
from superopt.te.node import Apply, Expr, Load, Reduce
from superopt.te.walk import axes_of, loads, reductions, slides

BLOCK = 16  # channels
FEW = 8  # fewer channels do not fill a vector


def layouts(
    current: Mapping[Tensor, Tensor],
    fixed: Collection[Tensor],
    parts: Written,
) -> dict[Tensor, Layout]:
    """Return a layout for the tensors that kernels read as images; `fixed` tensors have none.

    current: the definitions. parts: the tensors written in parts.
    """
    pictures = _pictures(current, parts)
    out = {}
    written = {x.tensor for p in parts.values() for x in p}
    for t, borders in pictures.items():
        if t in fixed or t in written or (t not in current and t not in parts):
            continue
        c = t.shape[1]
        begins = [x.begin[1] for x in parts.get(t, ())]
        assert isinstance(c, int)
        space = [Part(d, border=borders[d]) for d in range(2, t.rank)]
        if not any(n % BLOCK for n in (c, *begins)):
            channels = Part(1, BLOCK), Part(1, BLOCK, within=True)
            out[t] = Layout((Part(0), channels[0], *space, channels[1]))
        elif _few(t) and t in current and isinstance(current[t].body, Load):
            out[t] = Layout((Part(0), Part(1), *space))  # a copy: its rows are contiguous
        else:
            out[t] = Layout((Part(0), *space, Part(1)))
    return out


def channels_last(
    current: Mapping[Tensor, Tensor],
    fixed: Collection[Tensor],
    parts: Written,
) -> dict[Tensor, Layout]:
    """Return layouts with channels last, and borders only around copies with few channels: their
    elements are read one by one, where a border costs no more than a bounds test."""
    written = {x.tensor for p in parts.values() for x in p}
    out = {}
    for t, borders in _pictures(current, parts).items():
        if t in fixed or t in written or (t not in current and t not in parts):
            continue
        copy = _few(t) and t in current and isinstance(current[t].body, Load)
        space = [Part(d, border=borders[d] if copy else 0) for d in range(2, t.rank)]
        out[t] = Layout((Part(0), *space, Part(1)))
    return out


def slid(some: Sequence[Tensor]) -> set[Tensor]:
    """Return the tensors over which windows slide."""
    return {x.tensor for t in some for r in _windows(t) for x in loads(r.body) if _slides(x, t, r)}


def apart(some: Sequence[Tensor], copies: Collection[Tensor], shaped: bool = True) -> set[Tensor]:
    """Return copies over which windows slide, except those that can as well be read from the
    original: few channels and no reads beyond the edge. reshapes: also return reshaped tensors
    (rows of features) that are read beyond the edge, because the original has no border."""
    beyond: set[Tensor] = set()
    for t in some:
        for r in _windows(t):
            plain = {id(x) for x, border in _read(r.body) if not any(border.values())}
            beyond |= {x.tensor for x in loads(r.body) if id(x) not in plain}
    found = slid(some)
    out = {t for t in found & set(copies) if t in beyond or not _few(t)}
    return out | {t for t in found & beyond if shaped and _of_rows(t)}


def _of_rows(t: Tensor) -> bool:
    """True if it reshapes a tensor of another rank."""
    return isinstance(t.body, Load) and t.body.tensor.rank != t.rank


def _few(t: Tensor) -> bool:
    return t.rank > 2 and isinstance(t.shape[1], int) and t.shape[1] < FEW


def _windows(t: Tensor) -> list[Reduce]:
    """Return the reductions over more than one axis."""
    return [r for r in reductions(t.body) if len(r.axes) > 1]


def _slides(x: Load, t: Tensor, r: Reduce) -> bool:
    return x.tensor.rank == t.rank and slides(t.axes, r.axes, x)


def _turned(t: Tensor) -> bool:
    """True if windows slide over spatial dimensions along the second axis of the result, which is
    the channel axis of an image."""
    return any(
        t.axes[1] in axes_of(i)
        for r in _windows(t) for x in loads(r.body) if _slides(x, t, r) for i in x.index[2:]
    )  # fmt: skip


def _pictures(current: Mapping[Tensor, Tensor], parts: Written) -> dict[Tensor, dict[int, int]]:
    """Return the image tensors, which windows slide over or windowed kernels compute, with their
    borders by dimension."""
    out: dict[Tensor, dict[int, int]] = {}
    for t, now in current.items():
        assert now.body is not None
        windows = _windows(now)
        if t.rank < 3 or not any(_slides(x, now, r) for r in windows for x in loads(r.body)):
            continue
        if not _turned(now):
            out.setdefault(t, dict.fromkeys(range(t.rank), 0))
        for load, border in _read(windows[0].body):
            if _slides(load, now, windows[0]):
                known = out.setdefault(load.tensor, dict.fromkeys(range(t.rank), 0))
                for d, b in border.items():
                    known[d] = max(known[d], b)
    more = True
    while more:  # propagate through elementwise operators
        more = False
        for t, now in current.items():
            more |= _joined([x for x in (t, *_same(now)) if x.rank >= 3], out)
            whole = {x.tensor for r in _windows(now) for x in loads(r.body) if not _turned(now)}
            if t.rank >= 3 and t not in out and any(x in out and x.rank == t.rank for x in whole):
                more |= _joined([t, next(x for x in whole if x in out)], out)
        for t, p in parts.items():
            more |= _joined([x for x in (t, *(x.tensor for x in p)) if x.rank >= 3], out)
    return out


def _joined(some: Sequence[Tensor], out: dict[Tensor, dict[int, int]]) -> bool:
    """Mark all tensors as images if one of them is; return whether this adds any."""
    new = [x for x in some if x not in out]
    if len(new) == len(some):
        return False
    out.update((x, dict.fromkeys(range(x.rank), 0)) for x in new)
    return bool(new)


def _same(t: Tensor) -> list[Tensor]:
    """Return the tensors of this shape that are read at the element's own index."""
    out = []
    stack: list[Expr] = [] if t.body is None else [t.body]
    while stack:
        match stack.pop():
            case Load(x, index) if index == t.axes and x.shape == t.shape:
                out.append(x)
            case Apply(_, args):
                stack += args
    return out


def _read(e: Expr) -> list[tuple[Load, dict[int, int]]]:
    """Return the loads, each with the widths by which it reads beyond the edges, where zero is
    read."""
    match e:
        case Load():
            return [(e, {})]
        case Apply("select", (guard, Load() as inside, zero)) if ranged_read(guard, inside, zero):
            return [(inside, _beyond(inside))]
        case Apply(_, args):
            return [x for a in args for x in _read(a)]
        case Reduce(_, _, body):
            return _read(body)
    return []


def _beyond(load: Load) -> dict[int, int]:
    out = {}
    for d, (i, n) in enumerate(zip(load.index, load.tensor.shape, strict=True)):
        where = affine.interval(i)
        assert isinstance(n, int)
        if where is None:
            return {}
        out[d] = max(0, -where[0], where[1] - n + 1)
    return out
