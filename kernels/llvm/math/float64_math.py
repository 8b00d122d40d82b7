"""Functions of float32 computed in float64, as LLVM text: vectors, where libm takes one element at
a time.

In float64 short Taylor series are exact enough (1e-9 relative), and so are sums with cancellation;
the result is rounded to float32 once, within 6.1e-8 relative.

    pow                 e^(y log|x|), with C99's signs, zeros and infinities (F.9.4.4);
                        log(m 2^e) = 2 atanh((m - 1) / (m + 1)) + e log(2)
    fmod                x - y trunc(x / y) where exact; else libm
    sin, cos, tan       after subtracting the nearest multiple of pi / 2 in two parts (Cody and
                        Waite); beyond 2^40 libm
    asin, acos, atan    atan of a quotient, rotated by pi / 4 or pi / 2 unless that is small
    sinh, cosh          of e^x; asinh, acosh, atanh: of log; series where these cancel
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from superopt.kernels.llvm.builder import TextBuilder, Value, number
from superopt.te.expr.dtype import BOOL, F32, F64, I64, DType

LOG = tuple(2 / (2 * k + 1) for k in range(7))  # of atanh, in squares
ATAN = tuple((-1) ** k / (2 * k + 1) for k in range(12))
SIN = tuple((-1) ** k / math.factorial(2 * k + 1) for k in range(6))
COS = tuple((-1) ** k / math.factorial(2 * k) for k in range(7))
EXP = tuple(1 / math.factorial(k) for k in range(9))
SINH = tuple(1 / math.factorial(2 * k + 1) for k in range(6))
HALF_PI, HALF_PI_REST = math.pi / 2, 6.123233995736766e-17
MAX_REDUCED_ARGUMENT = 2.0**40  # beyond this pi / 2 in two parts is not exact enough
ROUND_TO_INT = 1.5 * 2**52  # adding it leaves an integer in the last bits
ROUND_TO_INT_BITS = 0x4338000000000000
SERIES_BOUND = 1e-3  # below this a series of two terms


class Float64Builder:
    """A builder of float64 arithmetic on values with some lanes."""

    def __init__(self, t: TextBuilder, lanes: int) -> None:
        self.t, self.lanes = t, lanes

    def widen(self, x: Value) -> Value:
        return self.t.make(f"fpext {x} to {Value('', F64, x.lanes).type}", F64, x.lanes)

    def narrow(self, x: Value) -> Value:
        return self.t.make(f"fptrunc {x} to {Value('', F32, x.lanes).type}", F32, x.lanes)

    def constant(self, v: float, dtype: DType = F64) -> Value:
        return number(v, dtype, self.lanes)

    def op(self, name: str, a: Value, b: Value | float) -> Value:
        b = b if isinstance(b, Value) else self.constant(b, a.dtype)
        return self.t.make(f"{name} {a}, {b.text}", a.dtype, a.lanes)

    def call(self, name: str, *args: Value) -> Value:
        return self.t.call(f"llvm.{name}.{args[0].suffix}", args, args[0].dtype)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.call("fma", a, b, c)

    def compare(self, predicate: str, a: Value, b: Value | float) -> Value:
        b = b if isinstance(b, Value) else self.constant(b, a.dtype)
        kind = "fcmp" if a.dtype.is_float else "icmp"
        return self.t.make(f"{kind} {predicate} {a}, {b.text}", BOOL, a.lanes)

    def select(self, where: Value, yes: Value, no: Value) -> Value:
        return self.t.make(f"select {where}, {yes}, {no}", yes.dtype, yes.lanes)

    def polynomial(self, coefficients: Sequence[float], x: Value) -> Value:
        out = self.constant(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            out = self.fma(out, x, self.constant(c))
        return out

    def odd_polynomial(self, coefficients: Sequence[float], x: Value) -> Value:
        return self.op("fmul", x, self.polynomial(coefficients, self.op("fmul", x, x)))

    def bitcast(self, x: Value, dtype: DType) -> Value:
        return self.t.make(f"bitcast {x} to {Value('', dtype, x.lanes).type}", dtype, x.lanes)

    def to_int(self, x: Value) -> Value:
        """Emit the int64 of an integral float below 2^51."""
        return self.op(
            "sub", self.bitcast(self.op("fadd", x, ROUND_TO_INT), I64), ROUND_TO_INT_BITS
        )

    def to_float(self, n: Value) -> Value:
        """Emit the inverse of `to_int`: processors without AVX-512 convert lanes one by one."""
        return self.op(
            "fsub", self.bitcast(self.op("add", n, ROUND_TO_INT_BITS), F64), ROUND_TO_INT
        )

    def log(self, x: Value) -> Value:
        """Emit log(x): NaN below 0, infinite for 0 and infinity; x is no subnormal of float64."""
        raw = self.bitcast(x, I64)
        above = self.op("sub", raw, 0x3FE6A09E667F3BCD)  # the bits of sqrt(1/2)
        exponent = self.op("ashr", above, 52)
        m = self.bitcast(self.op("sub", raw, self.op("shl", exponent, 52)), F64)
        s = self.op("fdiv", self.op("fsub", m, 1.0), self.op("fadd", m, 1.0))
        out = self.fma(
            self.to_float(exponent), self.constant(math.log(2)), self.odd_polynomial(LOG, s)
        )
        out = self.select(self.compare("oeq", x, math.inf), x, out)
        out = self.select(self.compare("oeq", x, 0.0), self.constant(-math.inf), out)
        out = self.select(self.compare("olt", x, 0.0), self.constant(math.nan), out)
        return self.select(self.compare("uno", x, x), x, out)

    def exp(self, x: Value) -> Value:
        """Emit e^x; inputs are clamped to +-700, whose results are beyond float32."""
        for how, bound in (("olt", -700.0), ("ogt", 700.0)):
            x = self.select(self.compare(how, x, bound), self.constant(bound), x)
        n = self.call("rint", self.op("fmul", x, 1 / math.log(2)))
        out = self.polynomial(EXP, self.fma(n, self.constant(-math.log(2)), x))
        scale = self.op("shl", self.op("add", self.to_int(n), 1023), 52)
        return self.op("fmul", out, self.bitcast(scale, F64))

    def atan(self, numerator: Value, denominator: Value) -> Value:
        """Emit atan(numerator / denominator) of nonnegative numbers, not both 0."""
        steep = self.compare("ogt", numerator, self.op("fmul", denominator, 1 + math.sqrt(2)))
        some = self.compare("ogt", numerator, self.op("fmul", denominator, math.sqrt(2) - 1))
        turned = self.op("fsub", numerator, denominator), self.op("fadd", numerator, denominator)
        top = self.select(some, turned[0], numerator)
        bottom = self.select(some, turned[1], denominator)
        top = self.select(steep, self.t.make(f"fneg {denominator}", F64, denominator.lanes), top)
        bottom = self.select(steep, numerator, bottom)
        base = self.select(some, self.constant(math.pi / 4), self.constant(0.0))
        base = self.select(steep, self.constant(math.pi / 2), base)
        return self.op("fadd", base, self.odd_polynomial(ATAN, self.op("fdiv", top, bottom)))


def power(t: TextBuilder, x: Value, y: Value) -> Value:
    """Emit pow, as C99, F.9.4.4."""
    w = Float64Builder(t, x.lanes)
    a, b = w.widen(x), w.widen(y)
    z = w.op("fmul", b, w.log(w.call("fabs", a)))
    out = w.exp(z)
    # 0 times infinity is NaN: x^0, 1^y and (-1)^inf are 1, the first two also if the other one is
    # NaN
    plain = w.compare("ord", x, y)
    one = w.compare("uno", z, z)
    one = w.t.make(f"and {one}, {plain.text}", BOOL, x.lanes)
    out = w.select(one, w.constant(1.0), out)
    whole = w.compare("oeq", w.call("rint", b), b)
    half = w.op("fmul", b, 0.5)
    even = w.compare("oeq", w.call("rint", half), half)
    signed = w.select(even, out, w.call("copysign", out, a))
    out = w.select(whole, signed, out)
    negative = w.compare("olt", a, 0.0)
    finite = w.compare("one", a, -math.inf)
    root = w.t.make(f"and {negative}, {finite.text}", BOOL, x.lanes)
    broken = w.t.make(f"xor {whole}, {w.constant(1, BOOL).text}", BOOL, x.lanes)
    out = w.select(w.t.make(f"and {root}, {broken.text}", BOOL, x.lanes), w.constant(math.nan), out)
    out = w.select(w.compare("oeq", a, 1.0), w.constant(1.0), out)
    return w.narrow(w.select(w.compare("oeq", b, 0.0), w.constant(1.0), out))


def remainder(t: TextBuilder, x: Value, y: Value) -> Value:
    """Emit C99's fmod: the remainder with x's sign. A truncated quotient below 2^23 is exact, or 1
    too large if x / y was rounded up; the remainder, corrected by y, has no more bits than y, so it
    is exact."""
    w = Float64Builder(t, x.lanes)
    a, b = (w.call("fabs", v) for v in (x, y))
    q = w.call("trunc", w.op("fdiv", a, b))
    rest = w.fma(w.t.make(f"fneg {q}", F32, q.lanes), b, a)
    rest = w.select(w.compare("olt", rest, 0.0), w.op("fadd", rest, b), rest)
    out = w.call("copysign", rest, x)
    far, endless = w.compare("uge", q, 2.0**23), w.compare("oeq", b, math.inf)
    return _with_libm_fallback(
        t, t.make(f"or {far}, {endless.text}", BOOL, x.lanes), [x, y], out, "fmod"
    )


def trigonometric(fn: str) -> Callable[[TextBuilder, Value], Value]:
    """Return the emitter of sin, cos or tan."""

    def of(t: TextBuilder, x: Value) -> Value:
        w = Float64Builder(t, x.lanes)
        size = w.call("fabs", x)
        far = w.compare("ogt", size, MAX_REDUCED_ARGUMENT)
        out = w.narrow(_reduced_trigonometric(w, fn, w.widen(size)))
        if fn != "cos":
            out = w.op("fmul", out, w.call("copysign", w.constant(1.0, F32), x))
        return _with_libm_fallback(t, far, [x], out, fn)

    return of


def _reduced_trigonometric(w: Float64Builder, fn: str, x: Value) -> Value:
    n = w.call("rint", w.op("fmul", x, 1 / HALF_PI))
    minus = w.t.make(f"fneg {n}", F64, n.lanes)
    r = w.fma(minus, w.constant(HALF_PI), x)
    r = w.fma(minus, w.constant(HALF_PI_REST), r)
    quarter = w.to_int(n)
    sine, cosine = w.odd_polynomial(SIN, r), w.polynomial(COS, w.op("fmul", r, r))
    odd = w.compare("ne", w.op("and", quarter, 1), 0)
    if fn == "tan":
        other = w.t.make(f"fneg {cosine}", F64, n.lanes)
        return w.op("fdiv", w.select(odd, other, sine), w.select(odd, sine, cosine))
    first, second = (sine, cosine) if fn == "sin" else (cosine, sine)
    out = w.select(odd, second, first)
    turned = quarter if fn == "sin" else w.op("add", quarter, 1)
    below = w.compare("ne", w.op("and", turned, 2), 0)
    return w.select(below, w.t.make(f"fneg {out}", F64, n.lanes), out)


def _with_libm_fallback(
    t: TextBuilder, where: Value, args: Sequence[Value], out: Value, fn: str
) -> Value:
    """Emit `out`, with libm's results in lanes where `where` holds, behind a branch."""
    some = where
    if where.lanes:
        reduce = f"llvm.vector.reduce.or.v{where.lanes}i1"
        t.declared.add(f"declare i1 @{reduce}({where.type})")
        some = t.make(f"call i1 @{reduce}({where})", BOOL, 0)
    name = t.fresh("far")
    t.entry.append(f"  %{name}.at = alloca {out.type}")
    t.line(f"store {out}, ptr %{name}.at")
    t.line(f"br i1 {some.text}, label %{name}, label %{name}.end")
    t.lines.append(f"{name}:")
    found = t.call_per_lane(fn + "f", args)
    found = t.make(f"select {where}, {found}, {out}", out.dtype, out.lanes)
    t.line(f"store {found}, ptr %{name}.at")
    t.line(f"br label %{name}.end")
    t.lines.append(f"{name}.end:")
    return t.make(f"load {out.type}, ptr %{name}.at", out.dtype, out.lanes)


