"""What follows from hypotheses, with and without Z3, compared with all small values."""

from itertools import product

import pytest

from superopt.verifier.context import OutOfTime, ProofContext
from superopt.verifier.poly import facts as facts_module
from superopt.verifier.poly.facts import Facts, coarsen, without_hypotheses
from superopt.verifier.poly.guards import Guard, eq, ge, negate
from superopt.verifier.poly.polynomial import Poly, atom_poly, fresh_var
from superopt.verifier.poly.solver import is_implied, smt2
from tests.support.verifier.integers import Integers, atom_of, guard_holds


def read(own: Integers, text: str) -> Guard:
    """`n - m >= 0`, `n == 0` or `n != 0`."""
    names = {k: getattr(own, k) for k in ("n", "m", "s", "z", "i", "j", "quotient", "const")}
    left, sign, _ = text.rsplit(" ", 2)
    p = eval(left, names)
    assert isinstance(p, Poly)
    return {">=": ge(p), "==": eq(p), "!=": negate(eq(p))}[sign]


def known(own: Integers, *hypotheses: str) -> Facts:
    return Facts(own.context, tuple(read(own, h) for h in hypotheses))


# Without the solver.
WEAK = [
    ([], "n - 1 >= 0", True), ([], "n - 2 >= 0", False), ([], "n != 0", True),
    ([], "n == 0", False), ([], "n - 1 != 0", False), ([], "z != 0", False), ([], "-n != 0", True),
    ([], "n - n == 0", True), ([], "n - n >= 0", True), ([], "j - 3 != 0", True),
    ([], "j - 2 != 0", False), (["const(5) - n >= 0"], "const(5) - i >= 0", True),
    (["const(5) - n >= 0"], "const(4) - i >= 0", True),
    (["const(5) - n >= 0"], "const(3) - i >= 0", False),
    ([], "n - n != 0", False), ([], "n - n - 1 >= 0", False), ([], "n - n + 1 != 0", True),
    (["n - m >= 0"], "n - m >= 0", True), (["n - m >= 0"], "n - m + 1 >= 0", True),
    (["n - m >= 0"], "n - m - 1 >= 0", False), (["n - m == 0"], "m - n >= 0", True),
    (["n - m == 0"], "n - m >= 0", True), (["n - m == 0"], "n * 2 - m * 2 >= 0", True),
    (["n - s >= 0"], "n - 2 >= 0", True), (["n - 3 >= 0"], "n - 2 >= 0", True),
    (["n - i * 2 >= 0", "i - m >= 0"], "n - m * 2 >= 0", True),
    (["quotient(n, s) - m >= 0"], "n - s * m >= 0", True),
    (["m - quotient(n, s) >= 0"], "s * m + s - 1 - n >= 0", True),
    ([], "quotient(n, s) >= 0", True), ([], "quotient(n, s) - 1 >= 0", False),
    (["n - m >= 0"], "n - m == 0", False), (["n - m >= 0"], "n - m != 0", False),
]  # fmt: skip
# With the solver also these.
STRONG = [
    (["n - m >= 0", "m - n >= 0"], "n - m == 0", True),
    (["n - m == 0"], "n * s - m * s == 0", True),
    (["n - m - 1 >= 0"], "n - m != 0", True), (["n - m != 0"], "n - m == 0", False),
    (["n - m >= 0", "n - m != 0"], "n - m - 1 >= 0", True),
    (["quotient(n, const(2)) * 2 - n == 0"], "n - 1 != 0", True),
]  # fmt: skip


@pytest.mark.parametrize(("hypotheses", "guard", "follows"), WEAK + STRONG)
def test_what_follows(hypotheses: list[str], guard: str, follows: bool) -> None:
    own = Integers()
    given, goal = known(own, *hypotheses), read(own, guard)
    weak = (hypotheses, guard, follows) in WEAK
    assert given.holds(goal, use_solver=False) is (follows and weak)
    assert own.context.queries == own.context.coarsen_depth == 0
    assert given.holds(goal) is follows
    assert given.holds(goal) is given.answers[goal] is follows
    assert given.holds(goal, use_solver=False) is follows  # a known answer
    points = [x for x in own.points(5) if all(guard_holds(h, x) for h in given.hypotheses)]
    assert all(guard_holds(goal, x) for x in points) is follows


