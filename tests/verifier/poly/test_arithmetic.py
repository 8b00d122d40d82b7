"""Polynomials compute as integers do, at every small value of their sizes and variables."""

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.verifier.poly import polynomial
from superopt.verifier.poly.polynomial import Monomial, Poly, Var
from tests.support.breadth import examples
from tests.support.verifier.integers import Integers, atom_of, value_at

INTEGERS = Integers()
POINTS = list(INTEGERS.points(3))[::7]
ATOMS = (
    INTEGERS.n, INTEGERS.m, INTEGERS.i, INTEGERS.j,
    INTEGERS.quotient(INTEGERS.i + INTEGERS.m, INTEGERS.s),
    INTEGERS.minimum(INTEGERS.n, INTEGERS.s * 2 - 1),
)  # fmt: skip
NUMBERS = st.integers(-3, 3)


@st.composite
def polynomials(draw: st.DrawFn) -> Poly:
    """A sum of up to four products of up to two atoms."""
    total = INTEGERS.const(draw(NUMBERS))
    for _ in range(draw(st.integers(0, 3))):
        term = INTEGERS.const(draw(NUMBERS))
        for a in draw(st.lists(st.sampled_from(ATOMS), max_size=2)):
            term = term * a
        total = total + term
    return total


def values(p: Poly) -> list[int]:
    return [value_at(p, point) for point in POINTS]


@examples(100)
@given(polynomials(), polynomials(), NUMBERS)
def test_sums_and_products_have_the_values_of_their_operands(p: Poly, q: Poly, k: int) -> None:
    a, b = values(p), values(q)
    assert values(p + q) == [x + y for x, y in zip(a, b, strict=True)]
    assert values(p - q) == [x - y for x, y in zip(a, b, strict=True)]
    assert values(p * q) == [x * y for x, y in zip(a, b, strict=True)]
    assert values(-p) == [-x for x in a]
    assert values(p + k) == values(p - -k) == [x + k for x in a]
    assert values(p * k) == values(p.scale(k)) == [x * k for x in a]


@examples(100)
@given(polynomials(), polynomials(), polynomials())
def test_equal_polynomials_are_identical(p: Poly, q: Poly, r: Poly) -> None:
    assert p + q is q + p
    assert (p + q) + r is p + (q + r)
    assert p * q is q * p
    assert (p + q) * r is p * r + q * r
    assert p - q is p + -q
    assert (p - q) + q is p
    assert (-p).scale(-1) is p
    assert p * 1 is p
    assert p * 0 is INTEGERS.const(0)
    assert p * INTEGERS.const(2) is p * 2 is p + p


@examples(100)
@given(polynomials(), polynomials())
def test_minima_and_maxima(p: Poly, q: Poly) -> None:
    a, b = values(p), values(q)
    assert values(polynomial.minimum(p, q)) == list(map(min, a, b))
    assert values(polynomial.maximum(p, q)) == list(map(max, a, b))
    assert polynomial.minimum(p, q) is polynomial.minimum(q, p)


def test_a_minimum_is_decided_by_a_constant_difference() -> None:
    own = Integers()
    n, m = own.n, own.m
    assert polynomial.minimum(n, n) is n
    assert polynomial.minimum(n, n + 1) is polynomial.minimum(n + 1, n) is n
    assert polynomial.maximum(n, n + 1) is polynomial.maximum(n + 1, n) is n + 1
    assert str(polynomial.minimum(n, m)) == "1*min(1*n, 1*m)"


@examples(100)
@given(polynomials(), polynomials())
def test_only_constants_have_a_value_and_the_order_is_total(p: Poly, q: Poly) -> None:
    constants = [c for m, c in p.terms if not m]
    others = [m for m, _ in p.terms if m]
    assert p.value == (None if others else sum(constants))
    assert (p < q) + (q < p) + (p is q) == 1
    assert all(c for _, c in p.terms)
    keys = [(len(m), [a.number for a in m]) for m, _ in p.terms]
    assert keys == sorted(keys)
    assert all([a.number for a in m] == sorted(a.number for a in m) for m, _ in p.terms)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n - n", "0"), ("n * 0 + 7", "7"), ("n * 2 - 3", "-3 + 2*n"), ("n * m + m", "1*m + 1*n*m"),
        ("quotient(i, 2)", "1*(1*i) // (2)"), ("(n + 1) * (n - 1)", "-1 + 1*n*n"),
        ("element", "1*index(x)"),
    ],
)  # fmt: skip
def test_text(text: str, expected: str) -> None:
    own = Integers()
    names: dict[str, object] = {k: getattr(own, k) for k in ("n", "m", "quotient")}
    names |= {"i": polynomial.atom_poly(_named("i", own.n))}
    names["element"] = polynomial.element_index("x", own.n)
    assert str(eval(text, names)) == expected


