"""External data: read from where it lies, and only from plain files of the model's folder."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper

from superopt.errors import ModelError
from superopt.onnx_io.check.validate import validate
from superopt.onnx_io.read.region_tensors import region_of
from superopt.onnx_io.read.source import read_model
from tests.support.onnx_io.models import attention, large_weights, save_external


def point(folder: Path, **entries: str) -> Path:
    """The model with its weights in data.bin, and w1 with these entries instead."""
    path = folder / "m.onnx"
    if not path.exists():
        save_external(large_weights(), path, "data.bin")
    proto = onnx.load(path, load_external_data=False)
    tensor = proto.graph.initializer[0]
    assert tensor.name == "w1"
    kept = {entry.key: entry.value for entry in tensor.external_data} | entries
    del tensor.external_data[:]
    for key, value in kept.items():
        if value:
            tensor.external_data.add(key=key, value=value)
    path.write_bytes(proto.SerializeToString())
    return path


def test_values_and_places(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for location in ("data.bin", "sub/data.bin"):
        path = save_external(large_weights(), tmp_path / "m.onnx", location)
        source = read_model(path)
        validate(source)
        assert source.has_external_data
        assert source.size_bytes == path.stat().st_size + (tmp_path / location).stat().st_size
        for tensor in large_weights().graph.initializer:
            found = source.model.graph.initializers[tensor.name].const_value
            assert found is not None
            np.testing.assert_array_equal(found.numpy(), numpy_helper.to_array(tensor))
        w1 = source.model.graph.initializers["w1"].const_value
        assert w1 is not None
        region = region_of(w1)
        assert region is not None
        assert region.location == location


def test_small_tensors_may_be_external_too(tmp_path: Path) -> None:
    """Reshape's operand is external here, and shape inference needs it."""
    path = save_external(attention(), tmp_path / "m.onnx", "data.bin")
    source = read_model(path)
    validate(source)
    heads = source.model.graph.initializers["heads"].const_value
    assert heads is not None
    assert heads.numpy().tolist() == [0, 0, 2, 4]


def test_length_may_be_left_out(tmp_path: Path) -> None:
    source = read_model(point(tmp_path, length=""))
    validate(source)
    found = source.model.graph.initializers["w1"].const_value
    assert found is not None
    np.testing.assert_array_equal(
        found.numpy(), numpy_helper.to_array(large_weights().graph.initializer[0])
    )


def test_given_as_onnx_ir(tmp_path: Path) -> None:
    path = save_external(large_weights(), tmp_path / "m.onnx", "data.bin")
    source = read_model(ir.load(path))
    validate(source)
    assert source.has_external_data
    found = source.model.graph.initializers["w1"].const_value
    assert found is not None
    assert region_of(found) is not None
    given = ir.load(path)
    (tmp_path / "data.bin").unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        read_model(given)


def test_a_file_renamed_over_it_does_not_matter(tmp_path: Path) -> None:
    path = save_external(large_weights(), tmp_path / "m.onnx", "data.bin")
    source = read_model(path)
    (tmp_path / "other").write_bytes(b"something else")
    os.replace(tmp_path / "other", tmp_path / "data.bin")
    os.replace(tmp_path / "data.bin", path)
    found = source.model.graph.initializers["w1"].const_value
    assert found is not None
    np.testing.assert_array_equal(
        found.numpy(), numpy_helper.to_array(large_weights().graph.initializer[0])
    )


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"location": "../data.bin"}, "may leave the folder"),
        ({"location": "x/../../data.bin"}, "may leave the folder"),
        ({"location": "/etc/passwd"}, "absolute path"),
        ({"location": "C:\\data.bin"}, "absolute path"),
        ({"location": "\\\\host\\data.bin"}, "absolute path"),
        ({"location": "."}, "no usable location"),
        ({"location": ""}, "no usable location"),
        ({"location": "missing.bin"}, "No such file"),
        ({"location": "#superopt/9"}, "is reserved"),
        ({"location": "#data.bin"}, "No such file"),
        ({"offset": "-4"}, "not a number"),
        ({"offset": "0x10"}, "not a number"),
        ({"offset": "9" * 30}, "not a number"),
        ({"offset": "999999999"}, "is not inside its file"),
        ({"length": "999999999"}, "is not inside its file"),
        ({"length": "100"}, "needs 28800 bytes, and there are 100"),
        ({"offset": "4000"}, "is not inside its file"),
    ],
)
def test_refused_entries(entries: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        validate(read_model(point(tmp_path, **entries)))
    assert words in str(caught.value)
    assert "'w1'" in caught.value.what
    assert len(str(caught.value).splitlines()) == 3


def link(folder: Path) -> str:
    (folder / "linked.bin").symlink_to(folder / "data.bin")
    return "linked.bin"


def link_out(folder: Path) -> str:
    (folder / "passwd").symlink_to("/etc/passwd")
    return "passwd"


def linked_folder(folder: Path) -> str:
    (folder / "sub").symlink_to(folder)
    return "sub/data.bin"


def hard_link(folder: Path) -> str:
    (folder / "hard.bin").hardlink_to(folder / "data.bin")
    return "hard.bin"


def directory(folder: Path) -> str:
    (folder / "dir").mkdir()
    return "dir"


def pipe(folder: Path) -> str:
    os.mkfifo(folder / "pipe")
    return "pipe"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (link, "'linked.bin' is a link"),
        (link_out, "'passwd' is a link"),
        (linked_folder, "'sub' is a link"),
        (hard_link, "hard link"),
        (directory, "not a regular file"),
        (pipe, "not a regular file"),
    ],
)
def test_refused_files(make: Callable[[Path], str], words: str, tmp_path: Path) -> None:
    save_external(large_weights(), tmp_path / "m.onnx", "data.bin")
    location = make(tmp_path)
    with pytest.raises(ModelError) as caught:
        read_model(point(tmp_path, location=location))
    assert words in str(caught.value)


def test_two_entries_of_one_kind(tmp_path: Path) -> None:
    path = save_external(large_weights(), tmp_path / "m.onnx", "data.bin")
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].external_data.add(key="location", value="/etc/passwd")
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="'location' twice"):
        read_model(path)


def test_bytes_have_no_folder(tmp_path: Path) -> None:
    path = save_external(large_weights(), tmp_path / "m.onnx", "data.bin")
    with pytest.raises(ModelError, match="give the path"):
        read_model(path.read_bytes())
    with pytest.raises(ModelError, match="give the path"):
        read_model(onnx.load(path, load_external_data=False))
    validate(read_model(onnx.load(path)))


def test_a_stub_cannot_be_claimed_twice() -> None:
    """A location that stands for another tensor's bytes is no way to get at them."""
    proto = large_weights()
    tensor = proto.graph.initializer[1]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for location in ("#superopt/0", "#superopt/1", "#superopt/-1", "#superopt/x"):
        del tensor.external_data[:]
        tensor.external_data.add(key="location", value=location)
        with pytest.raises(ModelError, match="is reserved"):
            read_model(proto.SerializeToString())