def test_what_follows_of_many_pairs_holds_at_all_points() -> None:
    own = Integers()
    n, m, s, i = own.n, own.m, own.s, own.i
    polys = [n - m, n - s, m - s, n * 2 - m - s, n - i - m, own.quotient(n, s) - m, n * m - s]
    guards = [f(p + c) for p in polys for c in (-1, 0) for f in (ge, eq, lambda p: negate(eq(p)))]
    points = list(own.points(4))[::3]
    held = {g: frozenset(k for k, x in enumerate(points) if guard_holds(g, x)) for g in guards}
    shown = 0
    for h in guards:
        given = Facts(own.context, (h,))
        for g in guards:
            if given.holds(g, use_solver=False):
                shown += 1
                assert held[h] <= held[g], (h, g)
    assert shown == 101


@pytest.mark.parametrize(
    ("hypothesis", "negation", "text"),
    [
        ("n - 2 >= 0", "-n + 1 >= 0", "-2 + 1*n >= 0"), ("n - m == 0", "n - m != 0", None),
        ("n - m != 0", "n - m == 0", None), ("n - 1 == 0", "n - 1 != 0", "-1 + 1*n == 0"),
        ("const(1) - n == 0", "n - 1 != 0", "-1 + 1*n == 0"),
        ("n - 1 != 0", "n - 1 == 0", "-1 + 1*n != 0"),
    ],
)  # fmt: skip
def test_negations_and_text(hypothesis: str, negation: str, text: str | None) -> None:
    own = Integers()
    g = read(own, hypothesis)
    assert negate(g) is read(own, negation)
    assert negate(negate(g)) is g
    assert text is None or str(g) == text
    assert hash(g) == g.p.number
    assert all(guard_holds(g, x) is not guard_holds(negate(g), x) for x in own.points(3))


def test_guards_of_one_meaning_are_identical() -> None:
    own = Integers()
    assert ge(own.n) is ge(own.n) is not ge(own.m)
    assert eq(own.n - own.m) is eq(own.m - own.n)
    assert eq(own.const(0)) is eq(own.const(0))
    assert not ge(own.n) < ge(own.n)
    assert eq(own.n) < ge(own.n) < negate(eq(own.n))


def test_the_solver_knows_the_range_of_each_atom() -> None:
    own = Integers()
    n, s, i, j = own.n, own.s, own.i, own.j
    element = facts_module.polynomial.element_index(own.const(7), own.const(5))
    half, least = own.quotient(n + i, s), own.minimum(n, s)
    for p, holds in (
        (n - 1, True), (n - 2, False), (s - 2, True), (s - 3, False), (i, True), (i - 1, False),
        (n - i - 1, True), (n - i - 2, False), (j * -1 + 2, True), (j * -1 + 1, False),
        (element, True), (element - 1, False), (-element + 4, True), (-element + 3, False),
        (n + i - half * s, True), (n + i - half * s - 1, False), (half * s + s - 1 - n - i, True),
        (half * s + s - 2 - n - i, False), (n - least, True), (s - least, True),
        (least - n, False), (least - s, False), (least - 1, True), (least - 2, False),
        (own.const(0), True), (own.const(-1), False), (n * 3 - i * 3 - 3, True),
    ):  # fmt: skip
        assert is_implied((), ge(p)) is holds, p
    assert is_implied((eq(own.const(0)), ge(n - 5)), ge(n - 4))
    assert not is_implied((eq(own.const(0)),), ge(n - 2))
    assert is_implied((ge(n - 5), ge(own.const(4) - n)), ge(own.const(-1)))
    assert is_implied((eq(n - s),), negate(eq(n - s - 1)))
    assert not is_implied((negate(eq(n - s)),), eq(n - s))
    assert is_implied((negate(eq(n - s)), ge(n - s)), ge(n - s - 1))
    assert own.context.solver.num_scopes() == 0  # type: ignore[union-attr]


