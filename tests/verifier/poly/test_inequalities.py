"""Shown inequalities hold at every small value; those of simple polynomials are all shown."""

from itertools import product

import pytest

from superopt.verifier.context import ProofContext
from superopt.verifier.poly import bounds
from superopt.verifier.poly.bounds import is_nonnegative, is_sum_of_nonnegative, lower_bound
from superopt.verifier.poly.polynomial import (
    Poly,
    Quotient,
    Var,
    atom_poly,
    const,
    element_index,
    fresh_var,
    symbol,
)
from tests.support.verifier.integers import Integers, atom_of, value_at

POINT_STEP = 5


def least(own: Integers, p: Poly) -> int:
    """The least value at some small points."""
    return min(value_at(p, point) for point in own.points())


@pytest.mark.parametrize("low", [0, 1, 3])
def test_a_linear_polynomial_is_shown_exactly_where_it_is_nonnegative(low: int) -> None:
    """c + a n + b i with 0 <= i < n: least at the ends of both ranges."""
    context = ProofContext()
    n, i5 = symbol(context, "n", low), atom_poly(fresh_var(const(context, 5)))
    i = atom_poly(fresh_var(n))
    for c, a, b, d in product(range(-4, 5), range(-2, 3), range(-2, 3), (-1, 0, 2)):
        p = n * a + i * b + i5 * d + c
        ends = [(x, y) for x in (max(low, 1), max(low, 1) + 1, 99) for y in {0, 1, x - 1} if y < x]
        expected = all(x * a + y * b + z * d + c >= 0 for x, y in ends for z in (0, 4))
        if low == 0 and b:  # without n = 0, where i has no value
            assert not is_nonnegative(p) or expected
        elif low == 0:
            assert is_nonnegative(p) is (expected and min(d * 4, 0) + c >= 0)
        else:
            assert is_nonnegative(p) is expected
        assert is_nonnegative(p) is is_nonnegative(p)


NONNEGATIVE = [
    "n - 1", "n * m - 1", "n * m - n", "n * s - n * 2", "(n - 1) * (s - 2)", "n - i - 1",
    "n * m - i - 1", "n * m - i * m - m", "m * n - 1 - m * i", "quotient(n, 2)", "quotient(i, s)",
    "n - quotient(n, 2)", "n - quotient(n, m)", "n * s - quotient(n * s - 1, s) * s - 1",
    "n - quotient(n * s, s)", "minimum(n, s)", "minimum(i, j)",
    "n - minimum(n, m)", "m - minimum(n, m)", "n * 2 - minimum(n, m) * 2", "i + j", "i * j",
    "2 - j", "n * 3 - i * 3 - j - 1", "s - 2", "n - quotient(i, s) - 1", "z", "z * i",
    "element", "4 - element", "n * 4 - n * element", "m - quotient(i * m, n) - 1",
]  # fmt: skip
NOT_SHOWN = [
    "n - 2", "n * m - 2", "i - 1", "n - i - 2", "s - 3", "z - 1", "1 - j", "minimum(n, s) - 2",
    "n - s", "quotient(n, 2) - 1", "minimum(n, m) - n", "element - 1", "3 - element", "z * i - 1",
    "n * -1", "-quotient(n, s)", "i - j", "n * m - n * 2", "minimum(n - 2, m)",
    "quotient(n - 2, s)", "n * i - m", "quotient(n, s) * quotient(n, s) - 1",
    "j * -1 - minimum(n, s) * j",
]  # fmt: skip


def read(own: Integers, text: str) -> Poly:
    names: dict[str, object] = {
        k: getattr(own, k) for k in ("n", "m", "s", "z", "i", "j", "quotient", "minimum", "const")
    }
    names["element"] = element_index(own.const(7), own.const(5))
    for digit in "2341":
        text = text.replace(f"{digit} - ", f"const({digit}) - ") if text[0] == digit else text
    found = eval(text, names)
    assert isinstance(found, Poly)
    return found


@pytest.mark.parametrize("text", NONNEGATIVE)
def test_shown(text: str) -> None:
    own = Integers()
    p = read(own, text)
    assert is_nonnegative(p)
    assert is_nonnegative(p, 0) is is_nonnegative(p)  # what is proved stays so
    assert not is_nonnegative(-p - 1)
    if "element" not in text:
        assert least(own, p) >= 0


@pytest.mark.parametrize("text", NOT_SHOWN)
def test_not_shown(text: str) -> None:
    own = Integers()
    p = read(own, text)
    assert is_nonnegative(p) is False
    if "element" not in text:
        assert least(own, p) < 0


def test_a_failed_attempt_is_repeated_only_at_more_depth() -> None:
    own = Integers()
    p = read(own, "n - quotient(n, 2)")
    assert not is_nonnegative(p, 0)
    assert own.context.nonnegative[p.number] == 0
    assert is_nonnegative(p, 1)
    assert own.context.nonnegative[p.number] == bounds.PROVED_NONNEGATIVE
    q = read(own, "n - 2")
    assert not is_nonnegative(q, 2)
    assert not is_nonnegative(q, 1)
    assert own.context.nonnegative[q.number] == 2


def test_depth_is_the_number_of_bounds_in_turn() -> None:
    for quotients, depth in product(range(6), range(5)):
        own = Integers()
        p = own.n
        for _ in range(quotients):
            p = own.quotient(p, 2)
        assert is_nonnegative(own.n - p, depth) is (quotients <= depth)
    three, four = "quotient(quotient(quotient(n, 2), 2), 2)", "quotient(quotient(n, 2), 2)"
    four = f"quotient(quotient({four}, 2), 2)"
    assert is_nonnegative(read(Integers(), f"n - {three}"))
    assert not is_nonnegative(read(Integers(), f"n - {four}"))


