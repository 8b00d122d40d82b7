"""Type laws of the axiom-level prover: shapes of results, and when terms have a type.

Laws about `shape(t)`, `len` and `back` (the size of an axis counted from the end), for each
function that occurs. They restate `Op.infer`, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from superopt.verifier.axiom.formulas import compared
from superopt.verifier.axiom.logic import (
    TRUTH,
    VALUE,
    Fo,
    arithmetic,
    back,
    fo,
    number,
    shape,
    tupled,
    variable,
)
from superopt.verifier.axiom.operators import BROADCASTS, KEEPS_RANK, KEEPS_SHAPE, REDUCTIONS

# Conditions, conclusion, and the trigger term.
Law = tuple[tuple[Fo, ...], Fo, Fo]
ONE = number(1)
MOST_PERMUTED = 4  # permuted axes that are expanded


def equal(a: Fo, b: Fo) -> Fo:
    return compared("==", a, b)


def length(s: Fo) -> Fo:
    return fo("len", (s,))


def either(*some: Fo) -> Fo:
    return fo("or", some, TRUTH)


def general() -> Iterator[Law]:
    """Yield the semilattice laws of broadcasting, with the scalar shape at the bottom."""
    a, b, c, j = (fo(f"?{n}") for n in "abcj")
    ab = fo("broadcast", (a, b))
    yield (), equal(ab, fo("broadcast", (b, a))), ab
    left, right = fo("broadcast", (ab, c)), fo("broadcast", (a, fo("broadcast", (b, c))))
    yield (), equal(left, right), left
    yield (), equal(left, right), right
    same = fo("broadcast", (a, a))
    yield (), equal(same, a), same
    scalar = fo("broadcast", (a, tupled(())))
    yield (), equal(scalar, a), scalar
    yield (), equal(length(ab), fo("max", (length(a), length(b)))), ab
    size, x, y = back(ab, j), back(a, j), back(b, j)
    yield (), equal(size, fo("if", (equal(x, ONE), y, x))), size
    yield (compared("<", length(a), j),), equal(x, ONE), x
    yield (), compared("<=", number(0), length(a)), length(a)


def laws(key: tuple[str, ...]) -> Iterator[Law]:
    """Yield the laws of a function: name, sorts of operands, sort of the result."""
    fn, *sorts, result = key
    args = tuple(fo(f"?a{i}", (), s) for i, s in enumerate(sorts))
    t = fo(fn, args, result)
    if result == VALUE and fn == "shape":
        j = fo("?j")
        yield (compared("<=", ONE, j),), compared("<=", ONE, back(t, j)), back(t, j)
    if result == VALUE and fn == "tuple":
        yield from of_tuples(args, t)
        return
    if result in (VALUE, TRUTH) or variable(t):
        return
    yield from typing(fn, args, t)
    s, j = shape(t), fo("?j")
    n, size, ok = length(s), back(s, j), typed(t)
    if fn.startswith("#") or fn == "lit":
        yield (), equal(s, tupled(())), s
        return
    if not args:
        return
    x = shape(args[0])
    if fn == "[0]" or fn in KEEPS_SHAPE:
        yield (), equal(s, x), s
    elif fn.startswith("[") or fn in KEEPS_RANK or fn in REDUCTIONS:
        kept = (ok, equal(args[2], ONE)) if fn in REDUCTIONS else (ok,)
        yield kept, equal(n, length(x)), s
    if fn in BROADCASTS and len(args) == 2:
        y = shape(args[1])
        yield (), equal(s, fo("broadcast", (x, y))), s
        a, b = back(x, j), back(y, j)
        yield (ok,), either(equal(a, b), equal(a, ONE), equal(b, ONE)), size
    match fn:
        case "Expand":
            yield (), equal(s, fo("broadcast", (x, args[1]))), s
            a, b = back(x, j), back(args[1], j)
            yield (ok,), either(equal(a, b), equal(a, ONE), equal(b, ONE)), size
        case "Reshape":
            yield (ok,), equal(s, args[1]), s
        case "Concat" if len(args) == 3:
            y, e = shape(args[1]), args[2]
            yield (ok,), equal(length(x), length(y)), s
            yield (ok,), compared("<=", ONE, e), s
            yield (ok,), compared("<=", e, length(x)), s
            yield (ok,), equal(back(s, e), arithmetic("+", back(x, e), back(y, e))), s
            other = fo("not", (equal(j, e),), TRUTH)
            yield (ok, other), equal(size, back(x, j)), size
            yield (ok, other), equal(size, back(y, j)), size
        case "MatMul":
            y, two = shape(args[1]), number(2)
            long = (ok, compared("<=", two, length(x)), compared("<=", two, length(y)))
            yield long, equal(n, fo("max", (length(x), length(y)))), s
            yield long, equal(back(s, ONE), back(y, ONE)), s
            yield long, equal(back(s, two), back(x, two)), s
            yield long, equal(back(x, ONE), back(y, two)), s
            a, b = back(x, j), back(y, j)
            batch = (*long, compared("<", two, j))
            yield batch, equal(size, fo("if", (equal(a, ONE), b, a))), size
            yield batch, either(equal(a, b), equal(a, ONE), equal(b, ONE)), size
        case _ if fn in REDUCTIONS:
            kept = (ok, equal(args[2], ONE))
            inside = fo("in", (j, args[1]), TRUTH)
            yield kept, equal(size, fo("if", (inside, ONE, back(x, j)))), size
        case "GlobalAveragePool" | "GlobalMaxPool":
            spatial = compared("<", j, arithmetic("-", length(x), ONE))
            yield (ok,), equal(size, fo("if", (spatial, ONE, back(x, j)))), size


def typed(t: Fo) -> Fo:
    """Return the term for: `t` has a type."""
    return fo("typed", (t,), TRUTH)


def typing(fn: str, args: tuple[Fo, ...], t: Fo) -> Iterator[Law]:
    """Yield the laws of typing: typed terms have typed operands; and what suffices for a type."""
    operands = [a for a in args if a.sort not in (VALUE, TRUTH)]
    for a in operands:
        yield (typed(t),), typed(a), typed(t)
    if not args:
        yield (), typed(t), typed(t)
    elif fn in KEEPS_SHAPE and len(args) == 1:
        yield (), equal(typed(t), typed(args[0])), typed(t)
    elif fn in BROADCASTS and len(args) == 2:
        x, y = args
        both = typed(x), typed(y)
        yield (*both, equal(shape(x), shape(y))), typed(t), typed(t)
        yield (*both, equal(length(shape(x)), number(0))), typed(t), typed(t)
        yield (*both, equal(length(shape(y)), number(0))), typed(t), typed(t)


def of_tuples(args: tuple[Fo, ...], t: Fo) -> Iterator[Law]:
    """Yield the laws of a literal tuple: its length, its items from the end, and membership."""
    yield (), equal(length(t), number(len(args))), t
    for i, a in enumerate(reversed(args), 1):
        yield (), equal(fo("back", (t, number(i))), a), t
    if args:
        k = fo("?k")
        item = fo("at", (t, k))
        for i, a in enumerate(args):
            yield (equal(k, number(i)),), equal(item, a), item
        r = fo("?r")
        for turn in ("front", "end"):  # an axis counted from the other end
            turned = fo(turn, (r, t))
            yield (), equal(turned, tupled(arithmetic("-", r, a) for a in args)), turned
        if len(args) <= MOST_PERMUTED:
            p = fo("?p")
            moved = fo("permute", (p, t))
            yield (), equal(moved, tupled(fo("at", (p, a)) for a in args)), moved

        inside = fo("in", (k, t), TRUTH)
        yield (), equal(inside, either(*(equal(k, a) for a in args))), inside


def permutes(t: Fo) -> bool:
    """True for a literal permutation."""
    return t.fn == "tuple" and sorted(a.fn for a in t.args) == [str(i) for i in range(len(t.args))]


def literals(t: Fo) -> Iterator[Law]:
    """Yield the result sizes of an operator with literal attributes."""
    x = fo("?x", (), t.args[0].sort) if t.args else t
    match t.fn:
        case "Transpose" if permutes(t.args[1]):
            perm = [int(a.fn) for a in t.args[1].args]
            n = len(perm)
            back_again = tupled(number(perm.index(i)) for i in range(n))
            yield (), equal(fo("inverse", (t.args[1],)), back_again), t.args[1]
            moved = fo(t.fn, (x, *t.args[1:]), t.sort)
            ok = (typed(moved),)
            yield ok, equal(length(shape(x)), number(n)), shape(moved)
            for i, p in enumerate(perm):
                there = back(shape(x), number(n - p))
                yield ok, equal(back(shape(moved), number(n - i)), there), shape(moved)
        case "Pad" if t.args[-3].fn == "tuple":
            pads = t.args[-3].args
            n = len(pads) // 2
            larger = fo(t.fn, (x, *t.args[1:]), t.sort)
            ok = (typed(larger),)
            yield ok, equal(length(shape(x)), number(n)), shape(larger)
            j = fo("?j")
            size = back(shape(larger), j)
            for i in range(n):
                more = arithmetic("+", pads[i], pads[i + n])
                here = arithmetic("+", back(shape(x), j), more)
                yield (*ok, equal(j, number(n - i))), equal(size, here), size
        case _ if t.fn in REDUCTIONS and t.args[1].fn == "tuple":
            reduced = fo(t.fn, (x, *t.args[1:]), t.sort)
            for e in t.args[1].args:
                yield (typed(reduced),), compared("<=", ONE, e), shape(reduced)
                yield (typed(reduced),), compared("<=", e, length(shape(x))), shape(reduced)
        case "Unsqueeze" if t.args[1].fn == "tuple" and len(t.args[1].args) == 1:
            (e,) = t.args[1].args
            longer, j = fo(t.fn, (x, *t.args[1:]), t.sort), fo("?j")
            size, ok = back(shape(longer), j), (typed(longer),)
            yield ok, equal(length(shape(longer)), arithmetic("+", length(shape(x)), ONE)), longer
            before = fo("if", (equal(j, e), ONE, back(shape(x), arithmetic("-", j, ONE))))
            yield ok, equal(size, fo("if", (compared("<", j, e), back(shape(x), j), before))), size
        case "Slice" if t.args[3].fn == "tuple" and len(t.args[3].args) == 1:
            starts, ends, axes, steps = t.args[1:5]
            if not all(a.fn == "tuple" for a in (starts, ends)) or steps is not tupled((ONE,)):
                return
            part, j = fo(t.fn, (x, *t.args[1:]), t.sort), fo("?j")
            size, ok = back(shape(part), j), (typed(part),)
            (e,) = axes.args
            cut = arithmetic("-", ends.args[0], starts.args[0])
            yield ok, equal(size, fo("if", (equal(j, e), cut, back(shape(x), j)))), size
            yield ok, compared("<=", ends.args[0], back(shape(x), e)), shape(part)
