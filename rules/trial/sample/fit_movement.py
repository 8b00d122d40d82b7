"""Operands and attributes that fit data movement operators: Concat, Slice, Reshape, ..."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from superopt.ir.op import Attr
from superopt.rules.trial.sample.draw import (
    Draw,
    RejectedChoice,
    Shape,
    complete_like,
    draw_factors,
    draw_shape,
    full_shape,
    known_rank,
    least_rank,
)
from superopt.rules.trial.sample.fit_elementwise import broadcastable_shape
from superopt.rules.trial.sample.request import Fit, FitRequest

EQUAL_LENGTH_SHARE = 0.5  # share of Concat operands with the length of another one
PAD_VALUES = ((0, 1, 2), (0,), (0, 1, -1, 2), (0, 1, -1), (1, -1, 2))  # of the pads of one Pad

# --- joining and cutting --------------------------------------------------------------------------


def fit_concat(request: FitRequest) -> Fit:
    draw = request.draw
    axis = request.int_value("axis")
    rank = known_rank(*request.partial_shapes)
    if rank is None:
        rank = draw.rank(1)
        if axis is not None:
            rank = max(rank, least_rank(axis))
    if axis is None:
        done = [
            h for h in map(full_shape, request.partial_shapes) if h is not None and len(h) == rank
        ]
        apart = [a for a in range(rank) if len({h[a] for h in done}) > 1]
        axis = apart[0] if len(apart) == 1 else draw.integer_below(rank)
    at = axis % rank if rank else 0
    base = list(draw.shape(rank))
    for h in request.partial_shapes:
        for n, d in enumerate(h or ()):
            if d is not None and n < rank:
                base[n] = d
    shapes = []
    for h in request.partial_shapes:
        own = list(base)
        if not draw.chance(EQUAL_LENGTH_SHARE):
            own[at] = draw.size()
        shapes.append(complete_like(h, own, draw))
    return shapes, {"axis": axis}


def fit_split(request: FitRequest) -> Fit:
    draw = request.draw
    split, axis = request.int_tuple("split"), request.int_value("axis")
    least = 1 if axis is None else least_rank(axis)
    x = draw_shape(request.partial_shapes[0], draw, draw.rank(least))
    if axis is None:
        axis = draw.integer_below(len(x)) if "axis" in request.free else 0
    found: dict[str, Attr] = {"axis": axis}
    if split is None:
        n = x[axis]
        parts = draw.pick((2, 2, 2, 3, 1))
        cuts = sorted(draw.rng.randint(0, n) for _ in range(parts - 1))
        if n >= parts and draw.chance(0.9):
            cuts = sorted(draw.rng.sample(range(1, n), parts - 1))
        ends = [0, *cuts, n]
        split = tuple(b - a for a, b in pairwise(ends))
        found["split"] = split
    elif request.partial_shapes[0] is None or request.partial_shapes[0][axis] is None:
        x = (*x[:axis], sum(split), *x[axis + 1 :])
    return [x], found


def fit_slice(request: FitRequest) -> Fit:
    draw = request.draw
    starts, ends, axes = (
        request.int_tuple("starts"),
        request.int_tuple("ends"),
        request.int_tuple("axes"),
    )
    count = next((len(v) for v in (starts, ends, axes) if v is not None), None)
    least = max(least_rank(*(axes or ())), count or 0)
    x = draw_shape(request.partial_shapes[0], draw, draw.rank(least))
    if axes is None:
        if count is None:
            count = draw.pick((1, 1, 1, 2)) if len(x) > 1 else len(x)
        axes = tuple(sorted(draw.rng.sample(range(len(x)), count)))
    steps = request.int_tuple("steps")
    if steps is None:
        choose = "steps" in request.free
        steps = tuple(draw.pick((1, 1, 2, -1)) if choose else 1 for _ in axes)
    first, last = [], []
    for n, (a, step) in enumerate(zip(axes, steps, strict=True)):
        start = starts[n] if starts is not None else None
        end = ends[n] if ends is not None else None
        start, end = _slice_bounds(x[a], step, start, end, draw)
        first.append(start)
        last.append(end)
    found: dict[str, Attr] = {"axes": axes, "starts": tuple(first), "ends": tuple(last)}
    return [x], found | {"steps": steps}


def _slice_bounds(
    n: int, step: int, start: int | None, end: int | None, draw: Draw
) -> tuple[int, int]:
    if n < 1:
        raise RejectedChoice("a slice of nothing")
    if step < 0:
        low, high = draw.subrange(n)
        whole = draw.chance(0.5)
        return (n - 1, -n - 1) if whole else (high - 1, low - 1 - n)
    a, b = draw.subrange(n)
    if start is not None:
        a = start
        b = min(a + draw.pick((1, 1, 2, n)), n)
    if end is not None:
        b = end
        a = a if start is not None else draw.integer_below(max(min(b, n), 1))
    return a, b


def fit_pad(request: FitRequest) -> Fit:
    draw = request.draw
    pads = request.int_tuple("pads")
    least = 0 if pads is None else len(pads) // 2
    x = draw_shape(request.partial_shapes[0], draw, least or draw.rank(1))
    value = [draw_shape(h, draw, 0) for h in request.partial_shapes[1:]]
    found: dict[str, Attr] = {}
    if pads is None:
        least_axis = 2 if len(x) > 2 and draw.chance(0.5) else 0  # as before a convolution
        some = draw.pick(PAD_VALUES)
        sides = [
            [draw.pick(some) if a >= least_axis else 0 for a in range(len(x))] for _ in range(2)
        ]
        if -1 in some and draw.chance(0.35):
            sides[1] = [-p for p in sides[0]]
        found["pads"] = (*sides[0], *sides[1])
    if "mode" in request.free:
        found["mode"] = draw.pick(("constant", "constant", "edge", "reflect"))
    return [x, *value], found


# --- shapes ---------------------------------------------------------------------------------------


def fit_transpose(request: FitRequest) -> Fit:
    draw = request.draw
    perm = request.int_tuple("perm")
    x = draw_shape(request.partial_shapes[0], draw, len(perm) if perm is not None else draw.rank(2))
    if perm is None:
        axes = list(range(len(x)))
        if not draw.chance(0.15):
            draw.rng.shuffle(axes)
        perm = tuple(axes)
    return [x], {"perm": perm}


def fit_reshape(request: FitRequest) -> Fit:
    draw = request.draw
    shape = request.int_tuple("shape")
    hole = request.partial_shapes[0]
    x = full_shape(hole)
    if x is None:
        if shape is not None and hole is None:
            x = shape if draw.chance(0.3) else draw_factors(math.prod(shape), draw.rank(1), draw)
        elif shape is not None and hole is not None:
            x = _complete_to_count(hole, math.prod(shape), draw)
        else:
            x = draw_shape(hole, draw, draw.rank(), high=4)
    return [x], {"shape": shape if shape is not None else _draw_reshape(x, draw)}


def _complete_to_count(shape: Sequence[int | None], count: int, draw: Draw) -> Shape:
    """Complete the partial shape to `count` elements."""
    fixed = math.prod(d for d in shape if d is not None)
    if not fixed or count % fixed:
        raise RejectedChoice(f"{count} elements with {fixed} given")
    rest = iter(draw_factors(count // fixed, sum(d is None for d in shape), draw))
    return tuple(next(rest) if d is None else d for d in shape)


def _draw_reshape(x: Shape, draw: Draw) -> Shape:
    """Return a shape with as many elements: axes merged, split, added, swapped, or unchanged."""
    count = math.prod(x)
    match draw.integer_below(6):
        case 0:
            return x
        case 1 if len(x) > 1:
            k = draw.integer_below(len(x) - 1)
            return (*x[:k], x[k] * x[k + 1], *x[k + 2 :])
        case 2 if x:
            k = draw.integer_below(len(x))
            return (*x[:k], *draw_factors(x[k], 2, draw), *x[k + 1 :])
        case 3:
            k = draw.integer_below(len(x) + 1)
            return (*x[:k], 1, *x[k:])
        case 4 if len(x) > 1:
            a, b = draw.rng.sample(range(len(x)), 2)
            return tuple(x[{a: b, b: a}.get(k, k)] for k in range(len(x)))
        case _:
            return draw_factors(count, draw.pick((1, 2, 2, 3)), draw)


def fit_upsample(request: FitRequest) -> Fit:
    draw = request.draw
    x = draw_shape(request.partial_shapes[0], draw, draw.rank(1), high=4)
    return [x], {"scales": tuple(float(draw.pick((1, 1, 2, 3))) for _ in x)}


def fit_squeeze(request: FitRequest) -> Fit:
    draw = request.draw
    axes = request.int_tuple("axes")
    x = full_shape(request.partial_shapes[0])
    if x is None:
        rank = draw.rank(least_rank(*(axes or ())))
        base = list(draw_shape(request.partial_shapes[0], draw, rank))
        ones = axes if axes is not None else (draw.integer_below(len(base)),)
        hole = request.partial_shapes[0] or (None,) * len(base)
        for a in ones:
            base[a] = 1 if hole[a] is None else base[a]
        x = tuple(base)
    if axes is None:
        found = [a for a, d in enumerate(x) if d == 1]
        axes = tuple(found if draw.chance(0.5) else found[: draw.integer_below(len(found) + 1)])
    return [x], {"axes": axes}


def fit_unsqueeze(request: FitRequest) -> Fit:
    draw = request.draw
    axes = request.int_tuple("axes")
    least = max(least_rank(*axes) - len(axes), 0) if axes else 0
    x = draw_shape(request.partial_shapes[0], draw, draw.rank(least, 3))
    if axes is None:
        more = draw.pick((1, 1, 1, 2))
        axes = tuple(sorted(draw.rng.sample(range(len(x) + more), more)))
    return [x], {"axes": axes}


def fit_flatten(request: FitRequest) -> Fit:
    x = draw_shape(request.partial_shapes[0], request.draw, request.draw.rank(1))
    return [x], ({"axis": request.draw.integer_below(len(x) + 1)} if "axis" in request.free else {})


def fit_expand(request: FitRequest) -> Fit:
    draw = request.draw
    shape = request.int_tuple("shape")
    if shape is not None:
        return [broadcastable_shape(request.partial_shapes[0], shape, draw)], {}
    x = full_shape(request.partial_shapes[0])
    if x is None:
        x = tuple(
            1 if old is None and draw.chance(0.4) else n
            for old, n in zip(
                request.partial_shapes[0] or (None,) * 9,
                draw_shape(request.partial_shapes[0], draw, draw.rank()),
                strict=False,
            )
        )
    if draw.chance(0.25):
        return [x], {"shape": x}
    wider = tuple(draw.size() if d == 1 else d for d in x)
    lead = draw.shape(draw.integer_below(2)) if len(wider) < 4 else ()
    return [x], {"shape": (*lead, *wider)}


def fit_tile(request: FitRequest) -> Fit:
    draw = request.draw
    repeats = request.int_tuple("repeats")
    x = draw_shape(
        request.partial_shapes[0], draw, draw.rank(1) if repeats is None else len(repeats), high=4
    )
    if repeats is None:
        kind = draw.integer_below(3)
        times = [1 if kind == 0 else draw.pick((1, 2, 3)) for _ in x]
        repeats = (draw.pick((2, 3)), *(1,) * (len(x) - 1)) if kind == 1 else tuple(times)
    return [x], {"repeats": repeats}


def fit_space_depth(request: FitRequest) -> Fit:
    draw = request.draw
    b = request.int_value("blocksize") or draw.pick((2, 2, 3))
    n, c, h, w = draw_shape(request.partial_shapes[0], draw, 4, high=3)
    if full_shape(request.partial_shapes[0]) is None:
        if request.op.name == "DepthToSpace":
            c = c * b * b
        else:
            h, w = h * b, w * b
    mode = {"mode": draw.pick(("DCR", "CRD"))} if "mode" in request.free else {}
    return [(n, c, h, w)], {"blocksize": b, **mode}


def fit_gather(request: FitRequest) -> Fit:
    draw = request.draw
    axis = request.int_value("axis")
    least = 1 if axis is None else least_rank(axis)
    x = draw_shape(request.partial_shapes[0], draw, draw.rank(least, 3))
    index = draw_shape(request.partial_shapes[1], draw, draw.pick((0, 1, 1, 2)), high=4)
    return [x, index], ({"axis": draw.integer_below(len(x))} if "axis" in request.free else {})
