"""The scalar functions of te/expr/functions.py as Triton text: a template each, for float32,
float64 and integers.

A function that Triton lacks, or defines differently, is a helper: a small function printed before
the kernels that use it. Floats below 32 bits are computed in float32 and rounded after each
function, as in te/eval/domain.py. Functions without a template are not supported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from superopt.te.expr.dtype import BF16, BOOL, F16, F32, F64, I32, INDEX, DType, to_numpy
from superopt.te.expr.node import Number

FLOAT16_DTYPES = (F16, BF16)
TRITON_TYPES: Mapping[str, str] = MappingProxyType({
    "bool": "tl.int1", "f16": "tl.float16", "bf16": "tl.bfloat16", "f32": "tl.float32",
    "f64": "tl.float64", **{f"i{n}": f"tl.int{n}" for n in (8, 16, 32, 64)},
    **{f"u{n}": f"tl.uint{n}" for n in (8, 16, 32, 64)},
})  # fmt: skip

_MAX = "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)"
_MIN = "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)"
_ARITHMETIC = ("add", "({0} + {1})"), ("sub", "({0} - {1})"), ("mul", "({0} * {1})")
_COMPARISONS = tuple((fn, f"({{0}} {op} {{1}})") for fn, op in
                  (("lt", "<"), ("le", "<="), ("eq", "=="), ("ne", "!=")))  # fmt: skip

_FLOATS: Mapping[str, str] = {
    **dict(_ARITHMETIC), **dict(_COMPARISONS),
    # up to Triton 3.7 -x is 0 - x, which is not -0 for 0
    "neg": "({0} * -1.0)", "max": _MAX, "min": _MIN, "abs": "tl.abs({0})", "sign": "_sign({0})",
    "mod": "_modulo(_fmod({0}, {1}), {1})", "fmod": "_fmod({0}, {1})",
    **dict.fromkeys(("exp", "exp_below"), "tl.exp({0})"), "exp2": "tl.exp2({0})",
    "log": "tl.log({0})",
    "sin": "tl.sin({0})", "cos": "tl.cos({0})",
    "tan": "(tl.sin({0}) / tl.cos({0}))", "pow": "_pow({0}, {1})",
    "erf": "tl.erf({0})", "erf_short": "_erf_short({0})", "sigmoid": "tl.sigmoid({0})",
    "floor": "tl.floor({0})", "ceil": "tl.ceil({0})", "round": "_even({0})",
    "tf32": "_tf32({0})",
    "isnan": "({0} != {0})", "isinf": '(tl.abs({0}) == float("inf"))',
}  # fmt: skip
# computed in float64, where cancellation is harmless
_FLOAT64_TEMPLATES: Mapping[str, str] = {
    "sinh": "_sinh({0})", "cosh": "(0.5 * (tl.exp({0}) + tl.exp(-{0})))", "asinh": "_asinh({0})",
    "acosh": "tl.log({0} + tl.sqrt({0} - 1) * tl.sqrt({0} + 1))", "atanh": "_atanh({0})",
    "atan": "_atan({0}, 1.0)", "asin": "_atan({0}, tl.sqrt(1 - {0} * {0}))",
    "acos": "(2 * _atan(tl.sqrt(1 - {0}), tl.sqrt(1 + {0})))",
}  # fmt: skip
_TEMPLATES: Mapping[DType, Mapping[str, str]] = {
    F32: {**_FLOATS, "div": "tl.div_rn({0}, {1})", "sqrt": "tl.sqrt_rn({0})",
          "tanh": "_tanh({0})", "sigmoid": "(1.0 / (1.0 + _exp({0} * -1.0)))",
          **dict.fromkeys(("exp", "exp_below"), "_exp({0})"),
          **{fn: f"tl.cast({text.format('tl.cast({0}, tl.float64)')}, tl.float32)"
             for fn, text in _FLOAT64_TEMPLATES.items()}},
    F64: {**{fn: text for fn, text in _FLOATS.items() if fn not in ("mod", "fmod")},
          "div": "({0} / {1})", "sqrt": "tl.sqrt({0})"},
    BOOL: {"and": "({0} & {1})", "or": "({0} | {1})", "xor": "({0} ^ {1})", "not": "({0} == 0)",
           "eq": "({0} == {1})", "ne": "({0} != {1})", "max": "({0} | {1})", "min": "({0} & {1})"},
}  # fmt: skip
_INTEGERS: Mapping[str, str] = {
    **dict(_ARITHMETIC), **dict(_COMPARISONS),
    "neg": "(-{0})", "max": "tl.maximum({0}, {1})", "min": "tl.minimum({0}, {1})",
    "abs": "tl.abs({0})", "sign": "_sign({0})", "div": "_divided({0}, {1})",
    "mod": "_floored({0}, _divisor({1}))", "fmod": "({0} % _divisor({1}))",
    "floor": "{0}", "ceil": "{0}", "round": "{0}",
    "bitand": "({0} & {1})", "bitor": "({0} | {1})", "bitxor": "({0} ^ {1})", "bitnot": "(~{0})",
    "shl": "_left({0}, {1})", "shr": "_right({0}, {1})",
}  # fmt: skip
# The least integer by -1 has no quotient; x / 0 and its remainder are 0. Unsigned numbers have no
# sign for `_sign`.
_SIGNED = ("neg", "abs", "sign", "mod", "fmod", "div")
_UNSIGNED: Mapping[str, str] = {
    **{fn: text for fn, text in _INTEGERS.items() if fn not in _SIGNED},
    "abs": "{0}", "sign": "tl.minimum({0}, 1)", "mod": "({0} % _some({1}))",
    "fmod": "({0} % _some({1}))", "div": "tl.where({1} == 0, 0, {0} // _some({1}))",
}  # fmt: skip

_REDUCTIONS: Mapping[str, str] = {
    "sum": "tl.sum({0}, axis={1})", "prod": "tl.reduce({0}, {1}, _product)",
}  # fmt: skip
_EXTREMA: Mapping[str, str] = {"max": "tl.max({0}, axis={1})", "min": "tl.min({0}, axis={1})"}
_NAN_EXTREMA: Mapping[str, str] = {  # tl.max drops NaN
    "max": "tl.reduce({0}, {1}, _maximum)", "min": "tl.reduce({0}, {1}, _minimum)",
}  # fmt: skip
_BOOL_REDUCTIONS: Mapping[str, str] = {
    "any": "(tl.max(tl.cast({0}, tl.int32), axis={1}) != 0)",
    "all": "(tl.min(tl.cast({0}, tl.int32), axis={1}) != 0)",
}
_BOOL_EXTREMA = {**_BOOL_REDUCTIONS, "max": _BOOL_REDUCTIONS["any"], "min": _BOOL_REDUCTIONS["all"]}

HELPERS: Mapping[str, str] = MappingProxyType({
    "_sign": """def _sign(x):
    return tl.where(x > 0, 1, tl.where(x < 0, -1, x))""",
    # a polynomial of odd powers up to 17, within 2.5e-5; 1 from 2.99 on
    "_erf_short": """def _erf_short(x):
    s = x * x
    p = 4.2506915320927874e-08 * s - 2.0071681774425087e-06
    p = p * s + 4.196229201625101e-05
    p = p * s - 0.0005179120344109833
    p = p * s + 0.004265046678483486
    p = p * s - 0.025174567475914955
    p = p * s + 0.11117033660411835
    p = p * s - 0.3753659725189209
    p = (p * s + 1.1282765865325928) * x
    p = tl.maximum(p, -1.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(p, 1.0, propagate_nan=tl.PropagateNan.ALL)""",
    "_floored": """def _floored(x, y):
    rest = x % y  # Triton assumes remainders of contiguous values to be contiguous, of one sign
    return tl.where((rest != 0) & ((rest ^ y) < 0), rest + y, rest)""",
    # The GPU's own is NaN for infinite y, and loses digits of a float32. This subtracts multiples
    # of y whose quotients have at most 29 bits: their products with a float32's 24 bits are exact.
    "_fmod": """def _fmod(x, y):
    a, b = tl.abs(tl.cast(x, tl.float64)), tl.abs(tl.cast(y, tl.float64))
    r = a
    for n in tl.static_range(10):
        d = b * 2.0 ** (252 - 28 * n)
        s = r - tl.floor(r / d) * d
        s = tl.where(s < 0, s + d, tl.where(s >= d, s - d, s))
        r = tl.where(d == float("inf"), r, s)
    r = tl.where(a == float("inf"), float("nan"), tl.where(b == float("inf"), a, r))
    below = (x < 0) | ((x == 0) & (1.0 / tl.cast(x, tl.float64) < 0))
    return tl.cast(tl.where(below, r * -1.0, r), x.dtype)""",
    # Round to the nearest number whose last 13 bits are 0; NaN stays NaN: the GPU's NaN,
    # 0x7fffffff, plus half a unit would be -0.0.
    "_tf32": """def _tf32(x):
    near = (tl.cast(x, tl.int32, bitcast=True) + 4096) & -8192
    return tl.where(x != x, x, tl.cast(near, tl.float32, bitcast=True))""",
    "_modulo": """def _modulo(rest, y):
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)""",
    "_divisor": """def _divisor(y):
    return tl.where((y == 0) | (y == -1), 1, y)""",
    "_divided": """def _divided(x, y):
    safe = tl.where((y == 0) | (y == -1), 1, y)
    return tl.where(y == 0, 0, tl.where(y == -1, -x, x // safe))""",
    "_some": """def _some(y):
    return tl.where(y == 0, 1, y)""",
    "_left": """def _left(x, y):
    much = (y < 0) | (y >= x.dtype.primitive_bitwidth)
    return tl.where(much, 0, x << tl.where(much, 0, y))""",
    "_right": """def _right(x, y):
    much = (y < 0) | (y >= x.dtype.primitive_bitwidth)
    return tl.where(much, 0, x >> tl.where(much, 0, y))""",
    # The GPU's own is 2^(x log2 e), whose exponent is rounded: 32 ulp at x = 88. The rounding error
    # is corrected by a factor near 1. Beyond 150 the result is infinite, or 0.
    "_exp": """def _exp(x):
    x = tl.maximum(x, -150.0, propagate_nan=tl.PropagateNan.ALL)
    x = tl.minimum(x, 150.0, propagate_nan=tl.PropagateNan.ALL)
    t = x * 1.4426950408889634
    lost = tl.fma(x, 1.4426950408889634, -t) + x * 1.925963033500942e-08
    return tl.exp2(t) * (1.0 + lost * 0.6931471805599453)""",
    # ceil, not low + 1: from -0.5 on that is -0.0
    "_even": """def _even(x):
    low = tl.floor(x)
    odd = low != 2 * tl.floor(low / 2)
    return tl.where((x - low > 0.5) | ((x - low == 0.5) & odd), tl.ceil(x), low)""",
    "_tanh": """def _tanh(x):
    e = tl.exp(-2 * tl.abs(x))
    y = (1 - e) / (1 + e)
    s = x * x
    near = x * (1 + s * (-1 / 3 + s * (2 / 15 + s * (-17 / 315 + s * (62 / 2835)))))
    return tl.where(tl.abs(x) < 0.25, near, tl.where(x < 0, -y, y))""",
    "_maximum": """def _maximum(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)""",
    "_minimum": """def _minimum(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)""",
    "_product": """def _product(x, y):
    return x * y""",
    "_pow": """def _pow(x, y):
    # In float64: an error of y log(x) is a relative error of x^y. Signs as in C99.
    q, c = tl.abs(tl.cast(x, tl.float64)), tl.cast(y, tl.float64)
    b = tl.where(q == q, c, c)  # a block, also if y is a scalar
    q = tl.where(b == b, q, q)  # and if x is
    a = tl.log(q)
    r = tl.where((a == 0) | (b == 0), 1.0, tl.exp(b * a))
    r = tl.where(b == 0.5, tl.sqrt(q), r)
    low = tl.floor(b)
    # By repeated squaring, which is exact if the result is representable.
    short = (low == b) & (tl.abs(b) < 64)
    k = tl.cast(tl.where(short, tl.abs(b), 0), tl.int32)
    p = tl.where(b == b, 1.0, 1.0)
    for _ in tl.static_range(6):
        p = tl.where(k % 2 == 1, p * q, p)
        q, k = q * q, k // 2
    r = tl.where(short, tl.where(b < 0, 1.0 / p, p), r)
    odd = (low == b) & (low - 2 * tl.floor(low / 2) == 1)
    known = (low == b) | (a == float("inf"))
    turned = tl.where(odd, r * -1.0, r)
    below = tl.where(known, turned, float("nan"))
    zero = (x == 0) & (1.0 / tl.cast(x, tl.float64) < 0)
    r = tl.where(x < 0, below, tl.where(zero, turned, r))
    if x.dtype.is_int():  # truncated, and an integer may be computed slightly too small
        whole = tl.floor(r + 0.5)
        r = tl.where(tl.abs(r - whole) <= 1e-13 * tl.abs(whole), whole, r)
    return tl.cast(r, x.dtype)""",
    "_sinh": """def _sinh(x):
    return tl.where(tl.abs(x) < 1e-5, x, 0.5 * (tl.exp(x) - tl.exp(-x)))""",
    "_asinh": """def _asinh(x):
    a = tl.abs(x)
    y = tl.log(a + tl.sqrt(a * a + 1))
    return tl.where(a < 1e-5, x, tl.where(x < 0, -y, y))""",
    "_atanh": """def _atanh(x):
    return tl.where(tl.abs(x) < 1e-5, x, 0.5 * tl.log((1 + x) / (1 - x)))""",
    "_atan": """def _atan(x, y):
    # Of x / y: the series of an eighth of the angle.
    a = tl.abs(x / y)
    a = tl.where(a > 1e60, 1e60, a)
    a = a / (1 + tl.sqrt(1 + a * a))
    a = a / (1 + tl.sqrt(1 + a * a))
    a = a / (1 + tl.sqrt(1 + a * a))
    s = a * a
    r = 1 / 9 + s * (-1 / 11 + s * (1 / 13 - s / 15))
    r = 8 * a * (1 + s * (-1 / 3 + s * (1 / 5 + s * (-1 / 7 + s * r))))
    return tl.where(x < 0, -r, r)""",
    "_wrapped": """def _wrapped(i, bound):
    i = tl.where(i < 0, i + bound, i)
    return tl.maximum(tl.minimum(i, bound - 1), 0)""",
})  # fmt: skip

