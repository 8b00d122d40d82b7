"""Scalar functions of elements, and literals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np

from superopt.verifier.context import ProofContext
from superopt.verifier.elements import normal
from superopt.verifier.elements.algebra import (
    INFINITY,
    Undefined,
    common_powers,
    divide_by_powers,
    exponential,
    factor_out,
    hoist_guards,
    integer_power,
    odd_function,
    power,
    reciprocal,
    simplify_roots,
    uninterpreted_function,
)
from superopt.verifier.elements.integers import truncated_quotient
from superopt.verifier.elements.intervals import TYPES_BY_NAME, function_name, interval, is_whole
from superopt.verifier.elements.maxima import max_of
from superopt.verifier.elements.normal import NF, Factor, Term
from superopt.verifier.elements.order import known_signs, sign
from superopt.verifier.elements.overflow import WRAP, remainder, value_in_range
from superopt.verifier.elements.simplify import multiply
from superopt.verifier.poly.facts import Facts

MAX_EXPANDED_POWER = 8
POWERS_NOTE = "powers of numbers that are not below 0"
MAX_ROOT_ARGUMENT = 256  # numerators and denominators under a root
MAX_SQUARE_FACTOR = 100  # numbers whose squares are taken out of a root
ODD_FUNCTIONS = frozenset(("erf", "sin", "tan", "asin", "atan", "sinh", "asinh", "atanh"))
EVEN_FUNCTIONS = frozenset(("cos", "cosh"))
HALF, ONE = Fraction(1, 2), Fraction(1)
NEAREST_NOTE = "a literal is the simple number that it is the nearest float of"


def number_of(context: ProofContext, v: int | Fraction | float) -> NF:
    """Return a literal as an exact number: 0.16666666666666666 is 1 / 6."""
    if isinstance(v, float) and not math.isfinite(v):
        if v != v:
            raise Undefined("nan")
        return normal.scale(power(normal.fn(INFINITY, (normal.zero(context),))), 1 if v > 0 else -1)
    exact = Fraction(v)
    name = context.unknowns.name(exact)
    if name is not None:
        return power(normal.fn(f"any {name}", (normal.zero(context),)))
    if exact.denominator <= 2**16:
        return normal.constant(context, exact)
    root = context.unknowns.root_name(exact)
    if root is not None:
        return power(normal.fn(f"any {root}", (normal.zero(context),)), HALF)
    for simple in (exact.limit_denominator(1000), Fraction(f"{float(exact):.6g}")):
        if _rounds_to(float(simple), exact):
            if simple != exact:
                context.scope_notes.add(NEAREST_NOTE)
            return normal.constant(context, simple)
    for roots in (1, 2):  # as 1 / sqrt(8), or its root, which scales both factors of scores
        size = abs(float(exact))
        simple = Fraction(size ** (2**roots)).limit_denominator(MAX_ROOT_ARGUMENT)
        if _rounds_to(float(simple) ** (0.5**roots), abs(exact)):
            context.scope_notes.add(NEAREST_NOTE)
            found = normal.constant(context, simple)
            for _ in range(roots):
                found = _root([found], Facts(context))
            return normal.scale(found, 1 if exact > 0 else -1)
    return normal.constant(context, exact)


def _rounds_to(simple: float, exact: Fraction) -> bool:
    """True if `exact` is the float nearest to `simple`, in float32 if it is one: then no two floats
    are read as the same number."""
    v = float(exact)
    with np.errstate(all="ignore"):
        return float(np.float32(simple)) == v if float(np.float32(v)) == v else simple == v


def apply_function(fn: str, args: list[NF], facts: Facts) -> NF:
    """Return a scalar function of real numbers, or by its full name one of integers."""
    function = FUNCTIONS_OF_REALS.get(fn)
    if function is not None:
        return function(args, facts)
    return uninterpreted_function(fn, args, facts)


Function = Callable[[list[NF], Facts], NF]


def by_cases(function: Function) -> Function:
    """Return the function, with the guards of its arguments hoisted out of it."""
    return lambda args, facts: hoist_guards(args, facts, function)


def negation(a: NF) -> NF:
    return normal.scale(a, -1)


def _product(args: list[NF], facts: Facts) -> NF:
    a, b = args
    if len(a.terms) > 1 or len(b.terms) > 1:
        facts.context.steps.add("distribute")
    return simplify_roots(multiply(a, b, facts), facts)


def _quotient(args: list[NF], facts: Facts) -> NF:
    a, b = args
    facts.context.steps.add("divide")
    return simplify_roots(multiply(a, reciprocal(b, facts), facts), facts)


def maximum(args: list[NF], facts: Facts) -> NF:
    """Return the maximum of values; of two whose ranges do not overlap one is left out."""

    def build(values: list[NF], more: Facts) -> NF:
        a, b = values
        for x, y in ((a, b), (b, a)):
            if interval(x)[0] >= interval(y)[1]:
                return x
        return max_of(values, more)

    return hoist_guards(args, facts, build)


def _minimum(args: list[NF], facts: Facts) -> NF:
    return negation(maximum([negation(a) for a in args], facts))


def _sigmoid(a: NF, factor: int, facts: Facts) -> NF:
    """Return 1 / (1 + exp(-factor * a))."""
    down = exponential(normal.scale(a, -factor), facts)
    return reciprocal(normal.add(normal.constant(facts.context, 1), down), facts)


def _tanh(args: list[NF], facts: Facts) -> NF:
    """Return 2 / (1 + exp(-2 x)) - 1."""
    doubled = normal.scale(_sigmoid(args[0], 2, facts), 2)
    return normal.subtract(doubled, normal.constant(facts.context, 1))


def _power(args: list[NF], facts: Facts) -> NF:
    a, b = args
    n = b.constant
    if n is not None and n.denominator == 1 and abs(n) <= MAX_EXPANDED_POWER:
        return integer_power(a, int(n), facts)
    if n in (HALF, -HALF):
        root = hoist_guards([a], facts, _root)
        return root if n == HALF else reciprocal(root, facts)
    return hoist_guards(args, facts, _general_power)


def _logarithm(a: NF, known: Mapping[Factor, int]) -> NF:
    """Expand log(x y) to log(x) + log(y) for x above 0, by itself or by known signs; log(exp(x)) to
    x; log(sqrt(x)) to log(x) / 2."""
    if not a.terms:
        raise Undefined("log(0)")
    content, rest = factor_out(a)
    plain = power(normal.fn("log", (a,)))
    one = a.single_term
    if one is not None:
        content, rest = one, normal.constant(a.context, 1)
        for f, e in one.powers if one.coefficient == 1 and len(one.powers) == 1 else ():
            if isinstance(f, normal.Fn) and f.name == "sqrt":
                return normal.scale(_logarithm(f.args[0], known), e / 2)
    if one is not None and one.coefficient == 1 and len(one.powers) == 1:
        f, e = one.powers[0]
        base = f.args[0].single_term if isinstance(f, normal.Fn) and f.name == "pow" else None
        if base is not None and base.coefficient > 0 and sign(base, known) == 2:
            assert isinstance(f, normal.Fn)
            log = _logarithm(f.args[0], known)
            return normal.scale(multiply(f.args[1], log, Facts(a.context)), e)
    positive = [p for p in content.powers if sign(Term(ONE, (), frozenset(), (p,)), known) == 2]
    others = tuple(p for p in content.powers if p not in positive)
    if not positive:
        return plain
    left = multiply(
        normal.from_terms(a.context, (Term(content.coefficient, (), frozenset(), others),)),
        rest,
        Facts(a.context),
    )
    out = normal.zero(a.context) if left.constant == 1 else power(normal.fn("log", (left,)))
    for f, e in positive:
        term = f.argument if isinstance(f, normal.Exp) else None
        if term is None:
            term = power(normal.fn("log", (f.argument if isinstance(f, normal.Sum) else power(f),)))
        out = normal.add(out, normal.scale(term, e))
    return out


def _general_power(args: list[NF], facts: Facts) -> NF:
    """Replace exp(x) ** y by exp(x y). Powers of other, possibly negative, bases may be
    undefined."""
    a, b = args
    one = a.single_term
    exponents = (
        [normal.scale(f.argument, e) for f, e in one.powers if isinstance(f, normal.Exp)]
        if one
        else []
    )
    if one is None or one.coefficient != 1 or not exponents or len(exponents) < len(one.powers):
        return _split_exponent(a, b, facts)
    return exponential(multiply(normal.add_all(facts.context, exponents), b, facts), facts)


def _split_exponent(a: NF, b: NF, facts: Facts) -> NF:
    """Expand x ** (y + z) to x ** y x ** z, wherever these are defined."""
    if len(b.terms) == 1 and b.terms[0].coefficient == 1:
        return power(normal.fn("pow", (a, b)))
    facts.context.scope_notes.add(POWERS_NOTE)
    out = normal.constant(facts.context, 1)
    for t in b.terms:
        c = t.coefficient
        plain = normal.from_terms(facts.context, (Term(ONE, t.bound, t.guards, t.powers),))
        if plain.constant is not None and len(b.terms) == 1:
            out = power(normal.fn("pow", (a, b)))
        elif plain.constant is not None:
            whole = apply_function("pow", [a, normal.constant(facts.context, c)], facts)
            out = multiply(out, whole, facts)
        elif c.denominator == 1 and abs(c) <= MAX_EXPANDED_POWER:
            out = multiply(out, power(normal.fn("pow", (a, plain)), int(c)), facts)
        else:
            out = multiply(
                out, power(normal.fn("pow", (a, normal.from_terms(facts.context, (t,))))), facts
            )
    return out


def _root(args: list[NF], facts: Facts) -> NF:
    """Replace sqrt(x * x) by max(x, -x), and sqrt(1 / x) by 1 / sqrt(x)."""
    (a,) = args
    known = known_signs(facts)
    c = a.constant
    if c is not None and c >= 0:  # sqrt(p / q) is sqrt(p q) / q, without square factors
        whole, rest = _square_part(c.numerator * c.denominator)
        if rest > MAX_ROOT_ARGUMENT**2:
            return number_of(facts.context, math.sqrt(c))
        out = (
            normal.constant(facts.context, 1)
            if rest == 1
            else power(normal.fn("sqrt", (normal.constant(facts.context, rest),)))
        )
        return normal.scale(out, Fraction(whole, c.denominator))
    one = a.single_term
    if one is not None and one.powers:  # sqrt(x y) is sqrt(x) sqrt(y) for nonnegative x
        outside = [p for p in one.powers if _has_own_root(p, known)]
        if outside and (len(one.powers) > 1 or one.coefficient != 1):
            left = tuple(p for p in one.powers if p not in outside)
            inner = _root(
                [normal.from_terms(facts.context, (Term(one.coefficient, (), frozenset(), left),))],
                facts,
            )
            for p in outside:
                alone = normal.from_terms(facts.context, (Term(ONE, (), frozenset(), (p,)),))
                inner = multiply(inner, _root([alone], facts), facts)
            return inner
    if one is None:  # sqrt(x * x * y) is max(x, -x) sqrt(y), also for sums y
        outside = [
            p
            for p in common_powers([a], frozenset())
            if _is_even_power(p) or _has_own_root(p, known)
        ]
        outside = [p for p in outside if not isinstance(p[0], normal.Num)]
        if outside:
            inner = _root([divide_by_powers(a, outside)], facts)
            for p in outside:
                alone = normal.from_terms(facts.context, (Term(ONE, (), frozenset(), (p,)),))
                inner = multiply(inner, _root([alone], facts), facts)
            return inner
    if one is not None and one.coefficient == 1 and len(one.powers) == 1:
        f, e = one.powers[0]
        if isinstance(f, normal.Exp):
            return power(f, e / 2)
    if one is not None and one.coefficient == 1 and one.powers:
        if all(e.denominator == 1 and int(e) % 2 == 0 for _, e in one.powers):
            half = tuple((f, e / 2) for f, e in one.powers)
            x = normal.from_terms(facts.context, (Term(Fraction(1), (), frozenset(), half),))
            return max_of([x, normal.scale(x, -1)], facts)
        if len(one.powers) == 1 and one.powers[0][1] == -1:
            f = one.powers[0][0]
            base = f.argument if isinstance(f, normal.Sum) else power(f)
            return power(normal.fn("sqrt", (base,)), -1)
    return power(normal.fn("sqrt", (a,)))


def _has_own_root(p: normal.Power, known: Mapping[Factor, int]) -> bool:
    """True if a factor is nonnegative and so has its own root. Even powers always are nonnegative,
    and their roots are taken together."""
    return not _is_even_power(p) and (sign(Term(ONE, (), frozenset(), (p,)), known) or 0) > 0


def _is_even_power(p: normal.Power) -> bool:
    return p[1].denominator == 1 and p[1] % 2 == 0


def _square_part(n: int) -> tuple[int, int]:
    """Return (r, s) with n == r * r * s, where s has no small square factor, and is 1 for a
    square."""
    r = math.isqrt(n)
    if r * r == n:
        return r, 1
    r = 1
    for k in range(2, MAX_SQUARE_FACTOR):
        while n % (k * k) == 0:
            n //= k * k
            r *= k
    return r, n


def _round(fn: str, a: NF) -> NF:
    """Round sums and products; those of rounded values are unchanged."""
    if is_whole(a):
        return a
    return odd_function(fn, a) if fn == "round" else power(normal.fn(fn, (a,)))


def _even_function(fn: str, a: NF) -> NF:
    """Return an even function of `a`: f(-x) is f(x), and f(0) is 1."""
    if not a.terms:
        return normal.constant(a.context, 1)
    return power(normal.fn(fn, (normal.scale(a, -1) if a.terms[0].coefficient < 0 else a,)))


def sign_function(name: str, a: NF) -> NF:
    """Return the sign function: it is idempotent and odd."""
    one = a.single_term
    if one is not None and one.coefficient == 1 and len(one.powers) == 1:
        f, e = one.powers[0]
        if e == 1 and isinstance(f, normal.Fn) and f.name == name:
            return a
    return odd_function(name, a)


FUNCTIONS: dict[str, Function] = {
    "add": lambda args, _: normal.add(*args),
    "sub": lambda args, _: normal.subtract(*args),
    "neg": lambda args, _: negation(*args),
    "mul": _product,
    "max": maximum,
    "min": _minimum,
    "div of integers": by_cases(truncated_quotient),
    "mod of integers": by_cases(remainder),
    **{
        function_name(WRAP, kind): lambda x, facts, kind=kind: value_in_range(x[0], kind, facts)  # type: ignore[misc]
        for kind in TYPES_BY_NAME.values()
    },
}
FUNCTIONS_OF_REALS: dict[str, Function] = {
    **FUNCTIONS,
    "div": _quotient,
    "sign": by_cases(lambda x, _: sign_function("sign", x[0])),
    "floor": by_cases(lambda x, _: _round("floor", x[0])),
    "round": by_cases(lambda x, _: _round("round", x[0])),
    "ceil": lambda x, facts: negation(apply_function("floor", [negation(x[0])], facts)),
    "abs": lambda x, facts: max_of([x[0], negation(x[0])], facts),
    "exp": lambda x, facts: exponential(x[0], facts),
    "sigmoid": lambda x, facts: _sigmoid(x[0], 1, facts),
    "tanh": _tanh,
    "log": by_cases(lambda x, facts: _logarithm(x[0], known_signs(facts))),
    "sqrt": by_cases(_root),
    "pow": _power,
    **{
        fn: by_cases(lambda x, _, fn=fn: odd_function(fn, x[0]))  # type: ignore[misc]
        for fn in ODD_FUNCTIONS
    },
    **{
        fn: by_cases(lambda x, _, fn=fn: _even_function(fn, x[0]))  # type: ignore[misc]
        for fn in EVEN_FUNCTIONS
    },
}
