"""The real semantics of the element types."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from superopt.te.eval.domain import Reals
from superopt.te.eval.interpret import evaluate
from superopt.te.expr.dtype import (
    BF16,
    BOOL,
    F8E4M3FN,
    F16,
    F32,
    F64,
    I4,
    I8,
    I32,
    I64,
    U8,
    U64,
    DType,
    to_numpy,
)
from superopt.te.expr.erf import erf
from superopt.te.expr.functions import FUNCTIONS, identity_element, scalar_function
from superopt.te.expr.tensor import TensorType, compute, placeholder, reduce_sum

REALS = Reals()


def scalar(fn: str, kind: DType, *values: float, out: DType | None = None) -> object:
    """The function of numbers, stored as `kind`."""
    with np.errstate(all="ignore"):
        args = [np.asarray(v).astype(to_numpy(kind)) for v in values]
        return REALS.apply(fn, args, (kind,) * len(args), out or kind).item()


@pytest.mark.parametrize(
    ("fn", "kind", "args", "expected"),
    [
        ("div", I32, (-7, 2), -3),
        ("div", I32, (7, -2), -3),
        ("div", I32, (-8, 2), -4),
        ("div", U8, (250, 7), 35),
        ("div", I32, (5, 0), 0),
        ("div", I8, (-128, -1), -128),
        ("mod", I32, (-7, 3), 2),
        ("mod", I32, (7, -3), -2),
        ("fmod", I32, (-7, 3), -1),
        ("fmod", F32, (-7.5, 3), -1.5),
        ("add", I8, (127, 1), -128),
        ("mul", U8, (16, 17), 16),
        ("neg", U8, (1,), 255),
        ("add", I4, (7, 1), -8),
        ("mul", I4, (7, 3), 5),
        ("pow", I32, (2, -1), 0),
        ("pow", I32, (-1, -3), -1),
        ("pow", I32, (3, 4), 81),
        ("round", F32, (2.5,), 2.0),
        ("round", F32, (-3.5,), -4.0),
        ("max", F32, (math.nan, 1), math.nan),
        ("min", F32, (1, math.nan), math.nan),
        ("add", F16, (2048, 1), 2048.0),
        ("mul", F16, (300, 300), math.inf),
        ("add", BF16, (256, 1), 256.0),
        ("div", BF16, (1, 3), 0.333984375),
        ("sigmoid", F32, (-1000,), 0.0),
    ],
)
def test_functions(fn: str, kind: DType, args: tuple[float, ...], expected: float) -> None:
    np.testing.assert_equal(scalar(fn, kind, *args), expected)


@pytest.mark.parametrize(
    ("kind", "value", "to", "expected"),
    [
        (F32, -1.9, I32, -1),
        (F32, 0.5, BOOL, True),
        (F32, math.nan, BOOL, True),
        (I64, 300, U8, 44),
        (I64, -1, U64, (1 << 64) - 1),
        (I32, 9, I4, -7),
        (F32, 1e6, F8E4M3FN, 448.0),
        (F32, 65519.0, F16, 65504.0),
        (F64, 1 + 2**-30, F32, 1.0),
    ],
)
def test_conversions(kind: DType, value: float, to: DType, expected: float) -> None:
    assert scalar("cast", kind, value, out=to) == expected


def test_functions_without_meaning_are_errors() -> None:
    with pytest.raises(TypeError, match="exp has no meaning on i32"):
        scalar("exp", I32, 1)
    with pytest.raises(KeyError, match="no scalar function 'gelu'; there are add, "):
        scalar_function("gelu")


def test_every_function_says_what_it_is_over_the_field() -> None:
    meanings = {f.field_semantics for f in FUNCTIONS.values()}
    assert meanings == {
        "ring", "quotient", "power", "order", "equal", "hom", "keyed", "whole", "never", "logic",
        "special",
    }  # fmt: skip


@pytest.mark.parametrize("kind", [F16, BF16])
def test_reductions_of_small_floats_accumulate_in_float32(kind: DType) -> None:
    x = placeholder("x", TensorType(kind, (4096,)))
    total = compute((), lambda: reduce_sum(4096, lambda k: x[k]))
    ones = np.ones(4096).astype(to_numpy(kind))
    assert evaluate(total, {"x": ones}).item() == 4096  # in bf16 itself it ends at 256
    square = compute((), lambda: reduce_sum(4096, lambda k: x[k] * x[k]))
    assert evaluate(square, {"x": ones}).item() == 4096


def test_float64_is_the_reference_for_every_float() -> None:
    x = placeholder("x", TensorType(F16, (3,)))
    t = compute((3,), lambda i: x[i] / 3 + 2048)
    given = np.array([1, 2, 4], np.float16)
    out = evaluate(t, {"x": given}, Reals(F64))
    assert out.dtype == np.float64
    np.testing.assert_array_equal(out, given.astype(float) / 3 + 2048)
    assert evaluate(t, {"x": given}).dtype == np.float16


@pytest.mark.parametrize("kind", [I8, U8, I32, I64, U64])
def test_integer_matrix_products_wrap(kind: DType) -> None:
    low, high = (0, 255) if kind is U8 else (-(1 << min(kind.bits - 1, 40)), 1 << 40)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(low, high, s).astype(to_numpy(kind)) for s in ((5, 40), (40, 3)))
    out = REALS.matmul(a, b, kind)
    exact = a.astype(object) @ b.astype(object)
    mask = (1 << kind.bits) - 1
    np.testing.assert_array_equal(out.astype(object) & mask, exact & mask)


@pytest.mark.parametrize("kind", [F32, F16, I8, U8, I64, BOOL])
def test_reductions_of_nothing(kind: DType) -> None:
    for fn in ("any", "all") if kind is BOOL else ("sum", "prod", "max", "min"):
        out = REALS.reduce(fn, np.empty((2, 0), to_numpy(kind)), (-1,), kind)
        np.testing.assert_array_equal(out, np.full((2, 1), identity_element(fn, kind)))


def test_erf() -> None:
    tiny = np.logspace(-300, 0, 500)
    x = np.concatenate([np.linspace(-7, 7, 20001), tiny, -tiny, [0.0, -0.0, np.inf, -np.inf]])
    exact = np.array([math.erf(v) for v in x])
    np.testing.assert_allclose(erf(x), exact, rtol=5e-16, atol=0)
    assert np.signbit(erf(np.array([-0.0]))).all()
    assert np.isnan(erf(np.array([np.nan]))).all()
    small = x.astype(np.float32)
    assert erf(small).dtype == np.float32
    rounded = np.array([math.erf(v) for v in small.tolist()]).astype(np.float32)
    np.testing.assert_array_equal(erf(small), rounded)


@pytest.mark.parametrize("kind", [F32, BF16, F8E4M3FN, I8, U64, BOOL])
def test_random_elements(kind: DType) -> None:
    t = TensorType(kind, (3, 4))
    x = REALS.random(t, 1)
    assert (x.shape, x.dtype) == ((3, 4), to_numpy(kind))
    np.testing.assert_array_equal(x, REALS.random(t, 1))
    assert not np.array_equal(x, REALS.random(t, 2))


def test_views_of_types_beside_numpys_own() -> None:
    x = placeholder("x", TensorType(F8E4M3FN, (2, 3)))
    given = np.arange(6).reshape(2, 3).astype(ml_dtypes.float8_e4m3fn)
    out = evaluate(compute((3, 2), lambda i, j: x[j, 2 - i]), {"x": given})
    np.testing.assert_array_equal(out, given[:, ::-1].T)
