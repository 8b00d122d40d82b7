"""Slice, Trilu and ReverseSequence."""

from __future__ import annotations

from superopt.ir.op import Attr, InferError, Types, op
from superopt.ops.movement.layout import known_type, zero_of
from superopt.ops.shared.broadcasting import normalize_axis
from superopt.ops.shared.sizes import (
    ceil_div,
    integer_tuple,
    is_at_most,
    max_size,
    min_size,
    single_size,
    size_tuple,
    subtract_sizes,
)
from superopt.te.expr import index
from superopt.te.expr.node import Apply, Expr
from superopt.te.expr.tensor import Dim, Tensor, cast, compute, gather, select

TO_END_THRESHOLD = 2**31 - 1  # exporters write this, or more, for "to the end"
TO_END = 2**63 - 1
PAST_START = -(2**63) + 1


def _clamp_bound(value: Dim, extent: Dim, low: Dim, high: Dim) -> Dim:
    """`value` counted from the start (a negative one counts from the end), in low..high."""
    if isinstance(value, int) and abs(value) >= TO_END_THRESHOLD:
        return high if value > 0 else low
    if is_at_most(0, value):
        return min_size(max_size(value, low), high)
    if is_at_most(value, -1):
        return min_size(max_size(index.dim(index.as_index(value) + extent), low), high)
    raise InferError(f"is the bound {value} negative?")


def _slice_range(start: Dim, end: Dim, step: int, extent: Dim) -> tuple[Dim, Dim, int]:
    """(start, end, step) in range, as numpy's slice does it; an end before the first element is -1.

    One difference is ONNX's: a start before the first element is the first, for negative steps too.
    Where all is known, one form for the same elements: the end is just past the last one.
    """
    if extent == 0:
        return 0, 0, 1
    if step > 0:
        low, high = _clamp_bound(start, extent, 0, extent), _clamp_bound(end, extent, 0, extent)
    else:
        last = index.dim(index.as_index(extent) - 1)
        if isinstance(end, int) and end >= TO_END_THRESHOLD:
            raise InferError("backwards to the end, where runtimes differ")
        low, high = _clamp_bound(start, extent, 0, last), _clamp_bound(end, extent, -1, last)
        for bound in (low, high):
            if isinstance(bound, Expr) and not is_at_most(0, bound):
                raise InferError(f"is the bound {bound} negative?")
    count = _slice_length(low, high, step)
    if not (isinstance(low, int) and isinstance(high, int)):
        return low, high, step
    assert isinstance(count, int)
    if count == 0:
        return 0, 0, 1
    if count == 1:
        return low, low + 1, 1
    return low, low + (count - 1) * step + (1 if step > 0 else -1), step


def _slice_length(start: Dim, end: Dim, step: int) -> Dim:
    if step > 0:
        return ceil_div(max_size(subtract_sizes(end, start), 0), step)
    return ceil_div(max_size(subtract_sizes(start, end), 0), -step)


def _slice_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """Canonical attributes: one entry for each sliced axis, sorted; bounds in range, counted from
    0.

    With a negative step an end before the first element is PAST_START, as ONNX requires.
    """
    t, shape = known_type(types)
    starts, ends = size_tuple(attrs["starts"], "starts"), size_tuple(attrs["ends"], "ends")
    axes = integer_tuple(attrs["axes"], "axes") if attrs["axes"] is not None else range(len(starts))
    steps = (
        integer_tuple(attrs["steps"], "steps") if attrs["steps"] is not None else (1,) * len(starts)
    )
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise InferError(
            f"Slice of {t}: {len(starts)} starts, {len(ends)} ends, {len(axes)} axes,"
            f" {len(steps)} steps"
        )
    found: dict[int, tuple[Dim, Dim, int]] = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        a = normalize_axis(axis, len(shape), "axes")
        if a in found:
            raise InferError(f"Slice of {t}: axes {tuple(axes)} name axis {a} twice")
        if step == 0:
            raise InferError(f"Slice of {t} on axis {a}: the step is 0")
        try:
            found[a] = _slice_range(start, end, step, shape[a])
        except InferError as e:
            raise InferError(f"Slice of {t} on axis {a} from {start} to {end}: {e}") from e
    kept = sorted((a, s) for a, s in found.items() if s != (0, shape[a], 1))
    return {
        "axes": tuple(a for a, _ in kept),
        "starts": tuple(s[0] for _, s in kept),
        "ends": tuple(PAST_START if s[2] < 0 and s[1] == -1 else s[1] for _, s in kept),
        "steps": tuple(s[2] for _, s in kept),
    }


