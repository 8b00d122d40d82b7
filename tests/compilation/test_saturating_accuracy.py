"""`accuracy()` sees products of integers that saturate, or round otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.compilation.model.executable import Executable
from tests.support.quantized_models import (
    FLOAT,
    INT32,
    LAYER_WIDTH,
    U8,
    QuantizedLayers,
    onnx_model,
)
from tests.support.saturating_products import saturating_matmul

Feeds = Mapping[str, np.ndarray]
Run = Callable[[Feeds], np.ndarray]
Case = tuple[onnx.ModelProto, Run]
Product = Callable[[np.ndarray, np.ndarray], np.ndarray]


def exact_matmul(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x.astype(np.int32) @ w.astype(np.int32)


def weights(kind: str, columns: int = 24) -> np.ndarray:
    """`full`: of the whole range. `marginal`: one pair of one column saturates, if both values are
    near 255."""
    rng = np.random.default_rng(0)
    if kind == "full":
        return rng.integers(-128, 128, (LAYER_WIDTH, columns)).astype(np.int8)
    w = rng.integers(-63, 64, (LAYER_WIDTH, columns)).astype(np.int8)
    w[4:6, 7] = 65, 64
    return w


def matmul_integer(kind: str, product: Product) -> Case:
    w = weights(kind)
    nodes = [helper.make_node("MatMulInteger", ["x", "w", "z"], ["y"])]
    known = {"w": w, "z": np.uint8(128)}
    net = onnx_model(nodes, {"x": (U8, [40, LAYER_WIDTH])}, ("y", INT32), known)
    return net, lambda feeds: product(feeds["x"], w) - 128 * w.sum(axis=0, dtype=np.int32)


def dynamically_quantized(kind: str, product: Product) -> Case:
    w = weights(kind)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=FLOAT),
        helper.make_node("Mul", ["f", "s"], ["y"]),
    ]
    net = onnx_model(nodes, {"x": (FLOAT, [40, LAYER_WIDTH])}, ("y", FLOAT), {"w": w})

    def run(feeds: Feeds) -> np.ndarray:
        x = feeds["x"]
        low, high = np.minimum(x.min(), 0), np.maximum(x.max(), 0)
        scale = np.float32((high - low) / np.float32(255))
        zero = np.rint(-low / scale)
        q = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)
        total = product(q, w) - int(zero) * w.sum(axis=0, dtype=np.int32)
        return np.asarray(total.astype(np.float32) * scale)

    return net, run


def quantize(x: np.ndarray, scale: np.float32, zero: int) -> np.ndarray:
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)


def layers(kind: str, product: Product, depth: int = 2) -> Case:
    held = QuantizedLayers(depth, 40)
    c = held.constants
    for k in range(depth):
        c[f"w{k}"] = weights(kind, LAYER_WIDTH)

    def run(feeds: Feeds) -> np.ndarray:
        q = quantize(feeds["x"], c["s0"], c["z0"])
        for k in range(depth):
            w = c[f"w{k}"]
            total = product(q, w) - int(c[f"z{k}"]) * w.sum(axis=0, dtype=np.int32)
            h = total.astype(np.float32) * (c[f"s{k}"] * c[f"t{k}"]) + c[f"b{k}"]
            q = quantize(h, c[f"s{k + 1}"], c[f"z{k + 1}"])
        return (q.astype(np.float32) - np.float32(c[f"z{depth}"])) * c[f"s{depth}"]

    return held.model(), run


CASES = {"MatMulInteger": matmul_integer, "dynamic": dynamically_quantized, "QDQ": layers}


# A marginal sum of the QDQ layers is off by a tenth of a step, which is rounded away.
@pytest.mark.parametrize(
    ("case", "kind"), [*((c, "full") for c in CASES), *((c, "marginal") for c in [*CASES][:2])]
)
def test_saturating_products_are_found(
    case: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default, on two sets of inputs; and what is right is not called wrong."""
    net, right = CASES[case](kind, exact_matmul)
    exe = superopt.compile(net)
    assert exe.accuracy().passed
    _, wrong = CASES[case](kind, saturating_matmul)
    for run, passed in ((right, True), (wrong, False)):
        monkeypatch.setattr(Executable, "run", lambda self, feeds, run=run: {"y": run(feeds)})
        found = exe.accuracy()
        assert found.passed == passed, str(found)


@pytest.mark.parametrize("where", ["input", "output"])
def test_ties_that_are_rounded_away_from_zero_are_found(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales are powers of two here, so that ties are exact."""
    held = QuantizedLayers(1, 40)
    c = held.constants
    c |= {"s0": np.float32(2**-5), "s1": np.float32(2**-3), "t0": np.float32(2**-1)}
    c["w0"] = np.clip(c["w0"], -3, 3)
    c["b0"] = np.zeros(LAYER_WIDTH, np.float32)
    exe = superopt.compile(held.model())
    assert exe.accuracy().passed

    def away(x: np.ndarray) -> np.ndarray:
        return np.sign(x) * np.floor(np.abs(x) + 0.5)

    def run(self: Executable, feeds: Feeds) -> dict[str, np.ndarray]:
        first, second = (away, np.rint) if where == "input" else (np.rint, away)
        q = np.clip(first(feeds["x"] / c["s0"]) + c["z0"], 0, 255)
        h = ((q - c["z0"]) @ c["w0"].astype(np.float64)) * float(c["s0"]) * float(c["t0"])
        p = np.clip(second(h / c["s1"]) + c["z1"], 0, 255)
        return {"y": ((p - c["z1"]) * c["s1"]).astype(np.float32)}

    monkeypatch.setattr(Executable, "run", run)
    assert not exe.accuracy().passed


def test_the_report_counts_steps() -> None:
    exe = superopt.compile(QuantizedLayers(3, 512).model())
    found = exe.accuracy()
    (y,) = found.outputs
    assert y.steps is not None
    assert "steps" in str(found)
    assert found.passed
