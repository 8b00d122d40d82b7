"""Identities of elements are shown, and what differs at some point is not."""

from __future__ import annotations

import math

import pytest

from superopt.verifier.equality.element_equality import are_equal, are_equal_where_defined
from tests.support.verifier.forms import Forms, value

TOLERANCE = 1e-9
EQUAL = [
    ("x + y", "y + x"), ("(x + y) * (x - y)", "x * x - y * y"), ("x * third * 3", "x"),
    ("fn('exp', x) * fn('exp', y)", "fn('exp', x + y)"),
    ("inverse(fn('exp', x))", "fn('exp', neg(x))"),
    ("fn('max', x, y) + fn('min', x, y)", "x + y"),
    ("fn('max', x, y) - fn('min', x, y)", "fn('abs', x - y)"),
    ("fn('max', fn('max', x, y), z)", "fn('max', x, fn('max', y, z))"),
    ("fn('max', x, fn('min', x, y))", "x"), ("fn('min', x, fn('max', x, y))", "x"),
    ("fn('max', x, y) * 2", "x + y + fn('abs', x - y)"),
    ("fn('max', x + z, y + z)", "fn('max', x, y) + z"),
    ("fn('max', x, fn('min', y, z))", "fn('min', fn('max', x, y), fn('max', x, z))"),
    ("fn('abs', x) * fn('abs', x)", "x * x"), ("fn('abs', x * y)", "fn('abs', x) * fn('abs', y)"),
    ("fn('sqrt', x * x)", "fn('abs', x)"), ("fn('sign', x) * fn('abs', x)", "x"),
    ("fn('sign', neg(x))", "neg(fn('sign', x))"),
    ("x * inverse(x + y) + y * inverse(x + y)", "zero + 1"),
    ("inverse(x) + inverse(y)", "(x + y) * inverse(x * y)"),
    ("inverse(x + y) * inverse(x - y)", "inverse(x * x - y * y)"),
    ("x * inverse(1 + fn('exp', x))", "x - x * fn('sigmoid', x)"),
    ("fn('sigmoid', x) + fn('sigmoid', neg(x))", "zero + 1"),
    ("fn('tanh', x)", "2 * fn('sigmoid', 2 * x) - 1"),
    ("fn('tanh', neg(x))", "neg(fn('tanh', x))"), ("fn('erf', neg(x))", "neg(fn('erf', x))"),
    ("fn('cos', neg(x))", "fn('cos', x)"), ("fn('exp', fn('max', x, y))",
                                           "fn('max', fn('exp', x), fn('exp', y))"),
    ("fn('sqrt', fn('max', x, y))", "fn('max', fn('sqrt', x), fn('sqrt', y))"),
    ("fn('mul', fn('sqrt', x), fn('sqrt', x))", "x"), ("fn('exp', fn('log', x))", "x"),
    ("fn('log', fn('exp', x) * fn('exp', y))", "x + y"),
    ("x * below(x) + x * below(neg(x))", "x"), ("below(x) * below(x)", "below(x)"),
    ("below(2 * x)", "below(x)"), ("below(x * 3 - y * 3)", "below(x - y)"),
    ("below(fn('exp', x) - fn('exp', y))", "below(x - y)"),
    ("fn('max', x, zero) - fn('max', neg(x), zero)", "x"),
    ("fn('abs', x)", "x - 2 * x * below(x)"), ("fn('max', x, y)", "x + (y - x) * below(x - y)"),
    ("part + (x - part)", "x"), ("total * x", "x * total"), ("total + total", "2 * total"),
    ("n * x + x", "(n + 1) * x"), ("fn('floor', fn('floor', x))", "fn('floor', x)"),
    ("fn('ceil', x)", "neg(fn('floor', neg(x)))"), ("fn('pow', x, zero + 3)", "x * x * x"),
    ("fn('pow', fn('exp', x), y)", "fn('exp', x * y)"),
    ("fn('max', 2 * x, 2 * y)", "2 * fn('max', x, y)"),
    ("fn('max', x * fn('exp', z), y * fn('exp', z))", "fn('exp', z) * fn('max', x, y)"),
    ("fn('min', neg(x), neg(y))", "neg(fn('max', x, y))"),
]  # fmt: skip
DIFFERENT = [
    ("x + y", "x - y"), ("x", "y"), ("x", "2 * x"), ("x * y", "x + y"), ("x", "x + 1"),
    ("fn('exp', x) * fn('exp', y)", "fn('exp', x - y)"), ("fn('exp', 2 * x)", "2 * fn('exp', x)"),
    ("fn('max', x, y)", "x"), ("fn('max', x, y)", "fn('min', x, y)"), ("fn('abs', x)", "x"),
    ("fn('max', x, y) + fn('min', x, y)", "x - y"), ("fn('sqrt', x * x)", "x"),
    ("fn('max', x + z, y)", "fn('max', x, y) + z"), ("fn('max', x, zero)", "x"),
    ("fn('max', neg(x), neg(y))", "neg(fn('max', x, y))"), ("fn('sign', x)", "x"),
    ("x * inverse(x + y)", "inverse(x + y)"), ("inverse(x) + inverse(y)", "inverse(x + y)"),
    ("inverse(x + y) * inverse(x - y)", "inverse(x * x + y * y)"),
    ("fn('sigmoid', x) + fn('sigmoid', y)", "zero + 1"), ("fn('tanh', x)", "fn('sigmoid', x)"),
    ("fn('tanh', neg(x))", "fn('tanh', x)"), ("fn('cos', neg(x))", "neg(fn('cos', x))"),
    ("below(x)", "below(y)"), ("below(x)", "below(neg(x))"), ("below(x)", "zero + 1"),
    ("x * below(x)", "x"), ("fn('abs', x)", "x - x * below(x)"), ("below(x - 1)", "below(x)"),
    ("fn('max', x, zero) + fn('max', neg(x), zero)", "x"), ("part", "x"), ("part", "zero"),
    ("total", "n * x"), ("total * total", "total"), ("n * x", "x"), ("n", "n * n"),
    ("fn('floor', x)", "x"), ("fn('ceil', x)", "fn('floor', x)"), ("fn('floor', x + y)",
                                                                 "fn('floor', x) + fn('floor', y)"),
    ("fn('pow', x, zero + 3)", "x * x"), ("fn('max', x * z, y * z)", "z * fn('max', x, y)"),
    ("fn('max', x * x, y * y)", "fn('max', x, y) * fn('max', x, y)"),
    ("fn('erf', x) - fn('erf', y)", "fn('erf', x - y)"), ("fn('round', x)", "fn('floor', x)"),
]  # fmt: skip


