"""Reading: every form of a model, weights left where they are, and refusals in words."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from superopt.errors import ModelError
from superopt.onnx_io.check.validate import validate
from superopt.onnx_io.read import skeleton
from superopt.onnx_io.read.region_tensors import region_of
from superopt.onnx_io.read.source import Source, read_model
from tests.support.children import peak_rss_of
from tests.support.onnx_io.files import big_external
from tests.support.onnx_io.models import MODELS, chain, large_weights, model, value, weights

MB = 1 << 20


def weights_in(source: Source) -> dict[str, np.ndarray]:
    graph = source.model.graph
    return {name: v.const_value.numpy() for name, v in graph.initializers.items() if v.const_value}


def assert_same(source: Source, proto: onnx.ModelProto) -> None:
    """The onnx_ir model holds what the ModelProto does."""
    assert [n.op_type for n in source.model.graph] == [n.op_type for n in proto.graph.node]
    expected = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    found = weights_in(source)
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("form", ["path", "str", "bytes", "proto", "ir"])
def test_every_form(name: str, form: str, tmp_path: Path) -> None:
    proto = MODELS[name]()
    data = proto.SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    given = {"path": path, "str": str(path), "bytes": data, "proto": proto, "ir": ir.load(path)}
    source = read_model(given[form])
    validate(source)
    assert_same(source, proto)
    assert source.size_bytes == pytest.approx(len(data), abs=400)
    if form != "ir":
        assert source.raw is not None
        assert bytes(source.raw.view()) == data
        assert source.sha256 == hashlib.sha256(data).hexdigest()
    assert (source.path, source.folder) == (
        (path, tmp_path) if "path str".find(form) >= 0 else (None, None)
    )


def test_a_given_model_is_not_changed() -> None:
    proto = large_weights()
    before = proto.SerializeToString()
    given = ir.from_proto(large_weights())
    tensors = [v.const_value for v in given.graph.initializers.values()]
    attributes = [dict(node.attributes) for node in given.graph]
    for source in (read_model(proto), read_model(given)):
        validate(source)
        source.model.graph.initializers["w1"].name = "renamed"
        source.model.graph.node(0).name = "renamed"
    assert proto.SerializeToString() == before
    assert [v.const_value for v in given.graph.initializers.values()] == tensors
    for node, old in zip(given.graph, attributes, strict=True):
        assert all(node.attributes[key] is attribute for key, attribute in old.items())
    assert ir.to_proto(given) == ir.to_proto(ir.from_proto(large_weights()))


def test_large_tensors_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    proto = large_weights()
    path.write_bytes(proto.SerializeToString())
    source = read_model(path)
    assert len(source.skeleton.data) < 1000
    initializers = source.model.graph.initializers
    tensor = initializers["w1"].const_value
    assert tensor is not None
    region = region_of(tensor)
    assert region is not None
    assert region.size == 90 * 80 * 4
    assert bytes(region.view()) == numpy_helper.to_array(proto.graph.initializer[0]).tobytes()
    assert region.digest() == hashlib.sha256(region.view()).hexdigest()
    assert not tensor.numpy().flags.writeable
    constant = source.model.graph.node(0).attributes["value"].as_tensor()
    assert region_of(constant) is not None
    np.testing.assert_array_equal(
        constant.numpy(), numpy_helper.to_array(proto.graph.node[0].attribute[0].t)
    )
    bias = initializers["bias"].const_value
    assert bias is not None
    assert region_of(bias) is None


@pytest.mark.parametrize(
    "dtype",
    [
        "FLOAT16",
        "BFLOAT16",
        "DOUBLE",
        "INT8",
        "UINT8",
        "INT64",
        "BOOL",
        "INT4",
        "UINT4",
        "FLOAT8E5M2",
    ],
)
def test_dtypes_of_large_tensors(dtype: str) -> None:
    kind = ir.DataType[dtype]
    array = (np.arange(40_000).reshape(200, 200) % 7).astype(kind.numpy())
    tensor = ir.to_proto(ir.Tensor(array, kind, name="w"))
    node = helper.make_node("Identity", ["w"], ["y"])
    proto = model(
        [node], [], [value("y", [200, 200], kind.value)], [tensor], opset=21, ir_version=10
    )
    source = read_model(proto)
    validate(source)
    found = source.model.graph.initializers["w"].const_value
    assert found is not None
    assert region_of(found) is not None
    assert found.dtype == kind
    np.testing.assert_array_equal(found.numpy().astype(np.float64), array.astype(np.float64))


def test_weights_in_float_data() -> None:
    """An old way to store floats, just as large."""
    proto = large_weights()
    tensor = proto.graph.initializer[0]
    array = numpy_helper.to_array(tensor)
    tensor.ClearField("raw_data")
    tensor.float_data.extend(array.ravel())
    source = read_model(proto.SerializeToString())
    validate(source)
    assert len(source.skeleton.data) < 1000
    np.testing.assert_array_equal(weights_in(source)["w1"], array)


def test_a_proto_too_large_for_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skeleton, "PROTOBUF_LIMIT", 1000)
    proto = large_weights()
    source = read_model(proto)
    assert source.raw is None
    validate(source)
    assert_same(source, proto)


def test_a_file_too_large_for_protobuf(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.write(large_weights().SerializeToString())
        file.truncate(2**31)
    with pytest.raises(ModelError, match="too large for protobuf"):
        read_model(path)


def missing(path: Path) -> None:
    path.unlink()


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def holding(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (missing, "No such file"),
        (folder, "it is a directory"),
        (pipe, "not a regular file"),
        (holding(b""), "it is empty"),
        (holding(b"version https://git-lfs.github.com/spec/v1\noid sha256:0"), "git lfs pull"),
        (holding(b"PK\x03\x04" + bytes(40)), "torch.onnx"),
        (holding(b"\n<!doctype html><html></html>"), "a web page"),
        (holding(b"this is a text, and no model"), "not a protobuf message"),
        (holding(large_weights().SerializeToString()[:-10_000]), "bytes, 4"),
        (holding(bytes([0x82, 0x7D, 0]) + b"x" * 100), "not"),
    ],
)
def test_what_is_no_model_file(
    damage: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\0")
    damage(path)
    with pytest.raises(ModelError) as caught:
        validate(read_model(path))
    assert words in str(caught.value)
    assert "m.onnx" in caught.value.what
    assert len(str(caught.value).splitlines()) == 3


def test_what_onnx_ir_would_lose() -> None:
    proto = MODELS["conv_net"]()
    proto.training_info.add()
    with pytest.raises(ModelError, match="training_info cannot be carried"):
        _ = read_model(proto).model


def test_real_models(weightless_models: dict[str, Path]) -> None:
    for path in weightless_models.values():
        source = read_model(path)
        proto = onnx.load(path)
        known = {name for node in proto.graph.node for name in node.output}
        known |= {t.name for t in (*proto.graph.initializer, *proto.graph.input)}
        if all(name in known for node in proto.graph.node for name in node.input if name):
            validate(source)
        else:  # weights left out: a node reads what is not there
            with pytest.raises(ModelError, match="does not exist"):
                validate(source)


def test_a_long_chain() -> None:
    proto = chain(20_000)
    source = read_model(proto)
    validate(source)
    assert len(source.model.graph) == 20_000
    proto.graph.node[0].input[0] = proto.graph.node[-1].output[0]
    with pytest.raises(ModelError, match="has a cycle") as caught:
        validate(read_model(proto))
    assert len(str(caught.value)) < 500


@pytest.mark.ci
def test_memory_for_weights_inside_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    proto = model(
        nodes, [value("x", [1, 3000])], [value("y", [1, 3000])], [weights("w", 3000, 3000)]
    )
    path.write_bytes(proto.SerializeToString())  # 36 MB

    def load() -> None:
        source = read_model(path)
        validate(source)
        assert source.model.graph.initializers["w"].const_value is not None

    assert peak_rss_of(load) < 20 * MB


@pytest.mark.ci
def test_memory_for_external_data(tmp_path: Path) -> None:
    """2.25 GB of weights, in a file with a hole."""
    proto = big_external(tmp_path)

    def load() -> None:
        source = read_model(proto)
        validate(source)
        assert source.size_bytes > 2_249_000_000
        assert source.model.graph.initializers["w8"].const_value is not None

    assert peak_rss_of(load) < 20 * MB
