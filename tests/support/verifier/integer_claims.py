"""Claims that two integer expressions are equal, most of which hold without overflow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from random import Random

import numpy as np

from superopt.te.eval.domain import Reals
from superopt.te.eval.interpret import evaluate_all
from superopt.te.expr.dtype import (
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    DType,
    to_numpy,
)
from superopt.te.expr.node import Apply, Const, Expr, Load
from superopt.te.expr.tensor import (
    Tensor,
    TensorType,
    apply,
    cast,
    compare,
    const,
    placeholder,
    select,
)
from superopt.te.expr.tensor import compute as tensor_of
from superopt.verifier.context import ProofContext
from superopt.verifier.elements.algebra import Undefined
from superopt.verifier.elements.reader import Reader
from superopt.verifier.equality.element_equality import are_equal_elements
from superopt.verifier.poly.facts import Facts

KINDS = (I8, U8, I16, U16, I32, U32, I64, U64)
FUNCTIONS = (
    *("add", "add", "sub", "mul", "neg", "abs", "max", "min", "sign"),
    *("cast", "cast", "div", "mod", "fmod", "select", "truth"),
)
Element = Callable[[Expr, Expr], Expr]  # of two elements x and y
Claim = tuple[Element, Element]
Pairs = tuple[np.ndarray, np.ndarray]


def is_proved(claim: Claim, kind: DType) -> bool:
    """True if both sides are proved equal for all x and y of this type."""
    with closing(ProofContext.with_limits(5.0)) as context:
        inputs = [placeholder(name, TensorType(kind, ())) for name in "xy"]
        reader, facts = Reader(context, {}), Facts(context)
        sides = [side(*(Load(t, (), kind) for t in inputs)) for side in claim]
        try:
            left, right = (reader.value(side, {}, facts) for side in sides)
        except Undefined:
            return False
        found = reader.types.integer_type(sides[0].dtype)
        return are_equal_elements(left, right, found, facts)


def differs_at(claim: Claim, kind: DType, x: np.ndarray, y: np.ndarray) -> tuple[int, int] | None:
    """Return x and y at which both sides differ, None if there are none."""
    inputs = [placeholder(name, TensorType(kind, x.shape)) for name in "xy"]
    sides: list[Tensor] = [
        tensor_of(x.shape, lambda i, side=side: side(*(Load(t, (i,), kind) for t in inputs)))
        for side in claim
    ]
    stored = to_numpy(kind)
    a, b = evaluate_all(sides, {"x": x.astype(stored), "y": y.astype(stored)}, Reals(F64))
    wrong = np.flatnonzero(a != b)
    return None if not wrong.size else (int(x[wrong[0]]), int(y[wrong[0]]))


def all_pairs(kind: DType) -> Pairs:
    """Return all pairs of two numbers of an 8-bit type."""
    info = np.iinfo(to_numpy(kind))
    every = np.arange(info.min, info.max + 1)
    x, y = np.meshgrid(every, every)
    return x.ravel(), y.ravel()


def some_pairs(kind: DType, rng: np.random.Generator) -> Pairs:
    """Return pairs of numbers of a type: extremes, small ones, and any."""
    info = np.iinfo(to_numpy(kind))
    ends = [info.min, info.min + 1, info.max - 1, info.max, info.max // 2, info.max // 2 + 1]
    near = [int(n) for n in range(-3, 4) if n >= info.min]
    drawn = rng.integers(info.min, info.max, 30, dtype=to_numpy(kind), endpoint=True)
    every = np.array([*ends, *near, *map(int, drawn)], dtype=to_numpy(kind))
    x, y = np.meshgrid(every, every)
    return x.ravel(), y.ravel()


def random_claim(rng: Random, kind: DType) -> tuple[Expr, Expr]:
    """Return an expression of inputs x and y of a type, and another that is equal to it over the
    real numbers, or nearly."""
    terms = [Load(placeholder(name, TensorType(kind, ())), (), kind) for name in "xy"]
    left = _random_element(rng, kind, terms, 3)
    right = left
    for _ in range(rng.randint(1, 3)):
        right = _rewrite_somewhere(rng, right)
    return left, right


def as_claim(left: Expr, right: Expr) -> Claim:
    """Return both sides as functions of x and y."""
    return tuple(lambda x, y, e=e: _replace(e, {"x": x, "y": y}) for e in (left, right))  # type: ignore[return-value]


def _replace(e: Expr, values: dict[str, Expr]) -> Expr:
    match e:
        case Load(tensor):
            return values[tensor.name]
        case Apply(fn, args, kind):
            return Apply(fn, tuple(_replace(a, values) for a in args), kind)
        case _:
            return e


def _random_element(rng: Random, kind: DType, terms: list[Expr], depth: int) -> Expr:
    if depth == 0:
        own = [t for t in terms if t.dtype == kind]
        if own and rng.random() < 0.8:
            return rng.choice(own)
        if rng.random() < 0.6:
            return cast(rng.choice(terms), kind)
        return const(rng.choice((0, 1, 2, 3, 5, 64, 127)), kind)

    def part(of: DType = kind) -> Expr:
        return _random_element(rng, of, terms, depth - 1)

    fn = rng.choice(FUNCTIONS)
    match fn:
        case "neg" | "abs" | "sign":
            return apply(fn, part())
        case "cast":
            return cast(part(rng.choice(KINDS)), kind)
        case "div" | "mod" | "fmod":
            return apply(fn, part(), const(rng.choice((1, 2, 3, 4, 8, 100)), kind))
        case "select":
            one = rng.choice(KINDS)
            return select(compare(rng.choice(("lt", "eq")), part(one), part(one)), part(), part())
        case "truth":
            one = rng.choice(KINDS)
            return cast(compare(rng.choice(("lt", "le", "eq")), part(one), part(one)), kind)
        case _:
            return apply(fn, part(), part())


def _rewrite_somewhere(rng: Random, e: Expr) -> Expr:
    """Return `e` with one of its parts rewritten by a law of real numbers."""
    places = [path for path, part in _parts(e, ()) if _rewrites(rng, part)]
    if not places:
        return e
    return _rewrite_at(rng, e, rng.choice(places))


def _parts(e: Expr, path: tuple[int, ...]) -> list[tuple[tuple[int, ...], Expr]]:
    inner = e.args if isinstance(e, Apply) else ()
    return [(path, e), *(p for n, a in enumerate(inner) for p in _parts(a, (*path, n)))]


def _rewrite_at(rng: Random, e: Expr, path: tuple[int, ...]) -> Expr:
    if not path:
        return rng.choice(_rewrites(rng, e))
    assert isinstance(e, Apply)
    args = list(e.args)
    args[path[0]] = _rewrite_at(rng, args[path[0]], path[1:])
    return Apply(e.fn, tuple(args), e.dtype)


def _rewrites(rng: Random, e: Expr) -> list[Expr]:
    """Return what `e` is equal to by a law of real numbers, of integers that do not overflow, or of
    casts that lose nothing."""
    kind = e.dtype
    match e:
        case Apply("add", (a, b)):
            out = [b + a, a - (-b), -(-a - b)]
            out += _distribute(a, b, apply)
            if isinstance(a, Apply) and a.fn == "add":
                out.append(a.args[0] + (a.args[1] + b))
            return out
        case Apply("sub", (a, b)):
            return [a + -b, -(b - a)]
        case Apply("mul", (a, b)):
            out = [b * a, (-a) * (-b), -(a * -b)]
            if isinstance(b, Apply) and b.fn in ("add", "sub"):
                out.append(apply(b.fn, a * b.args[0], a * b.args[1]))
            return out
        case Apply("neg", (Apply("neg", (a,)),)):
            return [a]
        case Apply("neg", (Apply("max" | "min" as fn, (a, b)),)):
            return [apply("min" if fn == "max" else "max", -a, -b)]
        case Apply("neg", (a,)):
            return [const(0, kind) - a, a * const(-1, kind)]
        case Apply("abs", (a,)):
            return [apply("max", a, -a), apply("abs", -a), apply("abs", e)]
        case Apply("sign", (a,)):
            zero = const(0, kind)
            return [-apply("sign", -a), select(a < zero, const(-1, kind), apply("min", a, 1))]
        case Apply("max" | "min" as fn, (a, b)):
            c = rng.choice((a, b, const(1, kind)))
            less = a < b
            return [
                apply(fn, b, a),
                apply(fn, a + c, b + c) - c,
                select(less, b, a) if fn == "max" else select(less, a, b),
                -apply("min" if fn == "max" else "max", -a, -b),
                cast(apply(fn, cast(a, I32), cast(b, I32)), kind),
            ]
        case Apply("div" | "mod" | "fmod", (a, Const(n) as b)):
            return _divisions(e.fn, a, b, int(n))
        case Apply("cast", (a,)) if a.dtype not in (BOOL,):
            return _casts(rng, a, kind)
        case Apply("select", (guard, a, b)):
            c = const(7, kind)
            return [select(guard, a + c, b + c) - c, -select(guard, -a, -b)]
        case Apply("lt" | "le" as fn, (a, b)):
            c = rng.choice((a, b, const(1, a.dtype)))
            zero, wide = const(0, a.dtype), I64 if a.dtype.bits < 64 else F32
            return [
                compare(fn, a + c, b + c),
                compare(fn, -b, -a),
                compare(fn, a - b, zero),
                compare(fn, cast(a, wide), cast(b, wide)),
                compare(fn, cast(a, I16), cast(b, I16)),
            ]
        case Apply("eq", (a, b)):
            c, zero = rng.choice((a, b, const(1, a.dtype))), const(0, a.dtype)
            return [
                compare("eq", a + c, b + c),
                compare("eq", -a, -b),
                compare("eq", a - b, zero),
                compare("eq", a + a, b + b),
                compare("eq", cast(a, I16), cast(b, I16)),
            ]
        case Const(0):
            return []
        case _:
            one = const(rng.choice((1, 3)), kind) if kind != BOOL else None
            return [] if one is None else [(e + one) - one, apply("div", e * one, one)]


def _distribute(a: Expr, b: Expr, build: Callable[..., Expr]) -> list[Expr]:
    match a:
        case Apply("max" | "min" as fn, (x, y)):
            return [build(fn, x + b, y + b)]
        case Apply("select", (guard, x, y)):
            return [select(guard, x + b, y + b)]
        case _:
            return []


def _divisions(fn: str, a: Expr, b: Const, n: int) -> list[Expr]:
    out: list[Expr] = [apply(fn, a + b, b) if fn != "div" else -apply("div", -a, b)]
    if fn == "div":
        out.append(apply("div", a * b, b * b))
        out.append(apply("div", a - apply("fmod", a, b), b))
        if n % 2 == 0:
            out.append(apply("div", apply("div", a, 2), n // 2))
    else:
        out.append(apply(fn, apply(fn, a, b), b))
        out.append(a - apply("div", a, b) * b)
        out.append(apply(fn, a + b * const(8, a.dtype), b))
        if n * 4 < 128:
            out.append(apply(fn, apply(fn, a, n * 4), b))
    return out


def _casts(rng: Random, a: Expr, kind: DType) -> list[Expr]:
    out = [cast(cast(a, rng.choice(KINDS)), kind)]
    match a:
        case Apply("add" | "sub" | "mul" | "max" | "min" as fn, (x, y)):
            out += [apply(fn, cast(x, kind), cast(y, kind))] * 3
        case Apply("neg" | "abs" | "sign" as fn, (x,)):
            out += [apply(fn, cast(x, kind))] * 3
        case Apply("cast", (x,)):
            out += [cast(x, kind)] * 3
        case Apply("select", (guard, x, y)):
            out.append(select(guard, cast(x, kind), cast(y, kind)))
        case _:
            pass
    return out
