"""Models, and parts of them, that run in onnxruntime: by its own nodes, so that results are its own
bits; and a process that finds such a model in the cache loads little."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

import superopt
from superopt.compilation.fallback import fallback_cache, ort_segment
from superopt.compilation.fallback.ort_segment import atomic_units
from superopt.compilation.fallback.session_segment import OrtSegment
from superopt.compilation.fallback.whole_model import Fallback
from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.model.compiler import Compiler
from superopt.cost.disk_cache import cache_files
from superopt.jobs import compile_report
from superopt.onnx_io.import_.importer import import_model
from superopt.onnx_io.read.source import read_model
from superopt.onnx_io.transform.contrib_decomposition import decompose_contrib_ops, replaced_result
from superopt.plan.graph.partition import partition_by_cost
from tests.support.compilation.cache import at_rest, counting, written

ort = pytest.importorskip("onnxruntime")

WIDTH = 32
MICROSOFT = "com.microsoft"
node = helper.make_node


def product(x: str, k: str, y: str) -> list[onnx.NodeProto]:
    """x is quantized as its own range says; the zero point of the weights is computed from x, so
    that no kernel is fast."""
    return [
        node("DynamicQuantizeLinear", [x], [f"{y}q", f"{y}s", f"{y}z"]),
        node("Sub", [f"{y}z", f"{y}z"], [f"{y}o"]), node("Cast", [f"{y}o"], [f"{y}v"], to=T.INT8),
        node("MatMulInteger", [f"{y}q", f"w{k}", f"{y}z", f"{y}v"], [f"{y}i"]),
        node("Cast", [f"{y}i"], [f"{y}f"], to=T.FLOAT),
        node("Mul", [f"{y}s", "scale"], [f"{y}t"]),
        node("Mul", [f"{y}f", f"{y}t"], [y]),
    ]  # fmt: skip


def transformer(length: int | str, opset: int, layers: int = 3) -> onnx.ModelProto:
    """8-bit weights, FastGelu and SkipLayerNormalization, which ONNX has not."""
    rng = np.random.default_rng(0)
    held = {"scale": np.array(0.01, np.float32)}
    nodes: list[onnx.NodeProto] = []
    x = "x"
    for k in range(layers):
        for w in (f"wa{k}", f"wb{k}"):
            held[w] = rng.integers(-127, 128, (WIDTH, WIDTH)).astype(np.int8)
        for v in (f"gamma{k}", f"beta{k}", f"bias{k}"):
            held[v] = rng.standard_normal(WIDTH).astype(np.float32)
        nodes += product(x, f"a{k}", f"h{k}")
        nodes.append(node("FastGelu", [f"h{k}", f"bias{k}"], [f"g{k}"], domain=MICROSOFT))
        nodes += product(f"g{k}", f"b{k}", f"o{k}")
        skip = [f"o{k}", x, f"gamma{k}", f"beta{k}"]
        nodes.append(node("SkipLayerNormalization", skip, [f"x{k}"], domain=MICROSOFT))
        x = f"x{k}"
    nodes.append(node("Tanh", [x], ["y"]))
    return made(nodes, held, {"x": [1, length, WIDTH]}, {"y": [1, length, WIDTH]}, opset)


def made(
    nodes: Sequence[onnx.NodeProto],
    held: dict[str, np.ndarray],
    inputs: dict[str, list[int | str]],
    outputs: dict[str, list[int | str] | None],
    opset: int = 17,
) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        list(nodes), "g", [info(k, T.FLOAT, s) for k, s in inputs.items()],
        [info(k, T.FLOAT, s) for k, s in outputs.items()],
        [numpy_helper.from_array(v, k) for k, v in held.items()],
    )  # fmt: skip
    ids = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=ids, ir_version=8)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("opset", [14, 17])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("form", ["proto", "path"])
def test_results_are_the_bits_of_onnxruntime(
    opset: int, symbolic: bool, form: str, tmp_path: Path
) -> None:
    """With opset 14 a norm that is written out as primitives differs by 7e-7, which quantization
    makes steps of."""
    m = transformer("length" if symbolic else 5, opset)
    session = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    exe = superopt.compile(written(tmp_path / "m.onnx", m) if form == "path" else m)
    for length in (5, 3, 7, 5) if symbolic else (5, 5):
        x = numbers(1, length, WIDTH, seed=length)
        (wanted,) = session.run(None, {"x": x})
        np.testing.assert_array_equal(exe(x=x)["y"], wanted)
        (step,) = exe.variant({"length": length} if symbolic else {})
        assert isinstance(step, Fallback)


def test_one_session_is_of_all_sizes() -> None:
    exe = superopt.compile(transformer("length", 14))
    steps = []
    for length in (5, 3):
        exe(x=numbers(1, length, WIDTH))
        steps += exe.variant({"length": length})
    assert steps[0].session is steps[1].session


def test_loaded_models_run_by_the_original_too(tmp_path: Path) -> None:
    m = transformer(5, 14)
    session = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    superopt.compile(m).save(tmp_path / "m.superopt")
    x = numbers(1, 5, WIDTH)
    (wanted,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(superopt.load(tmp_path / "m.superopt")(x=x)["y"], wanted)


def partly() -> onnx.ModelProto:
    """What onnxruntime runs begins and ends with an operator of its own."""
    held = {"w": numbers(WIDTH, WIDTH) / 6, "v": numbers(WIDTH, WIDTH) / 6, "axis": np.array(0)}
    held |= {"gamma": numbers(WIDTH), "beta": numbers(WIDTH)}
    norm = ["c", "a", "gamma", "beta"]
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("CumSum", ["a", "axis"], ["b"]),
        node("FastGelu", ["b"], ["c"], domain=MICROSOFT),
        node("SkipLayerNormalization", norm, ["d"], domain=MICROSOFT),
        node("CumSum", ["d", "axis"], ["e"]),
        node("MatMul", ["e", "v"], ["y"]),
    ]
    return made(nodes, held, {"x": [400, WIDTH]}, {"y": [400, WIDTH]}, opset=14)


def test_a_part_has_the_original_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[bytes] = []
    own = ort_segment.ort.load_part_session

    def session(file: bytes, *how: object) -> object:
        files.append(file)
        return own(file, *how)  # type: ignore[arg-type]

    monkeypatch.setattr(ort_segment.ort, "load_part_session", session)
    m = partly()
    exe = superopt.compile(m)
    x = numbers(400, WIDTH)
    whole = ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
    (wanted,) = whole.run(None, {"x": x})
    np.testing.assert_allclose(exe(x=x)["y"], wanted, rtol=1e-3, atol=1e-3)
    steps = exe.variant({})
    assert any(isinstance(s, OrtSegment) for s in steps)
    ops = [[n.op_type for n in onnx.load_from_string(f).graph.node] for f in files]
    assert [{*some} <= {n.op_type for n in m.graph.node} for some in ops] == [True] * len(ops)
    assert any("CumSum" in some for some in ops)


def test_a_unit_runs_in_one_place() -> None:
    """If a part of an operator of onnxruntime runs there, all of it does."""
    source = decompose_contrib_ops(read_model(partly()))
    assert source is not None
    model = import_model(source)
    found = atomic_units(model)
    assert {replaced_result(model.origins[n].node) for n in found} == {"c", "d"}
    for parts in {*found.values()}:
        (odd, *_) = parts
        some = partition_by_cost(model.graph, lambda n, odd=odd: n is not odd, {}, found)  # type: ignore[misc]
        (place,) = (s for s in some if odd in s.nodes)
        assert not place.native
        assert {*parts} <= {*place.nodes}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return at_rest(tmp_path, monkeypatch)


@pytest.mark.parametrize("symbolic", [False, True])
def test_that_nothing_is_compiled_is_remembered(
    symbolic: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "m.onnx", transformer("length" if symbolic else 5, 14))
    compiled = counting(Compiler, monkeypatch)
    x = {length: numbers(1, length, WIDTH) for length in ((5, 3) if symbolic else (5,))}
    wanted = superopt.compile(path, shapes=())(x=x[5])["y"]
    assert len(compiled) == 1
    exe = superopt.compile(path, shapes=())
    np.testing.assert_array_equal(exe(x=x[5])["y"], wanted)
    for some in x.values():
        assert exe(x=some)["y"].shape == some.shape
    assert len(compiled) == 1
    assert exe._compiler is None
    assert {
        n.op.name for n, _ in exe.fallback_nodes({"length": 5} if symbolic else {})
    }  # asks for it


def test_at_sizes_at_which_nothing_is_compiled(folder: Path, tmp_path: Path) -> None:
    """What is not known at some sizes is not taken for known at others."""
    m = made([node("Relu", ["x"], ["a"]), node("NonZero", ["a"], ["y"])], {}, {"x": ["n"]}, {})
    m.graph.output.append(helper.make_tensor_value_info("y", T.INT64, None))
    path = written(tmp_path / "m.onnx", m)
    for _ in range(2):
        exe = superopt.compile(path, shapes=())
        assert exe(x=np.array([0, 1], np.float32))["y"].tolist() == [[1]]
    assert exe._compiler is None
    exe(x=np.array([0, 1, 1], np.float32))
    assert exe._compiler is not None


def test_another_processor_asks_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "m.onnx", transformer(5, 17))
    superopt.compile(path)
    compiled = counting(Compiler, monkeypatch)
    own = fallback_cache.this_machine()
    other = type(own)(own.cpu, "others", own.cores_allowed, own.memory, own.os)
    monkeypatch.setattr(fallback_cache, "this_machine", lambda: other)
    superopt.compile(path)
    assert len(compiled) == 1


def test_a_damaged_entry_is_made_again(folder: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", transformer(5, 17))
    superopt.compile(path)
    some = [*folder.glob(f"*.{fallback_cache.FALLBACK_KIND}")]
    assert some
    for entry in some:
        entry.write_bytes(entry.read_bytes()[:-1])
    assert superopt.compile(path)(x=numbers(1, 5, WIDTH))["y"].shape == (1, 5, WIDTH)


def test_the_cache_lists_all_of_its_files(folder: Path, tmp_path: Path) -> None:
    compiled = helper.make_model(
        helper.make_graph(
            [helper.make_node("Tanh", ["x"], ["y"])], "tanh",
            [helper.make_tensor_value_info("x", T.FLOAT, [2, 3])],
            [helper.make_tensor_value_info("y", T.FLOAT, [2, 3])],
        ),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    superopt.compile(written(tmp_path / "a.onnx", transformer(5, 17)))
    superopt.compile(written(tmp_path / "b.onnx", compiled))
    listed = {f.path for f in cache_files(folder.parent)}
    assert {f.suffix for f in listed} >= {".fallback", ".seconds", ".program"}
    assert {f for f in folder.parent.rglob("*") if f.is_file()} == listed


CHILD = """
import sys
import numpy as np
import superopt
from superopt.compilation.cache import entries
entries._MIN_REST_NS = entries._MIN_REST_WHOLE_SECONDS_NS = -1
exe = superopt.compile(sys.argv[1])
exe(x=np.zeros((1, 5, 32), np.float32))
compiler = "llvmlite z3 onnx onnx_ir superopt.te superopt.plan.passes"
slow = compiler + " ml_dtypes platformdirs subprocess tempfile"
print(*(m for m in slow.split() if m in sys.modules))
"""


def test_another_process_loads_no_compiler(folder: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "m.onnx", transformer(5, 17))
    command = [sys.executable, "-c", CHILD, str(path)]
    outputs = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    ]
    assert "llvmlite" in outputs[0]
    assert outputs[1] == []


def test_quantization_of_kernel_results_is_reported() -> None:
    wide = 256
    held = {
        "a": numbers(wide, wide), "s": np.array(0.1, np.float32),
        "w": np.ones((wide, wide), np.int8),
    }  # fmt: skip
    quantized = node("DynamicQuantizeMatMul", ["h", "w", "s"], ["y"], domain=MICROSOFT)
    shapes = {"x": [4000, wide]}, {"y": [4000, wide]}
    m = made([node("MatMul", ["x", "a"], ["h"]), quantized], held, *shapes)
    (note,) = compile_report.report_compilation(read_model(m), CompileOptions(), {}).notes
    assert note.startswith(
        "1 quantization, first DynamicQuantizeLinear y/0.DynamicQuantizeLinear, of kernel results"
    )
    moved = made([node("Neg", ["x"], ["h"]), quantized], held, *shapes)
    about = compile_report.report_compilation(read_model(moved), CompileOptions(), {})
    assert about.kernels >= 1
    assert about.notes == ()
    assert (
        compile_report.report_compilation(
            read_model(transformer(5, 14)), CompileOptions(), {}
        ).notes
        == ()
    )
