"""Type laws of the axiom-level prover: shapes of results, and when terms have a type.

Laws about `shape(t)`, `len` and `back` (the size of an axis counted from the end), for each
function that occurs. They restate `Op.infer`, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from superopt.verifier.axiom.formulas import comparison
from superopt.verifier.axiom.logic import (
    TRUTH_SORT,
    VALUE_SORT,
    FoTerm,
    arithmetic,
    fo,
    is_variable,
    make_tuple,
    number,
    shape,
    size_from_end,
)
from superopt.verifier.axiom.operators import BROADCASTS, KEEPS_RANK, KEEPS_SHAPE, REDUCTIONS

# Conditions, conclusion, and the trigger term.
Law = tuple[tuple[FoTerm, ...], FoTerm, FoTerm]
ONE = number(1)
MAX_PERMUTED_AXES = 4  # permuted axes that are expanded


def equality(a: FoTerm, b: FoTerm) -> FoTerm:
    return comparison("==", a, b)


def length(s: FoTerm) -> FoTerm:
    return fo("len", (s,))


def disjunction(*some: FoTerm) -> FoTerm:
    return fo("or", some, TRUTH_SORT)


def broadcast_laws() -> Iterator[Law]:
    """Yield the semilattice laws of broadcasting, with the scalar shape at the bottom."""
    a, b, c, j = (fo(f"?{n}") for n in "abcj")
    ab = fo("broadcast", (a, b))
    yield (), equality(ab, fo("broadcast", (b, a))), ab
    left, right = fo("broadcast", (ab, c)), fo("broadcast", (a, fo("broadcast", (b, c))))
    yield (), equality(left, right), left
    yield (), equality(left, right), right
    same = fo("broadcast", (a, a))
    yield (), equality(same, a), same
    scalar = fo("broadcast", (a, make_tuple(())))
    yield (), equality(scalar, a), scalar
    yield (), equality(length(ab), fo("max", (length(a), length(b)))), ab
    size, x, y = size_from_end(ab, j), size_from_end(a, j), size_from_end(b, j)
    yield (), equality(size, fo("if", (equality(x, ONE), y, x))), size
    yield (comparison("<", length(a), j),), equality(x, ONE), x
    yield (), comparison("<=", number(0), length(a)), length(a)


def function_laws(key: tuple[str, ...]) -> Iterator[Law]:
    """Yield the laws of a function: name, sorts of operands, sort of the result."""
    fn, *sorts, result = key
    args = tuple(fo(f"?a{i}", (), s) for i, s in enumerate(sorts))
    t = fo(fn, args, result)
    if result == VALUE_SORT and fn == "shape":
        j = fo("?j")
        yield (
            (comparison("<=", ONE, j),),
            comparison("<=", ONE, size_from_end(t, j)),
            size_from_end(t, j),
        )
    if result == VALUE_SORT and fn == "tuple":
        yield from tuple_laws(args, t)
        return
    if result in (VALUE_SORT, TRUTH_SORT) or is_variable(t):
        return
    yield from typing_laws(fn, args, t)
    s, j = shape(t), fo("?j")
    n, size, ok = length(s), size_from_end(s, j), is_typed(t)
    if fn.startswith("#") or fn == "lit":
        yield (), equality(s, make_tuple(())), s
        return
    if not args:
        return
    x = shape(args[0])
    if fn == "[0]" or fn in KEEPS_SHAPE:
        yield (), equality(s, x), s
    elif fn.startswith("[") or fn in KEEPS_RANK or fn in REDUCTIONS:
        kept = (ok, equality(args[2], ONE)) if fn in REDUCTIONS else (ok,)
        yield kept, equality(n, length(x)), s
    if fn in BROADCASTS and len(args) == 2:
        y = shape(args[1])
        yield (), equality(s, fo("broadcast", (x, y))), s
        a, b = size_from_end(x, j), size_from_end(y, j)
        yield (ok,), disjunction(equality(a, b), equality(a, ONE), equality(b, ONE)), size
    match fn:
        case "Expand":
            yield (), equality(s, fo("broadcast", (x, args[1]))), s
            a, b = size_from_end(x, j), size_from_end(args[1], j)
            yield (ok,), disjunction(equality(a, b), equality(a, ONE), equality(b, ONE)), size
        case "Reshape":
            yield (ok,), equality(s, args[1]), s
        case "Concat" if len(args) == 3:
            y, e = shape(args[1]), args[2]
            yield (ok,), equality(length(x), length(y)), s
            yield (ok,), comparison("<=", ONE, e), s
            yield (ok,), comparison("<=", e, length(x)), s
            yield (
                (ok,),
                equality(
                    size_from_end(s, e), arithmetic("+", size_from_end(x, e), size_from_end(y, e))
                ),
                s,
            )
            other = fo("not", (equality(j, e),), TRUTH_SORT)
            yield (ok, other), equality(size, size_from_end(x, j)), size
            yield (ok, other), equality(size, size_from_end(y, j)), size
        case "MatMul":
            y, two = shape(args[1]), number(2)
            long = (ok, comparison("<=", two, length(x)), comparison("<=", two, length(y)))
            yield long, equality(n, fo("max", (length(x), length(y)))), s
            yield long, equality(size_from_end(s, ONE), size_from_end(y, ONE)), s
            yield long, equality(size_from_end(s, two), size_from_end(x, two)), s
            yield long, equality(size_from_end(x, ONE), size_from_end(y, two)), s
            a, b = size_from_end(x, j), size_from_end(y, j)
            batch = (*long, comparison("<", two, j))
            yield batch, equality(size, fo("if", (equality(a, ONE), b, a))), size
            yield batch, disjunction(equality(a, b), equality(a, ONE), equality(b, ONE)), size
        case _ if fn in REDUCTIONS:
            kept = (ok, equality(args[2], ONE))
            inside = fo("in", (j, args[1]), TRUTH_SORT)
            yield kept, equality(size, fo("if", (inside, ONE, size_from_end(x, j)))), size
        case "GlobalAveragePool" | "GlobalMaxPool":
            spatial = comparison("<", j, arithmetic("-", length(x), ONE))
            yield (ok,), equality(size, fo("if", (spatial, ONE, size_from_end(x, j)))), size


def is_typed(t: FoTerm) -> FoTerm:
    """Return the term for: `t` has a type."""
    return fo("typed", (t,), TRUTH_SORT)


def typing_laws(fn: str, args: tuple[FoTerm, ...], t: FoTerm) -> Iterator[Law]:
    """Yield the laws of typing: typed terms have typed operands; and what suffices for a type."""
    operands = [a for a in args if a.sort not in (VALUE_SORT, TRUTH_SORT)]
    for a in operands:
        yield (is_typed(t),), is_typed(a), is_typed(t)
    if not args:
        yield (), is_typed(t), is_typed(t)
    elif fn in KEEPS_SHAPE and len(args) == 1:
        yield (), equality(is_typed(t), is_typed(args[0])), is_typed(t)
    elif fn in BROADCASTS and len(args) == 2:
        x, y = args
        both = is_typed(x), is_typed(y)
        yield (*both, equality(shape(x), shape(y))), is_typed(t), is_typed(t)
        yield (*both, equality(length(shape(x)), number(0))), is_typed(t), is_typed(t)
        yield (*both, equality(length(shape(y)), number(0))), is_typed(t), is_typed(t)


def tuple_laws(args: tuple[FoTerm, ...], t: FoTerm) -> Iterator[Law]:
    """Yield the laws of a literal tuple: its length, its items from the end, and membership."""
    yield (), equality(length(t), number(len(args))), t
    for i, a in enumerate(reversed(args), 1):
        yield (), equality(fo("back", (t, number(i))), a), t
    if args:
        k = fo("?k")
        item = fo("at", (t, k))
        for i, a in enumerate(args):
            yield (equality(k, number(i)),), equality(item, a), item
        r = fo("?r")
        for turn in ("front", "end"):  # an axis counted from the other end
            turned = fo(turn, (r, t))
            yield (), equality(turned, make_tuple(arithmetic("-", r, a) for a in args)), turned
        if len(args) <= MAX_PERMUTED_AXES:
            p = fo("?p")
            moved = fo("permute", (p, t))
            yield (), equality(moved, make_tuple(fo("at", (p, a)) for a in args)), moved

        inside = fo("in", (k, t), TRUTH_SORT)
        yield (), equality(inside, disjunction(*(equality(k, a) for a in args))), inside


def is_permutation(t: FoTerm) -> bool:
    """True for a literal permutation."""
    return t.fn == "tuple" and sorted(a.fn for a in t.args) == [str(i) for i in range(len(t.args))]


def attribute_laws(t: FoTerm) -> Iterator[Law]:
    """Yield the result sizes of an operator with literal attributes."""
    x = fo("?x", (), t.args[0].sort) if t.args else t
    match t.fn:
        case "Transpose" if is_permutation(t.args[1]):
            perm = [int(a.fn) for a in t.args[1].args]
            n = len(perm)
            back_again = make_tuple(number(perm.index(i)) for i in range(n))
            yield (), equality(fo("inverse", (t.args[1],)), back_again), t.args[1]
            moved = fo(t.fn, (x, *t.args[1:]), t.sort)
            ok = (is_typed(moved),)
            yield ok, equality(length(shape(x)), number(n)), shape(moved)
            for i, p in enumerate(perm):
                there = size_from_end(shape(x), number(n - p))
                yield ok, equality(size_from_end(shape(moved), number(n - i)), there), shape(moved)
        case "Pad" if t.args[-3].fn == "tuple":
            pads = t.args[-3].args
            n = len(pads) // 2
            larger = fo(t.fn, (x, *t.args[1:]), t.sort)
            ok = (is_typed(larger),)
            yield ok, equality(length(shape(x)), number(n)), shape(larger)
            j = fo("?j")
            size = size_from_end(shape(larger), j)
            for i in range(n):
                more = arithmetic("+", pads[i], pads[i + n])
                here = arithmetic("+", size_from_end(shape(x), j), more)
                yield (*ok, equality(j, number(n - i))), equality(size, here), size
        case _ if t.fn in REDUCTIONS and t.args[1].fn == "tuple":
            reduced = fo(t.fn, (x, *t.args[1:]), t.sort)
            for e in t.args[1].args:
                yield (is_typed(reduced),), comparison("<=", ONE, e), shape(reduced)
                yield (is_typed(reduced),), comparison("<=", e, length(shape(x))), shape(reduced)
        case "Unsqueeze" if t.args[1].fn == "tuple" and len(t.args[1].args) == 1:
            (e,) = t.args[1].args
            longer, j = fo(t.fn, (x, *t.args[1:]), t.sort), fo("?j")
            size, ok = size_from_end(shape(longer), j), (is_typed(longer),)
            yield (
                ok,
                equality(length(shape(longer)), arithmetic("+", length(shape(x)), ONE)),
                longer,
            )
            before = fo(
                "if", (equality(j, e), ONE, size_from_end(shape(x), arithmetic("-", j, ONE)))
            )
            yield (
                ok,
                equality(
                    size, fo("if", (comparison("<", j, e), size_from_end(shape(x), j), before))
                ),
                size,
            )
        case "Slice" if t.args[3].fn == "tuple" and len(t.args[3].args) == 1:
            starts, ends, axes, steps = t.args[1:5]
            if not all(a.fn == "tuple" for a in (starts, ends)) or steps is not make_tuple((ONE,)):
                return
            part, j = fo(t.fn, (x, *t.args[1:]), t.sort), fo("?j")
            size, ok = size_from_end(shape(part), j), (is_typed(part),)
            (e,) = axes.args
            cut = arithmetic("-", ends.args[0], starts.args[0])
            yield (
                ok,
                equality(size, fo("if", (equality(j, e), cut, size_from_end(shape(x), j)))),
                size,
            )
            yield ok, comparison("<=", ends.args[0], size_from_end(shape(x), e)), shape(part)