def test_a_query_in_smt_lib() -> None:
    own = Integers()
    text = smt2((ge(own.n - 3),), ge(own.n - 2))
    assert text.startswith("(set-logic QF_NIA)\n")
    asserted = [line for line in text.splitlines() if line.startswith("(assert")]
    assert len(asserted) == 3  # n >= 1, the hypothesis, and the negated goal
    assert text.rstrip().endswith("(check-sat)")
    assert own.context.solver.num_scopes() == 0  # type: ignore[union-attr]


def test_guards_are_added_once_and_in_one_order() -> None:
    own = Integers()
    a, b = read(own, "n - m >= 0"), read(own, "m - s >= 0")
    first = Facts(own.context, (a,))
    assert first.with_guards() is first
    assert first.with_guards(a) is first
    both = first.with_guards(b)
    assert both is first.with_guards(a, b)
    assert both.hypotheses == (a, b)
    assert both.parent is first
    assert without_hypotheses(own.context) is without_hypotheses(own.context)
    assert without_hypotheses(own.context).hypotheses == ()


def test_facts_of_elements_are_kept() -> None:
    own = Integers()
    g = read(own, "n - m >= 0")
    one = Facts(own.context, (g,)).with_order("x", strict=True).with_order("y", strict=False)
    assert (one.nonneg, one.positive, one.hypotheses) == (("x", "y"), ("x",), (g,))
    more = one.with_guards(read(own, "m - s >= 0"))
    assert (more.nonneg, more.positive) == (("x", "y"), ("x",))


def test_models_satisfy_all_hypotheses_and_show_contradictions() -> None:
    own = Integers()
    one = known(own, "n - m - 1 >= 0")
    two = one.with_guards(read(own, "m - 2 >= 0"))
    for facts in (one, two):
        assert facts.models() is facts.models()
        assert facts.models()
        for model, h in product(facts.models(), facts.hypotheses):
            assert model.holds(h.kind, h.p)
        assert not facts.is_contradictory()
        assert not facts.is_last_contradicted()
    none = two.with_guards(read(own, "m - n >= 0"))
    assert none.models() == []
    assert none.is_contradictory()
    assert none.is_last_contradicted()
    assert Facts(own.context).is_contradictory() is False
    assert Facts(own.context).is_last_contradicted() is False
    assert known(own, "n - 5 >= 0", "const(3) - n >= 0").is_last_contradicted() is True
    rare = known(own, "n - 1000 == 0")  # no small model, and no contradiction
    assert rare.models() == []
    assert not rare.is_contradictory()


def test_products_that_hypotheses_equate_and_their_quotients() -> None:
    own = Integers()
    n, m, s = (atom_of(p) for p in (own.n, own.m, own.s))
    assert known(own, "n * m - s == 0").equal_products == (((s,), (n, m)), ((n, m), (s,)))
    for other in ("n * m - s * 2 == 0", "n * m + s == 0", "n * m - 3 == 0", "n * m - s >= 0"):
        assert known(own, other).equal_products == ()
    assert known(own, "n * 2 - m * 2 == 0").equal_products == ()
    q, r = own.quotient(own.n, own.s), own.quotient(own.i, own.s)
    facts = Facts(own.context, (ge(q - own.m), ge(r), eq(q - own.m)))
    assert facts.quotients == (atom_of(q),)


