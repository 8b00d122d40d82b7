"""ScatterND and ScatterElements as kernels, against ONNX's definition: updates in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import superopt
from superopt import ort
from superopt.compilation.cpu.native_segment import NativeSegment
from superopt.errors import UsageError

Feeds = dict[str, np.ndarray]
MERGED: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": np.maximum,
    "min": np.minimum,
}
# Data, and for ScatterND the shape of indices, for ScatterElements the axis and its updates.
SLICES = [((40, 96), (60, 1)), ((9, 8, 7), (50, 2)), ((500,), (70, 1)), ((6, 7, 5, 3), (4, 25, 2))]
ELEMENTS = [((40, 64), 0, 60), ((3, 50, 17), 1, 40), ((5, 300), 1, 90), ((400,), 0, 30)]
CASES = [*(("ScatterND", c) for c in SLICES), *(("ScatterElements", c) for c in ELEMENTS)]


def scattered(
    op: str, data: np.ndarray, indices: np.ndarray, updates: np.ndarray, reduction: str, axis: int
) -> np.ndarray:
    out, merge = data.copy(), MERGED[reduction]
    if op == "ScatterND":
        for k in np.ndindex(*indices.shape[:-1]):
            at = tuple(indices[k])
            out[at] = merge(out[at], updates[k])
        return out
    for k in np.ndindex(*indices.shape):
        at = (*k[:axis], indices[k], *k[axis + 1 :])
        out[at] = merge(out[at], updates[k])
    return out


def model(
    op: str, feeds: Feeds, known: tuple[str, ...], reduction: str, axis: int
) -> onnx.ModelProto:
    attrs = {"axis": axis} if op == "ScatterElements" else {}
    nodes = [helper.make_node(op, ["x", "i", "u"], ["y"], reduction=reduction, **attrs)]
    given = {k: v for k, v in feeds.items() if k not in known}
    graph = helper.make_graph(
        nodes, "scatter",
        [
            helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for k, v in given.items()
        ],
        [
            helper.make_tensor_value_info(
                "y", helper.np_dtype_to_tensor_dtype(feeds["x"].dtype), feeds["x"].shape
            )
        ],
        [numpy_helper.from_array(feeds[k], k) for k in known],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def drawn(op: str, case: tuple[Any, ...], dtype: type, index: type) -> tuple[Feeds, int]:
    """Indices come again, and are negative, too."""
    rng = np.random.default_rng(0)
    shape = case[0]
    x = (rng.standard_normal(shape) * 5).astype(dtype)
    if op == "ScatterND":
        depth = case[1][-1]
        named = [rng.integers(-n, n, case[1][:-1]) for n in shape[:depth]]
        i, axis = np.stack(named, -1), 0
        u = rng.standard_normal((*case[1][:-1], *shape[depth:])) * 5
    else:
        axis, count = case[1:]
        some = (*shape[:axis], count, *shape[axis + 1 :])
        i, u = rng.integers(-shape[axis], shape[axis], some), rng.standard_normal(some) * 5
    return {"x": x, "i": i.astype(index), "u": u.astype(dtype)}, axis


def kernels(exe: superopt.Executable) -> int:
    (step,) = exe.variant({})
    assert isinstance(step, NativeSegment)
    return sum(p[-1].name == "y" for p in (k.params for k in step.code.program.kernels.values()))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("known", [(), ("i",), ("x",)], ids=str)
@pytest.mark.parametrize("reduction", MERGED)
@pytest.mark.parametrize(
    ("op", "case"),
    [*(("ScatterND", c) for c in SLICES), *(("ScatterElements", c) for c in ELEMENTS)],
)
def test_scatters(op: str, case: tuple[Any, ...], reduction: str, known: tuple[str, ...]) -> None:
    threads = 1 + (len(known) % 2)
    feeds, axis = drawn(op, case, np.float32, np.int64)
    exe = superopt.compile(model(op, feeds, known, reduction, axis), threads=threads)
    assert not exe.fallback_nodes({})
    assert kernels(exe) == 1
    given = {k: v for k, v in feeds.items() if k not in known}
    wanted = scattered(op, feeds["x"], feeds["i"], feeds["u"], reduction, axis)
    for _ in range(2):
        np.testing.assert_allclose(exe.run(given)["y"], wanted, rtol=1e-6)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.int64])
def test_other_types(dtype: type, index: type) -> None:
    feeds, axis = drawn("ScatterElements", ELEMENTS[1], dtype, index)
    exe = superopt.compile(model("ScatterElements", feeds, (), "add", axis))
    assert kernels(exe) == 1
    wanted = scattered("ScatterElements", *feeds.values(), "add", axis)  # type: ignore[arg-type]
    np.testing.assert_allclose(exe.run(feeds)["y"], wanted, rtol=1e-12)


@pytest.mark.parametrize("fill", [0.0, 1.5, -np.inf, -0.0, np.nan])
def test_data_of_one_number(fill: float) -> None:
    feeds, axis = drawn("ScatterND", SLICES[0], np.float32, np.int64)
    feeds["x"][:] = fill
    exe = superopt.compile(model("ScatterND", feeds, ("x",), "max", axis))
    given = {k: v for k, v in feeds.items() if k != "x"}
    got, wanted = exe.run(given)["y"], scattered("ScatterND", *feeds.values(), "max", axis)  # type: ignore[arg-type]
    np.testing.assert_array_equal(got, wanted)
    assert np.array_equal(np.signbit(got), np.signbit(wanted)) or np.isnan(fill)


def test_indices_out_of_range_write_nothing_else() -> None:
    """A call refuses them. A bound one, which checks nothing, brings them within range, as a Gather
    does; no memory beyond is written."""
    feeds, axis = drawn("ScatterND", SLICES[0], np.float32, np.int64)
    exe = superopt.compile(model("ScatterND", feeds, (), "none", axis))
    call = exe.bind(inputs=feeds)
    feeds["i"][5], feeds["i"][7] = 10**6, -(10**6)
    with pytest.raises(UsageError, match="ScatterND writes within an axis of size 40"):
        exe.run(feeds)
    got = call()["y"]
    inside = np.array([k not in (5, 7) for k in range(len(feeds["i"]))])
    some = scattered("ScatterND", feeds["x"], feeds["i"][inside], feeds["u"][inside], "none", axis)
    changed = {int(n) for n in np.flatnonzero((got != some).any(1))}
    assert changed <= {0, 39}


def test_a_layer_of_a_graph_network() -> None:
    """Messages of edges, added up at nodes: one program, of any number of edges."""
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((32, 32)) * 0.2).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Gather", ["h", "source"], ["m"], axis=0),
        helper.make_node("Unsqueeze", ["target", "one"], ["at"]),
        helper.make_node("ScatterND", ["zeros", "at", "m"], ["s"], reduction="add"),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    known = {"w": w, "one": np.array([1]), "zeros": np.zeros((50, 32), np.float32)}
    graph = helper.make_graph(
        nodes, "layer",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [50, 32]),
            helper.make_tensor_value_info("source", TensorProto.INT64, ["e"]),
            helper.make_tensor_value_info("target", TensorProto.INT64, ["e"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [50, 32])],
        [numpy_helper.from_array(v, k) for k, v in known.items()],
    )  # fmt: skip
    m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    exe = superopt.compile(m)
    for edges in (100, 333):
        feeds = {
            "x": rng.standard_normal((50, 32)).astype(np.float32),
            "source": rng.integers(0, 50, edges),
            "target": rng.integers(0, 50, edges),
        }
        wanted = ort.run(ort.load_session(m.SerializeToString()), feeds)
        np.testing.assert_allclose(exe.run(feeds)["y"], wanted["y"], rtol=1e-4, atol=1e-5)
        assert not exe.fallback_nodes({"e": edges})


def test_profile_names_a_scatter() -> None:
    feeds, axis = drawn("ScatterND", SLICES[0], np.float32, np.int64)
    exe = superopt.compile(model("ScatterND", feeds, (), "add", axis))
    (part,) = exe.profile(feeds, seconds=0.01).parts
    assert (part.how, part.bytes) == ("scatter", 4 * (2 * 40 * 96 + 60 * 96) + 8 * 60)
