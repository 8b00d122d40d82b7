"""Every operator's examples, vectorised and element by element, over the reals and the field."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.ir.op import canonical_attrs, expression
from superopt.ops import OPS
from superopt.te.eval.domain import Domain, Reals
from superopt.te.eval.interpret import evaluate
from superopt.te.eval.prime_field import PrimeField
from superopt.te.expr.dtype import F64
from superopt.te.expr.tensor import Tensor
from tests.support.ops.build import example
from tests.support.te.readings import leaves, one_by_one

CASES = [
    pytest.param(name, text, id=f"{name}-{n}")
    for name, op in sorted(OPS.items())
    for n, text in enumerate(op.example)
    if not op.opaque
]


def tensors(name: str, text: str) -> tuple[Tensor, ...]:
    types, attrs = example(text)
    return expression(OPS[name], types, canonical_attrs(OPS[name], types, attrs))


def fed(t: Tensor, domain: Domain, seed: int) -> dict[str, np.ndarray]:
    """Random inputs; integers are 0 or 1, which is in range wherever one is an index."""
    found: dict[str, np.ndarray] = {}
    for n, source in enumerate(leaves(t).values()):
        array = domain.random(source.type, seed + n)
        small = source.dtype.is_int and source.dtype.bits > 8
        found[source.name] = (array & 1).astype(array.dtype) if small else array
    return found


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("name", "text"), CASES)
def test_reals(name: str, text: str) -> None:
    domain = Reals(F64)
    for t in tensors(name, text):
        inputs = fed(t, domain, 7)
        fast, slow = evaluate(t, inputs, domain), one_by_one(t, inputs)
        assert fast.dtype == domain.storage_dtype(t.dtype)
        slow = slow.astype(fast.dtype)
        if t.dtype.is_float:
            np.testing.assert_allclose(fast, slow, rtol=1e-12, atol=1e-13)
        else:
            np.testing.assert_array_equal(fast, slow)


@pytest.mark.one_in(8)
@pytest.mark.parametrize(("name", "text"), CASES)
def test_field(name: str, text: str) -> None:
    domain = PrimeField(5)
    for t in tensors(name, text):
        inputs = fed(t, domain, 11)
        fast, slow = evaluate(t, inputs, domain), one_by_one(t, inputs, domain)
        np.testing.assert_array_equal(fast, slow)