# the same, for results that are rounded to fewer bits
REDUCED_PRECISION_HELPERS: Mapping[str, str] = MappingProxyType({
    "_exp": """def _exp(x):
    return tl.exp(x)""",
})  # fmt: skip


# what Triton's interpreter cannot run
GPU_HELPERS: Mapping[str, str] = MappingProxyType({
    "_even": """def _even(x):
    return tl.extra.cuda.libdevice.rint(x)""",
})  # fmt: skip


def helper_functions(code: str, reduced_precision: bool, interpreted: bool) -> str:
    """Return the helpers that the code calls. reduced_precision: results are rounded to fewer bits
    than float32 has. interpreted: for Triton's interpreter."""
    known = {**HELPERS, **(REDUCED_PRECISION_HELPERS if reduced_precision else {})}
    known |= {} if interpreted else GPU_HELPERS
    names = [n for n in known if re.search(rf"(?<!\w){n}(?!\w)", code)]
    return "".join(f"\n\n@triton.jit\n{known[n]}\n" for n in names)


# functions that read the type of their first operand, which a Python number lacks
FIRST_OPERAND_TYPED = ("pow", "shl", "shr")
# constant powers as cheaper expressions, by exponent
POWER_TEMPLATES: Mapping[object, str] = MappingProxyType(
    {1: "{0}", 2: "({0} * {0})", 3: "({0} * {0} * {0})", -1: "(1 / {0})"}
)


