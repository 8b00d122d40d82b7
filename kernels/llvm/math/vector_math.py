"""exp, log, tanh, erf and sigmoid of float32 as LLVM text: polynomials on vectors, where libm takes
one element at a time.

    function   largest error                      method
    exp        1.8e-7 relative (subnormals: 1 ulp)   Cody and Waite's reduction, degree 5;
               2e-7 without FMA
    log        1.2e-7 relative                    log(m) + e ln(2), as below for m = 1 + f
    tanh       4e-7 relative                      x P(x^2) / Q(x^2), degrees 5 and 3, to |x| = 9
    erf        4e-7 relative                      the same, degrees 6 and 4, to |x| = 4
    sigmoid    3e-7 relative                      from e^-|x|
    exp_below  1.8e-7 relative, for x <= 0; 0 below 2^-126.5: with one power of two
    exp_below_gradual  the same, but subnormals as exp has them
    log(1 + u) 2e-7 relative, for 0 <= u <= 1     2 atanh(u / (2 + u)), degree 9
    tanh(log(1 + e^x))  4e-7 relative             from e^-|x|, without a logarithm

scripts/fit_functions.py prints the coefficients. NaN stays NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from superopt.kernels.llvm.builder import TextBuilder, Value, number
from superopt.te.expr.dtype import BOOL, F32, I32
from superopt.te.expr.node import Apply, Const, Expr

ERF_NUMERATOR = (
    1.1283791065216064,
    0.2071182280778885,
    0.051523927599191666,
    0.0039902725256979465,
    0.00014727938105352223,
    -1.9422902823862387e-06,
    1.911113045593993e-08,
)
ERF_DENOMINATOR = (1.0, 0.516884982585907, 0.11796782165765762, 0.014957458712160587,
             0.0010210404871031642)  # fmt: skip
TANH_NUMERATOR = (
    0.9999999403953552,
    0.1291922777891159,
    0.002920760540291667,
    9.26741267903708e-06,
    -1.2780427383063397e-08,
    1.8255234129904707e-11,
)
TANH_DENOMINATOR = (1.0, 0.4625250995159149, 0.02376316301524639, 0.00022810004884377122)
EXP = (1.0, 1.0, 0.499992311000824, 0.16667114198207855, 0.041890114545822144,
       0.008312525227665901)  # fmt: skip
LOG1P = (2.0, 0.6666631698608398, 0.40024906396865845, 0.279606431722641, 0.28178173303604126)
ATANH = tuple(2 / (2 * k + 1) for k in range(1, 5))  # the series in squares, without its first term
SQRT_HALF_BITS = 0x3F3504F3
MIN_NORMAL = 2.0**-126  # the smallest normal number
LOG2_E = 1.4426950408889634
LN2_HIGH, LN2_LOW = 0.693359375, -0.00021219444170128554  # 9 bits, and the rest of ln(2)
ROUND_TO_INT = 12582912.0  # 1.5 * 2^23: adding it leaves an integer in the last bits
ROUND_TO_INT_BITS = 0x4B400000
SCALEF_LANES = 16  # lanes of AVX-512's scalef
SUBNORMAL_BITS = 24  # the least subnormal is 2^-150, rounded up
EXP_MIN_INPUT, EXP_MAX_INPUT = -104.0, 89.0  # beyond these exp is 0 and infinite in float32


def exp(t: TextBuilder, x: Value) -> Value:
    """Emit e^x = 2^n e^r for x = n ln(2) + r, |r| <= ln(2) / 2."""
    return _exp_by_two_powers(t, clamp(t, x, EXP_MIN_INPUT, EXP_MAX_INPUT))


def exp_non_positive(t: TextBuilder, x: Value) -> Value:
    """Emit e^x for x <= 0 in fewer steps; 0 below 2^-126.5, just under the smallest normal
    number."""
    return _exp_by_one_power(t, x, 0)


def exp_non_positive_gradual(t: TextBuilder, x: Value) -> Value:
    """Emit e^x for x <= 0 with gradual underflow, for results that a product may enlarge (x
    sigmoid(x))."""
    return _exp_by_one_power(t, x, -SUBNORMAL_BITS)


def _exp_by_two_powers(t: TextBuilder, x: Value) -> Value:
    """Emit e^x for x within EXP_MIN_INPUT and EXP_MAX_INPUT."""
    whole, n, r = _range_reduction(t, x)
    out = polynomial(t, EXP, r)
    if t.has_avx512 and x.lanes == SCALEF_LANES:
        kinds, name = f"{x.type}, {x.type}, {x.type}", "llvm.x86.avx512.mask.scalef.ps.512"
        t.declared.add(f"declare {x.type} @{name}({kinds}, i16, i32)")
        given = (
            f"{out}, {n}, {x.type} zeroinitializer, i16 -1, i32 4"  # all lanes; default rounding
        )
        return t.make(f"call {x.type} @{name}({given})", F32, x.lanes)
    bits = t.make(f"bitcast {whole} to {Value('', I32, x.lanes).type}", I32, x.lanes)
    n = t.make(f"sub {bits}, {number(ROUND_TO_INT_BITS, I32, x.lanes).text}", I32, x.lanes)
    # two powers of two, since one alone may overflow
    half = t.make(f"ashr {n}, {number(1, I32, x.lanes).text}", I32, x.lanes)
    rest = t.make(f"sub {n}, {half.text}", I32, x.lanes)
    for k in (half, rest):
        out = t.make(f"fmul {out}, {_power_of_two(t, k).text}", F32, x.lanes)
    return out


def _exp_by_one_power(t: TextBuilder, x: Value, shift: int) -> Value:
    """Emit e^x = (2^shift e^r) 2^(n - shift) for x = n ln(2) + r <= 0.

    x is clamped to (shift - 127) ln(2), where the bits of 2^(n - shift) are 0: the product is
    exactly 0. So large negative x of a mask (-1e4, -inf) make no subnormal numbers, with which many
    processors are slow.
    """
    x = clamp_one_side(t, x, "olt", (shift - 127) * math.log(2))
    whole, _, r = _range_reduction(t, x)
    out = polynomial(t, [2.0**shift * c for c in EXP], r)
    bits = t.make(f"bitcast {whole} to {Value('', I32, x.lanes).type}", I32, x.lanes)
    n = t.make(f"sub {bits}, {number(ROUND_TO_INT_BITS + shift, I32, x.lanes).text}", I32, x.lanes)
    return t.make(f"fmul {out}, {_power_of_two(t, n).text}", F32, x.lanes)


def _range_reduction(t: TextBuilder, x: Value) -> tuple[Value, Value, Value]:
    """Return n + ROUND_TO_INT, whose last bits are the integer n; n; and r, for x = n ln(2) + r."""
    whole = _fma(t, x, _like(LOG2_E, x), _like(ROUND_TO_INT, x))
    n = t.make(f"fsub {whole}, {_like(ROUND_TO_INT, x).text}", F32, x.lanes)
    r = _fma(t, n, _like(-LN2_HIGH, x), x)
    return whole, n, _fma(t, n, _like(-LN2_LOW, x), r)


def _power_of_two(t: TextBuilder, n: Value) -> Value:
    """Emit 2^n."""
    biased = t.make(f"add {n}, {number(127, I32, n.lanes).text}", I32, n.lanes)
    bits = t.make(f"shl {biased}, {number(23, I32, n.lanes).text}", I32, n.lanes)
    return t.make(f"bitcast {bits} to {Value('', F32, n.lanes).type}", F32, n.lanes)


def log1p(t: TextBuilder, x: Value) -> Value:
    """Emit log(1 + x), accurate near 0: the rounding error of 1 + x is added, relative to it
    (Kahan). For float64 and float32."""

    def op(name: str, a: Value, b: Value) -> Value:
        return t.make(f"{name} {a}, {b.text}", a.dtype, a.lanes)

    one = number(1, x.dtype, x.lanes)
    whole = op("fadd", x, one)
    lost = op("fdiv", op("fsub", x, op("fsub", whole, one)), whole)
    out = log(t, whole) if x.dtype == F32 else t.call(f"llvm.log.{x.suffix}", [whole], x.dtype)
    small = t.make(
        f"fcmp olt {t.call(f'llvm.fabs.{x.suffix}', [x], x.dtype)}, {one.text}", BOOL, x.lanes
    )
    return t.make(f"select {small}, {op('fadd', out, lost)}, {out}", x.dtype, x.lanes)


def log1p_unit_interval(t: TextBuilder, x: Value) -> Value:
    """Emit log(1 + x) for 0 <= x <= 1 as 2 atanh(s) of s = x / (2 + x), which rounds nothing away
    near 0."""
    below = t.make(f"fadd {x}, {_like(2.0, x).text}", F32, x.lanes)
    s = t.make(f"fdiv {x}, {below.text}", F32, x.lanes)
    square = t.make(f"fmul {s}, {s.text}", F32, x.lanes)
    cube = t.make(f"fmul {s}, {square.text}", F32, x.lanes)
    twice = t.make(f"fadd {s}, {s.text}", F32, x.lanes)
    return _fma(t, cube, polynomial(t, LOG1P[1:], square), twice)


def tanh_of_softplus(t: TextBuilder, x: Value, u: Value) -> Value:
    """Emit tanh(log(1 + e^x)) from u = e^-|x|: with w = e^x it is w (w + 2) / (w (w + 2) + 2); for
    x > 0 numerator and denominator are divided by w^2."""
    below = t.make(f"fcmp olt {x}, {_like(0.0, x).text}", BOOL, x.lanes)
    some = t.make(f"fadd {u}, {u.text}", F32, x.lanes)
    low = _fma(t, u, u, some)
    high = t.make(f"fadd {some}, {_like(1.0, x).text}", F32, x.lanes)
    square = t.make(f"fmul {some}, {u.text}", F32, x.lanes)
    top = t.make(f"select {below}, {low}, {high}", F32, x.lanes)
    rest = t.make(f"select {below}, {_like(2.0, x)}, {square}", F32, x.lanes)
    bottom = t.make(f"fadd {top}, {rest.text}", F32, x.lanes)
    return t.make(f"fdiv {top}, {bottom.text}", F32, x.lanes)


def log(t: TextBuilder, x: Value) -> Value:
    """Emit log(x) for x = m 2^e, m in [sqrt(1/2), sqrt(2)), f = m - 1: with s = f / (2 + f), log(m)
    = 2 atanh(s) = f - f^2 / 2 + s (f^2 / 2 + R(s^2)), whose first term is exact and the largest."""

    def op(name: str, a: Value, b: Value | float) -> Value:
        b = b if isinstance(b, Value) else number(b, a.dtype, a.lanes)
        return t.make(f"{name} {a}, {b.text}", a.dtype, a.lanes)

    def select_by(predicate: str, bound: float, yes: Value, no: Value) -> Value:
        where = t.make(f"fcmp {predicate} {x}, {_like(bound, x).text}", BOOL, x.lanes)
        return t.make(f"select {where}, {yes}, {no}", F32, x.lanes)

    raw = select_by("olt", MIN_NORMAL, op("fmul", x, 2.0**24), x)
    raw = t.make(f"bitcast {raw} to {Value('', I32, x.lanes).type}", I32, x.lanes)
    whole = op("ashr", op("sub", raw, SQRT_HALF_BITS), 23)
    rest = op("sub", raw, op("shl", whole, 23))
    f = op("fsub", t.make(f"bitcast {rest} to {x.type}", F32, x.lanes), 1.0)
    e = t.make(f"sitofp {whole} to {x.type}", F32, x.lanes)
    e = op("fsub", e, select_by("olt", MIN_NORMAL, _like(24.0, x), _like(0.0, x)))
    s = op("fdiv", f, op("fadd", f, 2.0))
    square = op("fmul", s, s)
    half = op("fmul", op("fmul", f, f), 0.5)
    r = op("fmul", square, polynomial(t, ATANH, square))
    small = _fma(t, s, op("fadd", half, r), op("fmul", e, LN2_LOW))
    out = op("fsub", f, op("fsub", half, small))
    out = _fma(t, e, _like(LN2_HIGH, x), out)
    for predicate, bound, value in (("oeq", math.inf, math.inf), ("oeq", 0.0, -math.inf),
                              ("olt", 0.0, math.nan)):  # fmt: skip
        out = select_by(predicate, bound, _like(value, x), out)
    return select_by("uno", 0.0, x, out)


def tanh(t: TextBuilder, x: Value) -> Value:
    return _odd_rational(t, x, 9.0, TANH_NUMERATOR, TANH_DENOMINATOR)


def erf(t: TextBuilder, x: Value) -> Value:
    return _odd_rational(t, x, 4.0, ERF_NUMERATOR, ERF_DENOMINATOR)


def _odd_rational(
    t: TextBuilder, x: Value, bound: float, numerator: Sequence[float], denominator: Sequence[float]
) -> Value:
    x = clamp(t, x, -bound, bound)
    square = t.make(f"fmul {x}, {x.text}", F32, x.lanes)
    top = t.make(f"fmul {x}, {polynomial(t, numerator, square).text}", F32, x.lanes)
    out = t.make(f"fdiv {top}, {polynomial(t, denominator, square).text}", F32, x.lanes)
    return clamp(t, out, -1.0, 1.0)


def sigmoid(t: TextBuilder, x: Value) -> Value:
    """Emit sigmoid from u = e^-|x|, which does not overflow: 1 / (1 + u), for x < 0 u / (1 + u)."""
    size = t.call(f"llvm.fabs.{x.suffix}", [x], F32)
    u = exp_non_positive_gradual(t, t.make(f"fneg {size}", F32, x.lanes))
    one = _like(1.0, x)
    below = t.make(f"fcmp olt {x}, {_like(0.0, x).text}", BOOL, x.lanes)
    top = t.make(f"select {below}, {u}, {one}", F32, x.lanes)
    return t.make(f"fdiv {top}, {t.make(f'fadd {u}, {one.text}', F32, x.lanes).text}", F32, x.lanes)


# Divisors whose reciprocals, and products with these, are neither subnormal nor infinite.
MIN_DIVISOR, MAX_DIVISOR = 2.0**-100, 2.0**100


def rounded_quotient(t: TextBuilder, x: Value, divisor: float) -> Value:
    """Return x / divisor rounded to a whole number, for a constant within the limits above: exactly
    that of a division, by multiplications, which take a quarter of its time.

    With y the reciprocal rounded to nearest, and q within one ulp of the quotient, x - divisor * q
    is exact in a fused multiply-add, and q plus y times it is the quotient rounded to nearest
    (Markstein, Computation of elementary functions on the IBM RISC System/6000 processor, 1990,
    theorem 3). Where the remainder is subnormal the quotient rounds to 0. Infinities stay.
    """
    y, minus = _like(float(np.float32(1) / np.float32(divisor)), x), _like(-divisor, x)
    first = q = t.make(f"fmul {x}, {y.text}", F32, x.lanes)
    for _ in range(2):
        q = _exact_fma(t, _exact_fma(t, minus, q, x), y, q)
    size = t.call(f"llvm.fabs.{x.suffix}", [first], F32)
    finite = t.make(f"fcmp olt {size}, {_like(math.inf, x).text}", BOOL, x.lanes)
    chosen = t.make(f"select {finite}, {q}, {first}", F32, x.lanes)
    return t.call(f"llvm.rint.{x.suffix}", [chosen], F32)


def match_rounded_quotient(e: Expr) -> tuple[Expr, float] | None:
    """Return the dividend and the divisor of a rounded quotient as above."""
    match e:
        case Apply("round", (Apply("div", (x, Const(value=c))),), dtype) if dtype == F32 and c:
            near = float(np.float32(float(c)))
            return (x, near) if MIN_DIVISOR < abs(near) < MAX_DIVISOR else None
    return None


def polynomial(t: TextBuilder, coefficients: Sequence[float], x: Value) -> Value:
    """Emit a polynomial by Horner's rule; the constant coefficient comes first."""
    out = _like(coefficients[-1], x)
    for c in reversed(coefficients[:-1]):
        out = _fma(t, out, x, _like(c, x))
    return out


