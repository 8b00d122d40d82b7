"""Writing: nothing is lost, nothing is overwritten that is needed, and memory stays small."""

import errno
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
from superopt.onnx_io.export.model_file import copy_unchanged, move_model, write_model
from superopt.onnx_io.read import mapped_file
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


def two_weights() -> onnx.ModelProto:
    proto = large_weights()
    proto.graph.initializer.append(drawn("w2", 90, 80))
    nodes = [
        helper.make_node("MatMul", ["x", "w2"], ["d"], "third"),
        helper.make_node("Add", ["y", "d"], ["z"], "sum"),
    ]
    proto.graph.node.extend(nodes)
    proto.graph.output.append(value("z", ["n", 80]))
    return proto


def test_external_data_stays_external(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = read_model(save_external(large_weights(), tmp_path / "in" / "in.onnx", "weights.bin"))
    before = contents(tmp_path / "in")
    (tmp_path / "out").mkdir()
    written = write_model(source.model, tmp_path / "out" / "out.onnx", original=source)
    assert_holds(tmp_path / "out" / "out.onnx", large_weights())
    assert locations(tmp_path / "out" / "out.onnx") == {"out.onnx.data"}
    assert written.data == tmp_path / "out" / "out.onnx.data"
    assert (written.referenced, written.new_bytes) == ({}, 0)
    assert written.copied_bytes == sum(r.size for r in written.origins.values()) > 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"out.onnx", "out.onnx.data"}
    assert contents(tmp_path / "in") == before
    again = read_model(tmp_path / "out" / "out.onnx")
    validate(again)
    assert again.has_external_data


@pytest.mark.parametrize("folder", [".", "sub"])
def test_weights_beside_the_new_file_or_below_are_not_copied(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    path = save_external(large_weights(), tmp_path / folder / "in.onnx", "weights.bin")
    source, data = read_model(path), path.with_name("weights.bin")
    inode = data.stat().st_ino
    written = write_model(source.model, tmp_path / "out.onnx", original=source)
    location = data.relative_to(tmp_path).as_posix()
    assert locations(tmp_path / "out.onnx") == {location}
    assert written.data is None
    assert written.referenced == {location: 90 * 80 * 4}
    assert not list(tmp_path.glob("*.data"))
    assert (tmp_path / location).stat().st_ino == inode
    assert data.stat().st_nlink == 1
    onnx.checker.check_model(tmp_path / "out.onnx")
    assert_holds(tmp_path / "out.onnx", large_weights())


def test_only_new_weights_are_written_beside_old_ones(tmp_path: Path) -> None:
    source = read_model(save_external(two_weights(), tmp_path / "in.onnx", "weights.bin"))
    new = ir.Tensor(np.ones((90, 80), np.float32), name="w1")
    source.model.graph.initializers["w1"].const_value = new
    written = write_model(source.model, tmp_path / "out.onnx", original=source)
    assert locations(tmp_path / "out.onnx") == {"weights.bin", "out.onnx.data"}
    assert written.referenced == {"weights.bin": 90 * 80 * 4}
    assert (written.new_bytes, written.copied_bytes) == (new.nbytes, 0)
    assert (tmp_path / "out.onnx.data").stat().st_size == new.nbytes
    held = {t.name: t for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert (numpy_helper.to_array(held["w1"]) == 1).all()


def test_a_moved_model_refers_to_the_weights_that_it_was_copied_from(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "scratch").mkdir()
    source = read_model(save_external(large_weights(), tmp_path / "in" / "m.onnx", "weights.bin"))
    scratch = tmp_path / "scratch" / "m.onnx"
    written = write_model(source.model, scratch, original=source, is_durable=False)
    target = tmp_path / "in" / "out.onnx"
    move_model(read_model(scratch), target, original=source, origins=written.origins)
    assert locations(target) == {"weights.bin"}
    assert_holds(target, large_weights())
    found = read_model(target)
    found.share_digests(source)
    assert found.sha256 == read_model(target).sha256


def test_weights_are_copied_where_the_system_has_no_call_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    monkeypatch.setattr(mapped_file, "_MIN_KERNEL_BYTES", 1)
    source = read_model(save_external(large_weights(), tmp_path / "in" / "in.onnx", "weights.bin"))

    def refuse(*given: object) -> int:
        raise OSError(errno.EXDEV, "another device")

    copied = list[int]()

    def count(*given: int) -> int:
        copied.append(system_call(*given))
        return copied[-1]

    copies, system_call = [], os.copy_file_range
    for call in (count, refuse):
        monkeypatch.setattr(os, "copy_file_range", call)
        folder = tmp_path / f"out{len(copies)}"
        folder.mkdir()
        write_model(source.model, folder / "out.onnx", original=source)
        copies.append((folder / "out.onnx.data").read_bytes())
    assert copies[0] == copies[1]
    assert len(copies[0]) in copied
    assert_holds(tmp_path / "out1" / "out.onnx", large_weights())


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
    values = source.model.graph.initializers["w1"].const_value.numpy().copy()
    source.model.graph.initializers["w1"].const_value = ir.Tensor(values, name="w1")
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
    """A copy in another folder, which needs no file of the original's."""
    path = big_external(tmp_path)
    other = tmp_path / "other" / "n.onnx"
    other.parent.mkdir()
    with (tmp_path / "w.bin").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(np.float32(7).tobytes())

    def rewrite() -> None:
        source = read_model(path)
        validate(source)
        write_model(source.model, other, original=source)

    try:
        assert peak_rss_of(rewrite) < 100 * MB
        (tmp_path / "w.bin").unlink()
        last = read_model(other).model.graph.initializers["w8"].const_value
        assert last is not None
        assert last.numpy()[-1, -1] == 7
    finally:
        for file_ in tmp_path.rglob("*.*"):
            file_.unlink()
