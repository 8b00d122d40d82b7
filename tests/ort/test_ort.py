"""onnxruntime in this process, and what travels to a worker."""

import io
import os
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from superopt import ort
from superopt.errors import ModelError, UsageError
from superopt.ort import probe_model
from superopt.ort.sessions import Port, optimization_levels
from superopt.ort.tensors import EXTENDED_DTYPES, Array, Value, pack, unpack
from superopt.ort.timing import draw_input
from superopt.ort.wire import pack_values, receive, send, unpack_values
from tests.support.onnx_io.tiny_models import FLOAT, matmul, model, single, value

DTYPES = {
    TensorProto.FLOAT: "f4",
    TensorProto.DOUBLE: "f8",
    TensorProto.FLOAT16: "f2",
    TensorProto.INT8: "i1",
    TensorProto.INT16: "i2",
    TensorProto.INT32: "i4",
    TensorProto.INT64: "i8",
    TensorProto.UINT8: "u1",
    TensorProto.UINT16: "u2",
    TensorProto.UINT32: "u4",
    TensorProto.UINT64: "u8",
    TensorProto.BOOL: "?",
    TensorProto.BFLOAT16: ml_dtypes.bfloat16,
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
}
SHAPES: list[tuple[int, ...]] = [(), (0,), (2, 0, 3), (5,), (2, 3)]


