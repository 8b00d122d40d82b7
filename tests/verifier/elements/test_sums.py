"""Sums, maxima and products over indices have the values of their definitions, however their guards
and ranges are simplified; golden texts have the forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from random import Random

import pytest

from superopt.verifier.elements import normal, substitute
from superopt.verifier.elements.algebra import divide_by_powers, exponential, factor_out, power
from superopt.verifier.elements.index_digits import (
    remainder_cases,
    split_bound_indices,
    split_output_index,
    split_piece_indices,
    split_sum_indices,
)
from superopt.verifier.elements.maxima import max_over
from superopt.verifier.elements.normal import NF, Piece, Term
from superopt.verifier.elements.products import product_over
from superopt.verifier.elements.quotients import canonical_products, quotient
from superopt.verifier.elements.simplify import (
    multiply,
    open_piece,
    restrict,
    simplify_piece,
    simplify_term,
    sum_over,
)
from superopt.verifier.equality.element_equality import are_equal, are_equal_where_defined
from superopt.verifier.poly.facts import Facts, Guard, eq, ge, negate
from superopt.verifier.poly.polynomial import Poly, Var, atom_poly, fresh_var
from tests.support.rules.sample import check_golden, number_names
from tests.support.verifier.element_values import form_value, piece_values, term_value
from tests.support.verifier.integers import Integers, Point, guard_holds, value_at

SEEDS = range(60)
TOLERANCE = 1e-9


def element(name: str, at: tuple[int, ...]) -> float:
    """Any numbers, some of them equal."""
    return 0.25 + (7 * len(name) + 5 * sum((k + 1) * n for k, n in enumerate(at))) % 11 / 8


class Case:
    """An open sum over up to three indices, under guards, of a product."""

    def __init__(self, seed: int) -> None:
        self.rng, self.own = Random(seed), Integers()
        own = self.own
        extents = (own.n, own.m, own.const(3), own.const(1), own.n * own.s)
        self.bound = tuple(fresh_var(self.rng.choice(extents), "k") for _ in range(self.draw(1, 3)))
        guards: list[Guard] = []
        for _ in range(self.draw(0, 3)):
            p = self.affine() - self.affine()
            guards.append(self.rng.choice((ge, ge, eq, lambda q: negate(eq(q))))(p))
        self.guards = frozenset(guards)
        self.facts = Facts(own.context, (ge(own.n - own.m),) if self.draw(0, 1) else ())
        known = self.facts.hypotheses
        self.points = [x for x in [*own.points(3)][::17] if all(guard_holds(h, x) for h in known)]

    def draw(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def affine(self) -> Poly:
        """An index: a variable, an output index or a size, and a small number."""
        own = self.own
        p = self.rng.choice((*map(atom_poly, self.bound), own.i, own.j, own.m, own.const(0)))
        if self.draw(0, 4) == 0:
            p = own.quotient(p, own.s)
        return p + self.draw(-1, 1)

    def factor(self) -> NF:
        name = self.rng.choice("xyz")
        read = power(normal.read(self.own.context, name, (self.affine(),)))
        kind = self.draw(0, 5)
        if kind == 0:
            return exponential(read, self.facts)
        if kind == 1 and self.bound:
            return normal.from_poly(atom_poly(self.bound[0]))
        return read if kind < 5 else normal.scale(read, self.draw(2, 3))

    def value(self) -> NF:
        out = self.factor()
        for _ in range(self.draw(0, 2)):
            out = multiply(out, self.factor(), self.facts)
        return out

    def term(self) -> Term:
        (t,) = self.value().terms
        return Term(t.coefficient, self.bound, self.guards, t.powers)


def check(case: Case, found: NF, expected: Callable[[Point], float]) -> None:
    for x in case.points:
        wanted = expected(x)
        if math.isfinite(wanted):
            got = form_value(found, x, element)
            assert math.isclose(got, wanted, rel_tol=TOLERANCE, abs_tol=TOLERANCE), (found, x)


def show(case: Case, found: NF) -> str:
    given = f"{[str(g) for g in case.facts.hypotheses]}" if case.facts.hypotheses else ""
    extents = ", ".join(f"{v} < {v.extent}" for v in case.bound)
    guards = [str(g) for g in sorted(case.guards)]
    return number_names(f"{given}{extents} {guards} => {found}")


def test_terms_under_guards() -> None:
    lines = []
    for seed in SEEDS:
        case = Case(seed)
        t = case.term()
        found = normal.from_terms(case.own.context, simplify_term(t, case.facts))
        check(case, found, lambda x, t=t: term_value(t, x, element))  # type: ignore[misc]
        lines.append(f"{number_names(str(t))}: {show(case, found)}")
    check_golden("sums", "terms", lines)


def test_a_sum_or_maximum_over_nothing() -> None:
    own = Integers()
    facts = Facts(own.context)
    x = power(normal.read(own.context, "x", (own.i,)))
    for extent in (0, -1):
        v = fresh_var(own.const(extent))
        assert sum_over(x, (v,), facts) is normal.zero(own.context)
        assert product_over(x, (v,), facts) is normal.constant(own.context, 1)
        assert simplify_piece(Piece((v,), frozenset(), x), facts) is None
    one = fresh_var(own.const(1))
    assert sum_over(x, (one,), facts) is x is max_over(x, (one,), facts)
    never = ge(own.const(-1))
    assert restrict(x, never, facts) is normal.zero(own.context)
    assert simplify_piece(Piece((), frozenset((never,)), x), facts) is None


@pytest.mark.ci
def test_sums_of_sums_products_and_restrictions() -> None:
    lines = []
    for seed in SEEDS:
        case = Case(seed)
        facts, t = case.facts, case.term()
        inner = normal.from_terms(case.own.context, simplify_term(t, facts))
        v = fresh_var(case.own.m, "o")
        factor = power(normal.read(case.own.context, "y", (atom_poly(v), case.own.i)))
        whole = sum_over(multiply(inner, factor, facts), (v,), facts)

        def expected(x: Point, t: Term = t, v: Var = v, factor: NF = factor) -> float:
            each = (form_value(factor, {**x, v: k}, element) for k in range(value_at(v.extent, x)))
            return term_value(t, x, element) * math.fsum(each)

        check(case, whole, expected)
        g = ge(case.own.n - case.own.i - 2)
        part = restrict(whole, g, facts)
        check(case, part, lambda x, g=g: expected(x) if guard_holds(g, x) else 0.0)  # type: ignore[misc]
        content, rest = factor_out(whole) if whole.terms else (t, whole)
        if whole.terms:
            plain = normal.from_terms(case.own.context, (content,))
            check(case, multiply(plain, rest, facts), expected)
            scale = Term(Fraction(1), (), frozenset(), content.powers)
            shared = divide_by_powers(whole, content.powers)
            back = normal.from_terms(case.own.context, (scale,))
            check(case, multiply(shared, back, facts), expected)
        check(case, split_sum_indices(whole), expected)
        lines.append(f"{show(case, whole)} | {number_names(str(part))}")
    check_golden("sums", "sums", lines)


def test_maxima_and_products() -> None:
    lines = []
    for seed in SEEDS:
        case = Case(seed)
        facts, value = case.facts, case.value()
        guarded = value
        for g in sorted(case.guards):
            guarded = restrict(guarded, g, facts)
        piece = Piece(case.bound, case.guards, value)
        top, prod = (f(guarded, case.bound, facts) for f in (max_over, product_over))

        def values(x: Point, piece: Piece = piece) -> list[float]:
            everywhere = Piece(piece.bound, frozenset(), piece.value)
            inside = list(piece_values(piece, x, element))
            count = sum(1 for _ in piece_values(everywhere, x, element))
            return [*inside, *[0.0] * (count - len(inside))]

        check(case, top, lambda x: max(values(x), default=-math.inf))
        check(case, prod, lambda x: math.prod(values(x)))
        done = simplify_piece(piece, facts)
        for x in case.points:
            before = max(piece_values(piece, x, element), default=None)
            after = None if done is None else max(piece_values(done, x, element), default=None)
            assert before == pytest.approx(after)
            opened = open_piece(split_piece_indices(open_piece(done))) if done else None
            assert opened is None or after == pytest.approx(
                max(piece_values(opened, x, element), default=None)
            )
        shown = None if done is None else number_names(str(done))
        lines.append(f"{show(case, top)} | {number_names(str(prod))} | {shown}")
    check_golden("sums", "maxima", lines)


def test_split_indices() -> None:
    lines = []
    own = Integers()
    n, s, i = own.n, own.s, own.i
    for extent, divisor in ((n * s, s), (n * 6, own.const(2)), (n * 6, own.const(4)), (n, s),
                            (own.const(12), own.const(3)), (n * s * 2, s * 2)):  # fmt: skip
        v = fresh_var(extent, "k")
        at = atom_poly(v)
        q = own.quotient(at, divisor)
        a = power(normal.read(own.context, "x", (q, at - q * divisor)))
        bound, split = split_bound_indices((v,), a)
        facts = Facts(own.context)
        before = normal.from_terms(own.context, (
            substitute.close(Term(Fraction(1), (v,), frozenset(), t.powers)) for t in a.terms
        ))  # fmt: skip
        after = sum_over(split, bound, facts)
        for x in list(own.points(3))[::19]:
            assert form_value(before, x, element) == pytest.approx(form_value(after, x, element))
        found = split_output_index(a)
        cases = remainder_cases(a, facts)
        lines.append(number_names(f"{extent} by {divisor}: {after} | {found} | {cases}"))
    w = fresh_var(n, "i")
    d = power(normal.read(own.context, "x", (own.quotient(atom_poly(w) + i, own.const(2)),)))
    for v, value, guards in remainder_cases(d, Facts(own.context)) or ():
        lines.append(number_names(f"{d}: {v} is {value} if {[str(g) for g in guards]}"))
    check_golden("sums", "digits", lines)


def quotients(own: Integers) -> Iterator[tuple[Poly, Poly]]:
    n, m, s, i, j = own.n, own.m, own.s, own.i, own.j
    dividends = (
        n * s, n * s + j, i * s + s - 1, n * s - 1, i, i + n * m, n * m * s + i, i * 2 + 1,
        n * 6 + 4, (n + 1) * m, (n + 1) * m + i, own.quotient(i, s), j * n + i,
        own.quotient(n * s + i, s) + m,
        n * -1, -i - 1, n * 2, own.const(7), own.const(-7), n * s * 2 + i * s,
    )  # fmt: skip
    for p in dividends:
        for q in (s, n, own.const(1), own.const(2), own.const(3), n * s, n + 1, n * 2, s * 2, m):
            yield p, q


@pytest.mark.parametrize("given", [(), ("n s = m z",), ("z < n", "m > 1")], ids=str)
def test_quotients(given: Sequence[str]) -> None:
    own = Integers()
    facts = Facts(own.context)
    for text in given:
        g = {"n s = m z": eq(own.n * own.s - own.m * own.z), "z < n": ge(own.n - own.z - 1),
             "m > 1": ge(own.m - 2)}[text]  # fmt: skip
        facts = facts.with_guards(g)
    points = [x for x in own.points(4) if all(guard_holds(h, x) for h in facts.hypotheses)][::7]
    lines = []
    for p, q in quotients(own):
        found = quotient(p, q, facts)
        same = canonical_products(p, facts)
        for x in points:
            if value_at(q, x) >= 1:
                assert value_at(found, x) == value_at(p, x) // value_at(q, x), (p, q, found, x)
            assert value_at(same, x) == value_at(p, x)
        lines.append(number_names(f"({p}) // ({q}): {found}"))
    check_golden("sums", f"quotients-{len(given)}", lines)


@pytest.mark.ci
def test_equalities_and_differences() -> None:
    """Forms that are written in several ways are equal; those with one thing changed are not."""
    lines = []
    for seed in SEEDS:
        case = Case(seed)
        facts, t = case.facts, case.term()
        a = normal.from_terms(case.own.context, simplify_term(t, facts))
        order = Term(t.coefficient, t.bound[::-1], t.guards, t.powers)
        b = normal.from_terms(case.own.context, simplify_term(order, facts))
        fresh, env = {}, []
        for v in t.bound:
            w = fresh_var(v.extent, "w")
            fresh[v] = v.extent - 1 - atom_poly(w)
            env.append(w)
        turned = Term(
            t.coefficient, tuple(env),
            frozenset(substitute.guard_at(g, fresh) for g in t.guards),
            substitute.powers_at(t.powers, fresh),
        )  # fmt: skip
        c = normal.from_terms(case.own.context, simplify_term(turned, facts))
        check(case, c, lambda x, t=t: term_value(t, x, element))  # type: ignore[misc]
        other = normal.add(a, power(normal.read(case.own.context, "x", (case.own.i,))))
        assert are_equal(a, b, facts)
        assert not are_equal(a, other, facts)
        found = [are_equal(a, c, facts), are_equal_where_defined(a, c, facts)]
        lines.append(f"{number_names(str(a))} = {number_names(str(c))}: {found}")
    check_golden("sums", "equalities", lines)
