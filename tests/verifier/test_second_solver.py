"""cvc5 on what the prover took for granted: see scripts/confirm_unsat.py, which asks hundreds."""

from __future__ import annotations

import pytest

from superopt.rules.library.load import load_library
from superopt.verifier.context import ProofContext
from superopt.verifier.poly import polynomial
from superopt.verifier.poly.facts import ge
from superopt.verifier.poly.solver import is_implied, smt2

pytest.importorskip("cvc5")

from scripts.confirm_unsat import SOLVERS, answer, confirmed, questions, spread

SOME = ("conv-window-rows", "gather-slice", "slice-pad", "max-pool-padding", "row-conv")


@pytest.mark.one_in(0)
def test_answers_of_both_are_confirmed() -> None:
    rules = [r for r in load_library() if r.name in SOME]
    found = [q for r in rules for q in questions(r, 4, 1)[0]]
    for name in SOLVERS:
        some = spread([q for q in found if q.solver == name], 12)
        assert len(some) >= 3, name
        assert confirmed(some, 20.0, None) == {"unsat": len(some)}


def test_what_does_not_follow_is_sat() -> None:
    n = polynomial.symbol(ProofContext(), "n")
    for goal, said in ((ge(n - 1), "unsat"), (ge(n - 2), "sat"), (ge(n * n - n), "unsat")):
        assert answer(smt2((), goal), 20.0) == said
        assert is_implied((), goal) == (said == "unsat")
    assert answer(smt2((ge(n - 5),), ge(n - 2)), 20.0) == "unsat"
