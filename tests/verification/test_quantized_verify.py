"""`verify` of quantized models: equal within steps, and refuted where a constant is wrong."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest

import superopt
from superopt.ort import serve
from superopt.ort.worker import Worker
from superopt.report.data import codec
from superopt.report.data.report import Verdict
from superopt.report.text.report_text import verdict_text
from tests.support.quantized_models import QuantizedLayers

pytest.importorskip("onnxruntime")


def verify(a: QuantizedLayers, b: QuantizedLayers, **options: object) -> Verdict:
    found = superopt.verify(a.model(), b.model(), method="numeric", limit=60, **options)
    assert isinstance(found, Verdict)
    return found


@pytest.mark.parametrize("depth", [2, 3, 8])
@pytest.mark.parametrize("dequantize", [True, False])
def test_sums_in_another_order_are_equal_within_steps(dequantize: bool, depth: int) -> None:
    a, b = (QuantizedLayers(depth, 512, split, dequantize) for split in (False, True))
    found = verify(a, b)
    assert found.decision == "within_steps", found.reason
    assert found.steps
    step = float(a.constants[f"s{depth}"]) if dequantize else 1.0
    assert found.check is not None
    (y,) = found.check.outputs
    assert y.steps == found.steps <= 1 + 2 * (y.original_steps or 0)
    assert step <= y.max_error * 1.001 <= 1.002 * (y.steps + (y.original_steps or 0)) * step
    assert "equal within quantization steps" in verdict_text(found)
    assert '"steps": ' in codec.dumps(found)


def test_no_step_may_be_allowed() -> None:
    a, b = (QuantizedLayers(split=s, rows=512) for s in (False, True))
    found = verify(a, b, max_steps=0)
    assert found.decision == "differs"
    assert "0 allowed" in found.reason
    assert verify(a, b, max_steps=2).decision == "within_steps"


def test_equal_results_have_no_steps() -> None:
    a = QuantizedLayers()
    b = QuantizedLayers()
    b.constants["b0"] = b.constants["b0"].copy()
    b.constants["b0"][0] += np.float32(1e-9)
    found = superopt.verify(a.model(), b.model(), method="numeric")
    assert (found.decision, found.steps) in (("agrees", 0), ("proved", None))


def change_constant(name: str, depth: int) -> QuantizedLayers:
    """The layers with one constant wrong."""
    layers = QuantizedLayers(depth=depth, split=True)
    value = layers.constants[name]
    if name[0] == "w":
        value = value.copy()
        value[3, 5] += 1 if value[3, 5] < 127 else -1
    elif name[0] == "z":
        value = np.uint8(value + 1)
    elif name[0] == "b":
        value = value.copy()
        value[7] += np.float32(0.01)
    else:
        value = np.float32(value * 1.004)
    layers.constants[name] = value
    return layers


@pytest.mark.parametrize("depth", [1, 3, 8])
@pytest.mark.parametrize("name", ["w0", "t0", "b0", "s0", "z0", "s1"])
@pytest.mark.parametrize("dequantize", [True, False])
def test_a_wrong_constant_is_refuted(name: str, depth: int, dequantize: bool) -> None:
    """Also behind eight layers, where each result differs by a step anyway."""
    a = QuantizedLayers(depth=depth, dequantize=dequantize)
    b = change_constant(name, depth)
    b.dequantize = dequantize
    found = verify(a, b)
    assert found.decision == "differs", (found.reason, found.steps)
    assert found.check is not None
    for o in found.check.outputs:
        assert all(map(math.isfinite, (o.max_error, o.mean_error, o.p99_error, o.rms)))
    assert "inputs: " in found.reason


@pytest.mark.parametrize("name", ["w7", "t7", "b7", "s8", "z8"])
def test_a_wrong_constant_of_the_last_layer_is_refuted(name: str) -> None:
    found = verify(QuantizedLayers(depth=8), change_constant(name, 8))
    assert found.decision == "differs", (found.reason, found.steps)


def test_a_range_that_is_moved_is_not_called_equal() -> None:
    """No input was drawn for which inner values saturate: they would differ."""
    found = verify(QuantizedLayers(depth=8), change_constant("z1", 8))
    assert found.decision == "unknown"
    assert "other scales or zero points" in found.reason
    assert verify(QuantizedLayers(depth=8), change_constant("z7", 8)).decision == "differs"


def test_results_that_are_not_on_the_grid_are_refuted() -> None:
    a, b = QuantizedLayers(depth=1), QuantizedLayers(depth=1)
    m = b.model()
    m.graph.node[-1].input[0] = "q1"
    del m.graph.node[-2:]
    m.graph.node[-1].output[0] = "y"  # the sum, without its quantization
    found = superopt.verify(a.model(), m, method="numeric")
    assert found.decision == "differs"
    assert "quantization steps" in found.reason


def test_integers_are_multiplied_exactly_on_every_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A result of onnxruntime that saturates is no measure of how far rounding leads."""
    load, asked = Worker.load, []

    def record(self: Worker, model: object, **options: object) -> object:
        if "exact_integers" in options:  # else it is asked whether the model is valid
            asked.append(options["exact_integers"])
        return load(self, model, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Worker, "load", record)
    verify(QuantizedLayers(1), QuantizedLayers(1, split=True))
    assert len(asked) >= 2
    assert all(asked)


@pytest.mark.parametrize("exact", [True, False])
def test_what_the_worker_asks_of_onnxruntime(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(serve, "load_session", lambda *given: asked.append(given))
    header = {"do": "load", "id": 1, "threads": 1, "level": "all", "exact_integers": exact}
    given = {**header, "models": ["m.onnx"]}
    monkeypatch.setattr(serve, "_model_source", lambda entry, blobs: entry)
    serve._handle_request(given, [], {}, {}, threading.Event(), lambda *a: None)
    assert asked == [("m.onnx", 1, "all", exact)]
