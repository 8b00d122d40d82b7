"""The prime field: exact arithmetic, and the laws that fingerprints rest on."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superopt.ir.evaluate import evaluate as evaluate_graph
from superopt.ir.graph import Graph
from superopt.te.eval import residues
from superopt.te.eval.domain import Reals
from superopt.te.eval.interpret import evaluate
from superopt.te.eval.prime_field import PrimeField, record_zero_divisions
from superopt.te.expr.dtype import BOOL, F16, F32, F64, I32, I64, DType
from superopt.te.expr.node import Expr
from superopt.te.expr.tensor import (
    Tensor,
    TensorType,
    apply,
    cast,
    compute,
    placeholder,
    reduce_sum,
)
from tests.support.ops.build import made

FIELD = PrimeField(42)
SHAPE = (4, 6)


def element(seed: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    return FIELD.random(TensorType(F32, shape), seed)


def f(fn: str, *args: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return FIELD.apply(fn, args, (F32,) * len(args), F32)


def number(value: float | Fraction) -> np.ndarray:
    return FIELD.const(value, F32).reshape(2, 1, 1)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(FIELD.elements_equal(*np.broadcast_arrays(a, b), F32).all())


A, B, C = element(1), element(2), element(3)


def test_the_moduli() -> None:
    assert residues.P == 2 * residues.Q + 1
    assert residues.P < 1 << 31
    for m in residues.MODULI:  # Fermat, to a few bases
        assert all(pow(b, m - 1, m) == 1 for b in (2, 3, 5, 7, 11, 13))


@given(st.integers(0, 1 << 30), st.integers(1, 40), st.integers(1, 9), st.integers(1, 9))
def test_matrix_products_are_exact(seed: int, depth: int, rows: int, columns: int) -> None:
    a, b = element(seed, (rows, depth)), element(seed + 1, (depth, columns))
    for product in (residues.matmul(a, b), np.stack(_both(residues._blas_product, a, b))):
        for n, m in enumerate(residues.MODULI):
            exact = a[n].astype(object) @ b[n].astype(object) % m
            np.testing.assert_array_equal(product[n], exact.astype(np.int64))


def _both(multiply: object, a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    assert callable(multiply)
    return [multiply(a[n], b[n], m) for n, m in enumerate(residues.MODULI)]


@pytest.mark.parametrize("depth", [1, 4, 5])
def test_small_products_of_the_greatest_residues_do_not_overflow(depth: int) -> None:
    top = np.stack([np.full((3, depth), m - 1, np.int64) for m in residues.MODULI])
    for part, m in zip(residues.matmul(top, np.swapaxes(top, 1, 2)), residues.MODULI, strict=True):
        assert (part == depth * (m - 1) ** 2 % m).all()


@pytest.mark.parametrize("shape", [(), (1,), (2,), (7,), (3, 5), (2, 0), (1000,)])
def test_inverses_are_those_of_each_residue(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, m, shape) for m in residues.MODULI])
    x.reshape(2, -1)[:, 3::4] = 0
    found = residues.inverse(x)
    assert found.shape == x.shape
    for n, m in enumerate(residues.MODULI):
        wanted = [pow(v, -1, m) if v else 0 for v in x[n].reshape(-1).tolist()]
        assert found[n].reshape(-1).tolist() == wanted


def test_the_greatest_residues_do_not_overflow() -> None:
    top = np.stack([np.full((3, 700), m - 1, np.int64) for m in residues.MODULI])
    product = np.stack(_both(residues._blas_product, top, np.swapaxes(top, 1, 2)))
    np.testing.assert_array_equal(product, np.full((2, 3, 3), 700))


def test_ring_and_quotients() -> None:
    assert same(f("mul", A, f("add", B, C)), f("add", f("mul", A, B), f("mul", A, C)))
    assert same(f("add", A, f("neg", A)), number(0))
    np.testing.assert_array_equal(f("mul", f("div", A, B), B), A)
    np.testing.assert_array_equal(f("div", number(1), number(3)), number(Fraction(1, 3)))
    np.testing.assert_array_equal(f("neg", number(0)), number(0))


def test_division_by_zero_is_noted() -> None:
    with record_zero_divisions() as notes:
        f("div", A, B)
        assert notes == []
        first = f("div", number(1), number(0))
    assert notes == ["1 of 1 divisors are 0"]
    np.testing.assert_array_equal(first, f("div", number(1), number(0)))


def test_lattice_laws() -> None:
    top, low = (lambda x, y: f("max", x, y)), (lambda x, y: f("min", x, y))
    np.testing.assert_array_equal(top(A, top(B, C)), top(top(A, B), C))
    np.testing.assert_array_equal(top(A, B), top(B, A))
    np.testing.assert_array_equal(top(A, low(A, B)), A)
    np.testing.assert_array_equal(low(A, top(B, C)), top(low(A, B), low(A, C)))
    np.testing.assert_array_equal(f("abs", A), f("abs", f("neg", A)))
    np.testing.assert_array_equal(top(A, number(-np.inf)), A)
    np.testing.assert_array_equal(low(A, number(np.inf)), A)
    assert not same(top(A, B), A)
    assert not same(top(A, B), B)
    # no law of the field: + does not keep the order
    assert not same(f("add", top(A, B), C), top(f("add", A, C), f("add", B, C)))


def test_small_numbers_are_in_their_order() -> None:
    values = [-100, Fraction(-1, 2), 0, Fraction(1, 16), 1, 6, 127]
    x = np.concatenate([number(v) for v in values], axis=1)[:, :, 0]
    assert np.asarray(FIELD.apply("lt", (x[:, :-1], x[:, 1:]), (F32, F32), BOOL)).all()
    np.testing.assert_array_equal(f("sign", number(-3)), number(-1))
    np.testing.assert_array_equal(f("floor", number(Fraction(-1, 2))), number(-1))
    np.testing.assert_array_equal(f("round", number(Fraction(5, 2))), number(2))


def test_extremes_over_axes() -> None:
    x = FIELD.reduce("max", A, (-1,), F32)
    step = A[:, :, :1]
    for k in range(1, SHAPE[1]):
        step = f("max", step, A[:, :, k : k + 1])
    np.testing.assert_array_equal(x, step)
    nothing = FIELD.reduce("max", A[:, :, :0], (-1,), F32)
    np.testing.assert_array_equal(nothing, np.broadcast_to(number(-np.inf), nothing.shape))
    np.testing.assert_array_equal(FIELD.reduce("prod", A, (-2, -1), F32), _product(A))


def _product(x: np.ndarray) -> np.ndarray:
    out = number(1)
    for i, j in np.ndindex(x.shape[1:]):
        out = f("mul", out, x[:, i : i + 1, j : j + 1])
    return out


def test_exp_is_a_homomorphism() -> None:
    assert same(f("exp", f("add", A, B)), f("mul", f("exp", A), f("exp", B)))
    np.testing.assert_array_equal(f("exp", number(0)), number(1))
    assert same(f("exp", number(-np.inf)), number(0))
    # what follows sees component 0 only
    total, product = f("exp", f("add", A, B)), f("mul", f("exp", A), f("exp", B))
    np.testing.assert_array_equal(f("tanh", total), f("tanh", product))


def test_exponents_of_two_digits() -> None:
    exponents = [0, 1, 2, 32767, 32768, 32769, 5 << 15, residues.Q - 1, 123_456_789]
    found = residues.exponential(12_345, np.array(exponents))
    assert found.tolist() == [pow(12_345, e, residues.P) for e in exponents]


def test_powers() -> None:
    np.testing.assert_array_equal(f("pow", A, number(3)), f("mul", A, f("mul", A, A)))
    np.testing.assert_array_equal(f("pow", A, number(-1)), f("div", number(1), A))
    np.testing.assert_array_equal(f("pow", A, number(0)), np.broadcast_to(number(1), A.shape))
    np.testing.assert_array_equal(f("pow", A, number(Fraction(1, 2))), f("sqrt", A))
    assert not same(f("pow", A, B), f("pow", B, A))


def test_keyed_functions() -> None:
    for fn in ("sqrt", "log", "tanh", "erf", "sigmoid", "sin"):
        np.testing.assert_array_equal(f(fn, A), f(fn, A.copy()))
        assert not same(f(fn, A), f(fn, B))
        other = PrimeField(43).apply(fn, (A,), (F32,), F32)
        assert not np.array_equal(f(fn, A), other)
    assert not same(f("sinh", A), f("tanh", A))
    np.testing.assert_array_equal(f("tanh", number(0)), number(0))
    np.testing.assert_array_equal(f("log", number(1)), number(0))


def test_conversions() -> None:
    ints = np.array([-7, 0, 3, 1234567890123], np.int64)
    there = FIELD.apply("cast", (ints,), (I64,), F32)
    np.testing.assert_array_equal(there[0], ints % residues.P)
    back = FIELD.apply("cast", (there,), (F32,), I64)
    np.testing.assert_array_equal(back[:3], ints[:3])
    assert 0 <= back[3] < 7  # no small number: a hash
    assert FIELD.apply("cast", (A,), (F32,), F16) is A
    half = FIELD.apply("cast", (number(Fraction(-3, 2)),), (F32,), I32)
    assert half.item() == -1


@given(st.floats(width=32), st.sampled_from((F16, F32, F64)))
def test_floats_are_the_fractions_that_they_are(value: float, dtype: DType) -> None:
    with np.errstate(over="ignore"):
        stored = np.array([value]).astype({F16: "f2", F32: "f4", F64: "f8"}[dtype])
    got = FIELD.load(stored, TensorType(dtype, (1,)))[:, 0]
    np.testing.assert_array_equal(got, FIELD.const(_exact(float(stored[0])), dtype))


def _exact(x: float) -> Fraction | float:
    return Fraction(x) if np.isfinite(x) else x


def test_integers_keep_their_arithmetic() -> None:
    x = np.array([-7, 7], np.int32)
    two = np.array([2, 2], np.int32)
    np.testing.assert_array_equal(FIELD.apply("div", (x, two), (I32, I32), I32), [-3, 3])


def test_scaling_commutes_with_matrix_products() -> None:
    """(x / r) w = (x w) / r: a division by rows comes out of a product."""
    x, w, r = (
        placeholder(n, TensorType(F32, s)) for n, s in (("x", (4, 6)), ("w", (6, 3)), ("r", (4,)))
    )

    def product(left: Tensor) -> Tensor:
        return compute((4, 3), lambda i, j: reduce_sum(6, lambda k: left[i, k] * w[k, j]))

    scaled = product(compute((4, 6), lambda i, k: x[i, k] / r[i]))
    plain = product(x)
    after = compute((4, 3), lambda i, j: plain[i, j] / r[i])
    inputs = {"x": element(5), "w": element(6, (6, 3)), "r": element(7, (4,))}
    left, right = evaluate(scaled, inputs, FIELD), evaluate(after, inputs, FIELD)
    np.testing.assert_array_equal(left, right)
    assert left.shape == (2, 4, 3)


def test_softmax_does_not_see_a_shift() -> None:
    node = made("Softmax", "f32[4,6] axis=1")
    graph = Graph(tuple(i for i in node.inputs if i is not None), (node,))  # type: ignore[misc]
    shift = element(9, (4, 1))
    (plain,) = evaluate_graph(graph, {"x0": A}, FIELD)
    (shifted,) = evaluate_graph(graph, {"x0": f("add", A, shift)}, FIELD)
    assert same(plain, shifted)
    assert same(FIELD.reduce("sum", plain, (-1,), F32), number(1))


def test_the_same_expression_over_field_and_reals() -> None:
    """Rational arithmetic on small fractions is the same number in both."""
    x = placeholder("x", TensorType(F64, (3, 5)))

    def body(i: Expr) -> Expr:
        return reduce_sum(
            5, lambda k: x[i, k] * x[i, k] / 8 - cast(i, F64) + apply("max", x[i, k], 0)
        )

    t = compute((3,), body)
    values = np.random.default_rng(0).integers(-8, 9, (3, 5)) / 4
    real, field = evaluate(t, {"x": values}, Reals()), evaluate(t, {"x": values}, FIELD)
    np.testing.assert_array_equal(field, FIELD.load(real, TensorType(F64, (3,))))


@pytest.mark.parametrize("seed", [0, 1])
def test_random_elements_are_those_of_their_seed(seed: int) -> None:
    t = TensorType(F32, (3, 4))
    np.testing.assert_array_equal(FIELD.random(t, seed), FIELD.random(t, seed))
    assert not np.array_equal(FIELD.random(t, seed), FIELD.random(t, seed + 1))
