"""What `verify` says of models that nobody told it about: merged weights, near misses, odd ones."""

import gc
import time
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import superopt
from superopt.report.data.report import Verdict

RNG = np.random.default_rng(3)
Weights = dict[str, np.ndarray]


def drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model(
    body: str,
    weights: Weights | None = None,
    inputs: str = "float[2, 6] x",
    outputs: str = "float[2] y",
) -> onnx.ModelProto:
    """A model of opset 17; the shapes of its outputs are inferred."""
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    found = parser.parse_model(f"{head} g ({inputs}) => ({outputs}) {{ {body} }}")
    for name, array in (weights or {}).items():
        found.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    for o in found.graph.output:
        if o.name not in {i.name for i in found.graph.input}:
            o.type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(found, strict_mode=True, data_prop=True)


def verify(a: onnx.ModelProto, b: onnx.ModelProto, method: str = "index") -> Verdict:
    return superopt.verify(a, b, method=method, limit=10)  # type: ignore[no-any-return]


W, V, U, S, B = drawn(6, 4), drawn(6, 4), drawn(4, 3), drawn(4), drawn(4)
K, BN = drawn(5, 3, 3, 3), [drawn(5), drawn(5), drawn(5), RNG.uniform(0.5, 2, 5)]
SCALE = (BN[0] / np.sqrt(BN[3] + 1e-5)).astype(np.float32)
NORM = {"k": K, **{n: a.astype(np.float32) for n, a in zip("gbmv", BN, strict=True)}}
Pair = tuple[onnx.ModelProto, onnx.ModelProto]


def folded_norm() -> Pair:
    image = "float[1, 3, 8, 8] x"
    a = model("c = Conv(x, k) y = BatchNormalization(c, g, b, m, v)", NORM, image)
    shift = (BN[1] - BN[2] * (BN[0] / np.sqrt(BN[3] + 1e-5))).astype(np.float32)
    w = {"k": K * SCALE[:, None, None, None], "b": shift}
    return a, model("y = Conv(x, k, b)", w, image)


EQUAL: dict[str, Callable[[], Pair]] = {
    "merged side by side": lambda: (
        model("a = MatMul(x, w) b = MatMul(x, v) y = Concat<axis = 1>(a, b)", {"w": W, "v": V}),
        model("y = MatMul(x, w)", {"w": np.concatenate([W, V], 1)})),
    "merged one above the other": lambda: (
        model("a = MatMul(x, w) b = MatMul(z, v) y = Add(a, b)", {"w": W, "v": V},
              "float[2, 6] x, float[2, 6] z"),
        model("c = Concat<axis = 1>(x, z) y = MatMul(c, w)", {"w": np.concatenate([W, V])},
              "float[2, 6] x, float[2, 6] z")),
    "scaled ahead": lambda: (
        model("a = MatMul(x, w) b = Mul(a, s) y = Add(b, t)", {"w": W, "s": S, "t": B}),
        model("y = Gemm(x, w, t)", {"w": W * S, "t": B})),
    "multiplied ahead": lambda: (
        model("a = MatMul(x, w) y = MatMul(a, u)", {"w": W, "u": U}),
        model("y = MatMul(x, w)", {"w": W @ U})),
    "turned round ahead": lambda: (
        model("y = Gemm<transB = 1>(x, w)", {"w": np.ascontiguousarray(W.T)}),
        model("y = MatMul(x, w)", {"w": W})),
    "padded and cut off": lambda: (
        model("y = MatMul(x, w)", {"w": W}),
        model("a = MatMul(x, w) y = Slice(a, i, j, k)",
              {"w": np.pad(W, ((0, 0), (0, 4))), "i": np.array([0]), "j": np.array([4]),
               "k": np.array([1])})),
    "a batch norm in a kernel": folded_norm,
    "any batch": lambda: (
        model("a = MatMul(x, w) b = MatMul(x, v) y = Add(a, b)", {"w": W, "v": V},
              "float[batch, 6] x"),
        model("y = MatMul(x, w)", {"w": W + V}, "float[batch, 6] x")),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUAL)
@pytest.mark.parametrize("method", ["index", "auto"])
def test_what_was_computed_ahead_is_proved(name: str, method: str) -> None:
    found = verify(*EQUAL[name](), method)
    assert found.decision == "proved", found
    assert "where both are defined" in found.reason
    assert "ulp" in found.reason or "in another order" in found.reason


