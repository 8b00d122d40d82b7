"""Index arithmetic: normal forms have the values, and the bounds, of what they are made from."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from superopt.te.analysis.affine import (
    Affine,
    affine,
    divmod_normal_form,
    expand_mod,
    interval,
    substitute,
)
from superopt.te.eval.load_access import DirectAccess, direct_access, padded_access
from superopt.te.expr import index
from superopt.te.expr.dtype import BOOL, F64, I64, INDEX
from superopt.te.expr.node import Apply, Axis, Const, Expr, Index, Load
from superopt.te.expr.tensor import (
    TensorType,
    compare,
    conjunction,
    const,
    in_range,
    placeholder,
    ravel,
    unravel,
)

AXES = (Axis("a", 6), Axis("b", 4), Axis("c", 3))


def value(e: Expr, at: dict[Axis, int]) -> int:
    """An index expression at numbers, in Python's arithmetic."""
    match e:
        case Const(v):
            return int(v)
        case Axis():
            return at[e]
        case Apply(fn, args, _):
            v = [value(a, at) for a in args]
            match fn:
                case "add":
                    return sum(v)
                case "mul":
                    out = 1
                    for x in v:
                        out *= x
                    return out
                case "floordiv":
                    return v[0] // v[1]
                case "mod":
                    return v[0] % v[1]
                case "min":
                    return min(v)
                case "max":
                    return max(v)
                case "select":
                    return v[1] if v[0] else v[2]
                case "lt":
                    return int(v[0] < v[1])
                case "cast":
                    return v[0]
    raise TypeError(f"{e}")


@st.composite
def places(draw: st.DrawFn) -> Expr:
    """Nested quotients and remainders of sums of axes, not simplified."""
    out: Expr = const(draw(st.integers(-20, 20)), INDEX)
    for _ in range(draw(st.integers(1, 3))):
        axis = draw(st.sampled_from(AXES))
        out = Apply("add", (out, Apply("mul", (axis, _number(draw, -8, 8)), INDEX)), INDEX)
        if draw(st.booleans()):
            fn = draw(st.sampled_from(("floordiv", "mod", "min", "max")))
            out = Apply(fn, (out, _number(draw, 1, 12)), INDEX)
        if draw(st.integers(0, 3)) == 0:
            fn, bound = draw(st.sampled_from(("min", "max"))), draw(st.sampled_from(AXES))
            guard = Apply("lt", (out, Apply("mod", (bound, _number(draw, 1, 3)), INDEX)), BOOL)
            out = Apply("select", (guard, Apply(fn, (out, bound), INDEX), out), INDEX)
    return out


def _number(draw: st.DrawFn, low: int, high: int) -> Expr:
    return Const(draw(st.integers(low, high)), INDEX)


def points() -> list[dict[Axis, int]]:
    ranges = [range(a.extent) for a in AXES if isinstance(a.extent, int)]
    return [dict(zip(AXES, at, strict=True)) for at in itertools.product(*ranges)]


@given(places())
def test_simplifying_keeps_the_value_and_bounds_hold(e: Expr) -> None:
    simple = substitute(e, {})
    bounds = interval(simple)
    assert bounds is not None
    for at in points():
        v = value(e, at)
        assert value(simple, at) == v
        assert bounds[0] <= v <= bounds[1]


@given(places(), st.integers(1, 12))
def test_quotient_and_remainder(e: Expr, m: int) -> None:
    simple = substitute(e, {})
    quotient, remainder = divmod_normal_form(simple, m)
    for at in points():
        assert (value(quotient, at), value(remainder, at)) == divmod(value(e, at), m)


@given(places())
@example(Apply("min", (AXES[0] + AXES[0] % 2, const(1, INDEX)), INDEX))
def test_remainders_written_as_quotients(e: Expr) -> None:
    simple = substitute(e, {})
    plain = expand_mod(simple)
    assert "%" not in str(plain)
    for at in points():
        assert value(plain, at) == value(e, at)


A, B, _ = AXES
REMAINDERS: dict[str, Callable[[Expr], Expr]] = {
    "min": lambda r: Apply("min", (A + r, const(1, INDEX)), INDEX),
    "max": lambda r: Apply("max", (A - r, B), INDEX),
    "guard": lambda r: Apply("select", (r > A, A, B), INDEX),
    "branch": lambda r: Apply("select", (A < 2, r, A - r), INDEX),
    "comparison": lambda r: Apply("lt", (r * 2, B), BOOL),
    "cast": lambda r: Apply("cast", (A + r,), I64),
    "factor": lambda r: r * (A + r),
    "quotient": lambda r: (A + r * 3) // 4,
    "min in a remainder": lambda r: Apply("min", (A + r, B), INDEX) % 3,
}


