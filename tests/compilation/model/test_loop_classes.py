"""Recurrent layers and Scan with symbolic lengths and numbers of sequences: one program for many
sizes, whose loops have a symbolic number of steps."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import superopt
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.kernels.llvm.calls import Loop
from superopt.te.expr.symbolic_int import SIZE_LEVELS
from tests.support.compilation.classes import Feeds, Sizes, check_classes
from tests.support.compilation.recurrent import USUAL
from tests.support.compilation.sequence_models import (
    FLOAT,
    Dim,
    audio_net,
    draw,
    recurrent_weights,
    scan_cell,
    sequence_model,
    text_recognizer,
)
from tests.support.ops.recurrent_reference import expected

pytest.importorskip("onnxruntime")
MODELS = {
    "recognizer": (text_recognizer, "width", lambda n, b: (b, 1, 16, n)),
    "audio": (audio_net, "time", lambda n, b: (b, 20, n)),
    "scan": (scan_cell, "time", lambda n, b: (n, b, 12)),
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


@pytest.mark.one_in(12)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_every_length(name: str, threads: int) -> None:
    """One class for each level of sizes serves all lengths from 1 to 300."""
    make, symbol, shape = MODELS[name]
    classes = check_classes(
        make(),
        lambda sizes: {"x": draw(*shape(sizes[symbol], 1), scale=1)},
        [{symbol: n} for n in (100, *range(1, 301))],
        threads,
    )
    assert len(classes) <= len(SIZE_LEVELS)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", [*reversed(MODELS)])
def test_lengths_and_numbers_of_sequences(name: str, threads: int) -> None:
    make, symbol, shape = MODELS[name]
    check_classes(
        make("batch"),
        lambda sizes: {"x": draw(*shape(sizes[symbol], sizes["batch"]), scale=1)},
        [{symbol: n, "batch": b} for n in (100, 64, 20, 1) for b in (2, 3, 17, 1)],
        threads,
    )


# Options by name; "lengths", "states" and "peepholes" are inputs.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "states": {"states": True},
    "sequence_lens": {"lengths": True, "states": True},
    "peepholes, clip": {"peepholes": True, "clip": 0.4, "states": True},
    "linear_before_reset": {"linear_before_reset": 1, "states": True},
}
ONLY = {"peepholes, clip": "LSTM", "linear_before_reset": "GRU"}
CELLS = [(k, o) for k, o in product(USUAL, OPTIONS) if ONLY.get(o, k) == k]


@pytest.mark.ci
@pytest.mark.one_in(24)
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(("kind", "option"), CELLS)
def test_options_of_layers(kind: str, option: str, direction: str, layout: int) -> None:
    """All results, for symbolic lengths and for three steps, which are unrolled."""
    for steps in ("time", 3):
        check_layer(kind, direction, layout, steps, **OPTIONS[option])


def check_layer(
    kind: str, direction: str, layout: int, steps: Dim, *, states: bool = False,
    lengths: bool = False, peepholes: bool = False, **attrs: Any,
) -> None:  # fmt: skip
    d, size, hidden = 1 + (direction == "bidirectional"), 6, 9
    weights = recurrent_weights("", kind, size, hidden, d)
    known = dict(weights)
    inputs: dict[str, tuple[int, tuple[Dim, ...]]] = {
        "x": (FLOAT, ("batch", steps, size) if layout else (steps, "batch", size))
    }
    given = ["x", "w", "r", "b", "", "", "", ""]
    state: tuple[Dim, ...] = ("batch", d, hidden) if layout else (d, "batch", hidden)
    if lengths:
        inputs["lengths"], given[4] = (TensorProto.INT32, ("batch",)), "lengths"
    for k, name in enumerate("hc" if kind == "LSTM" else "h"):
        if states:
            inputs[name], given[5 + k] = (FLOAT, state), name
    if peepholes:
        known["p"], given[7] = draw(d, 3 * hidden), "p"
    while not given[-1]:
        given.pop()
    attrs |= {"layout": 1} if layout else {}
    outputs = ["y", "yh", "yc"][: 3 if kind == "LSTM" else 2]
    node = helper.make_node(kind, given, outputs, hidden_size=hidden, direction=direction, **attrs)
    m = sequence_model([node], inputs, outputs, known)

    def feeds(sizes: Sizes) -> Feeds:
        out = {}
        for name, (_, shape) in inputs.items():
            at = [sizes[n] if isinstance(n, str) else n for n in shape]
            out[name] = draw(*at, scale=1)
        if lengths:
            most = sizes.get("time", steps)
            assert isinstance(most, int)
            out["lengths"] = np.arange(sizes["batch"], dtype=np.int32) * 5 % (most + 1)
        return out

    def reference(given: Feeds) -> Feeds:
        wanted = expected(kind, **given, **known, direction=direction, **attrs)
        return {k: x.astype(np.float32) for k, x in zip(outputs, wanted, strict=False)}

    some = [{"batch": b, "time": n} for b, n in ((3, 100), (1, 100), (3, 1), (3, 7))]
    if steps != "time":
        some = [{"batch": b} for b in (3, 2)]
    check_classes(m, feeds, some, 2, reference)


@pytest.mark.parametrize("axes", [(0, 0), (1, 2), (-2, 1)])
@pytest.mark.parametrize("backward", [(0, 0), (1, 0), (1, 1)])
def test_axes_and_directions_of_scan(axes: tuple[int, int], backward: tuple[int, int]) -> None:
    """Running sums of slices along any axis, and the states after the last step."""
    shape: list[Dim] = ["batch", 5]
    shape.insert(axes[0] % 3, "time")
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "x_t"], ["s1"]), helper.make_node("Neg", ["s1"], ["y_t"])],
        "body",
        [helper.make_tensor_value_info(k, FLOAT, None) for k in ("s", "x_t")],
        [helper.make_tensor_value_info(k, FLOAT, None) for k in ("s1", "y_t")],
    )
    node = helper.make_node(
        "Scan", ["s0", "x"], ["s", "y"], body=body, num_scan_inputs=1,
        scan_input_axes=[axes[0]], scan_output_axes=[axes[1]],
        scan_input_directions=[backward[0]], scan_output_directions=[backward[1]],
    )  # fmt: skip
    m = sequence_model([node], {"s0": (FLOAT, ("batch", 5)), "x": (FLOAT, shape)}, ["s", "y"], {})

    def feeds(sizes: Sizes) -> Feeds:
        at = [sizes[n] if isinstance(n, str) else n for n in shape]
        return {"s0": draw(sizes["batch"], 5, scale=1), "x": draw(*at, scale=1)}

    check_classes(m, feeds, [{"time": n, "batch": b} for n in (9, 1, 2, 30) for b in (4, 1, 3)])


def test_steps_without_states_are_shared_by_threads() -> None:
    body = helper.make_graph(
        [helper.make_node("MatMul", ["x_t", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y_t"])],
        "body",
        [helper.make_tensor_value_info("x_t", FLOAT, None)],
        [helper.make_tensor_value_info("y_t", FLOAT, None)],
    )
    node = helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1)
    m = sequence_model([node], {"x": (FLOAT, ("time", 3, 5))}, ["y"], {"w": draw(5, 7)})
    (made,) = check_classes(
        m, lambda sizes: {"x": draw(sizes["time"], 3, 5, scale=1)},
        [{"time": n} for n in (40, 1, 2, 41, 300)], threads=2,
    )  # fmt: skip
    variant = made.variant({"time": 40})
    assert variant is not None
    assert isinstance(variant[0], NativeSegment)
    (loop,) = (c for c in variant.program.calls if isinstance(c, Loop))
    assert loop.parallel
    assert loop.step_word is not None
    assert loop.chunk_word is not None


def test_a_length_that_may_be_zero_is_a_guard() -> None:
    """A convolution without padding leaves no step of a short sequence."""
    weights = recurrent_weights("", "GRU", 6, 8, 1) | {"k": draw(6, 4, 3)}
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["a"]),
        helper.make_node("Transpose", ["a"], ["t"], perm=[2, 0, 1]),
        helper.make_node("GRU", ["t", "w", "r", "b"], ["y"], hidden_size=8),
    ]
    m = sequence_model(nodes, {"x": (FLOAT, (1, 4, "time"))}, ["y"], weights)
    classes = check_classes(
        m, lambda sizes: {"x": draw(1, 4, sizes["time"], scale=1)},
        [{"time": n} for n in (100, 3, 4, 5, 18, 66)],
    )  # fmt: skip
    assert not any(c.formulas.admits({"time": n}) for c in classes for n in (1, 2))


def test_a_cached_program_has_loops(tmp_path: Path) -> None:
    onnx.save(audio_net(), tmp_path / "m.onnx")
    x = {"x": draw(1, 20, 90, scale=1)}
    first = superopt.compile(tmp_path / "m.onnx", specialize="never")
    wanted = first.run(x)
    again = superopt.compile(tmp_path / "m.onnx", specialize="never")
    np.testing.assert_array_equal(again.run(x)["y"], wanted["y"])
    longer = {"x": draw(1, 20, 200, scale=1)}
    np.testing.assert_array_equal(again.run(longer)["y"], first.run(longer)["y"])
    assert again._compiler is None  # nothing was compiled