def _named(name: str, extent: Poly) -> Var:
    v = polynomial.fresh_var(extent)
    v.name = name
    return v


def test_variables_are_those_of_a_polynomial_and_its_atoms_and_not_of_extents() -> None:
    n, i, j = INTEGERS.n, INTEGERS.i, INTEGERS.j
    a, b = atom_of(i), atom_of(j)
    inner = polynomial.atom_poly(polynomial.fresh_var(i + 1))
    for p, found in (
        (n * 2 - 1, set()), (i * n + j, {a, b}), (INTEGERS.quotient(i, n), {a}),
        (INTEGERS.quotient(n, j + 1), {b}), (polynomial.minimum(i, j), {a, b}),
        (inner, {atom_of(inner)}), (polynomial.element_index(i * j, n), {a, b}),
    ):  # fmt: skip
        assert p.vars == found
    assert list((i * n + j * 2).atoms()) == [b, atom_of(n), a]


def test_fresh_variables_differ_and_bound_ones_are_one_for_each_level_and_extent() -> None:
    n, m = INTEGERS.n, INTEGERS.m
    v, w = polynomial.fresh_var(n), polynomial.fresh_var(n)
    assert v is not w
    assert v.number < w.number
    assert (v.level, v.extent, v.name) == (0, n, f"k{v.number}")
    assert polynomial.fresh_var(n, "row").name.startswith("row")
    b = polynomial.bound_var(2, n)
    assert (b.level, b.extent, b.name) == (2, n, "b2")
    assert polynomial.bound_var(2, n) is b
    assert len({b, polynomial.bound_var(1, n), polynomial.bound_var(2, m)}) == 3
    assert hash(b) == b.number
    assert hash(n) == n.number


def test_atoms_are_one_for_each_meaning() -> None:
    own = Integers()
    n, m = own.n, own.m
    assert polynomial.symbol(own.context, "n") is n
    assert polynomial.symbol(own.context, "other") is not n
    assert polynomial.quotient_atom(n, m) is polynomial.quotient_atom(n, m)
    assert polynomial.quotient_atom(n, m) is not polynomial.quotient_atom(m, n)
    assert polynomial.element_index("x", n) is polynomial.element_index("x", n)
    assert polynomial.element_index("x", n) is not polynomial.element_index("x", m)
    before = own.context.created_count
    assert polynomial.symbol(own.context, "new").number > before
    assert own.context.created_count == before + 2  # an atom, and its polynomial
    assert own.const(5) is own.const(5)
    assert own.context.created_count == before + 2


@examples(100)
@given(polynomials(), st.sampled_from(ATOMS))
def test_a_linear_polynomial_is_split_by_an_atom(p: Poly, of: Poly) -> None:
    v = atom_of(of)
    split = polynomial.linear_coefficients(p, v)
    assert polynomial.linear_coefficients(p, v) is split
    degree = max((m.count(v) for m, _ in p.terms), default=0)
    if split is None:
        inside = any(v in polynomial.atom_poly(a).vars for a in p.atoms() if a is not v)
        assert degree > 1 or inside
    else:
        a, b = split
        assert degree <= 1
        assert a * of + b is p
        assert v not in (*a.atoms(), *b.atoms())
        assert v not in a.vars | b.vars


@pytest.mark.parametrize(
    ("p", "atom", "split"),
    [
        ("n * m * 2 + m - 1", "n", ("m * 2", "m - 1")),
        ("m - 1", "n", ("const(0)", "m - 1")),
        ("n * n + m", "n", None),
        ("n * n * m", "m", ("n * n", "const(0)")),
        ("i * m + quotient(n, 2)", "i", ("m", "quotient(n, 2)")),
        ("i * m + quotient(i, 2)", "i", None),
        ("i * quotient(i, 2)", "i", None),
        ("n + quotient(n, 2)", "n", ("const(1)", "quotient(n, 2)")),  # a size may stay in quotients
    ],
)
def test_linear_splits(p: str, atom: str, split: tuple[str, str] | None) -> None:
    found = polynomial.linear_coefficients(_read(p), atom_of(_read(atom)))
    assert found == (split and tuple(map(_read, split)))


