"""Vector functions against C's in float64: the errors that the modules state."""

import ctypes
import ctypes.util
import math
from collections.abc import Callable

import numpy as np
import pytest

from superopt.kernels.llvm.codegen import kernel_text
from superopt.kernels.llvm.functions import CHEAP_EXPONENTS
from superopt.kernels.loops.lower import lower_kernel
from superopt.kernels.loops.schedule import parse_schedule
from superopt.kernels.runtime.cpu import load_kernel, object_code
from superopt.kernels.runtime.engine import host, native_machine, psabi_machine
from superopt.kernels.runtime.target_cpu import LEVELS, missing_features
from superopt.te.expr.dtype import F32, F64, I32, to_numpy
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import Tensor, apply, compute, const, reduce_max

WIDE = 6.1e-8  # half an ulp, and a little
SMALLEST, SMALLEST_NORMAL = 2.0**-149, 2.0**-126
# A product and its sum are rounded apart without FMA.
EXP_ERROR = 1.8e-7 if "+fma" in host().features.split(",") else 2e-7
FUNCTIONS = {
    "exp": (np.exp, EXP_ERROR, (-87.0, 88.5)),
    "tanh": (np.tanh, 4e-7, (-12.0, 12.0)),
    "erf": (np.vectorize(math.erf), 4e-7, (-6.0, 6.0)),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 3e-7, (-80.0, 80.0)),
    "log": (np.log, 1.2e-7, (-1.0, 1e6)),
    "sin": (np.sin, WIDE, (-1e4, 1e4)),
    "cos": (np.cos, WIDE, (-1e4, 1e4)),
    "tan": (np.tan, WIDE, (-1e4, 1e4)),
    "asin": (np.arcsin, WIDE, (-1.1, 1.1)),
    "acos": (np.arccos, WIDE, (-1.1, 1.1)),
    "atan": (np.arctan, WIDE, (-30.0, 30.0)),
    "sinh": (np.sinh, WIDE, (-80.0, 80.0)),
    "cosh": (np.cosh, WIDE, (-80.0, 80.0)),
    "asinh": (np.arcsinh, WIDE, (-1e4, 1e4)),
    "acosh": (np.arccosh, WIDE, (0.9, 1e4)),
    "atanh": (np.arctanh, WIDE, (-1.1, 1.1)),
}
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    3e12,
    -1e30,
    np.inf,
    -np.inf,
    np.nan,
    1e-40,
    -1e-40,
    1e-20,
    200.0,
    -200.0,
]


def computed(fn: str, x: np.ndarray) -> np.ndarray:
    a = Tensor("x", F32, x.shape)
    out = np.zeros_like(x)
    load_kernel(lower_kernel("k", [a], [compute(x.shape, lambda i: apply(fn, a[i]))]))(x, out)
    return out


@pytest.mark.one_in(2)
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_errors_are_as_stated(fn: str) -> None:
    exact, most, (low, high) = FUNCTIONS[fn]
    near = np.concatenate([np.geomspace(1e-30, 1, 4000), -np.geomspace(1e-30, 1, 4000)])
    x = np.concatenate([np.linspace(low, high, 200_003), near]).astype(np.float32)
    x = x[x != 0]
    with np.errstate(all="ignore"):
        wanted = exact(x.astype(np.float64))
    known = np.isfinite(wanted) & (wanted != 0)
    got = computed(fn, x)
    assert (np.isfinite(got) == np.isfinite(wanted)).all()
    error = np.abs(got[known] - wanted[known]) / np.abs(wanted[known])
    assert error.max() < most, x[known][error.argmax()]


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


def test_exp_of_what_is_not_above_zero() -> None:
    """x less its row's maximum: may be 0 below 2^-126; masked elements are 0."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-100, 20, (64, 131)).astype(np.float32)
    x[::3, ::7], x[5], x[6, 4], x[7, 9] = -np.inf, -np.inf, np.nan, np.inf
    x[8] = np.linspace(-88, 0, 131)
    a = Tensor("x", F32, x.shape)
    top = compute((64,), lambda i: reduce_max(131, lambda k: a[i, k]))
    y = compute(x.shape, lambda i, j: apply("exp", a[i, j] - top[i]))
    kernel = lower_kernel("k", [a], [y])
    assert "exp_below(" in str(kernel)
    got = np.zeros_like(x)
    load_kernel(kernel)(x, got)
    with np.errstate(all="ignore"):
        wanted = np.exp((x - x.max(1, keepdims=True)).astype(np.float64))
    assert (np.isnan(got) == np.isnan(wanted)).all()
    assert (got[wanted == 0] == 0).all()
    np.testing.assert_allclose(got, wanted, rtol=EXP_ERROR, atol=SMALLEST_NORMAL)


def test_of_what_may_be_above_zero() -> None:
    """Another row's largest, or a larger part of it, says nothing."""
    a = Tensor("x", F32, (8, 8))
    tops = [
        compute((8,), lambda i: reduce_max(8, lambda k: a[k, i])),
        compute((8,), lambda i: reduce_max(8, lambda k: a[7 - i, k])),
        compute((8,), lambda i: reduce_max(7, lambda k: a[i, k])),
        compute((8,), lambda i: reduce_max(8, lambda k: -a[i, k])),
    ]
    for top in tops:
        y = compute((8, 8), lambda i, j, top=top: apply("exp", a[i, j] - top[i]))
        assert "exp_below(" not in str(lower_kernel("k", [a], [y]))


