"""Every function and operator of formulas on every kind of value; rules as text; and what is wrong
with rules that cannot be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, product

import numpy as np
import pytest

from superopt.errors import SuperoptError
from superopt.ir.graph import Constant, Input, constant
from superopt.rules.lang.fills import fill_array, shape_and_content, table_array
from superopt.rules.lang.functions import (
    FUNCTIONS,
    NotKnown,
    Result,
    apply_binary,
    compare_results,
    item_of,
    show_result,
)
from superopt.rules.lang.readable import merge_conditions
from superopt.rules.lang.rule import parse_rules
from superopt.rules.lang.value_facts import is_const, listed_integers, round_to, uniform_value
from superopt.te.expr.dtype import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8
from superopt.te.expr.node import Size
from superopt.te.expr.tensor import TensorType
from tests.support.rules.sample import GROUPS, check_golden, sample

N, M = Size("n"), Size("m")
VALUES: dict[str, Result] = {
    "x": Input("x", TensorType(F32, (2, 3, 4))), "y": Input("y", TensorType(F32, (N, 4))),
    "u": Input("u", TensorType(F32, None)), "c": constant(np.full((2, 2), 2.5, np.float32)),
    "d": constant(np.arange(4)), "n": N, "n + 1": N + 1, "m": M, "0": 0, "1": 1, "-2": -2, "3": 3,
    "1/2": 0.5, "()": (), "(2, 3, 4)": (2, 3, 4), "(2, 0, 1)": (2, 0, 1), "(n, 4)": (N, 4),
    "(1, 2)": (1, 2), "True": True, "'same'": "same",
}  # fmt: skip
OPERATORS = ("+", "-", "*", "//", "%", "/", "**")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=", "in", "not in")
FEW = ("x", "n", "m", "0", "3", "-2", "1/2", "(2, 3, 4)", "(n, 4)", "(1, 2)", "'same'")


# Messages of Python, which differ between its versions.
OWN_WORDS = re.compile(r"(integer|float) .*(zero|modulo)|division by zero|invalid syntax.*|'[(]'.*")


def attempt(run: Callable[..., Result], *args: Result) -> str:
    try:
        return show_result(run(*args))
    except NotKnown as e:
        return f"? {OWN_WORDS.sub('...', str(e))}"


def on_one_line(rows: Iterator[tuple[str, str]], title: str) -> list[str]:
    """Arguments with the same result together."""
    found: dict[str, list[str]] = {}
    for args, result in rows:
        found.setdefault(result, []).append(args)
    return [title, *(f"  {result}: {'; '.join(args)}" for result, args in found.items())]


def test_functions() -> None:
    lines: list[str] = []
    for name, function in FUNCTIONS.items():
        for count in range(function.min_args, min(function.max_args, 3) + 1):
            names = VALUES if count == 1 else FEW
            pairs = list(product(names, repeat=count))
            rows = (
                (", ".join(p), attempt(function.evaluate, *(VALUES[n] for n in p)))
                for p in pairs[:: 1 if count < 3 else 29]
            )
            lines += on_one_line(rows, f"{name} of {count}")
    check_golden("lang", "functions", lines)


def test_operators() -> None:
    lines: list[str] = []
    for ops, run in ((OPERATORS, apply_binary), (COMPARISONS, compare_results)):
        for op in ops:
            rows = (
                (f"{a} {op} {b}", attempt(run, op, VALUES[a], VALUES[b]))
                for a, b in product(FEW, repeat=2)
            )
            lines += on_one_line(rows, op)
    rows = ((f"{s}[{i}]", attempt(item_of, VALUES[s], VALUES[i])) for s, i in product(FEW, FEW))
    check_golden("lang", "operators", [*lines, *on_one_line(rows, "[]")])


@pytest.mark.parametrize("group", GROUPS)
def test_text(group: str) -> None:
    """Rules print as they are read, and read as they print."""
    rules = sample(group)
    assert [parse_rules(str(r))[0] for r in rules] == list(rules)
    check_golden("text", group, map(str, rules))


WRONG = """
r(x: f): Relu(x)
r(x: f): Relu(x) => Relu(y)
r(x: f): Relu(x) => Relux(x)
r(x: f): Relu(x, x) => x
r(x: f): Relu(x, axis=1) => x
r(x: f): Softmax(x, axis=k) => Softmax(x, axis=j)
r(x: f, x: f): Add(x, x) => x
r(x: zz): Relu(x) => x
r(x: f[n, n + ]): Relu(x) => x
r(x: f): Relu(x) => x where foo(x)
r(x: f): Relu(x) => x where rank(x, x) == 1
r(x: f): Relu(x) => x where n > 1
r(x: f): Relu(x) => x ; float=E9
r(x: f): Relu(x) => x ; color=red
r(x: f): Relu(x) => Relu(x)
r(x: f): x => Relu(x)
r(x: f): Split(x, axis=0)[0] => x
r(x: f): Relu(x)[7] => x
r(x: f): Relu(x) => zeros()
r(x: f): Relu(x) => full((1,))
r(x: f): Relu(x) => eye(1, 2, 3)
r(x: f, *y: f): Concat(*y, axis=k) => x
r(x: f): Relu(x) <=> x ; float=E0,E1,E2
r(x: f): Relu(x) => x where lambda: 1
r(x: f): Relu(x) => x where x[1
r(x: f, *, n: likely(2)): Relu(x) => x where n == 2
r(x: f, *, n: maybe(2)): Relu(x) => x where n == 2
r: Relu(x) => Tanh(x
Relu(x) => x
r(x: f): Slice(x, starts=(0,)) => x where single_use(x, x)
r(x: f): Cast(x, to=f33) => x
r(x: f): Add(x, lit(k)) => x
r(x: f[*s, *t]): Relu(x) => x
r(x: f): Relu(x) => table(1)
r(x: f): Relu(x) => x where (all(i > 0 for i in shape(x)))
r(x: f): Add(x, 1.5) => Mul(x, 1e400)
"""


def test_rules_that_cannot_be_read() -> None:
    lines = []
    for text in WRONG.strip().splitlines():
        try:
            lines.append(f"{text}\n    {parse_rules(text)[0]}")
        except SuperoptError as e:
            lines.append(f"{text}\n    {OWN_WORDS.sub('...', str(e).splitlines()[0])}")
    check_golden("lang", "errors", lines)


CONDITIONS = """
h - 1 > 0
2 * h == h + h
h // 2 + h // 2 <= h
(h + 1) % 2 == 0
h * w - w * h == 0
3 * h - 6 >= 2 * h
max(h, 2) == h
min(h, 7) >= 2
h >= 2 and h <= 9
h == 1 or h == 2
not h == 3
h != 4
2 <= h
h + w >= 2 * w
(h - 1) * (h + 1) >= 8
-h >= -12
h // 3 == 2
h % 4 < 2
(n - 3) // 2 + 1 == (n - 1) // 2
h > w
h * 0 == 0
min(h, w) + max(h, w) == h + w
h + -1 * w + 3 > 0
a.b.c * 2 >= 6
h == 10001
h < 0
rank(x) <= 2
(h + 2 * 3 - 6) == w * 1
h - (w - 2) >= 1
(h * 2) // 2 == h
-3 + h - -2 == 0
"""


def test_conditions_as_a_reader_writes_them() -> None:
    texts = CONDITIONS.strip().splitlines()
    lines = [f"{t}: {merge_conditions([t])} from 1: {merge_conditions([t], 1)}" for t in texts]
    for n in range(0, len(texts) - 2, 3):
        lines.append(f"{texts[n : n + 3]}: {merge_conditions(texts[n : n + 3], 1)}")
    check_golden("lang", "conditions", lines)


ARRAYS: dict[str, np.ndarray] = {
    "number": np.array(3), "half": np.array(0.5, np.float32), "ones": np.ones((2, 3), np.float32),
    "range": np.arange(5), "mixed": np.array([1.0, 2.0], np.float32), "bools": np.ones(2, bool),
    "empty": np.zeros((0,), np.int64), "matrix": np.arange(4).reshape(2, 2),
    "nan": np.array(np.nan),
    "negative": -np.arange(3), "long": np.arange(3000), "large": np.full(2, 2**40),
    "infinite": np.full(3, np.inf, np.float32), "third": np.full((1, 2), 1 / 3, np.float32),
}  # fmt: skip
NUMBERS = (0, 1, -1, 127, 128, 255, 256, 0.5, 0.1, 1e300, 65504, 65505, 2**31, 2**63, float("inf"))
TYPES = (F16, BF16, F32, F64, I8, U8, I32, I64, BOOL)


def test_facts_of_constants() -> None:
    lines = []
    for name, array in ARRAYS.items():
        c = constant(array)
        assert isinstance(c, Constant)
        lines.append(f"{name}: {uniform_value(c)} {listed_integers(c)} {is_const(c)}")
    rows: Sequence[tuple[str, list[object]]] = [
        (str(t), [round_to(n, t) for n in NUMBERS]) for t in TYPES
    ]
    check_golden("lang", "constants", [*lines, *(f"{t}: {found}" for t, found in rows)])


def test_fills() -> None:
    lines = []
    cases: list[tuple[str, tuple[Result, ...]]] = [
        ("zeros", ((2, 3),)), ("ones", ((2,),)), ("full", ((2, 2), 7)), ("eye", (3,)),
        ("table", (((1, 2), (3, 4)),)), ("table", ((1, 2, 3),)), ("table", (5,)),
        ("table", (((1, 2), (3,)),)), ("zeros", (3,)), ("full", ((1,), (2,))),
        ("dirac", ((2, 2, 3),)),
    ]  # fmt: skip
    for kind, args in cases:
        try:
            lines.append(f"{kind}{args}: {shape_and_content(kind, args)}")
        except NotKnown as e:
            lines.append(f"{kind}{args}: ? {e}")
    for kind, shape in (("eye", [3, 3]), ("dirac", [2, 2, 3]), ("dirac", [4, 2, 1, 3]),
                        ("dirac", [1, 1, 2]), ("means", [2, 4]), ("means", [3, 3])):  # fmt: skip
        try:
            made = fill_array(kind, shape, F32)
            lines.append(f"{kind}{shape}: {np.round(made, 6).tolist()} {made.dtype}")
        except NotKnown as e:
            lines.append(f"{kind}{shape}: ? {e}")
    for rows, t in islice(product((((1, 2), (3, 4)), (1.5, 2), (300, 1), 7), (F32, U8, I64)), 12):
        try:
            lines.append(f"{rows} {t}: {table_array(rows, t).tolist()}")
        except NotKnown as e:
            lines.append(f"{rows} {t}: ? {e}")
    check_golden("lang", "fills", lines)
