"""The scalar functions of te/fn.py as LLVM text, for scalars and vectors.

Element types below 32 bits are computed in float32 and rounded after each function, as in
te/domain.py. Integers wrap around and divide toward zero; x / 0 is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from superopt.kernels import bfloat, wide_math
from superopt.kernels import vector_math as vm
from superopt.kernels.text import Text, Value, number
from superopt.te.dtype import BF16, BOOL, F16, F32, I32, DType
from superopt.te.node import Number

_FLOAT = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT = {"add": "add", "sub": "sub", "mul": "mul", "bitand": "and", "bitor": "or", "bitxor": "xor",
        "and": "and", "or": "or", "xor": "xor"}  # fmt: skip
_COMPARED = {"lt": ("olt", "lt"), "le": ("ole", "le"), "eq": ("oeq", "eq"), "ne": ("une", "ne")}
_INTRINSICS = {
    "abs": "fabs", "floor": "floor", "ceil": "ceil", "round": "rint", "sqrt": "sqrt", "exp": "exp",
    "log": "log", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos",
    "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "pow": "pow",
}  # fmt: skip
_LIBRARY = frozenset(("asinh", "acosh", "atanh", "erf", "fmod"))  # libm, in float64, lane by lane
_VECTORS: dict[str, Callable[..., Value]] = {  # of float32
    **wide_math.FUNCTIONS, "exp": vm.exp, "log": vm.log, "tanh": vm.tanh, "erf": vm.erf,
    "sigmoid": vm.sigmoid, "exp_below": vm.exp_below,
}  # fmt: skip
HALF = (F16, BF16)


def applied(t: Text, fn: str, args: Sequence[Value], dtype: DType) -> Value:
    """Emit `fn` of values with equal lanes, as a value of `dtype`."""
    if fn == "select":
        guard, yes, no = args
        return t.make(f"select {guard}, {yes}, {no}", dtype, yes.lanes)
    if fn == "cast":
        return cast(t, args[0], dtype)
    if fn == "bitcast":
        to = Value("", dtype, args[0].lanes).type
        return t.make(f"bitcast {args[0]} to {to}", dtype, args[0].lanes)
    if args[0].dtype in HALF:
        wide = applied(t, fn, [cast(t, a, F32) for a in args], F32 if dtype in HALF else dtype)
        return cast(t, wide, dtype)
    if args[0].dtype.is_float:
        return _of_floats(t, fn, args, dtype)
    return _of_integers(t, fn, args, dtype)


POWERS = (-2, -1, -0.75, -0.5, 0.5, 0.75, 1, 1.5, 2, 3, 4)


def raised(t: Text, x: Value, n: Number) -> Value:
    """Emit x^n for n in CHEAP_EXPONENTS, by products and square roots."""
    if x.dtype in HALF:
        return cast(t, raised(t, cast(t, x, F32), n), x.dtype)

    def times(a: Value, b: Value) -> Value:
        return applied(t, "mul", [a, b], x.dtype)

    n = float(n)
    if n == 1:
        return x
    if n % 1:  # pow(-inf) is inf and pow(-0) is +0, unlike sqrt
        root = applied(t, "sqrt", [applied(t, "add", [x, like(0, x)], x.dtype)], x.dtype)
        least = applied(t, "eq", [x, like(-math.inf, x)], BOOL)
        root = applied(t, "select", [least, like(math.inf, x), root], x.dtype)
        if abs(n) != 0.5:
            other = x if n == 1.5 else applied(t, "sqrt", [root], x.dtype)
            root = times(root, applied(t, "abs", [other], x.dtype))
        return root if n > 0 else applied(t, "div", [like(1, x), root], x.dtype)
    if n < 0:  # the reciprocal first: a square may overflow
        x = applied(t, "div", [like(1, x), x], x.dtype)
    square = times(x, x) if abs(n) > 1 else x
    return times(square, square) if n == 4 else times(square, x) if n == 3 else square


def fused(t: Text, a: Value, b: Value, c: Value) -> Value:
    """Emit a * b + c, rounded once if the processor has FMA; libm's fma takes 4 times as long."""
    return t.call(f"llvm.fmuladd.{a.suffix}", [a, b, c], a.dtype)