def bit(a: np.ndarray) -> np.ndarray:
    """One element is the next float."""
    out = a.copy()
    out.flat[2] = np.nextafter(out.flat[2], np.float32(99))
    return out


TWO = "float[2, 6] x, float[2, 6] z"
SQUARE = "float[4, 4] x"
IMAGE = "float[1, 3, 8, 8] x"
NEAR_MISSES: dict[str, Callable[[], Pair]] = {
    "one bit of a weight": lambda: (
        model("y = MatMul(x, w)", {"w": W}), model("y = MatMul(x, w)", {"w": bit(W)})),
    "one bit of a weight that is scaled": lambda: (
        model("a = MatMul(x, w) y = Mul(a, s)", {"w": W, "s": S}),
        model("a = MatMul(x, w) y = Mul(a, s)", {"w": bit(W), "s": S})),
    "one bit of a merged weight": lambda: (
        model("a = MatMul(x, w) b = MatMul(x, v) y = Concat<axis = 1>(a, b)", {"w": W, "v": V}),
        model("y = MatMul(x, w)", {"w": bit(np.concatenate([W, V], 1))})),
    "one bit of a bias": lambda: (
        model("a = MatMul(x, w) y = Add(a, s)", {"w": W, "s": S}),
        model("a = MatMul(x, w) y = Add(a, s)", {"w": W, "s": bit(S)})),
    "one bit of a number": lambda: (
        model("y = Mul(x, s)", {"s": np.float32(0.7)}),
        model("y = Mul(x, s)", {"s": np.nextafter(np.float32(0.7), np.float32(1))})),
    "parts in another order": lambda: (
        model("a = MatMul(x, w) b = MatMul(x, v) y = Concat<axis = 1>(a, b)", {"w": W, "v": V}),
        model("y = MatMul(x, w)", {"w": np.concatenate([V, W], 1)})),
    "scaled by the other one": lambda: (
        model("a = MatMul(x, w) b = Mul(a, s) y = Add(b, t)", {"w": W, "s": S, "t": B}),
        model("y = Gemm(x, w, t)", {"w": W * B, "t": B})),
    "the shift is not scaled": lambda: (
        model("a = MatMul(x, w) b = Add(a, t) y = Mul(b, s)", {"w": W, "s": S, "t": B}),
        model("y = Gemm(x, w, t)", {"w": W * S, "t": B})),
    "an axis": lambda: (
        model("y = Softmax<axis = 0>(x)", inputs=SQUARE),
        model("y = Softmax<axis = 1>(x)", inputs=SQUARE)),
    "an epsilon": lambda: (
        model("y = LayerNormalization<epsilon = 1e-5>(x, s, t)", {"s": S, "t": B}, SQUARE),
        model("y = LayerNormalization<epsilon = 1.001e-5>(x, s, t)", {"s": S, "t": B}, SQUARE)),
    "a pad": lambda: (
        model("y = Conv<pads = [1, 1, 0, 0]>(x, k)", {"k": K}, IMAGE),
        model("y = Conv<pads = [0, 0, 1, 1]>(x, k)", {"k": K}, IMAGE)),
    "operands": lambda: (model("y = Sub(x, z)", inputs=TWO), model("y = Sub(z, x)", inputs=TWO)),
    "which input": lambda: (
        model("a = MatMul(x, w) y = Add(a, b)", {"w": W, "b": S}, TWO),
        model("a = MatMul(z, w) y = Add(a, b)", {"w": W, "b": S}, TWO)),
    "outputs": lambda: (
        model("y = Relu(x) q = Neg(x)", outputs="float[2] y, float[2] q"),
        model("q = Relu(x) y = Neg(x)", outputs="float[2] y, float[2] q")),
    "rounded between": lambda: (
        model("y = Identity(x)"), model("a = Cast<to = 10>(x) y = Cast<to = 1>(a)")),
    "a mask of another size": lambda: (
        model("a = Mul(x, m) y = Softmax(a)", {"m": np.float32(-1e4)}),
        model("a = Mul(x, m) y = Softmax(a)", {"m": np.float32(-1e5)})),
}  # fmt: skip
LONG = {("auto", "one bit of a bias"), ("auto", "one bit of a merged weight")}  # ten seconds each


@pytest.mark.one_in(25)
@pytest.mark.parametrize(
    ("method", "name"),
    [
        pytest.param(method, name, marks=pytest.mark.slow if (method, name) in LONG else ())
        for method in ("index", "auto")
        for name in NEAR_MISSES
    ],
)
def test_near_misses_are_not_proved(name: str, method: str) -> None:
    found = verify(*NEAR_MISSES[name](), method)
    assert found.decision != "proved", found
    assert "unknown" in {o.decision for o in found.outputs} or found.decision == "differs"


