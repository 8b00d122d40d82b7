"""Scalar functions of elements, and literals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np

from superopt.verifier import normal as N
from superopt.verifier.algebra import (
    INFINITY,
    Undefined,
    exponential,
    factored,
    hoisted,
    inverse,
    odd,
    over,
    power,
    raised,
    shared_powers,
    unknown,
    unrooted,
    used,
)
from superopt.verifier.attributes import marked, root_of
from superopt.verifier.choices import NOTES
from superopt.verifier.facts import Facts
from superopt.verifier.integers import remainder, toward_zero
from superopt.verifier.maxima import greatest
from superopt.verifier.normal import NF, Factor, Term
from superopt.verifier.order import factors, sign
from superopt.verifier.simplify import times

EXACT_POWERS = 8
POWERS = "powers of numbers that are not below 0"
MOST_ROOTED = 256  # numerators and denominators under a root
MOST_SQUARED = 100  # numbers whose squares are taken out of a root
WHOLE = frozenset(("floor", "round"))
ODD = frozenset(("erf", "sin", "tan", "asin", "atan", "sinh", "asinh", "atanh"))
EVEN = frozenset(("cos", "cosh"))
HALF, ONE = Fraction(1, 2), Fraction(1)
NEAREST = "a literal is the simple number that it is the nearest float of"


def number_of(v: int | Fraction | float) -> NF:
    """Return a literal as an exact number: 0.16666666666666666 is 1 / 6."""
    if isinstance(v, float) and not math.isfinite(v):
        if v != v:
            raise Undefined("nan")
        return N.scaled(power(N.fn(INFINITY, (N.zero(),))), 1 if v > 0 else -1)
    exact = Fraction(v)
    name = marked(exact)
    if name is not None:
        return power(N.fn(f"any {name}", (N.zero(),)))
    if exact.denominator <= 2**16:
        return N.constant(exact)
    root = root_of(exact)
    if root is not None:
        return power(N.fn(f"any {root}", (N.zero(),)), HALF)
    for simple in (exact.limit_denominator(1000), Fraction(f"{float(exact):.6g}")):
        if _rounds_to(float(simple), exact):
            if simple != exact:
                NOTES.add(NEAREST)
            return N.constant(simple)
    for roots in (1, 2):  # as 1 / sqrt(8), or its root, which scales both factors of scores
        size = abs(float(exact))
        simple = Fraction(size ** (2**roots)).limit_denominator(MOST_ROOTED)
        if _rounds_to(float(simple) ** (0.5**roots), abs(exact)):
            NOTES.add(NEAREST)
            found = N.constant(simple)
            for _ in range(roots):
                found = _root([found], Facts())
            return N.scaled(found, 1 if exact > 0 else -1)
    return N.constant(exact)


def _rounds_to(simple: float, exact: Fraction) -> bool:
    """True if `exact` is the float nearest to `simple`, in float32 if it is one: then no two floats
    are read as the same number."""
    v = float(exact)
    with np.errstate(all="ignore"):
        return float(np.float32(simple)) == v if float(np.float32(v)) == v else simple == v


def applied(fn: str, args: list[NF], exact: bool, facts: Facts) -> NF:
    """Return a scalar function of elements. `over_reals`: over real numbers, else over integers."""
    match fn, args:
        case "add", [a, b]:
            return N.plus(a, b)
        case "sub", [a, b]:
            return N.minus(a, b)
        case "neg", [a]:
            return N.scaled(a, -1)
        case "mul", [a, b]:
            if len(a.terms) > 1 or len(b.terms) > 1:
                used("distribute")
            return unrooted(times(a, b, facts), facts)
        case "div", [a, b] if exact:
            used("divide")
            return unrooted(times(a, inverse(b, facts), facts), facts)
        case (("div" | "div of integers"), [_, _]):
            return hoisted(args, facts, toward_zero)
        case "fmod", [a, b] if not exact:  # a - b * quotient
            part = hoisted(args, facts, toward_zero)
            return N.minus(a, times(b, part, facts))
        case "mod of integers", [_, _]:
            return hoisted(args, facts, remainder)
        case "mod", [_, _] if not exact:
            return hoisted(args, facts, remainder)
        case "sign", [_]:
            name = fn if exact else f"{fn} of integers"
            return hoisted(args, facts, lambda x, _: _sign(name, x[0]))
        case "ceil", [a] if exact:
            return N.scaled(applied("floor", [N.scaled(a, -1)], exact, facts), -1)
        case _ if exact and fn in WHOLE:
            return hoisted(args, facts, lambda x, _: _rounded(fn, x[0]))
        case "max", [a, b]:
            return greatest([a, b], facts)
        case "min", [a, b]:
            return N.scaled(greatest([N.scaled(a, -1), N.scaled(b, -1)], facts), -1)
        case "abs", [a] if exact:
            return greatest([a, N.scaled(a, -1)], facts)
        case "exp", [a] if exact:
            return exponential(a, facts)
        case "sigmoid", [a] if exact:
            down = exponential(N.scaled(a, -1), facts)
            return inverse(N.plus(N.constant(1), down), facts)
        case "tanh", [a] if exact:  # as a sigmoid: 2 / (1 + exp(-2 x)) - 1
            down = exponential(N.scaled(a, -2), facts)
            whole = inverse(N.plus(N.constant(1), down), facts)
            return N.minus(N.scaled(whole, 2), N.constant(1))
        case "log", [a] if exact:
            return hoisted([a], facts, lambda x, more: _logarithm(x[0], factors(more)))
        case "sqrt", [a] if exact:
            return hoisted([a], facts, _root)
        case "pow", [a, b] if exact:
            n = b.constant
            if n is not None and n.denominator == 1 and abs(n) <= EXACT_POWERS:
                return raised(a, int(n), facts)
            if n in (HALF, -HALF):
                root = hoisted([a], facts, _root)
                return root if n == HALF else inverse(root, facts)
            return hoisted([a, b], facts, _powered)
        case _ if exact and fn in ODD and len(args) == 1:
            return hoisted(args, facts, lambda x, _: odd(fn, x[0]))
        case _ if exact and fn in EVEN:
            return hoisted(args, facts, lambda x, _: _symmetric(fn, x[0]))
        case _:
            return unknown(fn if exact else f"{fn} of integers", args, facts)


def _logarithm(a: NF, known: Mapping[Factor, int]) -> NF:
    """Expand log(x y) to log(x) + log(y) for x above 0, by itself or by known signs; log(exp(x)) to
    x; log(sqrt(x)) to log(x) / 2."""
    if not a.terms:
        raise Undefined("log(0)")
    content, rest = factored(a)
    plain = power(N.fn("log", (a,)))
    one = a.single
    if one is not None:
        content, rest = one, N.constant(1)
        for f, e in one.powers if one.coefficient == 1 and len(one.powers) == 1 else ():
            if isinstance(f, N.Fn) and f.name == "sqrt":
                return N.scaled(_logarithm(f.args[0], known), e / 2)
    if one is not None and one.coefficient == 1 and len(one.powers) == 1:
        f, e = one.powers[0]
        base = f.args[0].single if isinstance(f, N.Fn) and f.name == "pow" else None
        if base is not None and base.coefficient > 0 and sign(base, known) == 2:
            assert isinstance(f, N.Fn)
            log = _logarithm(f.args[0], known)
            return N.scaled(times(f.args[1], log, Facts()), e)
    positive = [p for p in content.powers if sign(Term(ONE, (), frozenset(), (p,)), known) == 2]
    others = tuple(p for p in content.powers if p not in positive)
    if not positive:
        return plain
    left = times(N.form((Term(content.coefficient, (), frozenset(), others),)), rest, Facts())
    out = N.zero() if left.constant == 1 else power(N.fn("log", (left,)))
    for f, e in positive:
        of = f.of if isinstance(f, N.Exp) else None
        if of is None:
            of = power(N.fn("log", (f.of if isinstance(f, N.Total) else power(f),)))
        out = N.plus(out, N.scaled(of, e))
    return out


def _powered(args: list[NF], facts: Facts) -> NF:
    """Replace exp(x) ** y by exp(x y). Powers of other, possibly negative, bases may be
    undefined."""
    a, b = args
    one = a.single
    of = [N.scaled(f.of, e) for f, e in one.powers if isinstance(f, N.Exp)] if one else []
    if one is None or one.coefficient != 1 or not of or len(of) < len(one.powers):
        return _exponents(a, b, facts)
    return exponential(times(N.plus(*of), b, facts), facts)


def _exponents(a: NF, b: NF, facts: Facts) -> NF:
    """Expand x ** (y + z) to x ** y x ** z, wherever these are defined."""
    if len(b.terms) == 1 and b.terms[0].coefficient == 1:
        return power(N.fn("pow", (a, b)))
    NOTES.add(POWERS)
    out = N.constant(1)
    for t in b.terms:
        c = t.coefficient
        plain = N.form((Term(ONE, t.bound, t.guards, t.powers),))
        if plain.constant is not None:
            whole = applied("pow", [a, N.constant(c)], True, facts)
            out = times(out, power(N.fn("pow", (a, b))) if len(b.terms) == 1 else whole, facts)
        elif c.denominator == 1 and abs(c) <= EXACT_POWERS:
            out = times(out, power(N.fn("pow", (a, plain)), int(c)), facts)
        else:
            out = times(out, power(N.fn("pow", (a, N.form((t,))))), facts)
    return out


def _root(args: list[NF], facts: Facts) -> NF:
    """Replace sqrt(x * x) by max(x, -x), and sqrt(1 / x) by 1 / sqrt(x)."""
    (a,) = args
    known = factors(facts)
    c = a.constant
    if c is not None and c >= 0:  # sqrt(p / q) is sqrt(p q) / q, without square factors
        whole, rest = _squares(c.numerator * c.denominator)
        if rest > MOST_ROOTED**2:
            return number_of(math.sqrt(c))
        out = N.constant(1) if rest == 1 else power(N.fn("sqrt", (N.constant(rest),)))
        return N.scaled(out, Fraction(whole, c.denominator))
    one = a.single
    if one is not None and one.powers:  # sqrt(x y) is sqrt(x) sqrt(y) for nonnegative x
        outside = [p for p in one.powers if _halves(p, known)]
        if outside and (len(one.powers) > 1 or one.coefficient != 1):
            left = tuple(p for p in one.powers if p not in outside)
            inner = _root([N.form((Term(one.coefficient, (), frozenset(), left),))], facts)
            for p in outside:
                alone = N.form((Term(ONE, (), frozenset(), (p,)),))
                inner = times(inner, _root([alone], facts), facts)
            return inner
    if one is None:  # sqrt(x * x * y) is max(x, -x) sqrt(y), also for sums y
        outside = [p for p in shared_powers([a], frozenset()) if _even(p) or _halves(p, known)]
        outside = [p for p in outside if not isinstance(p[0], N.Num)]
        if outside:
            inner = _root([over(a, outside)], facts)
            for p in outside:
                alone = N.form((Term(ONE, (), frozenset(), (p,)),))
                inner = times(inner, _root([alone], facts), facts)
            return inner
    if one is not None and one.coefficient == 1 and len(one.powers) == 1:
        f, e = one.powers[0]
        if isinstance(f, N.Exp):
            return power(f, e / 2)
    if one is not None and one.coefficient == 1 and one.powers:
        if all(e.denominator == 1 and int(e) % 2 == 0 for _, e in one.powers):
            half = tuple((f, e / 2) for f, e in one.powers)
            x = N.form((Term(Fraction(1), (), frozenset(), half),))
            return greatest([x, N.scaled(x, -1)], facts)
        if len(one.powers) == 1 and one.powers[0][1] == -1:
            f = one.powers[0][0]
            of = f.of if isinstance(f, N.Total) else power(f)
            return power(N.fn("sqrt", (of,)), -1)
    return power(N.fn("sqrt", (a,)))


def _halves(p: N.Power, known: Mapping[Factor, int]) -> bool:
    """True if a factor is nonnegative and so has its own root. Even powers always are nonnegative,
    and their roots are taken together."""
    return not _even(p) and (sign(Term(ONE, (), frozenset(), (p,)), known) or 0) > 0


def _even(p: N.Power) -> bool:
    return p[1].denominator == 1 and p[1] % 2 == 0


def _squares(n: int) -> tuple[int, int]:
    """Return (r, s) with n == r * r * s, where s has no small square factor, and is 1 for a
    square."""
    r = math.isqrt(n)
    if r * r == n:
        return r, 1
    r = 1
    for k in range(2, MOST_SQUARED):
        while n % (k * k) == 0:
            n //= k * k
            r *= k
    return r, n


def _rounded(fn: str, a: NF) -> NF:
    """Round sums and products; those of rounded values are unchanged."""
    whole = all(
        t.coefficient.denominator == 1
        and all(
            isinstance(f, N.Fn) and f.name in WHOLE and e > 0 and e.denominator == 1
            for f, e in t.powers
        )
        for t in a.terms
    )
    if whole:
        return a
    return odd(fn, a) if fn == "round" else power(N.fn(fn, (a,)))


def _symmetric(fn: str, a: NF) -> NF:
    """Return an even function of `a`: f(-x) is f(x), and f(0) is 1."""
    if not a.terms:
        return N.constant(1)
    return power(N.fn(fn, (N.scaled(a, -1) if a.terms[0].coefficient < 0 else a,)))


def _sign(name: str, a: NF) -> NF:
    """Return the sign function: it is idempotent and odd."""
    one = a.single
    if one is not None and one.coefficient == 1 and len(one.powers) == 1:
        f, e = one.powers[0]
        if e == 1 and isinstance(f, N.Fn) and f.name == name:
            return a
    return odd(name, a)