def onnx_bound(value: Dim, extent: Dim) -> Dim:
    """A canonical bound as ONNX says it: n is "to the end", n - 2 is -2, min(m, n) is m."""
    if isinstance(value, int):
        return value
    match value:  # ONNX clamps to the extent anyway
        case Apply("min", (a, b), _) if index.as_index(extent) in (a, b):
            return index.dim(b if a == index.as_index(extent) else a)
        case _:
            pass
    short = subtract_sizes(extent, value)
    if isinstance(short, int) and short >= 0:
        return -short if short else TO_END
    for c in range(1, 5):  # max(n - c, 0)
        if value == max_size(subtract_sizes(extent, c), 0):
            return -c
    return value


@op(
    "Slice",
    example="f32[5,6] axes=(0,1) starts=(4,1) ends=(0,5) steps=(-2,3)",
    laws="data",
    canonical=_slice_attrs,
)
def slice_(
    x: Tensor,
    *,
    starts: tuple[Dim, ...],
    ends: tuple[Dim, ...],
    axes: tuple[int, ...] | None = None,
    steps: tuple[int, ...] | None = None,
) -> Tensor:
    """numpy's x[start:end:step] on each of `axes`: bounds clamped, negative ones from the end."""
    assert axes is not None
    assert steps is not None
    shape = list(x.shape)
    cut: dict[int, tuple[Dim, int]] = {}
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        shape[axis] = _slice_length(start, -1 if end == PAST_START else end, step)
        cut[axis] = (start, step)

    def element(*i: Expr) -> Expr:
        where = list(i)
        for axis, (start, step) in cut.items():
            where[axis] = index.as_index(i[axis] * step + start)
        return x[tuple(where)]

    return compute(tuple(shape), element)


def _trilu_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    t, shape = known_type(types)
    if len(shape) < 2:
        raise InferError(f"Trilu of {t}: it takes a matrix")
    return {"k": single_size(attrs["k"], "k"), "upper": int(bool(attrs["upper"]))}


@op("Trilu", example="f32[3,4] k=1 upper=0", since=14, canonical=_trilu_attrs)
def trilu(x: Tensor, *, k: Dim = 0, upper: int = 1) -> Tensor:
    """The part of each matrix from diagonal `k` up, or from it down; the rest is zero."""
    none = zero_of(x, "Trilu")

    def element(*i: Expr) -> Expr:
        row, column = index.as_index(i[-2] + k), i[-1]
        return select(row <= column if upper else column <= row, x[i], none)

    return compute(x.shape, element)


def _reverse_sequence_attrs(types: Types, attrs: dict[str, Attr]) -> dict[str, Attr]:
    t, _ = known_type(types)
    time, batch = attrs["time_axis"], attrs["batch_axis"]
    if sorted((time, batch), key=str) != [0, 1]:
        raise InferError(f"ReverseSequence of {t}: axes {time} and {batch} are not 0 and 1")
    return attrs


@op(
    "ReverseSequence",
    example="f32[4,3,2] i64[3] batch_axis=1 time_axis=0",
    canonical=_reverse_sequence_attrs,
)
def reverse_sequence(
    x: Tensor, sequence_lens: Tensor, *, batch_axis: int = 1, time_axis: int = 0
) -> Tensor:
    """The first `sequence_lens[b]` elements of `time_axis` in reverse order, then the others."""
    if x.rank < 2 or sequence_lens.shape != (x.shape[batch_axis],):
        raise InferError(f"ReverseSequence of {x.type} by {sequence_lens.type}")

    def element(*i: Expr) -> Expr:
        length = sequence_lens[i[batch_axis]]
        here = cast(i[time_axis], sequence_lens.dtype)
        there = select(here < length, length - here - 1, here)
        return x[(*i[:time_axis], gather(there, x.shape[time_axis]), *i[time_axis + 1 :])]

    return compute(x.shape, element)
