"""Operands and attributes that fit products, convolutions, pooling, reductions, normalizations."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.ir.op import Attr
from superopt.rules.trial.sample.draw import (
    Draw,
    PartialShape,
    RejectedChoice,
    Shape,
    divisors,
    draw_shape,
    full_shape,
    least_rank,
)
from superopt.rules.trial.sample.fit_elementwise import broadcastable_shape
from superopt.rules.trial.sample.request import ABSENT, Fit, FitRequest


def _known_size(shape: PartialShape, axis: int) -> int | None:
    """Return the size of an axis of a partial shape, None if unknown."""
    return shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None


def _complete_shape(shape: PartialShape, default: Sequence[int]) -> Shape:
    """Return `default` with the known sizes of `shape`."""
    if shape is None:
        return tuple(default)
    if len(shape) != len(default):
        raise RejectedChoice(f"rank {len(shape)}, not {len(default)}")
    return tuple(d if d is not None else n for d, n in zip(shape, default, strict=True))


# --- matrix products ------------------------------------------------------------------------------


def fit_matmul(request: FitRequest) -> Fit:
    draw = request.draw
    a, b = request.partial_shapes
    inner = _known_size(a, -1)
    if inner is None:
        inner = _known_size(b, -2 if b is None or len(b) > 1 else -1)
    k = draw.size() if inner is None else inner
    ranks = [len(h) if h is not None else draw.pick((2, 2, 2, 3, 4)) for h in (a, b)]
    if a is None and b is not None and len(b) > 2:
        ranks[0] = draw.pick((2, len(b)))
    batch = draw.shape(max(0, *(r - 2 for r in ranks)), max_size=3)
    for h in (a, b):
        for n in range(2, len(h or ())):
            d = _known_size(h, -1 - n)
            if d is not None and d != 1:
                batch = (*batch[: len(batch) + 1 - n], d, *batch[len(batch) + 2 - n :])
    left = _product_operand(a, ranks[0], batch, (draw.size(), k), draw, (k,))
    right = _product_operand(b, ranks[1], batch, (k, draw.size()), draw, (k,))
    return [left, right], {}


def _product_operand(
    shape: PartialShape, rank: int, batch: Shape, matrix: tuple[int, int], draw: Draw, vector: Shape
) -> Shape:
    if rank < 2:
        return _complete_shape(shape, vector[:rank])
    own = batch[len(batch) - (rank - 2) :]
    known = shape if shape is not None else (None,) * rank
    own = tuple(
        1 if d is None and draw.chance(0.15) else n
        for n, d in zip(own, known[: rank - 2], strict=True)
    )
    return _complete_shape(shape, (*own, *matrix))


def fit_gemm(request: FitRequest) -> Fit:
    draw = request.draw
    found: dict[str, Attr] = {
        k: draw.integer_below(2) for k in ("transA", "transB") if k in request.free
    }
    ta, tb = (found.get(k, request.attrs.get(k, 0)) for k in ("transA", "transB"))
    a, b = request.partial_shapes[:2]
    k = _known_size(a, 0 if ta else 1)
    if k is None:
        k = _known_size(b, 1 if tb else 0)
    k = draw.size() if k is None else k
    n, m = _known_size(a, 1 if ta else 0) or draw.size(), _known_size(b, 0 if tb else 1)
    c = request.partial_shapes[2] if len(request.partial_shapes) > 2 else ABSENT
    if m is None:
        m = draw.size() if c is ABSENT else _known_size(c, -1) or draw.size()
    left = _complete_shape(a, (k, n) if ta else (n, k))
    right = _complete_shape(b, (m, k) if tb else (k, m))
    shapes = [left, right]
    if len(request.partial_shapes) > 2:
        shapes.append(broadcastable_shape(c, (n, m), draw))
    for key in ("alpha", "beta"):
        if key in request.free:
            found[key] = draw.pick((1.0, 1.0, 0.5, 2.0))
    return shapes, found


# --- windows --------------------------------------------------------------------------------------


def _geometry(request: FitRequest, kernel: Shape, pooling: bool) -> dict[str, Attr]:
    """Choose open strides, dilations and pads: none, size-preserving, or uneven."""
    draw, rank = request.draw, len(kernel)
    found: dict[str, Attr] = {}
    stay = draw.chance(0.3)
    if "strides" in request.free:
        found["strides"] = tuple(1 if stay else draw.pick((1, 2)) for _ in range(rank))
    if "dilations" in request.free:
        found["dilations"] = tuple(draw.pick((1, 1, 2)) for _ in range(rank))
    if "pads" in request.free:
        steps = found.get("dilations", request.int_tuple("dilations") or (1,) * rank)
        assert isinstance(steps, tuple)
        reach = [(k - 1) * int(d) for k, d in zip(kernel, steps, strict=True)]  # type: ignore[arg-type]
        most = reach if pooling else [2] * rank
        if stay:
            pads = (*(r // 2 for r in reach), *(r - r // 2 for r in reach))
        elif draw.chance(0.3):
            pads = (0,) * (2 * rank)
        else:
            pads = tuple(draw.integer_below(m + 1) for m in (*most, *most))
        found["pads"] = pads
    return found


def _spatial_rank(request: FitRequest, *shapes: PartialShape) -> int:
    """Return the number of spatial axes."""
    for h in shapes:
        if h is not None:
            return len(h) - 2
    for key, each in (("strides", 1), ("dilations", 1), ("pads", 2), ("kernel_shape", 1)):
        value = request.int_tuple(key)
        if value is not None:
            return len(value) // each
    return request.draw.pick((1, 2, 2, 2))


def fit_conv(request: FitRequest) -> Fit:
    draw = request.draw
    x, w = request.partial_shapes[:2]
    rank = _spatial_rank(request, x, w)
    c, ci, o = _known_size(x, 1), _known_size(w, 1), _known_size(w, 0)
    group = request.int_value("group") or 1
    if "group" in request.free:
        if c is not None and ci is not None:
            group = c // ci if ci and c % ci == 0 else 1
        else:
            group = draw.pick([g for g in divisors(c or 6) if not o or o % g == 0])
            if c is None and o is None:
                group = draw.pick((1, 1, 2, 3, 4))
    if ci is None:
        ci = c // group if c is not None else draw.rng.randint(1, 3)
    c = ci * group if c is None else c
    o = group * draw.rng.randint(1, 3) if o is None else o
    kernel = tuple(_known_size(w, 2 + n) or draw.rng.randint(1, 3) for n in range(rank))
    extents = tuple(_known_size(x, 2 + n) or draw.rng.randint(4, 7) for n in range(rank))
    shapes = [
        _complete_shape(x, (draw.rng.randint(1, 2), c, *extents)),
        _complete_shape(w, (o, ci, *kernel)),
        *(_complete_shape(h, (o,)) for h in request.partial_shapes[2:]),
    ]
    found = _geometry(request, kernel, pooling=False)
    return shapes, found | ({"group": group} if "group" in request.free else {})


def fit_conv_transpose(request: FitRequest) -> Fit:
    draw = request.draw
    x, w = request.partial_shapes[:2]
    rank = _spatial_rank(request, x, w)
    group = request.int_value("group") or draw.pick((1, 1, 2))
    c = _known_size(x, 1) or _known_size(w, 0) or group * draw.rng.randint(1, 3)
    outer = _known_size(w, 1) or draw.rng.randint(1, 3)
    kernel = tuple(_known_size(w, 2 + n) or draw.rng.randint(1, 3) for n in range(rank))
    extents = tuple(_known_size(x, 2 + n) or draw.rng.randint(2, 4) for n in range(rank))
    found = _geometry(request, kernel, pooling=False)
    if "pads" in request.free and not draw.chance(0.3):
        found["pads"] = (0,) * (2 * rank)
    shapes = [
        _complete_shape(x, (draw.rng.randint(1, 2), c, *extents)),
        _complete_shape(w, (c, outer, *kernel)),
        *(_complete_shape(h, (outer * group,)) for h in request.partial_shapes[2:]),
    ]
    return shapes, found | ({"group": group} if "group" in request.free else {})


def fit_pool(request: FitRequest) -> Fit:
    draw = request.draw
    rank = _spatial_rank(request, request.partial_shapes[0])
    x = _image_shape(request.partial_shapes[0], rank, draw)
    kernel = request.int_tuple("kernel_shape")
    found: dict[str, Attr] = {}
    if kernel is None:
        kernel = tuple(draw.rng.randint(1, min(3, n)) for n in x[2:])
        found["kernel_shape"] = kernel
    found |= _geometry(request, kernel, pooling=True)
    for key in ("ceil_mode", "count_include_pad"):
        if key in request.free:
            found[key] = draw.integer_below(2)
    return [x], found


def _image_shape(shape: PartialShape, rank: int, draw: Draw) -> Shape:
    return _complete_shape(shape, (draw.rng.randint(1, 2), draw.size(high=4), *draw.shape(rank)))


def fit_image(request: FitRequest) -> Fit:
    """Choose (batch, channels, *space), and one number per channel for each further operand."""
    draw = request.draw
    least = draw.pick((0, 1, 2)) if request.op.name == "BatchNormalization" else draw.pick((1, 2))
    rank = least if request.partial_shapes[0] is None else len(request.partial_shapes[0]) - 2
    first = next(
        (_known_size(h, 0) for h in request.partial_shapes[1:] if _known_size(h, 0) is not None),
        None,
    )
    x = _image_shape(request.partial_shapes[0], rank, draw)
    if first is not None and _known_size(request.partial_shapes[0], 1) is None:
        x = (x[0], first, *x[2:])
    found: dict[str, Attr] = {}
    if "num_groups" in request.free:
        found["num_groups"] = draw.pick(divisors(x[1]))
    return [x, *(_complete_shape(h, x[1:2]) for h in request.partial_shapes[1:])], found


# --- along axes -----------------------------------------------------------------------------------


def fit_reduction(request: FitRequest) -> Fit:
    draw = request.draw
    axes = request.int_tuple("axes")
    x = draw_shape(request.partial_shapes[0], draw, draw.rank(least_rank(*(axes or ()))), high=5)
    found: dict[str, Attr] = {}
    if axes is None:
        count = min(len(x), draw.pick((1, 1, 1, 2, 3)))
        found["axes"] = tuple(sorted(draw.rng.sample(range(len(x)), count)))
    return [x], found


def fit_along_axis(request: FitRequest) -> Fit:
    """Choose one operand and an axis of it."""
    draw = request.draw
    axis = request.int_value("axis")
    least = 1 if axis is None else least_rank(axis)
    x = draw_shape(request.partial_shapes[0], draw, draw.rank(least))
    return [x], ({"axis": draw.integer_below(len(x))} if "axis" in request.free else {})


def fit_trailing_axes(request: FitRequest) -> Fit:
    """Choose a scale and an optional bias that broadcast to the axes from `axis` on."""
    draw = request.draw
    x = full_shape(request.partial_shapes[0]) or draw_shape(
        request.partial_shapes[0], draw, draw.rank(1)
    )
    axis = request.int_value("axis")
    found: dict[str, Attr] = {}
    if "axis" in request.free:
        axis = draw.integer_below(len(x))
        found["axis"] = axis
    own = x[axis if axis is not None else -1 :]
    return [
        x,
        *(_complete_shape(h, own) if h is not ABSENT else () for h in request.partial_shapes[1:]),
    ], found


def fit_frames(request: FitRequest) -> Fit:
    """Return a signal, a window, and the step between the frames of an STFT."""
    draw = request.draw
    signal, window = request.partial_shapes
    known = request.int_value("frame_length")
    (n,) = draw_shape((known,) if window is None else window, draw, 1, high=4)
    dims: list[int | None] = [None, None] if signal is None else list(signal)
    if dims[1] is None:
        dims[1] = n + draw.integer_below(5)
    drawn: dict[str, Attr] = {"frame_step": draw.pick((1, 2, 3)), "frame_length": n}
    chosen = {key: value for key, value in drawn.items() if key in request.free}
    return [draw_shape(tuple(dims), draw, len(dims), high=3), (n,)], chosen
