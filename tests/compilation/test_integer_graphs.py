"""Random graphs of 8-bit integers give what ONNX's definition in numpy gives
(scripts/fuzz_integers.py tries more)."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import superopt
from scripts.fuzz_integers import Counts, count_graph
from superopt.compilation.fallback import integer_fallback
from superopt.compilation.fallback.integer_mode import saturates_uint8_products
from superopt.cost.machine import processor_info
from superopt.plan.graph.partition import INTEGER_PRODUCT_REASON

DEFAULT_SEEDS = 60
SLOW_SEEDS = 600


@pytest.mark.one_in(10)
@pytest.mark.parametrize(
    "seed",
    [
        *range(DEFAULT_SEEDS),
        *(pytest.param(s, marks=pytest.mark.slow) for s in range(DEFAULT_SEEDS, SLOW_SEEDS)),
    ],
)
@pytest.mark.parametrize("kind", ["exact", "qdq"])
def test_random_graphs_have_no_wrong_element(kind: str, seed: int) -> None:
    counts = Counts()
    count_graph(counts, kind, seed)
    assert counts.graphs == 1
    assert counts.elements > 0
    assert not counts.wrong


def test_a_wrong_element_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    run = superopt.Executable.run

    def run_inexactly(self: superopt.Executable, feeds: dict[str, np.ndarray]) -> object:
        found = {n: np.array(a) for n, a in run(self, feeds).items()}
        for a in found.values():
            a.reshape(-1)[:1] += 2
        return found

    monkeypatch.setattr(superopt.Executable, "run", run_inexactly)
    counts = Counts()
    count_graph(counts, "exact", 2)
    assert counts.wrong_elements >= 1
    assert counts.largest == 2
    assert "seed 2" in counts.wrong[0]


def integers(shape: tuple[int, ...], dtype: type, seed: int) -> np.ndarray:
    ends = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(ends.min, ends.max + 1, shape).astype(dtype)


def model(
    node: onnx.NodeProto, inputs: dict[str, np.ndarray], constants: dict[str, np.ndarray]
) -> onnx.ModelProto:
    to_kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info(n, to_kind(a.dtype), a.shape) for n, a in inputs.items()],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT32, None)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(("group", "outer"), [(2, 32), (4, 8), (16, 16), (16, 48), (8, 8)])
def test_grouped_convolutions_have_kernels(group: int, outer: int) -> None:
    """Split by groups, or of one channel in a group; also with zero points of channels, which
    onnxruntime rejects."""
    x, w = integers((2, 16, 7, 9), np.uint8, 1), integers((outer, 16 // group, 3, 3), np.uint8, 2)
    v = integers((outer,), np.uint8, 3)
    node = helper.make_node("ConvInteger", ["x", "w", "", "v"], ["y"], group=group)
    exe = superopt.compile(model(node, {"x": x}, {"w": w, "v": v}), threads=1)
    assert not exe.fallback_nodes({})
    parts = []
    for k, (own, zero) in enumerate(zip(np.split(w, group), np.split(v, group), strict=True)):
        size = 16 // group
        image = x[:, k * size : (k + 1) * size].astype(np.int64)
        kernel = own.astype(np.int64) - zero[:, None, None, None]
        views = np.lib.stride_tricks.sliding_window_view(image, (3, 3), axis=(2, 3))
        parts.append(np.einsum("nchwij,ocij->nohw", views, kernel))
    np.testing.assert_array_equal(exe.run({"x": x})["y"], np.concatenate(parts, 1))


@pytest.mark.parametrize("terms", [1, 64, 256, 257, 700])
def test_products_of_two_variables_are_exact_where_onnxruntime_saturates(
    terms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = integers((2, 5, terms), np.uint8, 1), integers((2, terms, 9), np.int8, 2)
    x[0], w[0, :, 0] = 255, -128
    feeds = {"x": x, "w": w, "z": np.uint8(3), "v": np.int8(127)}
    node = helper.make_node("MatMulInteger", [*feeds], ["y"])
    m = model(node, {n: np.asarray(a) for n, a in feeds.items()}, {})
    exact_there = not saturates_uint8_products(processor_info()[1])
    reasons = {why for _, why in superopt.compile(m).fallback_nodes({})}
    assert reasons == ({INTEGER_PRODUCT_REASON} if exact_there else set())
    monkeypatch.setattr(integer_fallback, "saturates_uint8_products", lambda flags: True)
    exe = superopt.compile(m, threads=1)
    assert not exe.fallback_nodes({})
    wanted = (x.astype(np.int64) - 3) @ (w.astype(np.int64) - 127)
    np.testing.assert_array_equal(exe.run(feeds)["y"], wanted.astype(np.int32))
