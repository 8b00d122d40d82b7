"""The scalar functions of te/expr/functions.py as LLVM text, for scalars and vectors.

Element types below 32 bits are computed in float32 and rounded after each function, as in
te/eval/domain.py. Integers wrap around and divide toward zero; x / 0 is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from superopt.kernels.llvm.builder import TextBuilder, Value, number
from superopt.kernels.llvm.math import bfloat16, float64_math, vector_math
from superopt.te.expr.dtype import BF16, BOOL, F16, F32, I32, U32, DType
from superopt.te.expr.node import Apply, Const, Expr, Number

_FLOAT_INSTRUCTIONS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INTEGER_INSTRUCTIONS = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "bitand": "and",
    "bitor": "or",
    "bitxor": "xor",
    "and": "and",
    "or": "or",
    "xor": "xor",
}
_COMPARISONS = {"lt": ("olt", "lt"), "le": ("ole", "le"), "eq": ("oeq", "eq"), "ne": ("une", "ne")}
_INTRINSICS = {
    "abs": "fabs", "floor": "floor", "ceil": "ceil", "round": "rint", "sqrt": "sqrt", "exp": "exp",
    "log": "log", "sin": "sin", "cos": "cos", "tan": "tan", "asin": "asin", "acos": "acos",
    "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "pow": "pow",
}  # fmt: skip
_LIBM_FUNCTIONS = frozenset(
    ("asinh", "acosh", "atanh", "erf", "fmod")
)  # libm, in float64, lane by lane
_VECTOR_FUNCTIONS: dict[str, Callable[..., Value]] = {  # of float32
    **float64_math.FUNCTIONS,
    "exp": vector_math.exp,
    "log": vector_math.log,
    "tanh": vector_math.tanh,
    "erf": vector_math.erf,
    "sigmoid": vector_math.sigmoid,
    "exp_below": vector_math.exp_non_positive,
}
FLOAT16_DTYPES = (F16, BF16)
TABLE_LANES = 16  # entries of a table that one AVX-512 instruction permutes, by 4 bits of each lane


def emit_function(t: TextBuilder, fn: str, args: Sequence[Value], dtype: DType) -> Value:
    """Emit `fn` of values with equal lanes, as a value of `dtype`."""
    if fn == "select":
        guard, yes, no = args
        return t.make(f"select {guard}, {yes}, {no}", dtype, yes.lanes)
    if fn == "cast":
        return emit_cast(t, args[0], dtype)
    if fn == "bitcast":
        to = Value("", dtype, args[0].lanes).type
        return t.make(f"bitcast {args[0]} to {to}", dtype, args[0].lanes)
    if args[0].dtype in FLOAT16_DTYPES:
        wide = emit_function(
            t, fn, [emit_cast(t, a, F32) for a in args], F32 if dtype in FLOAT16_DTYPES else dtype
        )
        return emit_cast(t, wide, dtype)
    if args[0].dtype.is_float:
        return _emit_float_function(t, fn, args, dtype)
    return _emit_integer_function(t, fn, args, dtype)


CHEAP_EXPONENTS = (-2, -1, -0.75, -0.5, 0.5, 0.75, 1, 1.5, 2, 3, 4)


def emit_power(t: TextBuilder, x: Value, n: Number) -> Value:
    """Emit x^n for n in CHEAP_EXPONENTS, by products and square roots."""
    if x.dtype in FLOAT16_DTYPES:
        return emit_cast(t, emit_power(t, emit_cast(t, x, F32), n), x.dtype)

    def times(a: Value, b: Value) -> Value:
        return emit_function(t, "mul", [a, b], x.dtype)

    n = float(n)
    if n == 1:
        return x
    if n % 1:  # pow(-inf) is inf and pow(-0) is +0, unlike sqrt
        root = emit_function(
            t, "sqrt", [emit_function(t, "add", [x, constant_like(0, x)], x.dtype)], x.dtype
        )
        least = emit_function(t, "eq", [x, constant_like(-math.inf, x)], BOOL)
        root = emit_function(t, "select", [least, constant_like(math.inf, x), root], x.dtype)
        if abs(n) != 0.5:
            other = x if n == 1.5 else emit_function(t, "sqrt", [root], x.dtype)
            root = times(root, emit_function(t, "abs", [other], x.dtype))
        return root if n > 0 else emit_function(t, "div", [constant_like(1, x), root], x.dtype)
    if n < 0:  # the reciprocal first: a square may overflow
        x = emit_function(t, "div", [constant_like(1, x), x], x.dtype)
    square = times(x, x) if abs(n) > 1 else x
    return times(square, square) if n == 4 else times(square, x) if n == 3 else square


def emit_fma(t: TextBuilder, a: Value, b: Value, c: Value) -> Value:
    """Emit a * b + c, rounded once if the processor has FMA; libm's fma takes 4 times as long."""
    return t.call(f"llvm.fmuladd.{a.suffix}", [a, b, c], a.dtype)


