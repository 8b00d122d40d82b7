"""Emit operations across the lanes of vectors: reductions, folds, shuffles, transposition."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.kernels.llvm.builder import TextBuilder, Value, number
from superopt.kernels.llvm.functions import constant_like, emit_function
from superopt.te.expr.dtype import BOOL, DType
from superopt.te.expr.node import Number

_HORIZONTAL = {
    "add": ("fadd", "add"), "mul": ("fmul", "mul"), "max": ("fmaximum", "smax"),
    "min": ("fminimum", "smin"), "or": ("or", "or"), "and": ("and", "and"),
}  # fmt: skip


def reduce_lanes(t: TextBuilder, fn: str, v: Value) -> Value:
    """Emit `fn` over all lanes of a vector; float lanes are combined in the fastest order."""
    of_floats, of_integers = _HORIZONTAL[fn]
    if v.dtype.is_float and fn in ("max", "min"):
        v = pad_lanes(
            t, v, float("-inf" if fn == "max" else "inf"), 1 << (v.lanes - 1).bit_length()
        )
        none = t.make(f"fcmp uno {v}, {v.text}", BOOL, v.lanes)
        while v.lanes > 1:
            half = v.lanes // 2
            v = _emit_ordered_extremum(
                t, fn, [shuffle_lanes(t, v, v, range(k, k + half)) for k in (half, 0)], v.dtype
            )
        out = t.make(f"extractelement {v}, i64 0", v.dtype, 0)
        some = f"%{t.fresh()}"
        t.line(f"{some} = bitcast {none} to i{none.lanes}")
        bad = t.make(f"icmp ne i{none.lanes} {some}, 0", BOOL, 0)
        return t.make(f"select {bad}, {constant_like(float('nan'), out)}, {out}", out.dtype, 0)
    if not v.dtype.is_float:
        how = of_integers
        if v.dtype.kind == "u":
            how = how.replace("smax", "umax").replace("smin", "umin")
        return _emit_vector_reduce(t, how, v, [v], "")
    start = {"add": [number(-0.0, v.dtype)], "mul": [number(1, v.dtype)]}.get(fn, [])
    return _emit_vector_reduce(t, of_floats, v, [*start, v], "reassoc " if start else "")


def emit_fold(t: TextBuilder, fn: str, values: Sequence[Value], accumulator: Value) -> Value:
    """Emit `fn` over all values and the accumulator; NaN if any of them is NaN.

    Float maxima and minima use the processor's instruction, and test two values at a time for NaN.
    """
    if not values:
        return accumulator
    how = fn in ("max", "min") and accumulator.dtype.is_float
    fold = _emit_ordered_extremum if how else emit_function
    left = list(values)
    while len(left) > 1:
        left = [*left[2:], fold(t, fn, left[:2], accumulator.dtype)]
    out = fold(t, fn, [left[0], accumulator], accumulator.dtype)
    if not how:
        return out
    pairs = [(a, values[min(k + 1, len(values) - 1)]) for k, a in enumerate(values) if not k % 2]
    none = [t.make(f"fcmp uno {a}, {b.text}", BOOL, a.lanes) for a, b in pairs]
    while len(none) > 1:
        none = [*none[2:], emit_function(t, "or", none[:2], BOOL)]
    return t.make(
        f"select {none[0]}, {constant_like(float('nan'), out)}, {out}", out.dtype, out.lanes
    )


def _emit_ordered_extremum(t: TextBuilder, fn: str, args: Sequence[Value], dtype: DType) -> Value:
    """Emit the larger or smaller value in one instruction; the second one if either is NaN."""
    a, b = args
    more = t.make(f"fcmp {'ogt' if fn == 'max' else 'olt'} {a}, {b.text}", BOOL, a.lanes)
    return t.make(f"select {more}, {a}, {b}", dtype, a.lanes)


def pad_lanes(t: TextBuilder, v: Value, fill: Number, lanes: int) -> Value:
    """Return the vector extended to `lanes` with the value `fill`."""
    if v.lanes >= lanes:
        return v
    order = [*range(v.lanes), *([v.lanes] * (lanes - v.lanes))]
    return shuffle_lanes(t, v, constant_like(fill, v), order)


def _emit_vector_reduce(
    t: TextBuilder, operation: str, v: Value, args: Sequence[Value], flags: str
) -> Value:
    one = Value("", v.dtype)
    name = f"llvm.vector.reduce.{operation}.{v.suffix}"
    t.declared.add(f"declare {one.type} @{name}({', '.join(a.type for a in args)})")
    given = ", ".join(map(str, args))
    return t.make(f"call {flags}{one.type} @{name}({given})", v.dtype, 0)


def transpose_vectors(t: TextBuilder, rows: Sequence[Value]) -> list[Value]:
    """Return vectors of the first, second, ... lanes of a power of two of rows; if vectors have
    more lanes than there are rows, of each part of as many. Each round exchanges halves of two rows
    (Eklundh, A fast computer method for matrix transposing, 1972)."""
    out, n, lanes = list(rows), len(rows), rows[0].lanes
    step = 1
    while step < n:
        low = [k if not k & step else lanes + k - step for k in range(lanes)]
        high = [k + step if not k & step else lanes + k for k in range(lanes)]
        for i in range(n):
            if not i & step:
                a, b = out[i], out[i + step]
                out[i], out[i + step] = (shuffle_lanes(t, a, b, order) for order in (low, high))
        step *= 2
    return out


def concat_vectors(t: TextBuilder, rows: Sequence[Value], count: int) -> list[Value]:
    """Return `count` vectors, each the concatenation of rows k, k + count, ..."""
    out = [list(rows[k::count]) for k in range(count)]
    while len(out[0]) > 1:
        both = range(2 * out[0][0].lanes)
        out = [
            [shuffle_lanes(t, a, b, both) for a, b in zip(x[::2], x[1::2], strict=True)]
            for x in out
        ]
    return [x for (x,) in out]


def shuffle_lanes(t: TextBuilder, a: Value, b: Value, order: Sequence[int]) -> Value:
    """Emit a shufflevector: lanes of `a`, then of `b`, in this order."""
    places = ", ".join(f"i32 {k}" for k in order)
    text = f"shufflevector {a}, {b}, <{len(order)} x i32> <{places}>"
    return t.make(text, a.dtype, len(order))


def first_lanes(t: TextBuilder, v: Value, lanes: int) -> Value:
    """Return the first lanes of a vector."""
    return v if v.lanes == lanes else shuffle_lanes(t, v, v, range(lanes))