def _asin(w: Float64Builder, x: Value) -> Value:
    rest = w.op("fmul", w.t.make(f"fsub {w.constant(1.0)}, {x.text}", F64, x.lanes),
                w.op("fadd", x, 1.0))  # fmt: skip
    return w.atan(x, w.call("sqrt", rest))


def _sinh(w: Float64Builder, x: Value) -> Value:
    e = w.exp(x)
    inverse = w.t.make(f"fdiv {w.constant(1.0)}, {e.text}", F64, x.lanes)
    out = w.op("fmul", w.op("fsub", e, inverse), 0.5)
    return w.select(w.compare("olt", x, 1.0), w.odd_polynomial(SINH, x), out)


def _asinh(w: Float64Builder, x: Value) -> Value:
    root = w.call("sqrt", w.fma(x, x, w.constant(1.0)))
    return _series_near_zero(w, x, w.log(w.op("fadd", x, root)), -1 / 6)


def _atanh(w: Float64Builder, x: Value) -> Value:
    less = w.t.make(f"fsub {w.constant(1.0)}, {x.text}", F64, x.lanes)
    both = w.log(w.op("fdiv", w.op("fadd", x, 1.0), less))
    return _series_near_zero(w, x, w.op("fmul", both, 0.5), 1 / 3)