def _emit_float_function(t: TextBuilder, fn: str, args: Sequence[Value], dtype: DType) -> Value:
    a = args[0]
    if dtype == F32 and fn in _VECTOR_FUNCTIONS:
        return _VECTOR_FUNCTIONS[fn](t, *args)
    if fn in _FLOAT_INSTRUCTIONS:
        return t.make(f"{_FLOAT_INSTRUCTIONS[fn]} {a}, {args[1].text}", dtype, a.lanes)
    if fn in _COMPARISONS:
        return t.make(f"fcmp {_COMPARISONS[fn][0]} {a}, {args[1].text}", BOOL, a.lanes)
    if fn in _INTRINSICS:
        return t.call(f"llvm.{_INTRINSICS[fn]}.{a.suffix}", args, dtype)
    if fn in _LIBM_FUNCTIONS:
        return t.call_per_lane(fn, args)
    match fn:
        case "max" | "min":
            return _emit_extremum(t, fn, args)
        case "neg":
            return t.make(f"fneg {a}", dtype, a.lanes)
        case "isnan":
            return t.make(f"fcmp uno {a}, {a.text}", BOOL, a.lanes)
        case "isinf":
            size = t.call(f"llvm.fabs.{a.suffix}", [a], a.dtype)
            return t.make(f"fcmp oeq {size}, {constant_like(float('inf'), a).text}", BOOL, a.lanes)
        case "sign":
            zero = constant_like(0, a)
            one = t.call(f"llvm.copysign.{a.suffix}", [constant_like(1, a), a], dtype)
            same = t.make(f"fcmp one {a}, {zero.text}", BOOL, a.lanes)  # neither 0 nor NaN
            return t.make(f"select {same}, {one}, {a}", dtype, a.lanes)
        case "sigmoid":
            e = emit_function(t, "exp", [t.make(f"fneg {a}", dtype, a.lanes)], dtype)
            below = t.make(f"fadd {e}, {constant_like(1, a).text}", dtype, a.lanes)
            return t.make(f"fdiv {constant_like(1, a)}, {below.text}", dtype, a.lanes)
        case "mod":
            return _emit_floored_mod(t, args, dtype)
    raise NotImplementedError(f"{fn} of {a.dtype}")


def _emit_extremum(t: TextBuilder, fn: str, args: Sequence[Value]) -> Value:
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


def _emit_floored_mod(t: TextBuilder, args: Sequence[Value], dtype: DType) -> Value:
    """Emit the remainder with the sign of the divisor."""
    a, b = args
    rest = emit_function(t, "fmod", args, dtype)
    zero = constant_like(0, a)
    is_nonzero = t.make(f"fcmp une {rest}, {zero.text}", BOOL, a.lanes)
    rest_negative, b_negative = (
        t.make(f"fcmp olt {v}, {zero.text}", BOOL, a.lanes) for v in (rest, b)
    )
    signs_differ = t.make(f"xor {rest_negative}, {b_negative.text}", BOOL, a.lanes)
    needs_fix = t.make(f"and {is_nonzero}, {signs_differ.text}", BOOL, a.lanes)
    shifted = t.make(f"fadd {rest}, {b.text}", dtype, a.lanes)
    return t.make(f"select {needs_fix}, {shifted}, {rest}", dtype, a.lanes)


