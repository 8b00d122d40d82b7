"""Attributes that are long lists: neither read entry by entry nor lost."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from superopt.onnx_io.export.model_file import write_model
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read import wire
from superopt.onnx_io.read.packed_parts import (
    MAX_UNPACKED_ENTRIES,
    list_attribute,
    pack_unsupported,
    unpack_unsupported,
)
from superopt.onnx_io.read.source import read_model

ML = "ai.onnx.ml"
COUNT = 100_000
VALUES: dict[str, list[object]] = {
    "floats": [float(k % 7) for k in range(COUNT)],
    "ints": [(-1) ** k * k * 1000 for k in range(COUNT)],
    "strings": ["BRANCH_LEQ", "LEAF", "", "x" * 127] * (COUNT // 4),
}


def model(**attributes: object) -> onnx.ModelProto:
    """One node of a domain that nobody knows, with a weight beside its attributes."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [8192], np.ones(8192, np.float32))
    node = helper.make_node("Custom", ["x"], ["y"], domain="custom", t=weight, **attributes)
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    graph = helper.make_graph([node], "g", value[:1], value[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("custom", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def calls_of(function: object, *args: object) -> int:
    """How many Python functions a call calls."""
    count = 0

    def counted(frame: object, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(counted)
    try:
        function(*args)  # type: ignore[operator]
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("kind", VALUES)
def test_reading_does_not_take_a_step_for_each_entry(kind: str) -> None:
    data = model(some=VALUES[kind]).SerializeToString()
    assert calls_of(lambda: import_model(read_model(data))) < COUNT // 2


@pytest.mark.parametrize("kind", VALUES)
def test_weights_beside_a_long_list_are_found(kind: str) -> None:
    made = model(some=VALUES[kind])
    data = made.SerializeToString()
    skeleton, spans = wire.strip_tensors(memoryview(data), 1024, {TensorProto.FLOAT})
    (span,) = spans
    assert data[span.offset : span.offset + span.size] == b"\0\0\x80\x3f" * 8192
    restored = wire.restore_tensors(skeleton, lambda i: [wire.raw_fields(i, spans[i].size)][0])
    whole = b"".join(
        data[span.offset : span.offset + span.size] if isinstance(p, wire.Slot) else bytes(p)
        for p in restored
    )
    again = onnx.ModelProto.FromString(whole)
    kept = {a.name: a for a in again.graph.node[0].attribute}
    want = {a.name: a for a in made.graph.node[0].attribute}
    assert kept["some"] == want["some"]
    assert np.all(onnx.numpy_helper.to_array(kept["t"].t) == 1)


@pytest.mark.parametrize("cut", [1, 3, 5])
def test_a_list_that_is_cut_short_is_malformed(cut: int) -> None:
    data = model(some=[1.0] * 5000).SerializeToString()
    with pytest.raises(wire.Malformed):
        wire.strip_tensors(memoryview(data)[: len(data) // 3 - cut], 1024, {TensorProto.FLOAT})


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("count", [1, MAX_UNPACKED_ENTRIES, MAX_UNPACKED_ENTRIES + 1])
def test_long_lists_are_packed_and_unpacked(kind: str, count: int) -> None:
    made = model(some=VALUES[kind][:count])
    packed = onnx.ModelProto()
    packed.CopyFrom(made)
    pack_unsupported(packed)
    assert (packed != made) == (count > MAX_UNPACKED_ENTRIES)
    unpack_unsupported(packed)
    assert packed == made
    (node,) = read_model(made).model.graph
    found = list_attribute(node, "some")
    want = next(a for a in made.graph.node[0].attribute if a.name == "some")
    assert found is not None
    assert list(getattr(found, kind)) == list(getattr(want, kind))
    assert list_attribute(node, "other") is None


def test_a_model_with_long_lists_is_written_as_it_was(tmp_path: Path) -> None:
    made = model(
        **{f"some_{kind}": values[:5000] for kind, values in VALUES.items()},
        wide=["x" * 300] * 5000,
    )
    source = read_model(made)
    write_model(source.model, tmp_path / "out.onnx", original=source)
    again = onnx.load(tmp_path / "out.onnx")
    kept, want = (
        {a.name: a for a in m.graph.node[0].attribute if a.name != "t"} for m in (again, made)
    )
    assert kept == want
