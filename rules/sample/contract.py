"""Operands and attributes that fit products, convolutions, pooling, reductions, normalizations."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.ir.op import Attr
from superopt.rules.sample.ask import ABSENT, Ask, Fit
from superopt.rules.sample.draw import Draw, Hole, Misfit, Shape, divisors, drawn, full
from superopt.rules.sample.elements import like


def _at(h: Hole, axis: int) -> int | None:
    """Return the size of an axis of a partial shape, None if unknown."""
    return h[axis] if h is not None and -len(h) <= axis < len(h) else None


def _put(h: Hole, default: Sequence[int]) -> Shape:
    """Return `default` with the known sizes of `shape`."""
    if h is None:
        return tuple(default)
    if len(h) != len(default):
        raise Misfit(f"rank {len(h)}, not {len(default)}")
    return tuple(d if d is not None else n for d, n in zip(h, default, strict=True))


# --- matrix products ------------------------------------------------------------------------------


def matmul(ask: Ask) -> Fit:
    draw = ask.draw
    a, b = ask.holes
    inner = _at(a, -1)
    if inner is None:
        inner = _at(b, -2 if b is None or len(b) > 1 else -1)
    k = draw.size() if inner is None else inner
    ranks = [len(h) if h is not None else draw.pick((2, 2, 2, 3, 4)) for h in (a, b)]
    if a is None and b is not None and len(b) > 2:
        ranks[0] = draw.pick((2, len(b)))
    batch = draw.shape(max(0, *(r - 2 for r in ranks)), most=3)
    for h in (a, b):
        for n in range(2, len(h or ())):
            d = _at(h, -1 - n)
            if d is not None and d != 1:
                batch = (*batch[: len(batch) + 1 - n], d, *batch[len(batch) + 2 - n :])
    left = _product_operand(a, ranks[0], batch, (draw.size(), k), draw, (k,))
    right = _product_operand(b, ranks[1], batch, (k, draw.size()), draw, (k,))
    return [left, right], {}


def _product_operand(
    h: Hole, rank: int, batch: Shape, matrix: tuple[int, int], draw: Draw, vector: Shape
) -> Shape:
    if rank < 2:
        return _put(h, vector[:rank])
    own = batch[len(batch) - (rank - 2) :]
    known = h if h is not None else (None,) * rank
    own = tuple(
        1 if d is None and draw.chance(0.15) else n
        for n, d in zip(own, known[: rank - 2], strict=True)
    )
    return _put(h, (*own, *matrix))


def gemm(ask: Ask) -> Fit:
    draw = ask.draw
    found: dict[str, Attr] = {k: draw.below(2) for k in ("transA", "transB") if k in ask.free}
    ta, tb = (found.get(k, ask.attrs.get(k, 0)) for k in ("transA", "transB"))
    a, b = ask.holes[:2]
    k = _at(a, 0 if ta else 1)
    if k is None:
        k = _at(b, 1 if tb else 0)
    k = draw.size() if k is None else k
    n, m = _at(a, 1 if ta else 0) or draw.size(), _at(b, 0 if tb else 1)
    c = ask.holes[2] if len(ask.holes) > 2 else ABSENT
    if m is None:
        m = draw.size() if c is ABSENT else _at(c, -1) or draw.size()
    left = _put(a, (k, n) if ta else (n, k))
    right = _put(b, (m, k) if tb else (k, m))
    shapes = [left, right]
    if len(ask.holes) > 2:
        shapes.append(like(c, (n, m), draw))
    for key in ("alpha", "beta"):
        if key in ask.free:
            found[key] = draw.pick((1.0, 1.0, 0.5, 2.0))
    return shapes, found


# --- windows --------------------------------------------------------------------------------------


def _geometry(ask: Ask, extents: Shape, kernel: Shape, pooling: bool) -> dict[str, Attr]:
    """Choose open strides, dilations and pads: none, size-preserving, or uneven."""
    draw, rank = ask.draw, len(kernel)
    found: dict[str, Attr] = {}
    stay = draw.chance(0.3)
    if "strides" in ask.free:
        found["strides"] = tuple(1 if stay else draw.pick((1, 2)) for _ in range(rank))
    if "dilations" in ask.free:
        found["dilations"] = tuple(draw.pick((1, 1, 2)) for _ in range(rank))
    if "pads" in ask.free:
        steps = found.get("dilations", ask.ints("dilations") or (1,) * rank)
        assert isinstance(steps, tuple)
        reach = [(k - 1) * int(d) for k, d in zip(kernel, steps, strict=True)]  # type: ignore[arg-type]
        most = reach if pooling else [2] * rank
        if stay:
            pads = (*(r // 2 for r in reach), *(r - r // 2 for r in reach))
        elif draw.chance(0.3):
            pads = (0,) * (2 * rank)
        else:
            pads = tuple(draw.below(m + 1) for m in (*most, *most))
        found["pads"] = pads
    if "auto_pad" in ask.free:
        found["auto_pad"] = "NOTSET"
    if "kernel_shape" in ask.free and not pooling:
        found["kernel_shape"] = None
    return found


def _spatial(ask: Ask, *holes: Hole) -> int:
    """Return the number of spatial axes."""
    for h in holes:
        if h is not None:
            return len(h) - 2
    for key, each in (("strides", 1), ("dilations", 1), ("pads", 2), ("kernel_shape", 1)):
        value = ask.ints(key)
        if value is not None:
            return len(value) // each
    return ask.draw.pick((1, 2, 2, 2))


def conv(ask: Ask) -> Fit:
    draw = ask.draw
    x, w = ask.holes[:2]
    rank = _spatial(ask, x, w)
    c, ci, o = _at(x, 1), _at(w, 1), _at(w, 0)
    group = ask.number("group") or 1
    if "group" in ask.free:
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
    kernel = tuple(_at(w, 2 + n) or draw.rng.randint(1, 3) for n in range(rank))
    extents = tuple(_at(x, 2 + n) or draw.rng.randint(4, 7) for n in range(rank))
    shapes = [
        _put(x, (draw.rng.randint(1, 2), c, *extents)),
        _put(w, (o, ci, *kernel)),
        *(_put(h, (o,)) for h in ask.holes[2:]),
    ]
    found = _geometry(ask, extents, kernel, pooling=False)
    return shapes, found | ({"group": group} if "group" in ask.free else {})


def conv_transpose(ask: Ask) -> Fit:
    draw = ask.draw
    x, w = ask.holes[:2]
    rank = _spatial(ask, x, w)
    group = ask.number("group") or draw.pick((1, 1, 2))
    c = _at(x, 1) or _at(w, 0) or group * draw.rng.randint(1, 3)
    outer = _at(w, 1) or draw.rng.randint(1, 3)
    kernel = tuple(_at(w, 2 + n) or draw.rng.randint(1, 3) for n in range(rank))
    extents = tuple(_at(x, 2 + n) or draw.rng.randint(2, 4) for n in range(rank))
    found = _geometry(ask, extents, kernel, pooling=False)
    found |= {k: None for k in ("output_padding", "output_shape") if k in ask.free}
    if "pads" in ask.free and not draw.chance(0.3):
        found["pads"] = (0,) * (2 * rank)
    shapes = [
        _put(x, (draw.rng.randint(1, 2), c, *extents)),
        _put(w, (c, outer, *kernel)),
        *(_put(h, (outer * group,)) for h in ask.holes[2:]),
    ]
    return shapes, found | ({"group": group} if "group" in ask.free else {})


def pool(ask: Ask) -> Fit:
    draw = ask.draw
    rank = _spatial(ask, ask.holes[0])
    x = _image(ask.holes[0], rank, draw)
    kernel = ask.ints("kernel_shape")
    found: dict[str, Attr] = {}
    if kernel is None:
        kernel = tuple(draw.rng.randint(1, min(3, n)) for n in x[2:])
        found["kernel_shape"] = kernel
    found |= _geometry(ask, x[2:], kernel, pooling=True)
    for key in ("ceil_mode", "count_include_pad"):
        if key in ask.free:
            found[key] = draw.below(2)
    return [x], found


def _image(h: Hole, rank: int, draw: Draw) -> Shape:
    return _put(h, (draw.rng.randint(1, 2), draw.size(most=4), *draw.shape(rank)))


def image(ask: Ask) -> Fit:
    """Choose (batch, channels, *space), and one number per channel for each further operand."""
    draw = ask.draw
    least = draw.pick((0, 1, 2)) if ask.op.name == "BatchNormalization" else draw.pick((1, 2))
    rank = least if ask.holes[0] is None else len(ask.holes[0]) - 2
    first = next((_at(h, 0) for h in ask.holes[1:] if _at(h, 0) is not None), None)
    x = _image(ask.holes[0], rank, draw)
    if first is not None and _at(ask.holes[0], 1) is None:
        x = (x[0], first, *x[2:])
    found: dict[str, Attr] = {}
    if "num_groups" in ask.free:
        found["num_groups"] = draw.pick(divisors(x[1]))
    if "training_mode" in ask.free:
        found["training_mode"] = 0
    return [x, *(_put(h, x[1:2]) for h in ask.holes[1:])], found


# --- along axes -----------------------------------------------------------------------------------


def reduction(ask: Ask) -> Fit:
    draw = ask.draw
    axes = ask.ints("axes")
    least = 1 if not axes else max(max(axes) + 1, -min(axes))
    x = drawn(ask.holes[0], draw, draw.rank(least), most=5)
    found: dict[str, Attr] = {}
    if axes is None:
        count = min(len(x), draw.pick((1, 1, 1, 2, 3)))
        found["axes"] = tuple(sorted(draw.rng.sample(range(len(x)), count)))
    return [x], found


def along(ask: Ask) -> Fit:
    """Choose one operand and an axis of it."""
    draw = ask.draw
    axis = ask.number("axis")
    least = 1 if axis is None else max(axis + 1, -axis)
    x = drawn(ask.holes[0], draw, draw.rank(least))
    return [x], ({"axis": draw.below(len(x))} if "axis" in ask.free else {})


def trailing(ask: Ask) -> Fit:
    """Choose a scale and an optional bias that broadcast to the axes from `axis` on."""
    draw = ask.draw
    x = full(ask.holes[0]) or drawn(ask.holes[0], draw, draw.rank(1))
    axis = ask.number("axis")
    found: dict[str, Attr] = {}
    if "axis" in ask.free:
        axis = draw.below(len(x))
        found["axis"] = axis
    own = x[axis if axis is not None else -1 :]
    return [x, *(_put(h, own) if h is not ABSENT else () for h in ask.holes[1:])], found
