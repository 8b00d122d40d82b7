"""Writing: nothing is lost, nothing is overwritten that is needed, and memory stays small."""

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from superopt.errors import UsageError
from superopt.onnx_io.check.validate import validate
from superopt.onnx_io.export import model_file
from superopt.onnx_io.export.model_file import copy_unchanged, write_model
from superopt.onnx_io.read.source import read_model
from tests.support.children import peak_rss_of
from tests.support.onnx_io.files import assert_holds, big_external, contents
from tests.support.onnx_io.models import (
    MODELS,
    conv_net,
    large_weights,
    model,
    save_external,
    value,
)
from tests.support.onnx_io.models import weights as drawn

MB = 1 << 20


def locations(path: Path) -> set[str]:
    proto = onnx.load(path, load_external_data=False)
    return {
        entry.value
        for tensor in proto.graph.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }


# Round trips


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_lost(name: str, tmp_path: Path) -> None:
    proto = MODELS[name]()
    source = read_model(proto)
    write_model(source.model, tmp_path / "ir.onnx", original=source)
    write_model(proto, tmp_path / "proto.onnx", original=source)
    assert_holds(tmp_path / "ir.onnx", proto)
    assert_holds(tmp_path / "proto.onnx", proto)
    assert proto == MODELS[name]()
    copy_unchanged(source, tmp_path / "copy.onnx")
    assert (tmp_path / "copy.onnx").read_bytes() == proto.SerializeToString()
    assert {p.name for p in tmp_path.iterdir()} == {"ir.onnx", "proto.onnx", "copy.onnx"}


def test_versions_are_kept(tmp_path: Path) -> None:
    for ir_version, opset in ((3, 8), (4, 9), (7, 13), (10, 21)):
        proto = model(
            [helper.make_node("Relu", ["x"], ["y"])], [value("x", [2])], [value("y", [2])],
            opset=opset, ir_version=ir_version,
        )  # fmt: skip
        source = read_model(proto)
        write_model(source.model, tmp_path / "m.onnx", original=source)
        assert_holds(tmp_path / "m.onnx", proto)
    source.model.ir_version = 11
    with pytest.raises(ValueError, match="IR version 11"):
        write_model(source.model, tmp_path / "m.onnx", original=source)
    source.model.ir_version = 10
    source.model.opset_imports[""] = 22
    with pytest.raises(ValueError, match="22"):
        write_model(source.model, tmp_path / "m.onnx", original=source)


def test_words_are_kept(tmp_path: Path) -> None:
    """Doc strings and metadata of every part, each once."""
    proto = large_weights()
    proto.doc_string = "of the model"
    proto.graph.doc_string = "of the graph"
    parts = [proto.graph.node[1], *proto.graph.initializer, *proto.graph.input, proto.graph]
    for part in parts:
        part.doc_string = f"of {part.name}"
        part.metadata_props.add(key="a", value=f"a of {part.name}")
        part.metadata_props.add(key="b", value=f"b of {part.name}")
    source = read_model(proto)
    write_model(source.model, tmp_path / "m.onnx", original=source)
    found = onnx.load(tmp_path / "m.onnx")
    written = [found.graph.node[1], *found.graph.initializer, *found.graph.input, found.graph]
    for new, old in zip(written, parts, strict=True):
        assert new.doc_string == old.doc_string
        assert list(new.metadata_props) == list(old.metadata_props)
    assert found.doc_string == "of the model"


def test_new_tensors(tmp_path: Path) -> None:
    """What a folded model looks like: a weight computed in memory beside one from the file."""
    source = read_model(large_weights())
    made = np.full((80, 80), 3, np.float32)
    source.model.graph.initializers["bias"].const_value = ir.Tensor(made[0], name="bias")
    constant = ir.AttrTensor("value", ir.Tensor(made))
    source.model.graph.node(0).attributes["value"] = constant
    write_model(source.model, tmp_path / "m.onnx", original=source)
    assert source.model.graph.node(0).attributes["value"] is constant
    found = onnx.load(tmp_path / "m.onnx")
    np.testing.assert_array_equal(numpy_helper.to_array(found.graph.initializer[1]), made[0])
    np.testing.assert_array_equal(numpy_helper.to_array(found.graph.node[0].attribute[0].t), made)
    np.testing.assert_array_equal(
        numpy_helper.to_array(found.graph.initializer[0]),
        numpy_helper.to_array(large_weights().graph.initializer[0]),
    )


# External data


def test_external_data_stays_external(tmp_path: Path) -> None:
    source = read_model(save_external(large_weights(), tmp_path / "in.onnx", "weights.bin"))
    before = contents(tmp_path)
    write_model(source.model, tmp_path / "out.onnx", original=source)
    assert_holds(tmp_path / "out.onnx", large_weights())
    assert locations(tmp_path / "out.onnx") == {"out.onnx.data"}
    after = contents(tmp_path)
    assert set(after) - set(before) == {"out.onnx", "out.onnx.data"}
    assert before.items() <= after.items()
    again = read_model(tmp_path / "out.onnx")
    validate(again)
    assert again.has_external_data


def test_a_proto_that_points_to_data(tmp_path: Path) -> None:
    path = save_external(large_weights(), tmp_path / "in.onnx", "weights.bin")
    proto = onnx.load(path, load_external_data=False)
    (tmp_path / "out").mkdir()
    write_model(proto, tmp_path / "out" / "out.onnx", original=read_model(path))
    assert_holds(tmp_path / "out" / "out.onnx", large_weights())