def same(a: Value, b: Value) -> bool:
    """The same dtype, shape and bits."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)):
        return a is None and b is None
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()


def numbers(shape: tuple[int, ...], dtype: object) -> Array:
    return np.resize(np.arange(5), shape).astype(np.dtype(dtype))  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("code", DTYPES, ids=TensorProto.DataType.Name)
def test_every_dtype_in_and_out(code: int, shape: tuple[int, ...]) -> None:
    x = numbers(shape, DTYPES[code])
    loaded = ort.load_session(single("Identity", {"x": (code, shape)}, out=code))
    assert same(ort.run(loaded, {"x": x})["y"], x)


@pytest.mark.parametrize("count", [0, 1, 4, 5])
@pytest.mark.parametrize("name", ["int4", "uint4"])
def test_four_bits_in_and_out(name: str, count: int) -> None:
    """No operator of onnxruntime hands them through, but casts take and give them."""
    foreign = EXTENDED_DTYPES[name]
    numbers = [-8, -1, 0, 3, 7] if name == "int4" else [0, 1, 8, 14, 15]
    x = np.array(numbers[:count], dtype=np.float32)
    into = ort.load_session(
        single("Cast", {"x": (FLOAT, [count])}, out=foreign.code, to=foreign.code)
    )
    packed = ort.run(into, {"x": x})["y"]
    assert same(packed, x.astype(foreign.dtype))
    back = ort.load_session(single("Cast", {"x": (foreign.code, [count])}, to=FLOAT))
    assert same(ort.run(back, {"x": packed})["y"], x)


@pytest.mark.parametrize("name", EXTENDED_DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packing_undone(name: str, shape: tuple[int, ...]) -> None:
    foreign = EXTENDED_DTYPES[name]
    array = numbers(shape, foreign.dtype)
    assert same(unpack(pack(array, foreign.bits), shape, foreign), array)


@pytest.mark.parametrize(
    "given",
    [
        np.array(["a", "", "ü"]),
        np.array(["a", "", "ü"], dtype=object),
        np.array([b"a", b"", "ü".encode()]),
    ],
    ids=["U", "O", "S"],
)
def test_strings(given: Array) -> None:
    port = {"x": (TensorProto.STRING, [3])}
    loaded = ort.load_session(single("Identity", port, out=TensorProto.STRING))
    found = ort.run(loaded, {"x": given})["y"]
    assert same(found, np.array(["a", "", "ü"], dtype=object))


def test_bytes_that_are_no_text() -> None:
    port = {"x": (TensorProto.STRING, [1])}
    loaded = ort.load_session(single("Identity", port, out=TensorProto.STRING))
    with pytest.raises(ModelError, match="are not an ONNX string"):
        ort.run(loaded, {"x": np.array([b"\xff"])})


def test_arrays_laid_out_otherwise() -> None:
    x = np.arange(6, dtype=">f4").reshape(2, 3).T
    loaded = ort.load_session(single("Identity", {"x": (FLOAT, [3, 2])}))
    assert same(ort.run(loaded, {"x": x})["y"], x.astype("<f4").copy(order="C"))


def sequence_model() -> bytes:
    node = helper.make_node("SplitToSequence", ["x"], ["y"], axis=0)
    out = helper.make_tensor_sequence_value_info("y", FLOAT, None)
    return model([node], [value("x", FLOAT, [2, 3])], [out]).SerializeToString()


def test_sequences_out_and_in() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    parts = ort.run(ort.load_session(sequence_model()), {"x": x})["y"]
    assert same(parts, [x[:1], x[1:]])
    node = helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0)
    port = helper.make_tensor_sequence_value_info("x", FLOAT, None)
    joined = ort.load_session(model([node], [port], [value("y", FLOAT, None)]).SerializeToString())
    assert same(ort.run(joined, {"x": parts})["y"], x)


def test_strings_beside_bfloat16() -> None:
    """In together, out one at a time: onnxruntime has no interface for both."""
    nodes = [helper.make_node("Identity", [a], [b]) for a, b in (("x", "y"), ("s", "t"))]
    ports = [
        [value(x, TensorProto.BFLOAT16, [2]), value(s, TensorProto.STRING, [1])]
        for x, s in (("x", "s"), ("y", "t"))
    ]
    loaded = ort.load_session(model(nodes, *ports).SerializeToString())
    feeds = {"x": np.ones(2, ml_dtypes.bfloat16), "s": np.array(["a"])}
    assert same(ort.run(loaded, feeds, ["t"])["t"], np.array(["a"], dtype=object))
    with pytest.raises(ModelError, match="output 'y' cannot be read in one run with input 's'"):
        ort.run(loaded, feeds)


def test_what_a_session_says_about_itself() -> None:
    data = single("Relu", {"x": (FLOAT, ["batch", 3])})
    loaded = ort.load_session(data, threads=2, level="basic")
    assert loaded.inputs == (Port("x", "tensor(float)", ("batch", 3)),)
    assert [port.name for port in loaded.outputs] == ["y"]


def test_a_model_in_a_file_with_external_data(tmp_path: Path) -> None:
    w = np.arange(4096, dtype=np.float32)
    node = helper.make_node("Add", ["x", "w"], ["y"])
    proto = model([node], [value("x", FLOAT, [1])], [value("y", FLOAT, [4096])], {"w": w})
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
    assert (tmp_path / "m.data").stat().st_size >= 4 * 4096
    found = ort.run(ort.load_session(path), {"x": np.ones(1, np.float32)})
    assert same(found["y"], w + 1)
    with ort.Worker() as worker:
        assert worker.run(path, {"x": np.ones(1, np.float32)})["y"].tolist() == (w + 1).tolist()  # type: ignore[index, union-attr]


@pytest.mark.parametrize(
    ("feeds", "complaint"),
    [
        ({}, "no value for input 'x'"),
        ({"x": np.ones(3, "f4"), "z": np.ones(3, "f4")}, "z"),
        ({"x": np.ones(3, "f8")}, "tensor\\(double\\)"),
        ({"x": np.ones(4, "f4")}, "Got: 4 Expected: 3"),
    ],
)
def test_wrong_inputs(feeds: dict[str, Value], complaint: str) -> None:
    loaded = ort.load_session(single("Relu", {"x": (FLOAT, [3])}))
    with pytest.raises(ModelError, match=complaint):
        ort.run(loaded, feeds)


def test_wrong_models_and_arguments(tmp_path: Path) -> None:
    good = single("Relu", {"x": (FLOAT, [3])})
    with pytest.raises(ModelError, match="cannot load the model"):
        ort.load_session(b"garbage")
    with pytest.raises(ModelError, match="there is no such file"):
        ort.load_session(tmp_path / "none.onnx")
    with pytest.raises(ModelError, match="cannot load the model"):
        ort.load_session(single("NoSuchOperator", {"x": (FLOAT, [3])}))
    with pytest.raises(UsageError, match="unknown graph optimization level 'most'"):
        ort.load_session(good, level="most")
    with pytest.raises(UsageError, match="0 threads"):
        ort.load_session(good, threads=0)
    with pytest.raises(ModelError, match="no output 'z'"):
        ort.run(ort.load_session(good), {"x": np.ones(3, "f4")}, ["z"])


def test_the_runtime_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    assert ort.installed_version() == onnxruntime.__version__
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
    assert {"disable", "basic", "extended", "all"} <= set(optimization_levels())
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert ort.installed_version() is None
    with pytest.raises(UsageError) as error:
        ort.load_session(b"")
    assert error.value.todo == 'pip install "superopt-onnx[ort]"'


@pytest.mark.parametrize("length", [1, 33])
def test_the_models_written_byte_by_byte(length: int) -> None:
    data = probe_model.chain_model(length)
    proto = onnx.load_from_string(data)
    onnx.checker.check_model(proto, full_check=True)
    assert [node.op_type for node in proto.graph.node] == ["Neg"] * length
    assert same(
        ort.run(ort.load_session(data), {"x": np.ones(1, "f4")})["y"], np.array([-1], np.float32)
    )


VALUES: dict[str, Value] = {
    **{f"{code} {shape}": numbers(shape, d) for code, d in DTYPES.items() for shape in SHAPES},
    **{name: numbers((5,), foreign.dtype) for name, foreign in EXTENDED_DTYPES.items()},
    "strings": np.array([["a", "ü"], ["", "\n"]], dtype=object),
    "no strings": np.empty((0, 2), dtype=object),
    "a string": np.array("x", dtype=object),
    "sequence": [np.ones(2, "f4"), [np.zeros((), "i8"), None], np.array(["a"], dtype=object)],
    "nothing": None,
}


def test_values_over_the_wire() -> None:
    headers, blobs = pack_values(VALUES)
    stream = io.BytesIO()
    send(stream, {"values": headers}, blobs)
    send(stream, {"more": 1})
    stream.seek(0)
    header, received = receive(stream)
    found = unpack_values(header["values"], received)
    assert list(found) == list(VALUES)
    assert [name for name in VALUES if not same(found[name], VALUES[name])] == []
    assert receive(stream) == ({"more": 1}, [])
    with pytest.raises(EOFError):
        receive(stream)
    with pytest.raises(EOFError, match="the stream ended after"):
        receive(io.BytesIO(stream.getvalue()[:100]))


def test_a_map_is_not_sent() -> None:
    with pytest.raises(TypeError, match="neither a tensor nor a sequence"):
        pack_values({"y": {1: 2}})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "element", ["float", "double", "float16", "bool", "string", *EXTENDED_DTYPES]
)
def test_drawn_values(element: str) -> None:
    port = Port("x", f"tensor({element})", (3, 50_000))
    drawn = draw_input(port, 1)
    assert isinstance(drawn, np.ndarray)
    assert drawn.shape == (3, 50_000)
    assert same(drawn, draw_input(port, 1))
    if element in ("float", "bool", "bfloat16"):
        assert not same(drawn, draw_input(Port("z", port.type, port.shape), 1))
        assert abs(float(drawn.astype("f4").mean()) - (0.5 if element == "bool" else 0)) < 0.05
    for shape in ((), (0,), (2, 0)):
        empty = draw_input(Port("x", port.type, shape), 1)
        assert isinstance(empty, np.ndarray)
        assert empty.shape == shape


def test_what_cannot_be_drawn() -> None:
    assert draw_input(Port("x", "tensor(int64)", (2,)), 1).tolist() == [1, 1]  # type: ignore[union-attr]
    with pytest.raises(ModelError, match="a dim without a size"):
        draw_input(Port("x", "tensor(float)", ("batch", 3)), 1)
    with pytest.raises(ModelError, match="only tensors can be drawn"):
        draw_input(Port("x", "seq(tensor(float))", ()), 1)


def test_matmul_by_both_roads() -> None:
    feeds = {"a": np.eye(3, dtype="f4"), "b": np.arange(9, dtype="f4").reshape(3, 3)}
    assert same(ort.run(ort.load_session(matmul(3)), feeds)["y"], feeds["b"])
