"""Constants that are moved or computed ahead of time are known again; others are not."""

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from superopt.ir import graph as ir_graph
from superopt.ir.evaluate import evaluate
from superopt.ops import OPS
from superopt.rules.lang.value_facts import is_const
from superopt.te.eval.domain import Reals
from superopt.te.expr.dtype import F32, F64
from superopt.te.expr.tensor import TensorType
from superopt.verifier.compare.constant_folds import foldable_constants
from superopt.verifier.compare.related_constants import MAX_ULPS, Relation, relate_constants

RNG = np.random.default_rng(5)
W, V = (RNG.standard_normal((6, 8)).astype(np.float32) for _ in range(2))
U = RNG.standard_normal((8, 6)).astype(np.float32)
K = RNG.standard_normal((4, 3, 3, 3)).astype(np.float32)
S, T, MEAN = (RNG.standard_normal(8).astype(np.float32) for _ in range(3))
SPREAD = RNG.uniform(0.5, 2, 8).astype(np.float32)
X = ir_graph.Input("x", TensorType(F32, (5, 6)))


def op(name: str, *inputs: ir_graph.Value, **attrs: object) -> ir_graph.Value:
    return ir_graph.node(OPS[name], inputs, **attrs)  # type: ignore[arg-type]


def const(a: object) -> ir_graph.Constant:
    return ir_graph.constant(np.asarray(a, np.float32))


def relation(first: ir_graph.Value, second: np.ndarray) -> Relation | None:
    """What is found of a constant that another graph has, which is no more than it."""
    c = ir_graph.constant(second)
    changed, found = relate_constants(ir_graph.Graph((X,), (first,)), ir_graph.Graph((X,), (c,)))
    assert changed.outputs == ((found[0].value,) if found else (c,))
    return found[0] if found else None


MOVED: dict[str, np.ndarray] = {
    "turned round": W.T,
    "joined": np.concatenate([W, V], 1),
    "joined and turned": np.concatenate([W.T, V.T], 0),
    "cut": W[1:4, 2:],
    "every other row": W[::2],
    "split in heads": W.reshape(6, 2, 4).transpose(1, 0, 2),
    "padded": np.pad(W, ((1, 0), (0, 2))),
    "flat": W.reshape(-1),
    "on a diagonal": np.block([[W, np.zeros_like(V)], [np.zeros_like(W), V]]),
    "stacked": np.stack([V, W]),
    "repeated": np.broadcast_to(W[:, :1], (6, 4)),
}


@pytest.mark.parametrize("name", MOVED)
def test_elements_that_moved_have_the_same_bits(name: str) -> None:
    array = np.ascontiguousarray(MOVED[name])
    found = relation(op("Add", op("MatMul", X, const(W)), op("MatMul", X, const(V))), array)
    assert found is not None
    assert found.ulps is None
    assert set(ir_graph.constants([found.value])) & {const(W), const(V)}
    (made,) = evaluate(ir_graph.Graph((), (found.value,)), {}, Reals())
    assert made.tobytes() == array.tobytes()


def normalized() -> ir_graph.Value:
    image = ir_graph.Input("image", TensorType(F32, (2, 6, 4, 4)))
    kernel = const(RNG.standard_normal((8, 6, 1, 1)))
    found = op("Conv", image, kernel)
    norm = ir_graph.node(OPS["BatchNormalization"], [found, *map(const, (S, T, MEAN, SPREAD))])
    return ir_graph.results(norm)[0]


def kernel_of(v: ir_graph.Value) -> np.ndarray:
    (kernel,) = (c for c in ir_graph.constants([v]) if len(c.type.shape or ()) == 4)
    return kernel.load()


def by_norm() -> tuple[ir_graph.Value, np.ndarray]:
    v = normalized()
    scale = S / np.sqrt(SPREAD + np.float32(1e-5))
    return v, kernel_of(v) * scale[:, None, None, None]


def shift_of_norm() -> tuple[ir_graph.Value, np.ndarray]:
    return normalized(), T - MEAN * (S / np.sqrt(SPREAD + np.float32(1e-5)))


COMPUTED: dict[str, Callable[[], tuple[ir_graph.Value, np.ndarray]]] = {
    "scaled": lambda: (op("Mul", op("MatMul", X, const(W)), const(S)), W * S),
    "scaled by a number": lambda: (op("Mul", op("MatMul", X, const(W)), const(0.3)),
                                   W * np.float32(0.3)),
    "divided, turned": lambda: (op("Div", op("MatMul", X, const(W)), const(S)),
                                np.ascontiguousarray((W / S).T)),
    "a product": lambda: (op("MatMul", op("MatMul", X, const(W)), const(U)), W @ U),
    "a sum": lambda: (op("Add", op("MatMul", X, const(W)), op("MatMul", X, const(V))), W + V),
    "a bias through a product": lambda: (
        op("MatMul", op("Add", op("MatMul", X, const(W)), const(S)), const(U)), S @ U),
    "one scaled, one not": lambda: (
        op("Add", op("Mul", op("MatMul", X, const(W)), const(S)), op("MatMul", X, const(V))),
        np.concatenate([W * S, V], 1)),
    "a kernel under a batch norm": by_norm,
    "the shift of a batch norm": shift_of_norm,
}  # fmt: skip


