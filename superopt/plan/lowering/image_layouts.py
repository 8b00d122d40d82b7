"""Choose layouts: blocks of channels with a border of zeros for images, row-major for the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from superopt.kernels.loops.element import is_range_guard
from superopt.kernels.loops.layout import Layout, Part
from superopt.plan.lowering.polyphase import WrittenParts
from superopt.te.analysis import affine
from superopt.te.analysis.walk import index_axes, is_window_load, loads, reductions
from superopt.te.expr import index as te_index
from superopt.te.expr.node import Apply, Expr, Index, Load, Reduce
from superopt.te.expr.symbolic_int import example_sizes, extent, is_in_range, least_at_level
from superopt.te.expr.tensor import Tensor

CHANNEL_BLOCK = 16  # channels
NARROW_CHANNEL_BLOCK = 64  # of 8 bits: as many as instructions multiply and add at a time
MAX_BORDER = 64  # elements on each side of an image of symbolic size
MIN_VECTOR_CHANNELS = 8  # fewer channels do not fill a vector


def blocked_layouts(
    current: Mapping[Tensor, Tensor],
    fixed: Collection[Tensor],
    parts: WrittenParts,
) -> dict[Tensor, Layout]:
    """Return a layout for the tensors that kernels read as images; `fixed` tensors have none.

    current: the definitions. parts: the tensors written in parts.
    """
    image_borders = _image_borders(current, parts)
    planar = planar_images(current, parts, image_borders)
    out = {}
    written = {x.tensor for p in parts.values() for x in p}
    for t, borders in image_borders.items():
        if t in fixed or t in written or (t not in current and t not in parts):
            continue
        c = t.sizes[1]
        begins = [extent(x.begin[1]) for x in parts.get(t, ())]
        space = [Part(d, border=borders[d]) for d in range(2, t.rank)]
        block = NARROW_CHANNEL_BLOCK if t.dtype.bits == 8 else CHANNEL_BLOCK
        if not any(n % block for n in (c, *begins)):
            channels = Part(1, block), Part(1, block, is_inner=True)
            out[t] = Layout((Part(0), channels[0], *space, channels[1]))
        elif t in planar:
            out[t] = Layout((Part(0), Part(1), *space))
        elif _has_few_channels(t) and t in current and isinstance(current[t].body, Load):
            out[t] = Layout((Part(0), Part(1), *space))  # a copy: its rows are contiguous
        else:
            out[t] = Layout((Part(0), *space, Part(1)))
    return out


def planar_images(
    current: Mapping[Tensor, Tensor],
    parts: WrittenParts,
    images: Collection[Tensor],
) -> set[Tensor]:
    """Return the images with few channels and long rows that are computed from such images alone,
    by windows of stride 1 along rows, so that all kernels that compute them have vectors along
    rows."""
    rows = {t for t in images if _has_long_rows(t)}
    links = [(t, [x.tensor for x in p if x.tensor in images]) for t, p in parts.items()]
    links += [
        (t, [x for x in _elementwise_operands(now) if x in images])
        for t, now in current.items()
        if t in images
    ]
    before = None
    while before != len(rows):
        before = len(rows)
        rows = {t for t in rows if t not in current or _runs_along_rows(current[t], images, rows)}
        for t, others in links:
            group = {t, *others}
            if not group <= rows:
                rows -= group
    return rows


def _has_long_rows(t: Tensor) -> bool:
    if t.rank < 3 or not isinstance(t.shape[1], int) or t.shape[1] >= CHANNEL_BLOCK:
        return False
    return least_at_level(t.sizes[-1]) >= CHANNEL_BLOCK


def _runs_along_rows(now: Tensor, images: Collection[Tensor], rows: Collection[Tensor]) -> bool:
    """True if all images that a definition reads are in `rows`, and neighbours of its row read
    neighbours of theirs."""
    for x in loads(now.body) if now.body is not None else ():
        if x.tensor not in images:
            continue
        form = affine.affine(x.index[-1])
        if x.tensor not in rows or form is None or form.coefficient(now.axes[-1]) != 1:
            return False
    return True


def channels_last_layouts(
    current: Mapping[Tensor, Tensor],
    fixed: Collection[Tensor],
    parts: WrittenParts,
) -> dict[Tensor, Layout]:
    """Return layouts with channels last, and borders only around copies with few channels: their
    elements are read one by one, where a border costs no more than a bounds test."""
    written = {x.tensor for p in parts.values() for x in p}
    out = {}
    for t, borders in _image_borders(current, parts).items():
        if t in fixed or t in written or (t not in current and t not in parts):
            continue
        copy = _has_few_channels(t) and t in current and isinstance(current[t].body, Load)
        space = [Part(d, border=borders[d] if copy else 0) for d in range(2, t.rank)]
        out[t] = Layout((Part(0), *space, Part(1)))
    return out


def window_tensors(tensors: Sequence[Tensor]) -> set[Tensor]:
    """Return the tensors over which windows slide."""
    return {
        x.tensor
        for t in tensors
        for r in _window_reductions(t)
        for x in loads(r.body)
        if _is_image_window(x, t, r)
    }


def image_copies(
    tensors: Sequence[Tensor], copies: Collection[Tensor], reshapes: bool = True
) -> set[Tensor]:
    """Return copies over which windows slide, except those that can as well be read from the
    original: few channels and no reads beyond the edge. reshapes: also return reshaped tensors
    (rows of features, channels that were another dimension) that are read beyond the edge, because
    the original has no border."""
    beyond: set[Tensor] = set()
    for t in tensors:
        for r in _window_reductions(t):
            plain = {id(x) for x, border in _loads_with_borders(r.body) if not any(border.values())}
            beyond |= {x.tensor for x in loads(r.body) if id(x) not in plain}
    found = window_tensors(tensors)
    out = {t for t in found & set(copies) if t in beyond or not _has_few_channels(t)}
    return out | {t for t in found & beyond if reshapes and _is_reshape(t)}


def _is_reshape(t: Tensor) -> bool:
    """True if it reads a tensor of another rank, or one whose second axis is not the channels."""
    if not isinstance(t.body, Load):
        return False
    return t.body.tensor.rank != t.rank or t.axes[1] not in index_axes(t.body.index[1])


def _has_few_channels(t: Tensor) -> bool:
    return t.rank > 2 and isinstance(t.shape[1], int) and t.shape[1] < MIN_VECTOR_CHANNELS


def _window_reductions(t: Tensor) -> list[Reduce]:
    """Return the reductions over more than one axis."""
    return [r for r in reductions(t.body) if len(r.axes) > 1]


def _is_image_window(x: Load, t: Tensor, r: Reduce) -> bool:
    return x.tensor.rank == t.rank and is_window_load(t.axes, r.axes, x)


@dataclass(frozen=True, slots=True)
class _WindowReads:
    """What a definition reads in reductions over more than one axis. first: the loads of the first
    one over which windows slide, with the widths by which they read beyond the edges. tensors: all
    that is read there. along_channels: windows slide over spatial dimensions along the second axis
    of the result, which is the channel axis of an image."""

    is_windowed: bool
    first: tuple[tuple[Tensor, tuple[tuple[int, int], ...]], ...]
    tensors: frozenset[Tensor]
    along_channels: bool


def _window_reads(t: Tensor) -> _WindowReads:
    # Where sizes are symbolic, what is decided about them counts for each plan.
    return _find_window_reads(t) if example_sizes() else _known_window_reads(t)


@lru_cache(maxsize=2048)  # layouts are assigned several times for one plan
def _known_window_reads(t: Tensor) -> _WindowReads:
    return _find_window_reads(t)


def _find_window_reads(t: Tensor) -> _WindowReads:
    windows = [(r, list(loads(r.body))) for r in _window_reductions(t)]
    slid = [x for r, some in windows for x in some if _is_image_window(x, t, r)]
    first: tuple[tuple[Tensor, tuple[tuple[int, int], ...]], ...] = ()
    if slid and t.rank >= 3:
        first = tuple(
            (x.tensor, tuple(border.items()))
            for x, border in _loads_with_borders(windows[0][0].body)
            if _is_image_window(x, t, windows[0][0])
        )
    tensors = frozenset(x.tensor for _, some in windows for x in some)
    along = any(t.axes[1] in index_axes(i) for x in slid for i in x.index[2:])
    return _WindowReads(bool(slid), first, tensors, along)


def _image_borders(
    current: Mapping[Tensor, Tensor], parts: WrittenParts
) -> dict[Tensor, dict[int, int]]:
    """Return the image tensors, which windows slide over or windowed kernels compute, with their
    borders by dimension."""
    out: dict[Tensor, dict[int, int]] = {}
    for t, now in current.items():
        reads = _window_reads(now)
        if t.rank < 3 or not reads.is_windowed:
            continue
        if not reads.along_channels:
            out.setdefault(t, dict.fromkeys(range(t.rank), 0))
        for image, border in reads.first:
            known = out.setdefault(image, dict.fromkeys(range(image.rank), 0))
            for d, b in border:
                known[d] = max(known[d], b)
    alike = {
        t: [x for x in (t, *_elementwise_operands(now)) if x.rank >= 3]
        for t, now in current.items()
    }
    more = True
    while more:  # propagate through elementwise operators
        more = False
        for t, now in current.items():
            more |= _mark_images(alike[t], out)
            if t.rank >= 3 and t not in out:
                reads = _window_reads(now)
                whole = () if reads.along_channels else reads.tensors
                images = [x for x in whole if x in out and x.rank == t.rank]
                more |= _mark_images([t, *images[:1]], out)
        for t, p in parts.items():
            more |= _mark_images([x for x in (t, *(x.tensor for x in p)) if x.rank >= 3], out)
    return out


def _mark_images(tensors: Sequence[Tensor], out: dict[Tensor, dict[int, int]]) -> bool:
    """Mark all tensors as images if one of them is; return whether this adds any."""
    new = [x for x in tensors if x not in out]
    if len(new) == len(tensors):
        return False
    out.update((x, dict.fromkeys(range(x.rank), 0)) for x in new)
    return bool(new)


def _elementwise_operands(t: Tensor) -> list[Tensor]:
    """Return the tensors of this shape that are read at the element's own index."""
    out = []
    stack: list[Expr] = [] if t.body is None else [t.body]
    while stack:
        match stack.pop():
            case Load(x, index) if index == t.axes and x.shape == t.shape:
                out.append(x)
            case Load(_, (Index(element),)):  # of a table
                stack.append(element)
            case Apply(_, args):
                stack += args
    return out


def _loads_with_borders(e: Expr) -> list[tuple[Load, dict[int, int]]]:
    """Return the loads, each with the widths by which it reads beyond the edges, where zero is
    read."""
    match e:
        case Load():
            return [(e, {})]
        case Apply("select", (guard, Load() as inside, zero)) if is_range_guard(
            guard, inside, zero
        ):
            return [(inside, _border_widths(inside))]
        case Apply(_, args):
            return [x for a in args for x in _loads_with_borders(a)]
        case Reduce(_, _, body):
            return _loads_with_borders(body)
    return []


def _border_widths(load: Load) -> dict[int, int]:
    out = {}
    for d, (i, n) in enumerate(zip(load.index, load.tensor.shape, strict=True)):
        where = affine.interval(i)
        if isinstance(n, int) and where is not None:
            out[d] = max(0, -where[0], where[1] - n + 1)
            continue
        known = (
            b for b in range(MAX_BORDER + 1) if is_in_range(i + b, te_index.as_index(n + 2 * b))
        )
        width = next(known, None)
        if width is None:
            return {}
        out[d] = width
    return out