def test_more_than_a_file_can_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = large_weights()
    constant = len(proto.graph.node[0].attribute[0].t.raw_data)
    source = read_model(proto)
    monkeypatch.setattr(model_file, "PROTOBUF_LIMIT", constant + 5000)
    write_model(source.model, tmp_path / "m.onnx", original=source)
    assert locations(tmp_path / "m.onnx") == {"m.onnx.data"}
    assert_holds(tmp_path / "m.onnx", proto)
    monkeypatch.setattr(model_file, "PROTOBUF_LIMIT", constant)
    before = contents(tmp_path)
    with pytest.raises(Exception, match="too large for protobuf"):
        write_model(source.model, tmp_path / "m.onnx", original=source)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("location", ["m.onnx.data", "weights.bin"])
def test_over_the_input(location: str, tmp_path: Path) -> None:
    path = save_external(large_weights(), tmp_path / "m.onnx", location)
    source = read_model(path)
    for _ in range(2):  # the second time, from what was read before the first
        write_model(source.model, path, original=source)
        assert locations(path) == {"m.onnx.data"}
        assert_holds(path, large_weights())
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx", "m.onnx.data", location}


def test_over_the_input_without_external_data(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(large_weights().SerializeToString())
    source = read_model(path)
    write_model(source.model, path, original=source)
    assert_holds(path, large_weights())
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


def test_the_inputs_data_is_not_overwritten(tmp_path: Path) -> None:
    """Its data file has the name that the output's would have."""
    path = save_external(large_weights(), tmp_path / "in.onnx", "out.onnx.data")
    source = read_model(path)
    write_model(source.model, tmp_path / "out.onnx", original=source)
    assert locations(tmp_path / "out.onnx") == {"out.onnx.1.data"}
    assert_holds(path, large_weights())
    assert_holds(tmp_path / "out.onnx", large_weights())


# Copies


def test_copy_with_data(tmp_path: Path) -> None:
    for location in ("weights.bin", "sub/weights.bin"):
        for folder in ("in", "in/sub", "out"):
            (tmp_path / folder).mkdir(exist_ok=True)
        path = save_external(large_weights(), tmp_path / "in" / "m.onnx", location)
        source = read_model(path)
        copy_unchanged(source, tmp_path / "out" / "n.onnx")
        copy_unchanged(source, tmp_path / "out" / "n.onnx")  # the same again is no conflict
        assert (tmp_path / "out" / "n.onnx").read_bytes() == path.read_bytes()
        assert_holds(tmp_path / "out" / "n.onnx", large_weights())
        copy_unchanged(source, tmp_path / "in" / "beside.onnx")
        assert_holds(tmp_path / "in" / "beside.onnx", large_weights())
        before = contents(tmp_path)
        copy_unchanged(source, path)
        assert contents(tmp_path) == before


def test_copy_overwrites_no_strangers_data(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    source = read_model(save_external(large_weights(), tmp_path / "m.onnx", "weights.bin"))
    (tmp_path / "out" / "weights.bin").write_bytes(b"of another model")
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=r"weights\.bin would be overwritten"):
        copy_unchanged(source, tmp_path / "out" / "m.onnx")
    assert contents(tmp_path) == before
    # But the data of the very model that is overwritten goes with it.
    save_external(conv_net(), tmp_path / "out" / "m.onnx", "weights.bin")
    copy_unchanged(source, tmp_path / "out" / "m.onnx")
    assert_holds(tmp_path / "out" / "m.onnx", large_weights())


def test_copy_of_an_onnx_ir_model(tmp_path: Path) -> None:
    copy_unchanged(read_model(ir.from_proto(large_weights())), tmp_path / "m.onnx")
    assert_holds(tmp_path / "m.onnx", large_weights())


# Memory


@pytest.mark.one_in(0)
def test_memory_for_weights_inside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    ends = [value("x", [1, 5000])], [value("y", [1, 5000])]
    path.write_bytes(model(nodes, *ends, [drawn("w", 5000, 5000)]).SerializeToString())  # 100 MB

    def rewrite() -> None:
        source = read_model(path)
        write_model(source.model, tmp_path / "n.onnx", original=source)
        copy_unchanged(source, tmp_path / "c.onnx")

    assert peak_rss_of(rewrite) < 40 * MB
    assert (tmp_path / "c.onnx").read_bytes() == path.read_bytes()
    assert read_model(tmp_path / "n.onnx").model.graph.initializers["w"].const_value is not None


@pytest.mark.slow
def test_memory_for_two_gigabytes(tmp_path: Path) -> None:
    path = big_external(tmp_path)
    with (tmp_path / "w.bin").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(np.float32(7).tobytes())

    def rewrite() -> None:
        source = read_model(path)
        validate(source)
        write_model(source.model, tmp_path / "n.onnx", original=source)

    try:
        assert peak_rss_of(rewrite) < 100 * MB
        (tmp_path / "w.bin").unlink()
        last = read_model(tmp_path / "n.onnx").model.graph.initializers["w8"].const_value
        assert last is not None
        assert last.numpy()[-1, -1] == 7
    finally:
        for file_ in tmp_path.iterdir():
            file_.unlink()