@pytest.mark.parametrize("name", REMAINDERS)
def test_remainders_inside_any_function_are_written_as_quotients(name: str) -> None:
    e = REMAINDERS[name](A % 4)
    plain = expand_mod(e)
    assert "%" in str(e)
    assert "%" not in str(plain)
    for at in points():
        assert value(plain, at) == value(e, at)


def test_remainders_of_the_index_of_an_element_are_written_as_quotients() -> None:
    x = placeholder("x", TensorType(I64, (6,)))
    e = Index(x[index.as_index(A % 4 + A // 4 * 4)], const(6, INDEX))
    assert expand_mod(e) == Index(x[A], const(6, INDEX))


def test_a_clamped_reshape_is_affine_in_the_address() -> None:
    x, n = placeholder("x", TensorType(F64, (4, 7))), Axis("n", 21)
    again = index.as_index(n // 6 * 6 + n % 6)  # at most 20; by intervals, 23
    clamped = Apply("min", (again, const(21, INDEX)), INDEX)
    found = direct_access(x[clamped // 7, clamped % 7])
    assert found == DirectAccess((Affine(0, ((n, 1),)),), flat=True)


@given(places(), places())
def test_comparisons_are_decided_only_when_they_hold_everywhere(x: Expr, y: Expr) -> None:
    for fn, holds in (("lt", int.__lt__), ("le", int.__le__), ("eq", int.__eq__)):
        guard = substitute(compare(fn, x, y), {})
        if isinstance(guard, Const):
            for at in points():
                assert holds(value(x, at), value(y, at)) == bool(guard.value)


@pytest.mark.parametrize(
    ("old", "new"), [((6, 4), (4, 6)), ((2, 3, 4), (6, 4)), ((24,), (2, 3, 4)), ((4, 6), (3, 2, 4))]
)
def test_a_reshape_is_affine_in_the_address(old: tuple[int, ...], new: tuple[int, ...]) -> None:
    x = placeholder("x", TensorType(F64, old))
    axes = [Axis(f"n{k}", e) for k, e in enumerate(new)]
    load = x[tuple(substitute(i, {}) for i in unravel(ravel(axes, new), old))]
    found = direct_access(load)
    assert found is not None
    strides = {a: ravel([int(b == a) for b in axes], new) for a in axes}
    if found.flat:
        (form,) = found.forms
        assert {a: const(c, INDEX) for a, c in form.terms} == strides
    else:
        assert len(found.forms) == len(old)


def test_a_load_out_of_range_is_not_direct() -> None:
    x = placeholder("x", TensorType(F64, (4,)))
    i = Axis("i", 4)
    assert direct_access(x[i]) == DirectAccess((Affine(0, ((i, 1),)),), flat=False)
    assert direct_access(x[i + 1]) is None
    assert direct_access(x[i - 1]) is None


def test_padding_is_recognised_by_its_guard() -> None:
    x = placeholder("x", TensorType(F64, (4, 5)))
    i, j = Axis("i", 6), Axis("j", 5)
    shifted: Load = x[i - 1, j]
    zero = const(0, F64)
    found = padded_access(_guard(in_range(index.as_index(i - 1), 4)), shifted, zero)
    assert found is not None
    pad, rest = found
    assert (pad.low, pad.high, rest) == ((0, 0), (3, 4), [])
    # a guard that lets an element through which is not there is no guard
    assert padded_access(_guard(in_range(index.as_index(i - 1), 5)), shifted, zero) is None
    assert padded_access(_guard(compare("le", const(1, INDEX), i)), shifted, zero) is None
    # nor is padding an element that depends on an axis
    assert padded_access(_guard(in_range(index.as_index(i - 1), 4)), shifted, x[0, j]) is None
    # what the guard says beside stays
    more = conjunction(in_range(index.as_index(i - 1), 4), compare("lt", i, j))
    found = padded_access(_guard(more), shifted, zero)
    assert found is not None
    assert found[1] == [compare("lt", i, j)]


def _guard(g: Expr | bool) -> Expr:
    assert isinstance(g, Expr)
    return g


def test_affine_forms() -> None:
    a, b, _ = AXES
    found = affine(index.as_index(a * 3 - b + 2))
    assert found is not None
    assert (found.base, found.coefficient(a), found.coefficient(b)) == (2, 3, -1)
    assert affine(index.as_index(a % 4)) is None


def test_the_interval_of_one_of_two() -> None:
    a, b, _ = AXES
    chosen = Apply("select", (a < 3, index.as_index(b * -2), index.as_index(7)), INDEX)
    assert interval(chosen) == (-6, 7)
    assert interval(index.as_index(a + chosen)) == (-6, 12)
