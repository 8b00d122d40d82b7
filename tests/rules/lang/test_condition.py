"""Formulas: what they are worth, and when they have no value."""

from __future__ import annotations

import ast
from fractions import Fraction

import numpy as np
import pytest

from superopt.ir.graph import Input, constant
from superopt.ops import OPS
from superopt.rules.lang.functions import FUNCTIONS, NotKnown, Result
from superopt.rules.lang.interpreter import Scope, compile_formula, reject_users
from superopt.rules.lang.syntax import parse_formula
from superopt.te.expr.dtype import F32, I64
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType

N, M = Size("n"), Size("m")
NAMES: dict[str, Result] = {
    "x": Input("x", TensorType(F32, (2, 3, 4))),
    "y": Input("y", TensorType(F32, (N, 4))),
    "u": Input("u", TensorType(F32, None)),
    "c": constant(np.full((2, 2), 2.5, np.float32)),
    "d": constant(np.arange(4)),
    "b": constant(np.array(True)),
    "n": N,
    "m": M,
    "s": (2, 3, 4),
    "p": (2, 0, 1),
    "k": 1,
    "e": 0.5,
    "w": "same",
}


def worth(text: str) -> Result:
    scope = Scope()
    for name in NAMES:
        scope.slot(name)
    run = compile_formula(
        parse_formula(ast.parse(text, mode="eval").body, OPS), scope, reject_users
    )
    env: list[Result] = [*NAMES.values(), *[None] * (len(scope.cells) - len(NAMES))]
    return run(env)


VALUES: dict[str, Result] = {
    "1 + 2 * 3": 7,
    "-7 // 2": -4,
    "-7 % 3": 2,
    "7 / 2": Fraction(7, 2),
    "1 / 3 + 1 / 6": Fraction(1, 2),
    "1 / 4.0": 0.25,
    "2 ** 10": 1024,
    "2 ** -2": Fraction(1, 4),
    "4 ** 0.5": 2.0,
    "-e": -0.5,
    "n + n": N * 2,
    "(n + 2) * 3 - 6": N * 3,
    "-n": N * -1,
    "n * m // m": N,
    "n % n": 0,
    "s + (1,)": (2, 3, 4, 1),
    "(0,) * 2": (0, 0),
    "2 * (0, k)": (0, 1, 0, 1),
    "(*s, *p, k)": (2, 3, 4, 2, 0, 1, 1),
    "s[0]": 2,
    "s[-1]": 4,
    "s[1:]": (3, 4),
    "s[::-1]": (4, 3, 2),
    "s[:-1]": (2, 3),
    "k if k > 0 else 1 // 0": 1,
    "2 in s": True,
    "5 not in s": True,
    "n in (1, n)": True,
    "s == (2, 3, 4)": True,
    "s == (2, 3)": False,
    "(n, 5) == (n, 6)": False,
    "n == n": True,
    "n != n": False,
    "n >= 1": True,
    "n < 1": False,
    "n + 1 > n": True,
    "1 < k + 1 <= 2": True,
    "1 < k <= 1 // 0": False,
    "not k == 2": True,
    "n == m or k == 1": True,
    "n == m and k == 2": False,
    "k == 1 or 1 // 0 == 1": True,
    "w == 'same'": True,
    "None == None": True,
    "x == x": True,
    "x == y": False,
    "rank(x)": 3,
    "shape(y)": (N, 4),
    "size(x, -1)": 4,
    "numel(x)": 24,
    "numel(y)": N * 4,
    "dtype(x) == f32": True,
    "dtype(d) == f32": False,
    "dtype(d)": I64,
    "const(c)": True,
    "const(x)": False,
    "value(c)": 2.5,
    "value(b)": True,
    "all_equal(c)": True,
    "all_equal(d)": False,
    "all_equal(x)": False,
    "items(d)": (0, 1, 2, 3),
    "known(n)": False,
    "known(k)": True,
    "len(s)": 3,
    "sum(s)": 9,
    "sum((n, n, 1))": N * 2 + 1,
    "sum(())": 0,
    "prod(s)": 24,
    "prod(())": 1,
    "min(s)": 2,
    "max(2, k)": 2,
    "max((n, 1))": N,
    "min(1, n)": 1,
    "abs(-3)": 3,
    "sqrt(4)": 2.0,
    "range(3)": (0, 1, 2),
    "range(1, 7, 3)": (1, 4),
    "tuple(d + 1 for d in s)": (3, 4, 5),
    "[a * b for a, b in zip(s, p) if a > 2]": (0, 4),
    "sorted(p)": (0, 1, 2),
    "reversed(s)": (4, 3, 2),
    "zip(s, p)": ((2, 2), (3, 0), (4, 1)),
    "index(s, 3)": 1,
    "permute(s, p)": (4, 2, 3),
    "compose(p, p)": (1, 2, 0),
    "inverse(p)": (1, 2, 0),
    "compose(p, inverse(p))": (0, 1, 2),
    "is_identity((0, 1))": True,
    "is_identity(p)": False,
    "contiguous((1, 2, 3))": True,
    "contiguous((1, 3))": False,
    "drop(s, 0)": (3, 4),
    "drop(s, (0, -1))": (3,),
    "insert(s, 1, n)": (2, N, 3, 4),
    "insert(s, -1, 9)": (2, 3, 4, 9),
    "replace(s, -1, n)": (2, 3, N),
    "positive(-1, 3)": 2,
    "broadcast(s, (4,))": (2, 3, 4),
    "broadcast((n, 1), (1, 5), (5,))": (N, 5),
    "all(d > 1 for d in s)": True,
    "any(d > 3 for d in s)": True,
    "any(())": False,
}


