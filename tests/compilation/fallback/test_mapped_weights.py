"""Large weights that onnxruntime maps from files of the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import superopt
from superopt import ort
from superopt.compilation.cache import constant_files
from superopt.compilation.fallback import mapped_weights
from superopt.compilation.fallback.mapped_weights import map_large_weights
from superopt.onnx_io import external_weights
from superopt.onnx_io.read.source import read_model

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("one_by_one")  # "never" then is onnxruntime
ROWS, LARGE_ROWS, COLUMNS = 4_000, 80_000, 256  # 4 and 78 MiB


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(mapped_weights, "MIN_MAPPED_MODEL_BYTES", 2 << 20)


def table(rows: int = ROWS) -> onnx.ModelProto:
    """Rows of a table, multiplied with a matrix, beside a constant in an attribute."""
    rng = np.random.default_rng(0)
    held = {
        "table": rng.standard_normal((rows, COLUMNS)).astype(np.float32),
        "w": rng.standard_normal((COLUMNS, COLUMNS)).astype(np.float32),
    }
    bias = numpy_helper.from_array(rng.standard_normal((1, COLUMNS * 32)).astype(np.float32))
    nodes = [
        helper.make_node("Constant", [], ["c"], value=bias),
        helper.make_node("Gather", ["table", "i"], ["g"]),
        helper.make_node("MatMul", ["g", "w"], ["m"]),
        helper.make_node("ReduceSum", ["c"], ["s"]),
        helper.make_node("Add", ["m", "s"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "table", [helper.make_tensor_value_info("i", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", COLUMNS])],
        [numpy_helper.from_array(v, k) for k, v in held.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def indices(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, ROWS, n)


def plain_session(given: bytes | str) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("as_file", [True, False])
def test_results_are_those_of_the_file(as_file: bool, tmp_path: Path) -> None:
    data = table().SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    wanted = plain_session(data)
    exe = superopt.compile(path if as_file else data, specialize="never")
    for n in (1, 7, 300):
        (y,) = wanted.run(None, {"i": indices(n)})
        np.testing.assert_array_equal(exe(i=indices(n))["y"], y)
    kept = [*constant_files.constants_folder().glob(f"*{constant_files.SUFFIX}")]
    assert [f.stat().st_size for f in kept] == [ROWS * COLUMNS * 4]
    path.write_bytes(bytes(len(data)))  # in place: the session has nothing of it
    (y,) = wanted.run(None, {"i": indices(9)})
    if as_file:
        np.testing.assert_array_equal(exe(i=indices(9))["y"], y)


def test_a_damaged_file_is_written_again() -> None:
    source = read_model(table())
    assert map_large_weights(source) is not None
    (file,) = constant_files.constants_folder().glob("*")
    was = file.read_bytes()
    file.write_bytes(bytes(len(was)))
    found = map_large_weights(source)
    assert found is not None
    assert file.read_bytes() == was
    session = ort.load_session(found.data, weights=constant_files.constants_folder())
    (y,) = plain_session(table().SerializeToString()).run(None, {"i": indices(5)})
    np.testing.assert_array_equal(ort.run(session, {"i": indices(5)})["y"], y)


CALL_OF_NEW_SIZES = """
import json, sys, numpy, superopt
exe = superopt.compile(sys.argv[1], specialize="never")
for n in map(int, sys.argv[2:]):
    y = exe(i=numpy.arange(n))["y"]
sessions = exe.memory().sessions
print(json.dumps([float(y.sum()), sessions, "superopt.plan.passes" in sys.modules]))
"""


@pytest.mark.ci
@pytest.mark.one_in(3)
@pytest.mark.parametrize(("size", "damaged"), [("small", False), ("large", False), ("large", True)])
def test_another_process_opens_the_session_without_the_compiler(
    size: str, damaged: bool, tmp_path: Path
) -> None:
    m, path = table(100 if size == "small" else LARGE_ROWS), tmp_path / "m.onnx"
    onnx.save(m, path)
    os.utime(path, (0, 0))
    time.sleep(0.2)  # else its digest is not stored

    def call_in_child(*numbers: int) -> list[float]:
        command = [sys.executable, "-c", CALL_OF_NEW_SIZES, str(path), *map(str, numbers)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found: list[float] = json.loads(done.stdout)
        return found

    wanted = plain_session(str(path))
    assert call_in_child(80, 1)[1:] == [1, True]
    assert call_in_child(80)[1:] == [0, False]
    if damaged:
        for file in constant_files.constants_folder().glob("*"):
            file.write_bytes(bytes(file.stat().st_size))
    (y,) = wanted.run(None, {"i": np.arange(1)})
    total, *loaded = call_in_child(1)
    assert loaded == [1, damaged and size == "large"]
    np.testing.assert_allclose(total, y.sum(), rtol=1e-5)


@pytest.mark.parametrize("why", ["small", "external", "no room", "no folder"])
def test_other_models_are_loaded_as_they_are(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = table(100 if why == "small" else ROWS)
    path = tmp_path / "m.onnx"
    onnx.save(m, path, save_as_external_data=why == "external")
    if why == "no room":
        monkeypatch.setenv("SUPEROPT_CACHE_MAX_SIZE", "6MiB")
    if why == "no folder":
        (tmp_path / "cache").write_text("a file")
    assert map_large_weights(read_model(path)) is None
    exe = superopt.compile(path, specialize="never")
    (y,) = plain_session(str(path)).run(None, {"i": np.arange(5)})
    np.testing.assert_array_equal(exe(i=np.arange(5))["y"], y)


def test_an_onnxruntime_that_refuses_gets_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_weights, "_refer", lambda tensor, file, size: None)  # stubs stay
    exe = superopt.compile(table(), specialize="never")
    (y,) = plain_session(table().SerializeToString()).run(None, {"i": indices(5)})
    np.testing.assert_array_equal(exe(i=indices(5))["y"], y)


PEAK = """
import sys
from superopt.onnx_io.read.source import read_model
from superopt.compilation.fallback.ort_segment import GivenModel

def peak() -> int:
    return 1024 * int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])

small, large = (GivenModel(read_model(path), 1) for path in sys.argv[1:])
small.session()
before = peak()
large.session()
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_opening_does_not_copy_the_weights(tmp_path: Path) -> None:
    """It took 1.7 times their bytes."""
    paths = []
    for rows in (100, LARGE_ROWS):
        paths.append(str(tmp_path / f"{rows}.onnx"))
        Path(paths[-1]).write_bytes(table(rows).SerializeToString())
    command = [sys.executable, "-c", PEAK, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 0.5 * LARGE_ROWS * COLUMNS * 4