def triton_type(dtype: DType) -> str:
    """Return Triton's name of an element type. Raises NotImplementedError if it has none."""
    if dtype.name not in TRITON_TYPES:
        raise NotImplementedError(f"no Triton kernel computes {dtype}")
    return TRITON_TYPES[dtype.name]


# functions with a version whose error is below fp16's
REDUCED_PRECISION_FUNCTIONS: Mapping[str, str] = MappingProxyType({"erf": "erf_short"})


def function_text(fn: str, args: Sequence[str], kind: DType, dtype: DType) -> str:
    """Return `fn` of texts of type `kind`, as a text of type `dtype`.

    Raises NotImplementedError if Triton has neither the function nor a helper for it.
    """
    if fn == "select":
        return f"tl.where({', '.join(args)})"
    if fn == "cast":
        return cast_text(args[0], kind, dtype)
    if fn == "bitcast":
        return f"tl.cast({args[0]}, {triton_type(dtype)}, bitcast=True)"
    if kind in FLOAT16_DTYPES:
        wide = F32 if dtype == kind else dtype
        fn = REDUCED_PRECISION_FUNCTIONS.get(fn, fn) if dtype == kind else fn
        return cast_text(
            function_text(fn, [cast_text(a, kind, F32) for a in args], F32, wide), wide, dtype
        )
    if kind != INDEX:
        triton_type(kind)
    rows = _TEMPLATES.get(kind) or (_UNSIGNED if kind.kind == "u" else _INTEGERS)
    if fn not in rows:
        raise NotImplementedError(f"Triton has no {fn} of {kind}")
    return rows[fn].format(*args)