@pytest.mark.parametrize("text", VALUES)
def test_values(text: str) -> None:
    found = worth(text)
    assert found == VALUES[text]
    assert type(found) is type(VALUES[text])


UNKNOWN = {
    "n == m": "is not known",
    "n == 1": "is not known",
    "not n == m": "is not known",
    "n < m": "is not known",
    "n == m and k == 1": "is not known",
    "n in (1, 2)": "is not known",
    "(n, 5) == (m, 5)": "is not known",
    "1 // 0": "1 // 0",
    "0 ** -1": "0 ** -1",
    "s[3]": "index 3 is not in [-3, 3)",
    "s[n]": "n is not a known integer",
    "s[::0]": "a slice with step 0",
    "size(x, 3)": "index 3",
    "rank(u)": "no known rank",
    "rank(k)": "1 is not a value of the graph",
    "value(x)": "not a uniform constant",
    "value(d)": "not a uniform constant",
    "w + 1": "is not a size",
    "w < 1": "is not a known number",
    "s < 1": "is not a known number",
    "1 in 2": "2 is not a tuple",
    "1 and 2": "1 is not a bool",
    "not 3": "3 is not a bool",
    "k if k else 0": "1 is not a bool",
    "range(n)": "n is not a known integer",
    "range(0, 1, 0)": "step 0",
    "(0,) * 100000": "too long",
    "inverse((0, 2))": "is not a permutation",
    "min(())": "min of nothing",
    "sqrt(-1)": "sqrt(-1)",
    "(-1) ** 0.5": "is not real",
    "10.0 ** 400": "10.0 ** 400",
    "index(s, 9)": "9 is not in (2, 3, 4)",
    "broadcast(s, (5,))": "do not broadcast",
    "e * n": "0.5 is not a size",
    "n / 2": "is undefined",
    "[a for a, b in (s,)]": "3 items, not 2",
    "len(k)": "1 is not a tuple",
}


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_has_no_value_says_why(text: str) -> None:
    with pytest.raises(NotKnown) as caught:
        worth(text)
    assert UNKNOWN[text] in str(caught.value)


def test_every_function_is_tried_here() -> None:
    tried = " ".join(VALUES)
    assert [f for f in FUNCTIONS if f"{f}(" not in tried] == []
    assert all(f.description and 1 <= f.min_args <= f.max_args for f in FUNCTIONS.values())