def test_that_one_side_is_undefined_is_said_or_seen() -> None:
    a, b = model("y = Identity(x)"), model("a = Sqrt(x) y = Mul(a, a)")
    assert verify(a, b, "auto").decision == "differs"
    for method in ("index", "rules"):
        found = verify(a, b, method)
        assert found.decision != "proved" or "where both are defined" in found.reason


def test_what_floats_differ_in_is_refuted_though_it_is_proved() -> None:
    big = {"m": np.float32(1e30)}
    found = verify(model("a = Mul(x, m) y = Mul(a, m)", big), model("y = Mul(x, m)", big), "auto")
    assert found.decision == "differs"


ODD: dict[str, tuple[Callable[[], Pair], str, str]] = {
    "an input is an output": (
        lambda: (model("q = Relu(x)", outputs="float[2, 6] x, float[2] q"),
                 model("q = Relu(x)", outputs="float[2, 6] x, float[2] q")), "proved", ""),
    "an output is a constant": (
        lambda: (model("y = Sub(x, x)"), model("y = Identity(c)", {"c": np.zeros((2, 6), "f")})),
        "proved", ""),
    "other names of inputs": (
        lambda: (model("y = Relu(x)"), model("y = Relu(z)", inputs="float[2, 6] z")),
        "differs", "inputs are x and z"),
    "inputs in another order": (
        lambda: (model("y = Sub(x, z)", inputs=TWO),
                 model("y = Sub(x, z)", inputs="float[2, 6] z, float[2, 6] x")),
        "differs", "inputs are x, z and z, x"),
    "another type": (
        lambda: (model("y = Relu(x)"), model("y = Relu(x)", inputs="double[2, 6] x",
                                             outputs="double[2] y")), "differs", "f32 and f64"),
    "another rank of an output": (
        lambda: (model("y = Relu(x)"),
                 model("a = Relu(x) y = Flatten<axis = 0>(a)")), "unknown", "1 output of 1"),
    "empty tensors": (
        lambda: (model("y = Relu(x)", inputs="float[0, 6] x"),
                 model("a = Relu(x) y = Relu(a)", inputs="float[0, 6] x")), "proved", ""),
    "other names of sizes": (
        lambda: (model("a = Relu(x) y = Relu(a)", inputs="float[n, 6] x"),
                 model("y = Relu(x)", inputs="float[m, 6] x")), "unknown", "1 output of 1"),
    "another default of an input": (
        lambda: (model("y = Add(x, c)", {"c": np.float32(1)}, "float[2, 6] x, float c"),
                 model("y = Add(x, c)", {"c": np.float32(2)}, "float[2, 6] x, float c")),
        "differs", "input c has different default values"),
    "no expression": (
        lambda: (model("y = Det(x)", inputs=SQUARE),
                 model("a = Transpose(x) y = Det(a)", inputs=SQUARE)), "unknown", "1 output of 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_models_have_a_clear_verdict(name: str) -> None:
    pair, decision, reason = ODD[name]
    found = verify(*pair())
    assert found.decision == decision, found
    assert reason in found.reason
    assert all(o.reason for o in found.outputs)


@pytest.mark.ci
def test_the_limit_is_kept() -> None:
    """A large sum of products, twice written in ways that take long."""
    deep = " ".join(f"a{k} = MatMul(a{k - 1}, w) b{k} = Tanh(a{k})" for k in range(1, 12))
    body = deep.replace("MatMul(a0", "MatMul(x").replace("MatMul(a", "MatMul(b")
    w = {"w": drawn(6, 6), "v": drawn(6, 6)}
    a, b = model(f"{body} y = Add(b11, b3)", w), model(f"{body} y = MatMul(b11, v)", w)
    superopt.verify(a, a, method="index")  # loads Z3 and the operators, which no limit bounds
    gc.collect()
    gc.freeze()  # what other tests hold, to look through which takes seconds
    try:
        for limit in (1.0, 0.5):
            begin = time.process_time()  # what other processes take meanwhile is not ours to keep
            found = superopt.verify(a, b, method="index", limit=limit)
            assert found.decision == "unknown"
            assert time.process_time() - begin < limit * 1.2 + 1.0  # and reading the models
    finally:
        gc.unfreeze()
