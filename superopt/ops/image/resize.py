"""Resizing by interpolation, where runtimes agree on the coordinates.

Element i of the result is at the exact fraction (a i + b) / c of the input axis. Runtimes compute
it in floats, so a `nearest` mode or a size that depends on the last bit of such a float has no
expression here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.movement.layout import known_type
from superopt.ops.shared.broadcasting import normalize_axis
from superopt.ops.shared.precision import narrow_tensor, widen_tensor
from superopt.ops.shared.scalars import interpolate
from superopt.ops.shared.sizes import constant_ratios, floor_div, integer_tuple, size_tuple
from superopt.te.expr import index
from superopt.te.expr.dtype import INDEX
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Dim, Tensor, cast, compute, const, in_range, select

FloatTuple = tuple[float, ...]
ROUNDING_TOLERANCE = Fraction(
    1, 10_000
)  # nearer to a jump than this, float32 may fall on either side
COORDINATE_MODES = [
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
]
NEAREST_MODES = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True, slots=True)
class CoordinateLine:
    """The coordinate (slope i + offset) / divisor of element i."""

    slope: int
    offset: int
    divisor: int

    def numerator(self, i: Expr) -> Expr:
        return index.as_index(i * self.slope + self.offset)

    def position(self, i: int) -> Fraction:
        return Fraction(self.slope * i + self.offset, self.divisor)


def _coordinate_line(slope: Fraction, offset: Fraction) -> CoordinateLine:
    divisor = slope.denominator * offset.denominator
    return CoordinateLine(int(slope * divisor), int(offset * divisor), divisor)


def _coordinates(what: str, mode: str, scale: Fraction, extent: Dim, size: Dim) -> CoordinateLine:
    """Return where the elements of a resized axis are on the original axis."""
    half = Fraction(1, 2)
    match mode:
        case "asymmetric":
            return _coordinate_line(1 / scale, Fraction(0))
        case "half_pixel" | "pytorch_half_pixel":
            if mode == "pytorch_half_pixel" and size == 1:
                return _coordinate_line(Fraction(0), Fraction(0))
            return _coordinate_line(1 / scale, half / scale - half)
    if not isinstance(extent, int) or not isinstance(size, int):
        raise InferError(f"{what}: {mode} of the symbolic size {extent}")
    if mode == "half_pixel_symmetric":
        centre = Fraction(extent, 2) * (1 - size / (scale * extent))
        return _coordinate_line(1 / scale, centre + half / scale - half)
    if scale * extent != size:
        raise InferError(f"{what}: {mode} to {float(scale * extent)} elements")
    return _coordinate_line(
        Fraction(extent - 1, size - 1) if size > 1 else Fraction(0), Fraction(0)
    )


def _is_exact(mode: str, scale: Fraction, extent: Dim, size: Dim) -> bool:
    """True if runtimes compute an integer coordinate exactly, by one division of exact numbers."""
    if mode == "align_corners":
        return True
    if mode == "half_pixel_symmetric" and scale * extent != size:  # its shift is a sum of products
        return False
    return Fraction(float(np.float32(float(scale)))) == scale


def _scaled_size(what: str, extent: Dim, scale: Fraction) -> Dim:
    """floor(extent * scale)."""
    if isinstance(extent, int):
        exact = extent * scale
        if exact.denominator != 1 and abs(exact - round(exact)) < ROUNDING_TOLERANCE:
            raise InferError(f"{what}: {extent} times {float(scale)} is just not {round(exact)}")
        return int(exact)
    if scale.denominator > 1 << 10:
        raise InferError(f"{what}: {extent} times {float(scale)}")
    return floor_div(index.dim(index.as_index(extent) * scale.numerator), scale.denominator)


def _clamp_index(i: Expr, extent: Dim) -> Expr:
    last = index.as_index(index.as_index(extent) - 1)
    return index.apply("min", (index.apply("max", (i, const(0, INDEX)), INDEX), last), INDEX)


def _nearest_line(
    what: str, line: CoordinateLine, rounding: str, scale: Fraction, size: Dim, exact: bool
) -> CoordinateLine:
    """Return the line whose floor is the nearest element. exact: runtimes do not round integer
    coordinates."""
    a, b, c = line.slope, line.offset, line.divisor
    match rounding:
        case "round_prefer_floor":
            out = CoordinateLine(2 * a, 2 * b + c - 1, 2 * c)
        case "round_prefer_ceil":
            out = CoordinateLine(2 * a, 2 * b + c, 2 * c)
        case "floor":
            out = line
        case _:
            out = CoordinateLine(a, b + c - 1, c)
    shift = Fraction(1, 2) if rounding.startswith("round") else Fraction(0)
    if not isinstance(size, int):
        if scale.denominator == 1 or scale.numerator == 1:
            return out
        raise InferError(f"{what}: nearest by {scale} of a symbolic size")
    for i in range(size):
        jump = line.position(i) + shift
        distance = abs(jump - round(jump))
        origin = i == line.offset == 0  # nothing to round
        if distance < ROUNDING_TOLERANCE and not (distance == 0 and (exact or origin)):
            raise InferError(
                f"{what}: element {i} is equally near to two: {float(line.position(i))}"
            )
    return out


def _resize_nearest(x: Tensor, axis: int, line: CoordinateLine, size: Dim) -> Tensor:
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])

    def element(*i: Expr) -> Expr:
        near = index.floordiv(line.numerator(i[axis]), const(line.divisor, INDEX))
        return x[(*i[:axis], _clamp_index(near, x.shape[axis]), *i[axis + 1 :])]

    return compute(shape, element, name="nearest")


def _tap_weights(r: Expr, mode: str, a: float) -> list[Expr]:
    """Return the tap weights at a coordinate that is `r` past the preceding element."""
    if mode == "linear":
        return [1 - r, r]

    def far(d: Expr) -> Expr:  # Keys (1981), equation 8, with a for -1/2
        return ((d * a - 5 * a) * d + 8 * a) * d - 4 * a

    def close(d: Expr) -> Expr:
        return (d * (a + 2) - (a + 3)) * d * d + 1

    return [far(r + 1), close(r), close(1 - r), far(2 - r)]


def _interpolate_axis(
    x: Tensor, axis: int, line: CoordinateLine, size: Dim, mode: str, a: float, exclude: bool
) -> Tensor:
    """`x`, of float32 or float64, with `axis` resized to `size` by a weighted sum of the elements
    around each place."""
    extent = x.shape[axis]
    divisor = const(line.divisor, INDEX)
    taps = range(2) if mode == "linear" else range(-1, 3)

    def before(i: Expr) -> Expr:
        return index.floordiv(line.numerator(i), divisor)

    def rest(i: Expr) -> Expr:
        part = cast(index.mod(line.numerator(i), divisor), x.dtype)
        return part if line.divisor == 1 else part / const(line.divisor, x.dtype)

    def weights(i: Expr) -> list[Expr]:
        found = _tap_weights(rest(i), mode, a)
        if not exclude:
            return found
        inner = [
            select(in_range(index.as_index(before(i) + t), extent), w, const(0, x.dtype))
            for t, w in zip(taps, found, strict=True)
        ]
        total = inner[0]
        for w in inner[1:]:
            total = total + w
        return [w / total for w in inner]

    tables = [
        compute((size,), lambda i, t=t: weights(i)[t], name=f"weight{t}") for t in range(len(taps))
    ]

    def element(*i: Expr) -> Expr:
        values = []
        for t in taps:
            place = _clamp_index(index.as_index(before(i[axis]) + t), extent)
            values.append(x[(*i[:axis], place, *i[axis + 1 :])])
        return interpolate(values, [table[i[axis]] for table in tables])

    return compute((*x.shape[:axis], size, *x.shape[axis + 1 :]), element, name=mode)


def _float_tuple(value: Attr, what: str) -> FloatTuple | None:
    """An attribute that is a tuple of numbers, None if it is empty."""
    if value is None:
        return None
    given = value if isinstance(value, tuple) else (value,)
    out: list[float] = []
    for v in given:
        if isinstance(v, bool) or not isinstance(v, (int, float)):
            raise InferError(f"Resize: {what} {value}")
        out.append(float(v))
    return tuple(out) or None


def _resize_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """Axes from 0; what the modes do not read is at its default; an empty operand is none."""
    t, shape = known_type(types)
    rank, mode = len(shape), attrs["mode"]
    what = f"Resize of {t}"
    if attrs["coordinate_transformation_mode"] not in COORDINATE_MODES:
        raise InferError(f"{what}: no expression of {attrs['coordinate_transformation_mode']}")
    if mode not in ("nearest", "linear", "cubic") or attrs["nearest_mode"] not in NEAREST_MODES:
        raise InferError(f"{what}: mode {mode}, nearest_mode {attrs['nearest_mode']}")
    if attrs["antialias"]:
        raise InferError(f"{what}: no expression of antialias")
    axes = None
    if attrs["axes"] is not None:
        axes = tuple(normalize_axis(a, rank, "axes") for a in integer_tuple(attrs["axes"], "axes"))
        axes = None if axes == tuple(range(rank)) else axes
    scales = _float_tuple(attrs["scales"], "scales")
    extents = shape if axes is None else tuple(shape[a] for a in axes)
    ratios = constant_ratios(attrs["sizes"], extents)
    if ratios is not None and attrs["keep_aspect_ratio_policy"] == "stretch":
        scales, attrs = ratios, attrs | {"sizes": None}
    sizes = _float_tuple(attrs["sizes"], "sizes")
    if (scales is None) == (sizes is None):
        raise InferError(f"{what}: either scales or sizes are given")
    count = rank if axes is None else len(axes)
    if len(scales or sizes or ()) != count or min(scales or sizes or ()) <= 0:
        raise InferError(f"{what}: scales {scales} or sizes {sizes} for {count} axes")
    policy = attrs["keep_aspect_ratio_policy"] if sizes is not None else "stretch"
    if policy not in ("stretch", "not_larger", "not_smaller"):
        raise InferError(f"{what}: keep_aspect_ratio_policy {policy}")
    return attrs | {
        "axes": axes,
        "scales": scales,
        "sizes": None if sizes is None else tuple(int(s) for s in sizes),
        "roi": None,  # only for tf_crop_and_resize
        "antialias": 0,
        "extrapolation_value": 0.0,
        "keep_aspect_ratio_policy": policy,
        "exclude_outside": int(bool(attrs["exclude_outside"]) and mode == "cubic"),
        "cubic_coeff_a": attrs["cubic_coeff_a"] if mode == "cubic" else -0.75,
        "nearest_mode": attrs["nearest_mode"] if mode == "nearest" else NEAREST_MODES[0],
    }


def _resized_axes(
    what: str,
    shape: Sequence[Dim],
    axes: Sequence[int],
    scales: FloatTuple | None,
    sizes: tuple[int, ...] | None,
    policy: str,
) -> list[tuple[int, Fraction, Dim]]:
    """(axis, scale, new size) of each axis that changes."""
    out: list[tuple[int, Fraction, Dim]] = []
    if scales is not None:
        for axis, s in zip(axes, scales, strict=True):
            scale = Fraction(float(np.float32(s)))
            if scale != 1:
                out.append((axis, scale, _scaled_size(what, shape[axis], scale)))
        return out
    assert sizes is not None
    ratios: list[Fraction] = []
    for axis, size in zip(axes, sizes, strict=True):
        extent = shape[axis]
        if not isinstance(extent, int) or extent == 0:
            raise InferError(f"{what}: to {size} from the size {extent}")
        ratios.append(Fraction(size, extent))
    if policy != "stretch":
        one = min(ratios) if policy == "not_larger" else max(ratios)
        ratios = [one] * len(ratios)
    for axis, size, ratio in zip(axes, sizes, ratios, strict=True):
        if policy != "stretch":
            size = int(ratio * int(str(shape[axis])) + Fraction(1, 2))
        if ratio != 1:
            out.append((axis, ratio, size))
    return out


@op(
    "Resize",
    example=(
        'f32[1,2,3,4] scales=(1.0,1.0,2.0,2.0) coordinate_transformation_mode="asymmetric"'
        ' nearest_mode="floor"',
        'f32[1,1,3,4] sizes=(5,6) axes=(2,3) mode="linear"',
    ),
    since=11,
    canonical=_resize_attrs,
)
def resize(
    x: Tensor,
    *,
    antialias: int = 0,
    axes: tuple[int, ...] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
    roi: FloatTuple | None = None,
    scales: FloatTuple | None = None,
    sizes: tuple[int, ...] | None = None,
) -> Tensor:
    """`x` interpolated, axis by axis, to `scales` times its size or to `sizes`.

    fp16 and bf16 are interpolated in float32 and rounded once. Between equal elements lies that
    element, to the bit.
    """
    what = f"Resize of {x.type}"
    chosen = range(x.rank) if axes is None else axes
    targets = _resized_axes(what, x.shape, chosen, scales, sizes, keep_aspect_ratio_policy)
    cubic = float(cubic_coeff_a), bool(exclude_outside)
    return _resize_axes(
        x, what, targets, mode, coordinate_transformation_mode, nearest_mode, *cubic
    )


def _resize_axes(
    x: Tensor,
    what: str,
    targets: Sequence[tuple[int, Fraction, Dim]],
    mode: str,
    coordinates: str,
    nearest_mode: str,
    cubic_coeff_a: float = -0.75,
    exclude_outside: bool = False,
) -> Tensor:
    """`x` with each target's axis interpolated to its size. Raises InferError."""
    if mode != "nearest" and not x.dtype.is_float:
        raise InferError(f"{what}: {mode} of integers")
    if targets and all(size == x.shape[axis] for axis, _, size in targets):
        raise InferError(f"{what}: to the same sizes by a scale, where runtimes differ")
    out = x if mode == "nearest" or not targets else widen_tensor(x)
    for axis, scale, size in targets:
        line = _coordinates(what, coordinates, scale, x.shape[axis], size)
        if mode == "cubic" and coordinates == "pytorch_half_pixel" and size == 1:
            raise InferError(f"{what}: cubic to one element, where runtimes differ")
        if mode == "nearest":
            exact = _is_exact(coordinates, scale, out.shape[axis], size)
            line = _nearest_line(what, line, nearest_mode, scale, size, exact)
            out = _resize_nearest(out, axis, line, size)
        else:
            out = _interpolate_axis(out, axis, line, size, mode, cubic_coeff_a, exclude_outside)
    return narrow_tensor(out, x.dtype) if targets else compute(x.shape, lambda *i: x[i])