def reduction_text(fn: str, text: str, axis: int, dtype: DType) -> str:
    """Return the reduction `fn` (sum, prod, max, min, any, all) over an axis of a block."""
    rows = (
        {**_REDUCTIONS, **(_NAN_EXTREMA if dtype.is_float else _EXTREMA)}
        if dtype != BOOL
        else _BOOL_EXTREMA
    )
    if fn not in rows:
        raise NotImplementedError(f"Triton has no {fn} over {dtype}")
    out = rows[fn].format(text, axis)
    # Triton widens sums of narrow integers to 32 bits
    return f"tl.cast({out}, {triton_type(dtype)})" if dtype.is_int and dtype.bits < 32 else out


def cast_text(text: str, kind: DType, dtype: DType) -> str:
    """Return ONNX's Cast; out-of-range floats to integers are unspecified."""
    if kind == dtype:
        return text
    if BF16 in (kind, dtype) and F32 not in (kind, dtype):
        # as ONNX Runtime rounds; Triton's interpreter treats the bits as an integer
        return cast_text(cast_text(text, kind, F32), F32, dtype)
    if dtype == BOOL:
        return f"({text} != 0)"
    return f"tl.cast({text}, {triton_type(dtype)})"


def constant_text(v: Number, dtype: DType) -> str:
    """Return a constant, with its type if Python would assume another."""
    if not dtype.is_float:
        text = str(bool(v)) if dtype.name == "bool" else str(int(v))
        return text if dtype in (I32, INDEX) else f"tl.full((), {text}, {triton_type(dtype)})"
    with np.errstate(over="ignore"):
        x = float(np.float64(float(v)).astype(to_numpy(dtype)))
    text = repr(x) if math.isfinite(x) else f'float("{x}")'
    return text if dtype in (F32, *FLOAT16_DTYPES) else f"tl.full((), {text}, {triton_type(dtype)})"


def typed_constant(text: str, dtype: DType) -> str:
    """Return a constant's text as a scalar of the type it is computed in."""
    return f"tl.full((), {text}, {'tl.float32' if dtype in FLOAT16_DTYPES else triton_type(dtype)})"