def _of_floats(t: Text, fn: str, args: Sequence[Value], dtype: DType) -> Value:
    a = args[0]
    if dtype == F32 and fn in _VECTORS:
        return _VECTORS[fn](t, *args)
    if fn in _FLOAT:
        return t.make(f"{_FLOAT[fn]} {a}, {args[1].text}", dtype, a.lanes)
    if fn in _COMPARED:
        return t.make(f"fcmp {_COMPARED[fn][0]} {a}, {args[1].text}", BOOL, a.lanes)
    if fn in _INTRINSICS:
        return t.call(f"llvm.{_INTRINSICS[fn]}.{a.suffix}", args, dtype)
    if fn in _LIBRARY:
        return t.each(fn, args)
    match fn:
        case "max" | "min":
            return _extreme(t, fn, args)
        case "neg":
            return t.make(f"fneg {a}", dtype, a.lanes)
        case "isnan":
            return t.make(f"fcmp uno {a}, {a.text}", BOOL, a.lanes)
        case "isinf":
            size = t.call(f"llvm.fabs.{a.suffix}", [a], a.dtype)
            return t.make(f"fcmp oeq {size}, {like(float('inf'), a).text}", BOOL, a.lanes)
        case "sign":
            zero = like(0, a)
            one = t.call(f"llvm.copysign.{a.suffix}", [like(1, a), a], dtype)
            same = t.make(f"fcmp one {a}, {zero.text}", BOOL, a.lanes)  # neither 0 nor NaN
            return t.make(f"select {same}, {one}, {a}", dtype, a.lanes)
        case "sigmoid":
            e = applied(t, "exp", [t.make(f"fneg {a}", dtype, a.lanes)], dtype)
            below = t.make(f"fadd {e}, {like(1, a).text}", dtype, a.lanes)
            return t.make(f"fdiv {like(1, a)}, {below.text}", dtype, a.lanes)
        case "mod":
            return _floored(t, args, dtype)
    raise NotImplementedError(f"{fn} of {a.dtype}")


def _extreme(t: Text, fn: str, args: Sequence[Value]) -> Value:
    """Emit the maximum or minimum; NaN if either is NaN. The sign of zeros is unspecified.

    `a > b ? a : b` is one instruction, and b if either is NaN; a is tested for NaN besides, unless
    it is a constant.
    """
    a, b = sorted(args, key=lambda v: v.text.startswith("%"))
    how = "ogt" if fn == "max" else "olt"
    more = t.make(f"fcmp {how} {a}, {b.text}", BOOL, a.lanes)
    out = t.make(f"select {more}, {a}, {b}", a.dtype, a.lanes)
    if not a.text.startswith("%"):
        return out
    none = t.make(f"fcmp uno {a}, {a.text}", BOOL, a.lanes)
    return t.make(f"select {none}, {a}, {out}", a.dtype, a.lanes)


def _floored(t: Text, args: Sequence[Value], dtype: DType) -> Value:
    """Emit the remainder with the sign of the divisor."""
    a, b = args
    rest = applied(t, "fmod", args, dtype)
    zero = like(0, a)
    some = t.make(f"fcmp une {rest}, {zero.text}", BOOL, a.lanes)
    low, below = (t.make(f"fcmp olt {v}, {zero.text}", BOOL, a.lanes) for v in (rest, b))
    apart = t.make(f"xor {low}, {below.text}", BOOL, a.lanes)
    both = t.make(f"and {some}, {apart.text}", BOOL, a.lanes)
    moved = t.make(f"fadd {rest}, {b.text}", dtype, a.lanes)
    return t.make(f"select {both}, {moved}, {rest}", dtype, a.lanes)