def _upsample_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    t, shape = known_type(types)
    given = attrs["scales"]
    if isinstance(given, tuple) and any(isinstance(s, Expr) for s in given):  # of any whole numbers
        return attrs | {"scales": size_tuple(given, "scales")}
    scales = _float_tuple(given, "scales") or ()
    if attrs["mode"] not in ("nearest", "linear") or len(scales) != len(shape):
        raise InferError(f"Upsample of {t}: mode {attrs['mode']}, scales {scales}")
    whole = attrs["mode"] == "linear" or all(s == int(s) for s in scales)
    if not whole or min(scales, default=1) < 1:  # rules hold for elements repeated as often
        raise InferError(f"Upsample of {t}: scales {scales} below 1, or not integers")
    return attrs | {"scales": scales}


@op("Upsample", example="f32[1,2,3,2] scales=(1.0,1.0,2.0,3.0)", since=7, canonical=_upsample_attrs)
def upsample(x: Tensor, *, scales: tuple[float | Dim, ...], mode: str = "nearest") -> Tensor:
    """Each element repeated along each axis; linear: as Resize with asymmetric coordinates."""
    if mode == "linear":
        numbers = tuple(float(s) for s in scales if not isinstance(s, Expr))
        what = f"Upsample of {x.type}"
        targets = _resized_axes(what, x.shape, range(x.rank), numbers, None, "stretch")
        return _resize_axes(x, what, targets, mode, "asymmetric", "floor")
    times = [s if isinstance(s, Expr) else int(s) for s in scales]
    shape = tuple(index.dim(index.as_index(n) * s) for n, s in zip(x.shape, times, strict=True))
    return compute(shape, lambda *i: x[tuple(e // s for e, s in zip(i, times, strict=True))])