@pytest.mark.parametrize(
    "divisor",
    [
        1.0,
        -1.0,
        3.0,
        0.1,
        0.0078431377,
        255.0,
        1.9999999,
        1.0000001,
        -0.003921569,
        1e-9,
        2e29,
        5e-30,
    ],
)
def test_rounded_quotients_are_those_of_divisions(divisor: float) -> None:
    """Bit by bit: of all magnitudes, around ties, and of special numbers."""
    rng = np.random.default_rng(1)
    c = np.float32(divisor)
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint32).view(np.float32)
    near = (rng.integers(-600, 600, 200_000) + 0.5).astype(np.float32) * c
    steps = rng.integers(-3, 4, near.size)
    ties = (near.view(np.int32) + steps.astype(np.int32)).view(np.float32)
    x = np.concatenate([bits, near, ties, np.array(SPECIAL, np.float32)])
    x = x[: x.size // 64 * 64]
    a = Tensor("x", F32, x.shape)
    y = compute(a.shape, lambda i: apply("round", a[i] / const(float(c), F32)), name="y")
    schedule = parse_schedule("split(i0, 16); vectorize(i0.i)")
    out = np.zeros_like(x)
    kernel = lower_kernel("k", [a], [y], {y: schedule})
    assert "fdiv" not in kernel_text(kernel, 32)
    assert "fdiv" in kernel_text(kernel, 16)  # without a fused multiply-add
    load_kernel(kernel)(x, out)
    with np.errstate(all="ignore"):
        wanted = np.rint(x / c)
    np.testing.assert_array_equal(out, wanted)
    finite = np.isfinite(wanted) & (wanted == 0)
    assert (np.signbit(out) == np.signbit(wanted))[finite].all()


def test_powers() -> None:
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(-80, 80, 100_000)).astype(np.float32)
    y = (rng.uniform(-88, 88, x.size) / np.log(x.astype(np.float64))).astype(np.float32)
    x[::3] = np.exp(rng.uniform(-1e-3, 1e-3, x[::3].size)) * np.where(
        rng.random(x[::3].size) < 0.5, 1, -1
    )
    y[::3] = np.rint(rng.uniform(-1e4, 1e4, x[::3].size))
    wanted = np.power(x.astype(np.float64), y.astype(np.float64))
    normal = np.abs(wanted) > 2e-38
    assert normal.mean() > 0.9
    error = np.abs(raised(x, y) - wanted)[normal] / np.abs(wanted[normal])
    assert error.max() < WIDE


def test_powers_of_what_is_no_plain_number() -> None:
    some = [*SPECIAL, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 16777216.0, 1.0000001, -1.0000001]
    x, y = (v.ravel().astype(np.float32) for v in np.meshgrid(some, some))
    wanted = np.array([power(float(a), float(b)) for a, b in zip(x, y, strict=True)])
    got = raised(x, y)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(got, wanted.astype(np.float32), rtol=WIDE * 2, atol=2e-45)
    told = ~np.isnan(wanted)
    assert (np.signbit(got) == np.signbit(wanted))[told].all()


def test_remainders() -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(20_000) * 10 ** rng.uniform(-3, 9, 20_000)).astype(np.float32)
    y = (rng.standard_normal(20_000) * 10 ** rng.uniform(-3, 3, 20_000)).astype(np.float32)
    y[:5000] = x[:5000] / rng.integers(1, 100, 5000)  # what almost divides
    x[5000:10_000] = np.rint(x[5000:10_000])
    y[5000:10_000] = np.rint(y[5000:10_000]) + 0.5
    a, b = np.meshgrid(np.array([*SPECIAL, 0.5, -3.0, 7.0, 1e-3], np.float32), SPECIAL)
    x, y = np.append(x, a.astype(np.float32)), np.append(y, b.astype(np.float32))
    with np.errstate(invalid="ignore"):
        wanted = np.fmod(x, y)
    got = of_both("fmod", x, y)
    np.testing.assert_array_equal(got, wanted)
    told = ~np.isnan(wanted)
    assert (np.signbit(got) == np.signbit(wanted))[told].all()


