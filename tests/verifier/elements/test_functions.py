"""Functions of normal forms have the values of their definitions; golden texts have the forms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pytest

from superopt.verifier.elements import normal
from superopt.verifier.elements.algebra import Undefined
from superopt.verifier.elements.comparisons import equals_zero, less_than_zero
from superopt.verifier.elements.normal import NF
from superopt.verifier.elements.order import (
    definedness_conditions,
    drop_known_factor,
    is_order_implied,
    known_signs,
    sign,
    split_element,
)
from superopt.verifier.elements.scalars import FUNCTIONS_OF_REALS, apply_function
from tests.support.rules.sample import check_golden, number_names
from tests.support.verifier.element_values import REAL_FUNCTIONS
from tests.support.verifier.forms import Forms, value

TOLERANCE = 1e-9
UNARY = [
    *("exp", "log", "sqrt", "abs", "neg", "floor", "ceil", "round", "tanh", "sigmoid", "sign"),
    *("erf", "sin", "cos", "atan", "acos"),
]
BINARY = ["mul", "div", "max", "min", "pow"]
ARGUMENTS = {
    "x": "x", "-x": "neg(x)", "2x": "2 * x", "x / 3": "x * third", "x + y": "x + y",
    "x - y": "x - y", "x y": "x * y", "x x": "x * x", "-x x": "neg(x * x)", "x y y": "x * y * y",
    "1 / x": "inverse(x)", "1 / (x + y)": "inverse(x + y)", "x / y": "x * inverse(y)",
    "exp x": "fn('exp', x)", "exp -2x": "fn('exp', -2 * x)", "3 exp x": "3 * fn('exp', x)",
    "exp(x + y)": "fn('exp', x + y)", "sqrt x": "fn('sqrt', x)", "2 sqrt x": "2 * fn('sqrt', x)",
    "log y": "fn('log', y)", "sigmoid x": "fn('sigmoid', x)", "|x|": "fn('abs', x)",
    "max(x, y)": "fn('max', x, y)", "max(x, 0)": "fn('max', x, zero)",
    "max(x, 2)": "fn('max', x, 2 + zero)", "floor x": "fn('floor', x)", "erf x": "fn('erf', x)",
    "erf x - erf y": "fn('erf', x) - fn('erf', y)", "exp x - exp y": "fn('exp', x) - fn('exp', y)",
    "x y + x z": "x * y + x * z", "1 + exp x": "1 + fn('exp', x)", "[x < 0]": "below(x)",
    "y [x < 0]": "y * below(x)", "0": "zero", "1": "1 + zero", "-2": "zero - 2", "8": "zero + 8",
    "1 / 4": "zero + quarter", "1 / 12": "zero + quarter * third", "n": "n", "n x": "n * x",
    "x[i < m]": "part", "sum of v": "total", "x + sum of v": "x + total",
}  # fmt: skip
OTHERS = ("x", "neg(x)", "y", "x * y", "fn('exp', x)", "zero + 2", "zero - 1", "zero + half", "n")


def check_values(forms: Forms, fn: str, args: Sequence[NF], found: NF) -> int:
    """Compare a function of normal forms with the function; returns at how many points."""
    count = 0
    for point, numbers in forms.points():
        given = [value(a, point, numbers) for a in args]
        if any(v is None for v in given):
            continue
        try:
            expected = REAL_FUNCTIONS[fn](*given)
        except (ValueError, ZeroDivisionError, OverflowError):
            continue
        if fn == "pow" and given[0] <= 0:  # the scope of a proof names this
            continue
        if fn in ("round", "floor", "ceil") and abs(given[0] - round(given[0])) < TOLERANCE:
            continue
        got = value(found, point, numbers)
        assert got is not None, (fn, args, point, numbers)
        assert math.isclose(got, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE), (
            fn, args, found, point, numbers,
        )  # fmt: skip
        count += 1
    return count


def lines_of(forms: Forms, fn: str, texts: Sequence[str], title: str) -> Iterator[str]:
    args = [forms.read(t) for t in texts]
    try:
        found = apply_function(fn, args, forms.facts)
    except Undefined as e:
        yield f"{title}: undefined: {e}"
        return
    check_values(forms, fn, args, found)
    yield f"{title}: {number_names(str(found))}"


@pytest.mark.parametrize("ordered", [False, True], ids=["any", "ordered"])
def test_functions_of_one_element(ordered: bool) -> None:
    lines: list[str] = []
    for fn in UNARY:
        for name, text in ARGUMENTS.items():
            forms = Forms(ordered=ordered)  # numbers of atoms do not depend on other cases
            lines += lines_of(forms, fn, [text], f"{fn}({name})")
    check_golden("functions", "ordered" if ordered else "any", lines)


@pytest.mark.ci
@pytest.mark.parametrize("fn", BINARY)
def test_functions_of_two_elements(fn: str) -> None:
    lines: list[str] = []
    for n, text in enumerate(ARGUMENTS.values()):
        for other in OTHERS[n % 4 :: 4]:
            for pair in ((text, other), (other, text)):
                forms = Forms(ordered=fn == "max")
                lines += lines_of(forms, fn, pair, f"{fn}({', '.join(pair)})")
    check_golden("functions", fn, lines)


@pytest.mark.parametrize("ordered", [False, True], ids=["any", "ordered"])
def test_comparisons_and_signs(ordered: bool) -> None:
    lines: list[str] = []
    for name, text in ARGUMENTS.items():
        forms = Forms(ordered=ordered)
        a, facts = forms.read(text), forms.facts
        below, equal = less_than_zero(a, facts), equals_zero(a, facts)
        for point, numbers in forms.points():
            v = value(a, point, numbers)
            if v is not None and (not v or abs(v) > TOLERANCE):
                assert value(below, point, numbers) == (v < 0), (text, point, numbers)
                assert value(equal, point, numbers) == (v == 0), (text, point, numbers)
        signs = known_signs(facts)
        shown = [
            below, equal, drop_known_factor(a, facts), split_element(a),
            [sign(t, signs) for t in a.terms], is_order_implied(a, facts),
            is_order_implied(a, facts, strict=True), list(definedness_conditions(a)),
        ]  # fmt: skip
        for t in a.terms:
            s = sign(t, signs)
            for point, numbers in forms.points() if s is not None else ():
                v = value(normal.from_terms(a.context, (t,)), point, numbers)
                if v is not None and t.coefficient:
                    v /= float(t.coefficient)
                    assert v >= 0 if s > 0 else v <= 0, (text, point, numbers)
                    assert v or abs(s) < 2, (text, point, numbers)
        if is_order_implied(a, facts):
            values = (value(a, *p) for p in forms.points())
            assert all(v >= -TOLERANCE for v in values if v is not None)
        lines.append(f"{name}: " + " | ".join(number_names(str(s)) for s in shown))
    check_golden("comparisons_with_0", "ordered" if ordered else "any", lines)


def test_every_function_is_tried() -> None:
    assert set(UNARY + BINARY) <= set(REAL_FUNCTIONS)
    assert {*FUNCTIONS_OF_REALS} <= {*REAL_FUNCTIONS}