def clamp(t: TextBuilder, x: Value, low: float, high: float) -> Value:
    """Emit x clamped to bounds; NaN stays NaN."""
    return clamp_one_side(t, clamp_one_side(t, x, "olt", low), "ogt", high)


def clamp_one_side(t: TextBuilder, x: Value, comparison: str, bound: float) -> Value:
    """Emit the bound where x compares so with it ("olt": x is less), else x; NaN stays NaN."""
    edge = _like(bound, x)
    beyond = t.make(f"fcmp {comparison} {x}, {edge.text}", BOOL, x.lanes)
    return t.make(f"select {beyond}, {edge}, {x}", F32, x.lanes)


def _fma(t: TextBuilder, a: Value, b: Value, c: Value) -> Value:
    """Emit a * b + c, rounded once if the processor has FMA."""
    return t.call(f"llvm.fmuladd.{a.suffix}", [a, b, c], F32)


def _exact_fma(t: TextBuilder, a: Value, b: Value, c: Value) -> Value:
    """Emit a * b + c rounded once; without FMA it is libm's, for each lane."""
    return t.call(f"llvm.fma.{a.suffix}", [a, b, c], F32)


def _like(value: float, x: Value) -> Value:
    return number(value, F32, x.lanes)


def match_softplus(a: Expr, b: Expr) -> tuple[Expr, Expr] | None:
    """Match max(x, 0) + log(1 + e^-|x|), a softplus without overflow
    (ops/pointwise/activation.py): x and e^-|x|."""
    match a, b:
        case (
            Apply("max", (x, Const(0)) | (Const(0), x), dtype),
            Apply("log", (Apply("add", (Const(1), u) | (u, Const(1))),)),
        ) if dtype == F32:
            if u == Apply("exp_below", (Apply("neg", (Apply("abs", (x,), F32),), F32),), F32):
                return x, u
    return None
