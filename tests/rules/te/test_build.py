"""Functions of numbers, sizes and axes on the right sides of te-rules."""

from __future__ import annotations

import ast

import pytest

from superopt.rules.te.build import Builder, Lambda, Value, as_axis, as_dim, as_tuple
from superopt.rules.te.term import _term
from superopt.te.expr.dtype import F32
from superopt.te.expr.node import Axis, Const, Size
from superopt.te.expr.tensor import TensorType, placeholder

N = Size("n")
AXIS_I, AXIS_K = Axis("i", 4), Axis("k", 6)
X = placeholder("x", TensorType(F32, (4, 6)))
ENV: dict[str, Value] = {
    "a": 7, "b": -2, "h": 0.5, "n": N, "i": AXIS_I, "k": AXIS_K, "s": (2, 3),
    "r": (AXIS_I, AXIS_K), "x": X,
    "e": Lambda((AXIS_I, AXIS_K), X[AXIS_I, AXIS_K]), "c": Lambda((), X[0, 0]),
}  # fmt: skip


def made(text: str) -> Value:
    build = Builder(
        dict(ENV), (AXIS_I, AXIS_K), lambda e: e.value if isinstance(e, Const) else e, F32
    )
    return build.value(_term(ast.parse(text, mode="eval").body))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a + b", 5), ("a - b", 9), ("a * b", -14), ("a / b", -3.5), ("a // b", -4), ("a % 4", 3),
        ("b ** 3", -8), ("-a", -7), ("abs(b)", 2), ("min(a, b)", -2), ("max(a, b)", 7),
        ("a < b", False), ("b < a", True), ("a < 7", False), ("a <= 7", True), ("a <= b", False),
        ("a == 7", True), ("a == b", False), ("a != 7", False), ("a != b", True),
        ("a < 8 and b < 0", True), ("a < 8 and b < -2", False), ("a < 1 or b < 0", True),
        ("a < 1 or b < -2", False), ("not a < 1", True), ("not a == 7", False), ("a + h", 7.5),
        ("prod(*s)", 6), ("count(*s)", 2), ("count(*r, a)", 3),
        ("value(a)", 7),
        ("ravel(1, 2, *s)", 5), ("unravel(5, *s)", (1, 2)), ("s * 2", (4, 6)), ("s + s", (4, 6)),
        ("2 ** s", (4, 8)),
    ],
)  # fmt: skip
def test_numbers(text: str, expected: object) -> None:
    found = made(text)
    plain = tuple(v.value if isinstance(v, Const) else v for v in as_tuple(found))
    assert (plain if isinstance(expected, tuple) else plain[0]) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n + 1", "(n + 1)"), ("n * n", "(n * n)"), ("i + 1", "(i + 1)"),
        ("i * 6 + k", "((i * 6) + k)"),
        ("i < 2", "(i < 2)"), ("i <= k", "(i <= k)"), ("i == k", "(i == k)"),
        ("i != k", "(i != k)"),
        ("i < 2 and k < 3", "((i < 2) and (k < 3))"), ("ravel(i, k, 4, 6)", "((i * 6) + k)"),
        ("e(k, i)", "x[k, i]"), ("e(1, 2)", "x[1, 2]"), ("c", "x[0, 0]"),
        ("c + 1", "(x[0, 0] + 1)"), ("x[k, i]", "x[k, i]"), ("f64(c)", "cast(x[0, 0], f64)"),
        ("select(i < 2, c, 0)", "select((i < 2), x[0, 0], 0)"),
        ("identity(max, c)", "-inf"), ("identity(sum, c)", "0"),
        ("exp(c) * 2", "(exp(x[0, 0]) * 2)"),
        ("sum(*r, e(*r))", "sum(x[i, k] for i < 4, k < 6)"),
        ("sum(j < 3, e(j, 2))", "sum(x[j, 2] for j < 3)"),
        ("max(k.r < 2, e(0, k.r))", "max(x[0, kr] for kr < 2)"),
    ],
)  # fmt: skip
def test_expressions(text: str, expected: str) -> None:
    found = made(text)
    assert str(found.body if isinstance(found, Lambda) else found) == expected


def test_kinds_of_values() -> None:
    assert as_tuple(3) == (3,)
    assert as_tuple((1, 2)) == (1, 2)
    assert as_axis(AXIS_I) is AXIS_I
    assert as_dim(N) is N
    assert as_dim(3) == 3
