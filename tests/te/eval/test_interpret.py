"""The vectorised reading is the naive one, on random expressions, and does what it promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.te.eval.domain import Reals
from superopt.te.eval.interpret import evaluate
from superopt.te.eval.prime_field import PrimeField
from superopt.te.expr.dtype import F64, I8
from tests.support.breadth import examples
from tests.support.te.expressions import Drawn, drawn
from tests.support.te.patterns import contractions, convolutions, reshapes, transposed_convolutions
from tests.support.te.readings import one_by_one


@pytest.mark.one_in(0)
@examples(120)
@given(drawn(F64))
def test_floats(case: Drawn) -> None:
    fast = evaluate(case.tensor, case.inputs, Reals())
    slow = one_by_one(case.tensor, case.inputs, None)
    # sums of whole numbers: both are exact
    np.testing.assert_array_equal(fast, slow.astype(np.float64))


@pytest.mark.one_in(0)
@examples(120)
@given(drawn(I8))
def test_integers_wrap(case: Drawn) -> None:
    fast = evaluate(case.tensor, case.inputs, Reals())
    slow = one_by_one(case.tensor, case.inputs, None)
    np.testing.assert_array_equal(fast, slow.astype(np.int64))


@examples(60)
@given(drawn(F64))
def test_field(case: Drawn) -> None:
    domain = PrimeField(1)
    fast = evaluate(case.tensor, case.inputs, domain)
    slow = one_by_one(case.tensor, case.inputs, domain)
    np.testing.assert_array_equal(fast, slow)


PATTERNS = (contractions(), convolutions(), transposed_convolutions(), reshapes())


@pytest.mark.one_in(4)
@pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
def test_patterns(pattern: st.SearchStrategy[Drawn]) -> None:
    @examples(80)
    @given(pattern)
    def check(case: Drawn) -> None:
        fast = evaluate(case.tensor, case.inputs, Reals())
        slow = one_by_one(case.tensor, case.inputs)
        np.testing.assert_array_equal(fast, slow.astype(np.float64))

    check()
