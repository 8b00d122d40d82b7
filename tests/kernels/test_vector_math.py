"""exp, tanh, erf and sigmoid against C's: the errors that the module states."""

import math

import numpy as np
import pytest

from superopt.kernels.cpu import loaded
from superopt.kernels.lower import lowered
from superopt.te.dtype import F32
from superopt.te.expr import Tensor, apply, compute

FUNCTIONS = {
    "exp": (np.exp, 1.8e-7, (-87.0, 88.5)),
    "tanh": (np.tanh, 4e-7, (-12.0, 12.0)),
    "erf": (np.vectorize(math.erf), 4e-7, (-6.0, 6.0)),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 3e-7, (-80.0, 80.0)),
}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1e-20, 200.0, -200.0]


def computed(fn: str, x: np.ndarray) -> np.ndarray:
    a = Tensor("x", F32, x.shape)
    out = np.zeros_like(x)
    loaded(lowered("k", [a], [compute(x.shape, lambda i: apply(fn, a[i]))]))(x, out)
    return out


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_errors_are_as_stated(fn: str) -> None:
    exact, most, (low, high) = FUNCTIONS[fn]
    near = np.concatenate([np.geomspace(1e-30, 1, 4000), -np.geomspace(1e-30, 1, 4000)])
    x = np.concatenate([np.linspace(low, high, 200_003), near]).astype(np.float32)
    x = x[x != 0]
    wanted = exact(x.astype(np.float64))
    error = np.abs(computed(fn, x) - wanted) / np.abs(wanted)
    assert error.max() < most, x[error.argmax()]


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_of_what_is_no_plain_number(fn: str) -> None:
    exact, most, _ = FUNCTIONS[fn]
    x = np.array(SPECIAL, np.float32)
    with np.errstate(all="ignore"):
        wanted = exact(x.astype(np.float64)).astype(np.float32)
    got = computed(fn, x)
    np.testing.assert_allclose(got, wanted, rtol=most, atol=2e-45)
    assert (np.signbit(got) == np.signbit(wanted))[~np.isnan(wanted)].all()


def test_exp_of_the_least_numbers() -> None:
    """Down to where it is 0: within one of the least steps."""
    x = np.linspace(-110, -85, 10_001).astype(np.float32)
    np.testing.assert_allclose(
        computed("exp", x), np.exp(x.astype(np.float64)), atol=3e-45, rtol=2e-7
    )