def _series_near_zero(w: Float64Builder, x: Value, out: Value, cubed: float) -> Value:
    return w.select(w.compare("olt", x, SERIES_BOUND), w.odd_polynomial((1.0, cubed), x), out)


def odd_function(
    function: Callable[[Float64Builder, Value], Value],
) -> Callable[[TextBuilder, Value], Value]:
    """Return the emitter of an odd function from one of |x|."""

    def whole(t: TextBuilder, x: Value) -> Value:
        w = Float64Builder(t, x.lanes)
        out = w.narrow(function(w, w.widen(w.call("fabs", x))))
        return w.op("fmul", out, w.call("copysign", w.constant(1.0, F32), x))

    return whole


def acos(t: TextBuilder, x: Value) -> Value:
    """Emit acos(x) = 2 atan(sqrt((1 - x) / (1 + x)))."""
    w = Float64Builder(t, x.lanes)
    a = w.widen(x)
    less = w.t.make(f"fsub {w.constant(1.0)}, {a.text}", F64, x.lanes)
    more = w.op("fadd", a, 1.0)
    return w.narrow(w.op("fmul", w.atan(w.call("sqrt", less), w.call("sqrt", more)), 2.0))


def cosh(t: TextBuilder, x: Value) -> Value:
    w = Float64Builder(t, x.lanes)
    e = w.exp(w.widen(x))
    inverse = w.t.make(f"fdiv {w.constant(1.0)}, {e.text}", F64, x.lanes)
    return w.narrow(w.op("fmul", w.op("fadd", e, inverse), 0.5))


def acosh(t: TextBuilder, x: Value) -> Value:
    w = Float64Builder(t, x.lanes)
    a = w.widen(x)
    less, more = (w.call("sqrt", w.op("fadd", a, v)) for v in (-1.0, 1.0))  # both are NaN below 1
    root = w.op("fmul", less, more)
    return w.narrow(w.log(w.op("fadd", a, root)))


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "pow": power,
    "fmod": remainder,
    "sin": trigonometric("sin"),
    "cos": trigonometric("cos"),
    "tan": trigonometric("tan"),
    "asin": odd_function(_asin),
    "acos": acos,
    "atan": odd_function(lambda w, x: w.atan(x, w.constant(1.0))),
    "sinh": odd_function(_sinh),
    "cosh": cosh,
    "asinh": odd_function(_asinh),
    "acosh": acosh,
    "atanh": odd_function(_atanh),
}
