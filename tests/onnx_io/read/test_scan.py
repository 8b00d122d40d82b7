"""What a model file has, read without parsing it: the same as protobuf says."""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from superopt.onnx_io.read import scan
from tests.support.onnx_io.models import MODELS


def symbols_by_protobuf(proto: onnx.ModelProto) -> set[str]:
    held = {t.name for t in proto.graph.initializer}
    return {
        d.dim_param
        for i in proto.graph.input
        if i.name not in held
        for d in i.type.tensor_type.shape.dim
        if not d.HasField("dim_value")
    }


@pytest.mark.parametrize("name", MODELS)
def test_it_finds_what_protobuf_finds(name: str, tmp_path: Path) -> None:
    proto = MODELS[name]()
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    found = scan.scan_model(path)
    assert found is not None
    bodies = (proto.graph, *proto.functions)
    assert found.op_types == {n.op_type for body in bodies for n in body.node}
    assert found.symbols == symbols_by_protobuf(proto)


def test_symbols_of_inputs(tmp_path: Path) -> None:
    """A dimension without a name counts; those of initializers and of unknown ranks do not."""
    shapes = {"a": ["batch", 3, None], "b": ["batch", "n + 1"], "w": ["other"], "c": None}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    graph = helper.make_graph([helper.make_node("Neg", ["a"], ["y"])], "g", inputs, [], [weight])
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    found = scan.scan_model(tmp_path / "m.onnx")
    assert found == scan.ModelScan(frozenset({"Neg"}), frozenset({"batch", "", "n + 1"}))


def test_a_model_with_too_many_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "MAX_SCANNED_NODES", 2)
    nodes = [helper.make_node("Neg", ["x"], [f"y{n}"]) for n in range(3)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [], [])), tmp_path / "m.onnx")
    assert scan.scan_model(tmp_path / "m.onnx") is None


def test_what_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_bytes(b"not a model, but \xff bytes")
    for name in ("empty", "text", "missing", "."):
        assert scan.scan_model(tmp_path / name) is None


@given(st.data())
def test_damaged_bytes_raise_nothing(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(MODELS)))
    held = bytearray(MODELS[name]().SerializeToString())[:4096]
    for at in data.draw(st.lists(st.integers(0, len(held) - 1), max_size=8)):
        held[at] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.onnx"
        path.write_bytes(held)
        found = scan.scan_model(path)
    assert found is None or all(isinstance(name, str) for name in found.op_types)
