"""What a choice reads is guarded by its test where that may say which indices are right."""

from __future__ import annotations

import pytest

from superopt.kernels.triton.guards import needs_guard
from superopt.te.expr.dtype import F32, I64
from superopt.te.expr.node import Axis, Expr, Load
from superopt.te.expr.tensor import Tensor, cast, compare, conjunction, const, select

A, B = Axis("i", 8), Axis("j", 8)
X, Y, Z = (Tensor(n, F32, (8,)) for n in "xyz")
N = Tensor("n", I64, (8,))


def at(t: Tensor, i: Expr = A) -> Expr:
    return Load(t, (i,), t.dtype)


ZERO = const(0, F32)
POSITIVE = compare("lt", ZERO, at(X) + at(Y))
INSIDE = compare("lt", A, B)
BOTH = conjunction(POSITIVE, INSIDE)
FOUND = at(Z, cast(at(N), I64))
CASES = {
    "the same": (at(X) * 2, POSITIVE, False),
    "and another, side by side": (at(X) * at(Z), POSITIVE, False),
    "another one": (at(Z), POSITIVE, True),
    "nothing": (const(1, F32), POSITIVE, False),
    "where it is": (at(X), INSIDE, True),
    "the same, where another one is": (
        at(X),
        compare("lt", select(INSIDE, at(X), ZERO), ZERO),
        True,
    ),
    "another one, where it is": (at(X) * at(Z), BOTH, True),
    "by a number that is read": (at(X) * FOUND, POSITIVE, True),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_guarded(name: str) -> None:
    e, test, wanted = CASES[name]
    assert needs_guard(e, test, ()) == wanted
    assert not needs_guard(e, test, (X, Y, Z, N))