@pytest.mark.parametrize(
    ("hypotheses", "guard", "expected"),
    [
        ([], "n * v - n * w + i >= 0", "v - w >= 0"),
        ([], "n * v - n * w + i - n >= 0", "v - w - 1 >= 0"),
        ([], "n * v - n * w - i - 1 >= 0", "v - w - 1 >= 0"),
        ([], "n * v - n * w - i >= 0", None), ([], "n * v - n * w + m >= 0", None),
        (["n - m - 1 >= 0"], "n * v - n * w + m >= 0", "v - w >= 0"),
        ([], "v - w + i >= 0", None), ([], "n * v - n * w + i == 0", None),
        ([], "n * w - n * v + i == 0", None),
        ([], "n * m - n * s + i >= 0", None),  # without variables
        ([], "i * v - i * w >= 0", None), ([], "n * v + m * w >= 0", None),
    ],
)  # fmt: skip
def test_guards_are_divided_by_a_size(
    hypotheses: list[str], guard: str, expected: str | None
) -> None:
    own = Integers()
    own.v, own.w = (atom_poly(fresh_var(own.s)) for _ in range(2))  # type: ignore[attr-defined]

    def in_names(text: str) -> Guard:
        names = {k: getattr(own, k) for k in ("n", "m", "s", "i", "v", "w")}
        left, sign, _ = text.rsplit(" ", 2)
        return (ge if sign == ">=" else eq)(eval(left, names))

    facts, g = known(own, *hypotheses), in_names(guard)
    assert coarsen(g, facts, False) is (g if expected is None else in_names(expected))
    if expected is not None:
        assert facts._coarsen_once(g) is in_names(expected)
        assert own.context.coarsen_depth == own.context.queries == 0
        given = facts.with_guards(in_names(expected))
        assert given.holds(g, use_solver=False) is True
        own.context.coarsen_depth = 1
        assert facts._coarsen_once(g) is g
        assert own.context.coarsen_depth == 1


def test_a_digit_is_below_the_size_of_its_axis() -> None:
    """(x + b y) // s < n is y < a where n s = a b and 0 <= x < b: a reshape of [a, b] to [n, s]."""
    own = Integers()
    a, b, n, s = own.m, own.z, own.n, own.s
    x, y = atom_poly(fresh_var(b)), atom_poly(fresh_var(own.const(9)))
    g = ge(n - 1 - own.quotient(x + b * y, s))
    facts = Facts(own.context, (eq(n * s - a * b),))
    assert coarsen(g, facts, False) is ge(a - 1 - y)
    assert coarsen(g, Facts(own.context), False) is g
    assert coarsen(ge(y - own.quotient(n, s)), facts, False) is ge(y - own.quotient(n, s))
    assert coarsen(ge(y - x), facts, False) is ge(y - x)


def test_large_numbers_are_no_proof_and_no_question() -> None:
    """Models are small: what fails for large sizes only is no consequence either."""
    own = Integers()
    for text in ("const(1000) - n >= 0", "n - 1000 != 0", "n - 1 >= 0", "n - 2 >= 0"):
        assert Facts(own.context).holds(read(own, text)) is (text == "n - 1 >= 0")
    assert known(own, "n - m >= 0").holds(read(own, "n * m - s >= 0")) is False
    assert own.context.queries == 0


def test_work_and_time_end_a_question() -> None:
    own = Integers()
    facts, goal = known(own, "n - m >= 0", "m - n >= 0"), read(own, "n - m == 0")
    own.context.max_work = 0
    with pytest.raises(OutOfTime):
        facts.holds(goal)
    assert own.context.queries == 0
    late = ProofContext.with_limits(-1)
    late.quick_checks = facts_module.CHECKS_PER_CLOCK_CHECK - 2
    n = facts_module.polynomial.symbol(late, "n")
    assert Facts(late).holds(ge(n))
    with pytest.raises(OutOfTime):
        Facts(late).holds(ge(n - 1))


def test_questions_are_counted() -> None:
    own = Integers()
    facts = known(own, "n - m >= 0", "m - n >= 0")
    assert facts.holds(read(own, "n - m == 0"))
    assert own.context.queries == 1
    assert facts.holds(read(own, "n - m == 0"))
    assert own.context.queries == 1