def _emit_integer_function(t: TextBuilder, fn: str, args: Sequence[Value], dtype: DType) -> Value:
    a = args[0]
    signed = a.dtype.kind != "u" and a.dtype != BOOL
    if fn in _INTEGER_INSTRUCTIONS:
        return t.make(f"{_INTEGER_INSTRUCTIONS[fn]} {a}, {args[1].text}", dtype, a.lanes)
    if fn in _COMPARISONS:
        how = _COMPARISONS[fn][1]
        how = how if fn in ("eq", "ne") else ("s" if signed else "u") + how
        return t.make(f"icmp {how} {a}, {args[1].text}", BOOL, a.lanes)
    match fn:
        case "max" | "min":
            return t.call(f"llvm.{'s' if signed else 'u'}{fn}.{a.suffix}", args, dtype)
        case "neg":
            return t.make(f"sub {constant_like(0, a)}, {a.text}", dtype, a.lanes)
        case "not" | "bitnot":
            return t.make(
                f"xor {a}, {constant_like(1 if a.dtype == BOOL else -1, a).text}", dtype, a.lanes
            )
        case "floor" | "ceil" | "round":
            return a
        case "abs":
            if not signed:
                return a
            opposite = t.make(f"sub {constant_like(0, a)}, {a.text}", dtype, a.lanes)
            below = t.make(f"icmp slt {a}, {constant_like(0, a).text}", BOOL, a.lanes)
            return t.make(f"select {below}, {opposite}, {a}", dtype, a.lanes)
        case "sign":
            low = constant_like(-1 if signed else 0, a)
            low = t.call(f"llvm.{'smax' if signed else 'umax'}.{a.suffix}", [a, low], dtype)
            return t.call(
                f"llvm.{'smin' if signed else 'umin'}.{a.suffix}", [low, constant_like(1, a)], dtype
            )
        case "div" | "mod" | "fmod":
            return _emit_integer_division(t, fn, args, signed)
        case "shl" | "shr":
            return _emit_shift(t, fn, args)
    raise NotImplementedError(f"{fn} of {a.dtype}")


def _emit_integer_division(t: TextBuilder, fn: str, args: Sequence[Value], signed: bool) -> Value:
    """Emit a division without traps: by 0, and of the least integer by -1."""
    a, b = args
    n = a.lanes
    none = t.make(f"icmp eq {b}, {constant_like(0, b).text}", BOOL, n)
    minus = t.make(f"icmp eq {b}, {constant_like(-1, b).text}", BOOL, n) if signed else none
    odd = t.make(f"or {none}, {minus.text}", BOOL, n)
    safe = t.make(f"select {odd}, {constant_like(1, b)}, {b}", b.dtype, n)
    letter = "s" if signed else "u"
    if fn == "div":
        q = t.make(f"{letter}div {a}, {safe.text}", a.dtype, n)
        opposite = t.make(f"sub {constant_like(0, a)}, {a.text}", a.dtype, n) if signed else q
        q = t.make(f"select {minus}, {opposite}, {q}", a.dtype, n) if signed else q
        return t.make(f"select {none}, {constant_like(0, a)}, {q}", a.dtype, n)
    rest = t.make(f"{letter}rem {a}, {safe.text}", a.dtype, n)
    if fn == "fmod" or not signed:
        return rest
    is_nonzero = t.make(f"icmp ne {rest}, {constant_like(0, a).text}", BOOL, n)
    mixed = t.make(f"xor {rest}, {b.text}", a.dtype, n)
    signs_differ = t.make(f"icmp slt {mixed}, {constant_like(0, a).text}", BOOL, n)
    needs_fix = t.make(f"and {is_nonzero}, {signs_differ.text}", BOOL, n)
    shifted = t.make(f"add {rest}, {b.text}", a.dtype, n)
    return t.make(f"select {needs_fix}, {shifted}, {rest}", a.dtype, n)


def _emit_shift(t: TextBuilder, fn: str, args: Sequence[Value]) -> Value:
    """Emit a shift; shifts by the bit width or more give 0."""
    a, b = args
    how = "shl" if fn == "shl" else "lshr" if a.dtype.kind == "u" else "ashr"
    much = t.make(f"icmp uge {b}, {constant_like(a.dtype.bits, b).text}", BOOL, a.lanes)
    safe = t.make(f"select {much}, {constant_like(0, b)}, {b}", b.dtype, a.lanes)
    out = t.make(f"{how} {a}, {safe.text}", a.dtype, a.lanes)
    return t.make(f"select {much}, {constant_like(0, a)}, {out}", a.dtype, a.lanes)


