"""Outputs of models that quantize on the way: what rounding near ties does to them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import superopt
from superopt.check.near_ties import NearTies, worst_near_ties
from superopt.compilation.model.executable import Executable
from superopt.te.expr.dtype import F64
from tests.support.quantized_models import FLOAT, QuantizedLayers, onnx_model


def test_exact_ties_and_other_values_stay() -> None:
    x = np.array([0.5, 1.5, -2.5, 0.25, 7.75, 1e6 + 0.5])
    (rounded,) = [NearTies().apply("round", [x], [F64], F64)]
    np.testing.assert_array_equal(rounded, np.rint(x))


def test_values_near_ties_become_either_neighbour() -> None:
    x = np.tile([0.5 + 1e-8, 1.5 - 1e-8], 1000)
    (found,) = worst_near_ties(lambda d: [d.apply("round", [x], [F64], F64)], [np.rint(x)])
    assert found is not None
    off = found != np.rint(x)
    assert 0.3 < off.mean() < 0.7


def test_the_farthest_sample_is_taken() -> None:
    samples = iter([np.ones(2), np.full(2, 5.0), np.full(2, -3.0), np.zeros(2)])
    (found,) = worst_near_ties(lambda d: [next(samples)], [np.zeros(2)])
    np.testing.assert_array_equal(found, np.full(2, 5.0))


def float_output(split: bool) -> object:
    """Layers whose last result is not quantized: a sum of floats."""
    layers = QuantizedLayers(4, 512, split)
    m = layers.model()
    nodes = [n for n in m.graph.node if n.output[0] not in ("y", "q4")]
    nodes.append(helper.make_node("Relu", ["h3"], ["y"]))
    inputs: dict[str, tuple[int, list[int | str]]] = {"x": (FLOAT, [512, 48])}
    known = dict(layers.constants)
    if split:
        known["halves"] = np.int64([24, 24])
    return onnx_model(nodes, inputs, ("y", FLOAT), known)


def test_neighbours_are_excused_and_wrong_results_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("onnxruntime")
    assert superopt.verify(float_output(False), float_output(True), method="numeric").decision in (
        "agrees", "proved"
    )  # fmt: skip
    exe = superopt.compile(float_output(False))
    assert exe.accuracy().passed
    run = Executable.run

    def wrong(self: Executable, feeds: object) -> dict[str, np.ndarray]:
        found = run(self, feeds)["y"].copy()  # type: ignore[arg-type]
        found[3:5] *= np.float32(1.5)
        return {"y": found}

    monkeypatch.setattr(Executable, "run", wrong)
    assert not exe.accuracy().passed


def test_a_value_near_a_tie_may_become_its_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    """And values that are not near one may not."""
    rows = 20_000
    w = np.random.default_rng(0).standard_normal((48, 8)).astype(np.float32)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("MatMul", ["d", "w"], ["y"]),
    ]
    s = np.float32(0.2345)
    known = {"s": s, "z": np.uint8(128), "w": w}
    exe = superopt.compile(
        onnx_model(nodes, {"x": (FLOAT, [rows, 48])}, ("y", FLOAT), known)
    )  # fmt: skip
    moves_near = True

    def run(self: Executable, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        v = feeds["x"].astype(np.float64) / float(s)
        from_tie = np.abs(v - np.floor(v) - 0.5)
        size = np.abs(v)  # float32 divides to within 6e-8 of it
        near = (from_tie > 7e-8 * size) & (from_tie < 2e-7 * (size + 4))
        moved = near if moves_near else np.abs(from_tie - 0.1) < 0.01
        assert moved.any()
        others = np.floor(v) + np.ceil(v) - np.rint(v)
        q = np.clip(np.where(moved, others, np.rint(v)), -128, 127) * float(s)
        return {"y": (q @ w).astype(np.float32)}

    monkeypatch.setattr(Executable, "run", run)
    assert exe.accuracy(sets=1).passed
    moves_near = False
    assert not exe.accuracy(sets=1).passed