@examples(100)
@given(polynomials(), st.lists(st.sampled_from(ATOMS), max_size=2), st.sampled_from((1, 2, 3)))
def test_a_polynomial_is_divided_by_a_monomial(p: Poly, factors: list[Poly], c: int) -> None:
    q = INTEGERS.const(c)
    for a in factors:
        q = q * a
    ((monomial, _),) = q.terms
    whole, rest = polynomial.divide(p, q)
    assert whole * q + rest is p
    for m, k in rest.terms:
        assert not polynomial.monomial_divides(monomial, m) or 0 < k < c


@pytest.mark.parametrize(
    ("p", "q", "whole", "rest"),
    [
        ("n * m * 2 + n * 3 + 1", "n", "m * 2 + 3", "const(1)"),
        ("n * 5 + 1", "const(2)", "n * 2", "n + 1"),
        ("n * -1", "const(2)", "n * -1", "n"),
        ("n", "n * 2", "const(0)", "n"),
        ("n * n * m", "n * n", "m", "const(0)"),
        ("n * m", "n * n", "const(0)", "n * m"),
        ("n + m", "n + m", "const(1)", "const(0)"),
        ("(n + m) * 2", "n + m", "const(0)", "(n + m) * 2"),
        ("n", "const(0)", "const(0)", "n"),
    ],
)
def test_quotients_and_remainders(p: str, q: str, whole: str, rest: str) -> None:
    assert polynomial.divide(_read(p), _read(q)) == (_read(whole), _read(rest))


@pytest.mark.parametrize(
    ("p", "q", "whole", "rest"),
    [
        ("n * m + m + z", "n + 1", "m", "z"),
        ("(n + 1) * (m + 2)", "n + 1", "m + 2", "const(0)"),
        ("(n + 1) * (n + 1) * (m + z)", "n + 1", "(n + 1) * (m + z)", "const(0)"),
        ("n * 2 + 2", "n + 1", "const(2)", "const(0)"),
        ("m", "n + 1", "const(0)", "m"),
        ("n * 9", "n * 2 + 1", "const(4)", "n - 4"),
        # only by a sum whose last coefficient is at least -1
        ("m * 3 - m * n * 3", "const(1) - n", "m * 3", "const(0)"),
        ("m * 2 - m * n * 2", "const(1) - n * 2", "const(0)", "m * 2 - m * n * 2"),
        ("n * -2", "const(3) - n * 2", "const(0)", "n * -2"),
    ],
)
def test_quotients_by_a_sum(p: str, q: str, whole: str, rest: str) -> None:
    found = polynomial.divide_by_sum(_read(p), _read(q))
    assert found[0] * _read(q) + found[1] is _read(p)
    assert found == (_read(whole), _read(rest))


def _read(text: str) -> Poly:
    names = {k: getattr(INTEGERS, k) for k in ("n", "m", "z", "i", "const", "quotient")}
    found = eval(text, names)
    assert isinstance(found, Poly)
    return found


def monomials(size: int) -> list[Monomial]:
    a, b = (atom_of(p) for p in (INTEGERS.n, INTEGERS.m))
    return [m for k in range(size + 1) for m in product((a, b), repeat=k) if list(m) == sorted(m)]


def test_a_monomial_divides_those_with_all_its_atoms() -> None:
    for m, n in product(monomials(3), repeat=2):
        expected = all(m.count(a) <= n.count(a) for a in m)
        assert polynomial.monomial_divides(m, n) is expected


@examples(100)
@given(polynomials(), st.sampled_from(monomials(2)[1:]), st.sampled_from(monomials(2)))
def test_a_product_is_replaced_where_it_occurs(p: Poly, old: Monomial, new: Monomial) -> None:
    """Where both products are equal nothing changes; elsewhere each term changes by their ratio."""
    found = polynomial.replace_product(p, old, new)
    before, after = (polynomial.from_terms(p.context, {m: 1}) for m in (old, new))
    terms = [polynomial.from_terms(p.context, {m: c}) for m, c in p.terms]
    for point in POINTS:
        ratio = Fraction(value_at(after, point), value_at(before, point))
        expected = sum(
            value_at(t, point) * (ratio if polynomial.monomial_divides(old, m) else 1)
            for t, (m, _) in zip(terms, p.terms, strict=True)
        )
        assert value_at(found, point) == expected