def test_a_variable_with_one_value_is_zero() -> None:
    own = Integers()
    one, two = (atom_poly(fresh_var(own.const(k))) for k in (1, 2))
    assert is_nonnegative(-one)
    assert not is_nonnegative(-two)


def mixed_polynomials(own: Integers) -> list[Poly]:
    """c + a n + b i + d x for a product, quotient or minimum x."""
    n, m, s, i, j = own.n, own.m, own.s, own.i, own.j
    atoms = (
        n * m, i * m, i * j, own.quotient(n, 2), own.quotient(i + 1, s), own.quotient(n * s + j, s),
        own.minimum(n, s), own.minimum(i, m + 1), n * own.quotient(i, s),
    )  # fmt: skip
    return [
        x * d + n * a + i * b + c
        for x, d, a, b, c in product(atoms, (-2, -1, 1), (-1, 0, 1, 2), (-1, 0, 1), (-2, -1, 0, 1))
    ]


def test_what_is_shown_of_mixed_polynomials_holds() -> None:
    own = Integers()
    points = list(own.points())[::POINT_STEP]
    shown = true = 0
    for p in mixed_polynomials(own):
        holds = all(value_at(p, point) >= 0 for point in points)
        shown += is_nonnegative(p)
        true += holds
        assert holds or not is_nonnegative(p), p
    assert (shown, true) == (322, 428)


def test_bounds_and_eliminations_of_mixed_polynomials() -> None:
    own = Integers()
    points = list(own.points())[::POINT_STEP]
    counts = [0, 0, 0]
    for p in mixed_polynomials(own):
        values = [value_at(p, point) for point in points]
        for q in bounds._lower_bounds(p):
            counts[0] += 1
            assert all(value_at(q, x) <= v for x, v in zip(points, values, strict=True)), (p, q)
        low = lower_bound(p)
        if low is not None:
            counts[1] += 1
            assert not any(isinstance(a, Var) for a in low.atoms())
            assert all(value_at(low, x) <= v for x, v in zip(points, values, strict=True))
        same = bounds.eliminate_quotient(p)
        if same is not None:
            counts[2] += 1
            assert not any(isinstance(a, Quotient) for a in same.atoms())
            signs = [value_at(same, x) >= 0 for x in points]
            assert signs == [v >= 0 for v in values]
    assert counts == [768, 1008, 288]


def test_a_lower_bound_is_reached() -> None:
    own = Integers()
    n, m, i, j = own.n, own.m, own.i, own.j
    for p, expected in (
        (n - i, own.const(1)), (i * m - j, own.const(-2)), (n * m - i * m, m), (n, n),
        (j * (n - 2), None), (j * j, None), (j * -3 + i, own.const(-6)),
    ):  # fmt: skip
        assert lower_bound(p) == expected


def test_upper_bounds_of_quotients() -> None:
    own = Integers()
    n, m, s, i, j = own.n, own.m, own.s, own.i, own.j
    for p, q, expected in (
        (i, n, own.const(0)), (i * s + j, s * 3, None), (i * 3 + j, own.const(3), n - 1),
        (i, own.const(2), None), (n * s, s, n), (n * s - 1, s, n - 1), (i * m, n, m - 1),
        (j, s, None), (j, own.const(4), own.const(0)), (-i, s, None),
        (j * 2, own.const(2), own.const(2)),        (j * j, own.const(2), None),
    ):  # fmt: skip
        a = atom_of(own.quotient(p, q))
        assert isinstance(a, Quotient)
        found = bounds._quotient_upper_bound(a)
        assert found == expected, (p, q, found)
        if found is not None:
            points = own.points()
            assert all(value_at(own.quotient(p, q), x) <= value_at(found, x) for x in points)


@pytest.mark.parametrize(
    ("p", "lows", "shown"),
    [
        ("n - m", ["n - m"], True), ("n * 2 - m * 2", ["n - m"], True), ("m - n", ["n - m"], False),
        ("n * 3 - m * 3 + 1", ["n - m"], True), ("n - m - 1", ["n - m"], False),
        ("n - m", ["n - s", "s - m"], True), ("n - m", ["n - s"], False), ("n - m", [], False),
        ("n - z", ["n - m", "m - s", "s - z"], False),  # three: with depth 3
        ("n * 2 - m - s", ["n - m", "n - s"], True), ("n", ["n - m"], True),
        ("n * m - s", ["n * m - s * 3"], True), ("i - j + 2", ["i - 1"], True),
    ],
)  # fmt: skip
def test_sums_of_nonnegative_polynomials(p: str, lows: list[str], shown: bool) -> None:
    own = Integers()
    assert is_sum_of_nonnegative(read(own, p), [read(own, q) for q in lows]) is shown


def test_longer_sums_need_more_depth() -> None:
    own = Integers()
    p, lows = read(own, "n - z"), [read(own, q) for q in ("n - m", "m - s", "s - z")]
    assert not is_sum_of_nonnegative(p, lows, 2)
    assert is_sum_of_nonnegative(p, lows, 3)
    four = read(own, "n * 4 - m * 4")
    assert is_sum_of_nonnegative(four, lows[:1], 1)
    assert is_sum_of_nonnegative(four, [read(own, "n * 2 - m * 2")], 1)
    assert not is_sum_of_nonnegative(four, [read(own, "n * 8 - m * 8")], 1)
