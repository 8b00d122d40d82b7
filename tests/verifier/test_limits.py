"""Limits of work and time of a proof, markers of unknown numbers, and guards as inequalities."""

import math
import time
from fractions import Fraction

import numpy as np
import pytest

from superopt.verifier import context as context_module
from superopt.verifier.context import OutOfTime, ProofContext, UnknownNumbers
from superopt.verifier.poly.guards import Guard, eq, ge, negate
from superopt.verifier.prove import MAX_WORK_GROWTH, _next_level_work, as_inequality
from tests.support.verifier.integers import Integers, guard_holds


def test_markers_are_distinct_numbers_of_float32_and_known_again() -> None:
    unknowns = UnknownNumbers()
    names = [f"a{n}" for n in range(300)]
    marks = [unknowns.mark(name) for name in names]
    assert len({*marks}) == len(marks)
    assert all(0 < m < 1 and float(np.float32(m)) == m for m in marks)
    assert sum(m > 0.01 for m in marks) > 280  # unlike numbers of rules
    assert [unknowns.mark(name) for name in names] == marks
    assert [unknowns.name(m) for m in marks] == names
    assert unknowns.name(Fraction(marks[7])) == "a7"
    for other in (0.0, 1.0, -marks[0], marks[0] + 1, 0.5, 1, "a0", None):
        assert unknowns.name(other) is None
    assert [unknowns.root_name(Fraction(math.sqrt(m))) for m in marks[:9]] == names[:9]


def test_a_marker_that_is_taken_is_left_out() -> None:
    unknowns = UnknownNumbers()
    first = Fraction(UnknownNumbers().mark("x"))
    unknowns.name_by_mark[first] = "other"
    mark = unknowns.mark("x")
    assert Fraction(mark) == first + Fraction(2, 2**24)
    assert unknowns.name(mark) == "x"


def test_work_is_of_polynomials_and_attempts() -> None:
    context = ProofContext(max_work=10)
    context.created_count, context.attempt_units = 5, 1
    assert context.work_done() == 10
    context.check_budget()
    context.created_count += 1
    with pytest.raises(OutOfTime):
        context.check_budget()
    context.created_count, context.attempt_units = 0, 3
    assert context.work_done() == 15


def test_time_is_that_of_the_thread_or_of_the_clock() -> None:
    context = ProofContext.with_limits(100)
    context.check_deadline()
    assert time.monotonic() < context.next_clock_check <= time.monotonic() + 100
    for late in (
        ProofContext.with_limits(-1),
        ProofContext.with_limits(100, wall_deadline=time.monotonic() - 1),
    ):
        with pytest.raises(OutOfTime):
            late.check_deadline()
        late.next_clock_check = math.inf  # no look at the clock before
        late.check_deadline()


def test_the_clock_is_read_after_some_ticks() -> None:
    late = ProofContext.with_limits(-1)
    for _ in range(context_module.TICKS_PER_CLOCK_CHECK - 1):
        late.tick()
    with pytest.raises(OutOfTime):
        late.tick()


def test_a_closed_context_holds_nothing() -> None:
    own = Integers()
    assert own.n + own.m * 2 - own.i is not None
    ge(own.n)
    context = own.context
    context.nonnegative[1] = 1
    context.close()
    tables = (
        context.polys, context.constants, context.sums, context.differences, context.products,
        context.multiples, context.linear_splits, context.atoms, context.nonnegative,
        context.forms, context.factors, *context.guards.values(),
    )  # fmt: skip
    assert not any(tables)
    assert context.solver is context.no_hypotheses is None


@pytest.mark.parametrize(
    ("last", "before", "ahead"),
    [(100, 50, 250.0), (100, 125, 100.0), (100, 0, 600.0), (100, 1, 100 * MAX_WORK_GROWTH),
     (0, 0, 0.0), (10, -5, 60.0)],
)  # fmt: skip
def test_the_work_of_the_next_level_grows_as_before(last: int, before: int, ahead: float) -> None:
    assert _next_level_work(last, before) == ahead


def test_guards_of_minima_and_signs_are_inequalities() -> None:
    own = Integers()
    n, m, s = own.n, own.m, own.s
    least = own.minimum(n, s)
    for g, expected in (
        (eq(least - n), ge(s - n)), (eq(n - least), ge(s - n)), (eq(least - s), ge(n - s)),
        (ge(-n + 1), eq(n - 1)), (ge(n - 1), ge(n - 1)), (eq(n - m), eq(n - m)),
        (negate(eq(n - m)), negate(eq(n - m))), (eq(least - m), eq(least - m)),
    ):  # fmt: skip
        found = as_inequality(g)
        assert isinstance(found, Guard)
        assert all(guard_holds(found, x) == guard_holds(g, x) for x in own.points(3)), (g, found)
        assert found is expected
