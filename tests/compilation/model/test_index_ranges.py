"""Indices that are computed from sizes: errors where they are out of range, as in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.errors import ModelError
from superopt.ir import graph
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.plan.graph.index_ranges import index_reason
from tests.support.compilation.models import F, model, near, reference

ort = pytest.importorskip("onnxruntime")
ROWS, COLUMNS = 9, 4
TABLE = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


def index_model(op: str, offset: int, *, size: int | str = "n") -> onnx.ModelProto:
    """A row or element at n + offset of a table, or an update there."""
    make = helper.make_node
    nodes = [make("Shape", ["x"], ["s"]), make("Add", ["s", "offset"], ["i"])]
    match op:
        case "Gather":
            nodes.append(make("Gather", ["table", "i"], ["y"], axis=0))
        case "last axis":
            nodes.append(make("Gather", ["table", "i"], ["y"], axis=-1))
        case "GatherElements":
            nodes.append(make("Unsqueeze", ["i", "one"], ["at"]))
            nodes.append(make("GatherElements", ["table", "at"], ["y"], axis=0))
        case "GatherND":
            nodes.append(make("Unsqueeze", ["i", "zero"], ["at"]))
            nodes.append(make("GatherND", ["table", "at"], ["y"]))
        case "pairs":
            nodes.append(make("Concat", ["i", "one"], ["pair"], axis=0))
            nodes.append(make("Unsqueeze", ["pair", "zero"], ["at"]))
            nodes.append(make("GatherND", ["table", "at"], ["y"]))
        case "ScatterElements":
            nodes.append(make("Unsqueeze", ["i", "one"], ["at"]))
            nodes.append(make("ScatterElements", ["table", "at", "element"], ["y"], axis=0))
        case "ScatterND":
            nodes.append(make("Unsqueeze", ["i", "zero"], ["at"]))
            nodes.append(make("ScatterND", ["table", "at", "row"], ["y"]))
    known = {
        "table": TABLE, "offset": np.array([offset]), "one": np.array([1]), "zero": np.array([0]),
        "element": np.full((1, 1), -1, np.float32), "row": np.full((1, COLUMNS), -1, np.float32),
    }  # fmt: skip
    used = {name for n in nodes for name in n.input}
    return model(nodes, {"x": (F, [size])}, ["y"], {k: v for k, v in known.items() if k in used})


def outcome(call: Callable[..., Mapping[str, np.ndarray]], *given: object) -> Any:
    """Return what a call returns; None if it raises."""
    try:
        return call(*given)
    except (ModelError, ort.capi.onnxruntime_pybind11_state.InvalidArgument,
            ort.capi.onnxruntime_pybind11_state.Fail):  # fmt: skip
        return None


OPERATORS = ["Gather", "last axis", "GatherElements", "GatherND", "pairs", "ScatterElements",
             "ScatterND"]  # fmt: skip


@pytest.mark.parametrize("specialize", ["never", "eager"])
@pytest.mark.parametrize("op", OPERATORS)
def test_errors_are_where_onnxruntime_has_them(op: str, specialize: superopt.Specialize) -> None:
    """One model is called at sizes whose index is in range and at others, in both orders."""
    limit = COLUMNS if op == "last axis" else ROWS
    for offset, sizes in ((0, (3, limit - 1, limit, limit + 4, 3)), (-14, (2, 3, 20, 14, 30, 5))):
        m = index_model(op, offset)
        exe = superopt.compile(m, specialize=specialize)
        for n in sizes:
            feeds = {"x": np.ones(n, np.float32)}
            expected = outcome(reference, m, feeds)
            assert (expected is None) == (not -limit <= n + offset < limit)
            for _ in range(2):  # the second call takes the fast path
                found = outcome(exe.run, feeds)
                assert (found is None) == (expected is None), (n, offset)
                if expected is not None:
                    near(found, expected)


@pytest.mark.parametrize("op", OPERATORS)
def test_a_fixed_index_out_of_range_is_an_error(op: str) -> None:
    exe = superopt.compile(index_model(op, ROWS, size=1))
    with pytest.raises(ModelError, match="onnxruntime cannot run the model"):
        exe.run({"x": np.ones(1, np.float32)})


def test_a_class_of_calls_in_range_serves_no_others() -> None:
    """The guard is a condition of the class; a bad first call leaves no slower class behind."""
    for sizes in ((3, 20, 4), (20, 3, 4)):
        m = table_lookup()
        exe = superopt.compile(m, specialize="never")
        for n in sizes:
            feeds = {"x": np.ones((n, COLUMNS), np.float32)}
            if n > ROWS:
                with pytest.raises(ModelError):
                    exe.run(feeds)
            else:
                near(exe.run(feeds), reference(m, feeds))
        good = exe.size_classes.find({"n": 3})
        assert good is not None
        assert not good.formulas.admits({"n": ROWS + 1})
        assert good.formulas.admits({"n": 5})
        assert not exe.fallback_nodes({"n": 3})


def table_lookup() -> onnx.ModelProto:
    """A table of positions: the rows before the last are read by 0, 1, ... with n known rows."""
    make = helper.make_node
    nodes = [
        make("Shape", ["x"], ["s"], start=0, end=1), make("Squeeze", ["s"], ["n"]),
        make("Range", ["zero", "n", "one"], ["at"]), make("Gather", ["table", "at"], ["p"]),
        make("Add", ["x", "p"], ["y"]),
    ]  # fmt: skip
    known = {"table": TABLE, "zero": np.array(0), "one": np.array(1)}
    return model(nodes, {"x": (F, ["n", COLUMNS])}, ["y"], known)


@pytest.mark.parametrize(("least", "greatest"), [(-ROWS, 0), (0, ROWS - 1), (-3, 5)])
def test_constant_indices_in_range_have_kernels(least: int, greatest: int) -> None:
    indices = np.array([least, greatest])
    m = model([helper.make_node("Gather", ["x", "i"], ["y"])], {"x": (F, ["n", 3])}, ["y"],
              {"i": indices})  # fmt: skip
    own = import_model(read_model(m))
    (name,) = own.size_bindings
    (gather,) = graph.nodes(own.graph)
    needed = max(-least, greatest + 1)
    for n in range(1, ROWS + 3):
        assert bool(index_reason(gather, {name: n})) == (n < needed)