def _of_integers(t: Text, fn: str, args: Sequence[Value], dtype: DType) -> Value:
    a = args[0]
    signed = a.dtype.kind != "u" and a.dtype != BOOL
    if fn in _INT:
        return t.make(f"{_INT[fn]} {a}, {args[1].text}", dtype, a.lanes)
    if fn in _COMPARED:
        how = _COMPARED[fn][1]
        how = how if fn in ("eq", "ne") else ("s" if signed else "u") + how
        return t.make(f"icmp {how} {a}, {args[1].text}", BOOL, a.lanes)
    match fn:
        case "max" | "min":
            return t.call(f"llvm.{'s' if signed else 'u'}{fn}.{a.suffix}", args, dtype)
        case "neg":
            return t.make(f"sub {like(0, a)}, {a.text}", dtype, a.lanes)
        case "not" | "bitnot":
            return t.make(f"xor {a}, {like(1 if a.dtype == BOOL else -1, a).text}", dtype, a.lanes)
        case "floor" | "ceil" | "round":
            return a
        case "abs":
            if not signed:
                return a
            opposite = t.make(f"sub {like(0, a)}, {a.text}", dtype, a.lanes)
            below = t.make(f"icmp slt {a}, {like(0, a).text}", BOOL, a.lanes)
            return t.make(f"select {below}, {opposite}, {a}", dtype, a.lanes)
        case "sign":
            low = like(-1 if signed else 0, a)
            low = t.call(f"llvm.{'smax' if signed else 'umax'}.{a.suffix}", [a, low], dtype)
            return t.call(
                f"llvm.{'smin' if signed else 'umin'}.{a.suffix}", [low, like(1, a)], dtype
            )
        case "div" | "mod" | "fmod":
            return _divided(t, fn, args, signed)
        case "shl" | "shr":
            return _shifted(t, fn, args)
    raise NotImplementedError(f"{fn} of {a.dtype}")


def _divided(t: Text, fn: str, args: Sequence[Value], signed: bool) -> Value:
    """Emit a division without traps: by 0, and of the least integer by -1."""
    a, b = args
    n = a.lanes
    none = t.make(f"icmp eq {b}, {like(0, b).text}", BOOL, n)
    minus = t.make(f"icmp eq {b}, {like(-1, b).text}", BOOL, n) if signed else none
    odd = t.make(f"or {none}, {minus.text}", BOOL, n)
    safe = t.make(f"select {odd}, {like(1, b)}, {b}", b.dtype, n)
    letter = "s" if signed else "u"
    if fn == "div":
        q = t.make(f"{letter}div {a}, {safe.text}", a.dtype, n)
        opposite = t.make(f"sub {like(0, a)}, {a.text}", a.dtype, n) if signed else q
        q = t.make(f"select {minus}, {opposite}, {q}", a.dtype, n) if signed else q
        return t.make(f"select {none}, {like(0, a)}, {q}", a.dtype, n)
    rest = t.make(f"{letter}rem {a}, {safe.text}", a.dtype, n)
    if fn == "fmod" or not signed:
        return rest
    some = t.make(f"icmp ne {rest}, {like(0, a).text}", BOOL, n)
    mixed = t.make(f"xor {rest}, {b.text}", a.dtype, n)
    apart = t.make(f"icmp slt {mixed}, {like(0, a).text}", BOOL, n)
    both = t.make(f"and {some}, {apart.text}", BOOL, n)
    moved = t.make(f"add {rest}, {b.text}", a.dtype, n)
    return t.make(f"select {both}, {moved}, {rest}", a.dtype, n)