def values_of(forms: Forms, texts: tuple[str, str]) -> list[tuple[float, float]]:
    """The values of both at the points where both have one."""
    a, b = (forms.read(t) for t in texts)
    both = ((value(a, *p), value(b, *p)) for p in forms.points())
    return [(x, y) for x, y in both if x is not None and y is not None]


@pytest.mark.parametrize(("left", "right"), EQUAL)
def test_identities(left: str, right: str) -> None:
    forms = Forms(ordered=False)
    for x, y in values_of(forms, (left, right)):
        assert math.isclose(x, y, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    a, b = (forms.read(t) for t in (left, right))
    assert are_equal(a, b, forms.facts) or are_equal_where_defined(a, b, forms.facts)


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_differences(left: str, right: str) -> None:
    forms = Forms(ordered=False)
    found = values_of(forms, (left, right))
    assert any(abs(x - y) > TOLERANCE for x, y in found)
    a, b = (forms.read(t) for t in (left, right))
    assert are_equal(a, b, forms.facts) is False
    assert are_equal_where_defined(a, b, forms.facts) is False


def test_what_holds_only_for_ordered_elements() -> None:
    """x >= 0, y > 0"""
    ordered, any_order = Forms(ordered=True), Forms(ordered=False)
    for left, right in (
        ("fn('abs', x)", "x"), ("fn('max', x, neg(y))", "x"), ("fn('sqrt', x * x)", "x"),
        ("below(x)", "zero"), ("fn('max', x * x, x * neg(y))", "x * x"),
        ("fn('max', x * y, z * y)", "y * fn('max', x, z)"), ("fn('sign', y)", "zero + 1"),
        ("below(x + y)", "zero"),
    ):  # fmt: skip
        for forms, shown in ((ordered, True), (any_order, False)):
            a, b = (forms.read(t) for t in (left, right))
            assert are_equal(a, b, forms.facts) is shown, (left, right)