def emit_cast(t: TextBuilder, x: Value, dtype: DType) -> Value:
    """Emit ONNX's Cast. Out-of-range floats to integers are unspecified, but do not trap."""
    kind, n = x.dtype, x.lanes
    if kind == dtype:
        return x
    to = Value("", dtype, n).type
    if dtype == BOOL:
        if kind.is_float:
            return t.make(f"fcmp une {x}, {constant_like(0, x).text}", BOOL, n)
        return t.make(f"icmp ne {x}, {constant_like(0, x).text}", BOOL, n)
    signed = "u" if kind.kind == "u" or kind == BOOL else "s"
    if dtype in FLOAT16_DTYPES and kind != F32:
        return emit_cast(t, emit_cast(t, x, F32), dtype)
    if dtype == BF16:
        if t.has_bf16 and n == bfloat16.VECTOR_LANES:
            return bfloat16.round_vector(t, x)
        return bfloat16.float32_to_bfloat16(t, x)
    if kind == BF16 and dtype.is_float:
        return emit_cast(t, bfloat16.bfloat16_to_float32(t, x), dtype)
    if kind.is_float and dtype.is_float:
        how = "fpext" if dtype.bits > kind.bits else "fptrunc"
    elif kind.is_float:
        return _emit_float_to_int(t, x, dtype)
    elif dtype.is_float:
        how = f"{signed}itofp"
    elif dtype.bits == kind.bits and kind != BOOL:
        return Value(x.text, dtype, n)
    else:
        wider = dtype.bits > (1 if kind == BOOL else kind.bits)
        how = "trunc" if not wider else "zext" if signed == "u" else "sext"
    return t.make(f"{how} {x} to {to}", dtype, n)


def _emit_float_to_int(t: TextBuilder, x: Value, dtype: DType) -> Value:
    """Emit a float-to-integer conversion. An out-of-range result is arbitrary, but the same at all
    uses (`freeze`)."""
    if x.dtype in FLOAT16_DTYPES:
        x = emit_cast(t, x, F32)
    if dtype.bits < 32:  # through int32, as numpy does
        return emit_cast(t, _emit_float_to_int(t, x, I32), dtype)
    letter = "u" if dtype.kind == "u" else "s"
    out = t.make(f"fpto{letter}i {x} to {Value('', dtype, x.lanes).type}", dtype, x.lanes)
    return t.make(f"freeze {out}", dtype, x.lanes)


def constant_like(value: Number, v: Value) -> Value:
    """Return a constant of a value's type."""
    return number(value, v.dtype, v.lanes)


@dataclass(frozen=True, slots=True)
class BitField:
    """The lowest bits of an integer as a float32, less an offset."""

    bits: Expr
    mask: int
    offset: Number


def match_bit_field(e: Expr) -> BitField | None:
    """Match f32(x & mask) or f32(x & mask) - offset, for at most 4 bits."""
    offset: Number = 0
    match e:
        case Apply("sub", (Apply("cast") as field, Const(n))):
            e, offset = field, n
    match e:
        case Apply("cast", (Apply("bitand", (x, Const(mask))),)) if (
            e.dtype == F32 and x.dtype == U32 and int(mask) in (1, 3, 7, 15)
        ):
            return BitField(x, int(mask), offset)
    return None


def emit_bit_field(t: TextBuilder, field: BitField, x: Value) -> Value:
    """Emit a bit field of `x`: from a table of all its values, if `x` is a whole vector."""
    if x.lanes != TABLE_LANES:
        masked = emit_function(t, "bitand", [x, number(field.mask, U32, x.lanes)], U32)
        value = emit_cast(t, masked, F32)
        if field.offset == 0:
            return value
        return emit_function(t, "sub", [value, number(field.offset, F32, x.lanes)], F32)
    values = (number((k & field.mask) - field.offset, F32) for k in range(TABLE_LANES))
    table = Value(f"<{', '.join(map(str, values))}>", F32, TABLE_LANES)
    x = Value(x.text, I32, x.lanes)
    return t.call("llvm.x86.avx512.permvar.sf.512", [table, x], F32)