def _shifted(t: Text, fn: str, args: Sequence[Value]) -> Value:
    """Emit a shift; shifts by the bit width or more give 0."""
    a, b = args
    how = "shl" if fn == "shl" else "lshr" if a.dtype.kind == "u" else "ashr"
    much = t.make(f"icmp uge {b}, {like(a.dtype.bits, b).text}", BOOL, a.lanes)
    safe = t.make(f"select {much}, {like(0, b)}, {b}", b.dtype, a.lanes)
    out = t.make(f"{how} {a}, {safe.text}", a.dtype, a.lanes)
    return t.make(f"select {much}, {like(0, a)}, {out}", a.dtype, a.lanes)


def cast(t: Text, x: Value, dtype: DType) -> Value:
    """Emit ONNX's Cast. Out-of-range floats to integers are unspecified, but do not trap."""
    kind, n = x.dtype, x.lanes
    if kind == dtype:
        return x
    to = Value("", dtype, n).type
    if dtype == BOOL:
        if kind.is_float:
            return t.make(f"fcmp une {x}, {like(0, x).text}", BOOL, n)
        return t.make(f"icmp ne {x}, {like(0, x).text}", BOOL, n)
    signed = "u" if kind.kind == "u" or kind == BOOL else "s"
    if dtype in HALF and kind != F32:
        return cast(t, cast(t, x, F32), dtype)
    if dtype == BF16:
        return bfloat.float32_to_bfloat16(t, x)
    if kind == BF16 and dtype.is_float:
        return cast(t, bfloat.bfloat16_to_float32(t, x), dtype)
    if kind.is_float and dtype.is_float:
        how = "fpext" if dtype.bits > kind.bits else "fptrunc"
    elif kind.is_float:
        return _truncated(t, x, dtype)
    elif dtype.is_float:
        how = f"{signed}itofp"
    elif dtype.bits == kind.bits and kind != BOOL:
        return Value(x.text, dtype, n)
    else:
        wider = dtype.bits > (1 if kind == BOOL else kind.bits)
        how = "trunc" if not wider else "zext" if signed == "u" else "sext"
    return t.make(f"{how} {x} to {to}", dtype, n)


def _truncated(t: Text, x: Value, dtype: DType) -> Value:
    """Emit a float-to-integer conversion. An out-of-range result is arbitrary, but the same at all
    uses (`freeze`)."""
    if x.dtype in HALF:
        x = cast(t, x, F32)
    if dtype.bits < 32:  # through int32, as numpy does
        return cast(t, _truncated(t, x, I32), dtype)
    letter = "u" if dtype.kind == "u" else "s"
    out = t.make(f"fpto{letter}i {x} to {Value('', dtype, x.lanes).type}", dtype, x.lanes)
    return t.make(f"freeze {out}", dtype, x.lanes)


def like(value: Number, v: Value) -> Value:
    """Return a constant of a value's type."""
    return number(value, v.dtype, v.lanes)


_HORIZONTAL = {
    "add": ("fadd", "add"), "mul": ("fmul", "mul"), "max": ("fmaximum", "smax"),
    "min": ("fminimum", "smin"), "or": ("or", "or"), "and": ("and", "and"),
}  # fmt: skip


def across(t: Text, fn: str, v: Value) -> Value:
    """Emit `fn` over all lanes of a vector; float lanes are combined in the fastest order."""
    of_floats, of_integers = _HORIZONTAL[fn]
    if v.dtype.is_float and fn in ("max", "min"):
        v = padded(t, v, float("-inf" if fn == "max" else "inf"), 1 << (v.lanes - 1).bit_length())
        none = t.make(f"fcmp uno {v}, {v.text}", BOOL, v.lanes)
        while v.lanes > 1:
            half = v.lanes // 2
            v = _more(t, fn, [shuffled(t, v, v, range(k, k + half)) for k in (half, 0)], v.dtype)
        out = t.make(f"extractelement {v}, i64 0", v.dtype, 0)
        some = f"%{t.fresh()}"
        t.line(f"{some} = bitcast {none} to i{none.lanes}")
        bad = t.make(f"icmp ne i{none.lanes} {some}, 0", BOOL, 0)
        return t.make(f"select {bad}, {like(float('nan'), out)}, {out}", out.dtype, 0)
    if not v.dtype.is_float:
        how = of_integers
        if v.dtype.kind == "u":
            how = how.replace("smax", "umax").replace("smin", "umin")
        return _reduced(t, how, v, [v], "")
    start = {"add": [number(-0.0, v.dtype)], "mul": [number(1, v.dtype)]}.get(fn, [])
    return _reduced(t, of_floats, v, [*start, v], "reassoc " if start else "")