@pytest.mark.parametrize("name", COMPUTED)
def test_what_is_computed_is_near_and_that_is_said(name: str) -> None:
    first, array = COMPUTED[name]()
    found = relation(first, array)
    assert found is not None
    assert found.ulps is not None
    assert 0 <= found.ulps <= MAX_ULPS


@pytest.mark.parametrize("name", COMPUTED)
def test_what_is_a_little_off_is_not_computed(name: str) -> None:
    first, array = COMPUTED[name]()
    array = array.copy()
    array.flat[3] *= np.float32(1 + 1e-5)
    assert relation(first, array) is None


def test_a_given_constant_is_itself_to_the_last_bit() -> None:
    first = op("Mul", op("MatMul", X, const(W)), const(S))
    off = W.copy()
    off[3, 3] = np.nextafter(off[3, 3], np.float32(9))
    assert relation(first, off) is None


@pytest.mark.parametrize("one", [1.0, 1 + 2**-23])
def test_nor_is_it_computed_of_itself(one: float) -> None:
    """x W 1 computes W 1, which is as near to W as a neighbour of it."""
    first = op("Mul", op("MatMul", X, const(W)), const(one))
    off = W.copy()
    off[3, 3] = np.nextafter(off[3, 3], np.float32(9))
    assert relation(first, off) is None


def test_a_zero_is_not_its_negative() -> None:
    zeros = W.copy()
    zeros[0] = 0.0
    negative = zeros.copy()
    negative[0] = -0.0
    found = relation(op("MatMul", X, const(zeros)), negative)
    assert found is not None
    (made,) = evaluate(ir_graph.Graph((), (found.value,)), {}, Reals())
    assert np.signbit(made[0]).all()


def test_what_is_exact_is_not_rounded() -> None:
    first = op("Mul", op("MatMul", X, const(W)), const(4.0))
    assert relation(first, W * 4) is not None
    off = W * 4
    off[1, 1] = np.nextafter(off[1, 1], np.float32(9))
    assert relation(first, off) is None


def test_doubles_are_not_read_with_the_room_of_floats() -> None:
    x = ir_graph.Input("x", TensorType(F64, (5, 6)))
    w, s = W.astype(np.float64), S.astype(np.float64)
    first = op("Mul", op("MatMul", x, ir_graph.constant(w)), ir_graph.constant(s))
    found = relate_constants(
        ir_graph.Graph((x,), (first,)),
        ir_graph.Graph((x,), (ir_graph.constant(w * s * (1 + 1e-9)),)),
    )[1]
    assert not found


P = ir_graph.Input("p", TensorType(F32, (1, 3, 5, 5)))
# The shape of a bias that is an input, and what it is added to.
BIASED: dict[str, tuple[int, Callable[[ir_graph.Value], ir_graph.Value]]] = {
    "Gemm and one number": (1, lambda b: op("Gemm", X, const(W), b, alpha=2.0, beta=0.5)),
    "Gemm and a row": (8, lambda b: op("Gemm", X, const(W), b)),
    "Conv": (4, lambda b: op("Conv", P, const(K), b)),
    "Add behind Gemm": (1, lambda b: op("Add", op("Gemm", X, const(W), b, beta=0.5), const(S))),
}


@pytest.mark.parametrize("name", BIASED)
def test_a_bias_that_is_computed_at_run_time_is_not_offered(name: str) -> None:
    size, build = BIASED[name]
    bias = ir_graph.Input("b", TensorType(F32, (size,)))
    graph = ir_graph.Graph((X, P, bias), (build(bias),))
    assert all(is_const(v) for v in foldable_constants(graph, 1 << 20))
    other = ir_graph.Graph((X, P, bias), (op("Sub", graph.outputs[0], const(T[:1])),))
    assert relate_constants(graph, other)[1] == ()


UNREADABLE = {
    "strings": (np.array([b"a", b"b"], object), np.array([b"a", b"c"], object)),
    "complex numbers": (np.array([1 + 2j]), np.array([1 - 2j])),
}
READABLE = {
    str(kind): (np.array([1, 0, 1], kind), np.array([1, 1, 0], kind))
    for kind in (
        bool, np.uint8, np.int64, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
        ml_dtypes.int4, ml_dtypes.uint4,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", UNREADABLE | READABLE)
def test_constants_of_every_type(name: str) -> None:
    """Those without numbers are never related; others are where their elements only moved."""
    first, second = map(ir_graph.constant, (UNREADABLE | READABLE)[name])
    _, found = relate_constants(ir_graph.Graph((), (first,)), ir_graph.Graph((), (second,)))
    assert not (name in UNREADABLE and found)
    for r in found:
        assert r.ulps is None
        assert (evaluate(ir_graph.Graph((), (r.value,)), {})[0] == second.load()).all()


def test_a_short_fraction_is_not_taken_for_a_rounded_product() -> None:
    """0.5 is a literal, though 1.5 times the float nearest to 1 / 3 rounds to it."""
    third = np.float32(1 / 3)
    for factor, is_related in ((1.5, False), (1.7, True)):
        scaled = op("Mul", op("Mul", X, const(third)), const(factor))
        found = relation(scaled, np.asarray(third * np.float32(factor)))
        assert (found is not None) is is_related
