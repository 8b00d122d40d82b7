"""Consequences of hypotheses about integers."""

import pytest

from superopt.verifier.context import ProofContext
from superopt.verifier.poly.facts import Facts, coarsen, eq, ge
from superopt.verifier.poly.polynomial import atom_poly, fresh_var, symbol


def test_an_equation_follows_from_its_part() -> None:
    context = ProofContext()
    n, m = symbol(context, "n"), symbol(context, "m")
    assert Facts(context, (eq(n - m),)).holds(eq(n * 2 - m * 2))
    assert not Facts(context).holds(eq(n * 2 - m * 2))


@pytest.mark.parametrize(("slack", "is_remainder"), [(-1, True), (1, False), (None, False)])
def test_a_guard_is_coarsened_only_by_a_remainder(slack: int | None, is_remainder: bool) -> None:
    """n v - n w + r >= 0 is v >= w if r < n; not if r <= n + 1, and not for any r."""
    context = ProofContext()
    n, r = symbol(context, "n"), symbol(context, "r")
    v, w = (atom_poly(fresh_var(symbol(context, "k"))) for _ in range(2))
    guard = ge(n * v - n * w + r)
    facts = Facts(context, () if slack is None else (ge(n + slack - r),))
    assert coarsen(guard, facts, False) == (ge(v - w) if is_remainder else guard)