def joined(t: Text, fn: str, some: Sequence[Value], old: Value) -> Value:
    """Emit `fn` over all values and the accumulator; NaN if any of them is NaN.

    Float maxima and minima use the processor's instruction, and test two values at a time for NaN.
    """
    if not some:
        return old
    how = fn in ("max", "min") and old.dtype.is_float
    fold = _more if how else applied
    left = list(some)
    while len(left) > 1:
        left = [*left[2:], fold(t, fn, left[:2], old.dtype)]
    out = fold(t, fn, [left[0], old], old.dtype)
    if not how:
        return out
    pairs = [(a, some[min(k + 1, len(some) - 1)]) for k, a in enumerate(some) if not k % 2]
    none = [t.make(f"fcmp uno {a}, {b.text}", BOOL, a.lanes) for a, b in pairs]
    while len(none) > 1:
        none = [*none[2:], applied(t, "or", none[:2], BOOL)]
    return t.make(f"select {none[0]}, {like(float('nan'), out)}, {out}", out.dtype, out.lanes)


def _more(t: Text, fn: str, args: Sequence[Value], dtype: DType) -> Value:
    """Emit the larger or smaller value in one instruction; the second one if either is NaN."""
    a, b = args
    more = t.make(f"fcmp {'ogt' if fn == 'max' else 'olt'} {a}, {b.text}", BOOL, a.lanes)
    return t.make(f"select {more}, {a}, {b}", dtype, a.lanes)


def padded(t: Text, v: Value, rest: Number, lanes: int) -> Value:
    """Return the vector extended to `lanes` with the value `fill`."""
    if v.lanes >= lanes:
        return v
    order = [*range(v.lanes), *([v.lanes] * (lanes - v.lanes))]
    return shuffled(t, v, like(rest, v), order)


def _reduced(t: Text, how: str, v: Value, args: Sequence[Value], flags: str) -> Value:
    one = Value("", v.dtype)
    name = f"llvm.vector.reduce.{how}.{v.suffix}"
    t.declared.add(f"declare {one.type} @{name}({', '.join(a.type for a in args)})")
    given = ", ".join(map(str, args))
    return t.make(f"call {flags}{one.type} @{name}({given})", v.dtype, 0)


def transposed(t: Text, rows: Sequence[Value]) -> list[Value]:
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
                out[i], out[i + step] = (shuffled(t, a, b, order) for order in (low, high))
        step *= 2
    return out


def stacked(t: Text, rows: Sequence[Value], count: int) -> list[Value]:
    """Return `count` vectors, each the concatenation of rows k, k + count, ..."""
    out = [list(rows[k::count]) for k in range(count)]
    while len(out[0]) > 1:
        both = range(2 * out[0][0].lanes)
        out = [[shuffled(t, a, b, both) for a, b in zip(x[::2], x[1::2], strict=True)] for x in out]
    return [x for (x,) in out]


def shuffled(t: Text, a: Value, b: Value, order: Sequence[int]) -> Value:
    """Emit a shufflevector: lanes of `a`, then of `b`, in this order."""
    places = ", ".join(f"i32 {k}" for k in order)
    text = f"shufflevector {a}, {b}, <{len(order)} x i32> <{places}>"
    return t.make(text, a.dtype, len(order))


def first(t: Text, v: Value, lanes: int) -> Value:
    """Return the first lanes of a vector."""
    return v if v.lanes == lanes else shuffled(t, v, v, range(lanes))