def power(a: float, b: float) -> float:
    """C's pow, that Python has but for its exceptions."""
    with np.errstate(all="ignore"):
        return float(_pow(a, b))


_libm = ctypes.CDLL(ctypes.util.find_library("m"))
_pow = _libm.pow
_pow.restype, _pow.argtypes = ctypes.c_double, [ctypes.c_double, ctypes.c_double]


def raised(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return of_both("pow", x, y)


def of_both(fn: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    a, b = Tensor("x", F32, x.shape), Tensor("y", F32, x.shape)
    out = np.zeros_like(x)
    k = lower_kernel("k", [a, b], [compute(x.shape, lambda i: apply(fn, a[i], b[i]))])
    load_kernel(k)(x, y, out)
    return out


@pytest.mark.parametrize("n", CHEAP_EXPONENTS)
@pytest.mark.parametrize("kind", ["f32", "f64", "i32"])
def test_powers_that_are_products(n: float, kind: str) -> None:
    if kind == "i32" and (n < 0 or n != int(n)):
        pytest.skip("no powers of integers")
    dtype = {"f32": F32, "f64": F64, "i32": I32}[kind]
    some = [*SPECIAL, 0.5, -0.5, 2.0, -2.0, 1e20, 1e-20, -3.0, 7.0]
    x = np.array(range(-20, 20) if kind == "i32" else some, to_numpy(dtype))
    a = Tensor("x", dtype, x.shape)
    out = np.zeros_like(x)
    k = lower_kernel("k", [a], [compute(x.shape, lambda i: apply("pow", a[i], const(n, dtype)))])
    load_kernel(k)(x, out)
    wanted = np.array([power(float(v), float(n)) for v in x])
    with np.errstate(over="ignore"):
        wanted = wanted.astype(x.dtype)
    np.testing.assert_allclose(out, wanted, rtol=2.4e-7 if kind == "f32" else 1e-15, atol=3e-45)
    told = ~np.isnan(wanted)
    assert (np.signbit(out) == np.signbit(wanted))[told].all()


@pytest.mark.parametrize("fn", ["sin", "cos", "tan"])
def test_a_far_number_changes_no_other(fn: str) -> None:
    x = np.array([4.7123885, 1.0, -3.0, 0.5] * 8, np.float32)
    beside = x.copy()
    beside[5] = 2e12
    same = np.arange(x.size) != 5
    np.testing.assert_array_equal(computed(fn, beside)[same], computed(fn, x)[same])


@pytest.mark.parametrize("fn", ["sin", "cos", "tan"])
def test_angles_far_from_zero(fn: str) -> None:
    """Up to 2^40, where the functions are C's."""
    x = np.geomspace(1e4, 2**40, 50_021).astype(np.float32)
    x = np.concatenate([x, -x])
    wanted = FUNCTIONS[fn][0](x.astype(np.float64))
    error = np.abs(computed(fn, x) - wanted) / np.abs(wanted)
    assert error.max() < WIDE, x[error.argmax()]


def softplus(x: Expr) -> Expr:
    return apply("max", x, 0) + apply("log", 1 + apply("exp", -apply("abs", x)))


@pytest.mark.parametrize("name", ["softplus", "tanh of softplus"])
def test_functions_of_softplus(name: str) -> None:
    """Of the least numbers to the largest: within some rounding errors of the result."""
    x = np.concatenate([np.linspace(-100, 100, 50_001), np.geomspace(1e-30, 1, 4000)])
    x = np.concatenate([x, -np.geomspace(1e-30, 1, 4000), SPECIAL]).astype(np.float32)
    a, out, last = Tensor("x", F32, x.shape), np.zeros_like(x), name == "softplus"
    y = compute(x.shape, lambda i: softplus(a[i]) if last else apply("tanh", softplus(a[i])))
    k = lower_kernel("k", [a], [y])
    assert "exp_below(" in str(k)
    assert ("tanh(" in str(k)) != last
    load_kernel(k)(x, out)
    with np.errstate(invalid="ignore"):
        wide = np.logaddexp(0.0, x.astype(np.float64))
    wanted = wide if last else np.tanh(wide)
    np.testing.assert_allclose(out, wanted, rtol=4e-7, atol=2 * SMALLEST)


def logistic(x: np.ndarray) -> np.ndarray:
    u = np.exp(-np.abs(x))
    return np.where(x < 0, u, 1) / (1 + u)


def mish(x: Expr) -> Expr:
    return x * apply("tanh", softplus(x))


UNDERFLOW = np.linspace(-104, -80, 20_001)  # where e^x comes near the smallest normal number, and 0
AROUND_ZERO = np.geomspace(SMALLEST_NORMAL / 2**10, SMALLEST_NORMAL * 2**10, 2003)
BOTH_SIGNS = np.concatenate([AROUND_ZERO, -AROUND_ZERO])
NEAR_SMALLEST: dict[str, tuple[Callable[[Expr], Expr], Callable[..., np.ndarray], np.ndarray]] = {
    "exp": (lambda x: apply("exp", x), np.exp, UNDERFLOW),
    "exp of -|x|": (lambda x: apply("exp", -apply("abs", x)), np.exp, UNDERFLOW),
    "sigmoid": (lambda x: apply("sigmoid", x), logistic, UNDERFLOW),
    "silu": (lambda x: x * apply("sigmoid", x), lambda x: x * logistic(x), UNDERFLOW),
    "softplus": (softplus, lambda x: np.logaddexp(0, x), UNDERFLOW),
    "mish": (mish, lambda x: x * np.tanh(np.logaddexp(0, x)), UNDERFLOW),
    "pow": (lambda x: apply("pow", 2 + 0 * x, x), np.exp2, UNDERFLOW / math.log(2)),
    "reciprocal": (lambda x: 1 / x, lambda x: 1 / x, 1 / AROUND_ZERO[AROUND_ZERO > 2.0**-127]),
    "sqrt": (lambda x: apply("sqrt", x), np.sqrt, AROUND_ZERO),
    "log": (lambda x: apply("log", x), np.log, AROUND_ZERO),
    "log1p": (lambda x: apply("log", 1 + x), np.log1p, BOTH_SIGNS),
    "tanh": (lambda x: apply("tanh", x), np.tanh, BOTH_SIGNS),
    "erf": (lambda x: apply("erf", x), np.vectorize(math.erf), BOTH_SIGNS),
    "sinh": (lambda x: apply("sinh", x), np.sinh, BOTH_SIGNS),
    "asinh": (lambda x: apply("asinh", x), np.arcsinh, BOTH_SIGNS),
    "atanh": (lambda x: apply("atanh", x), np.arctanh, BOTH_SIGNS),
    "sin": (lambda x: apply("sin", x), np.sin, BOTH_SIGNS),
    "tan": (lambda x: apply("tan", x), np.tan, BOTH_SIGNS),
    "asin": (lambda x: apply("asin", x), np.arcsin, BOTH_SIGNS),
    "atan": (lambda x: apply("atan", x), np.arctan, BOTH_SIGNS),
}


@pytest.mark.one_in(8)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NEAR_SMALLEST)
def test_results_near_the_smallest_normal_number(name: str, level: str) -> None:
    """Within 4e-7, or two of the smallest steps; a product with x multiplies these."""
    expression, exact, points = NEAR_SMALLEST[name]
    x = points.astype(np.float32)
    a, out, machine = Tensor("x", F32, x.shape), np.zeros_like(x), psabi_machine(level)
    k = lower_kernel("k", [a], [compute(x.shape, lambda i: expression(a[i]))])
    if missing_features(machine.features, native_machine().features):
        object_code(kernel_text(k, machine.width), machine)
        pytest.skip(f"compiled for {level}, which this processor cannot run")
    load_kernel(k, machine)(x, out)
    wanted = exact(x.astype(np.float64))
    step = 2 * SMALLEST * (np.abs(x) if name in ("silu", "mish") else 1)
    excess = np.abs(out - wanted) - 4e-7 * np.abs(wanted) - step
    assert excess.max() <= 0, (x[excess.argmax()], out[excess.argmax()])


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_the_log_of_one_more(kind: str) -> None:
    dtype = F32 if kind == "f32" else F64
    x = np.concatenate([np.geomspace(1e-35, 1e6, 9001), -np.geomspace(1e-35, 0.99, 9001)])
    x = np.concatenate([x, [0.0, -1.0, -2.0, np.inf, np.nan]]).astype(to_numpy(dtype))
    a, out = Tensor("x", dtype, x.shape), np.zeros_like(x)
    load_kernel(lower_kernel("k", [a], [compute(x.shape, lambda i: apply("log", 1 + a[i]))]))(
        x, out
    )
    with np.errstate(all="ignore"):
        wanted = np.log1p(x.astype(np.float64))
    np.testing.assert_allclose(out, wanted, rtol=4e-7 if kind == "f32" else 1e-15)
