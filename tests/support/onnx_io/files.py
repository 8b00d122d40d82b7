"""Files of models: their contents, and large external data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.onnx_io.models import (
    model,
    value,
)
from tests.support.onnx_io.rounds import text


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def assert_holds(path: Path, proto: onnx.ModelProto) -> None:
    """The file at `path` is a valid model that says what `proto` says."""
    onnx.checker.check_model(path, full_check=True)
    found = onnx.load(path)
    assert found.ir_version == proto.ir_version
    assert found.producer_name == proto.producer_name
    for part in ("opset_import", "metadata_props", "functions"):
        assert list(getattr(found, part)) == list(getattr(proto, part)), part
    for node in found.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):  # onnx_ir declares the initializers of subgraphs once more
                del attribute.g.value_info[:]
    for part in ("input", "output", "node", "name"):
        assert list(getattr(found.graph, part)) == list(getattr(proto.graph, part)), part
    for new, old in zip(found.graph.initializer, proto.graph.initializer, strict=True):
        assert new.name == old.name
        assert new.data_type == old.data_type
        np.testing.assert_array_equal(numpy_helper.to_array(new), numpy_helper.to_array(old))


def big_external(folder: Path, side: int = 7905, count: int = 9) -> Path:
    """A chain of `count` matrix products whose weights are external and zero."""
    tensors = []
    for i in range(count):
        tensor = TensorProto(name=f"w{i}", data_type=1, dims=[side, side])
        tensor.data_location = TensorProto.EXTERNAL
        size = side * side * 4
        for key, entry in {"location": "w.bin", "offset": i * size, "length": size}.items():
            tensor.external_data.add(key=key, value=str(entry))
        tensors.append(tensor)
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(count)]
    ends = [value("x0", ["n", side])], [value(f"x{count}", ["n", side])]
    with (folder / "w.bin").open("wb") as file:
        file.truncate(side * side * 4 * count)
    path = folder / "big.onnx"
    path.write_bytes(model(nodes, *ends, tensors).SerializeToString())
    return path


GOOD = text("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2,3] x) => (float[2,3] y) { y = Relu (x) }""").SerializeToString()
