"""Other runtimes in benchmarks: what is asked of them, and what is said where they are missing."""

import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx.parser
import pytest

import superopt
from superopt import ort
from superopt.baselines import openvino, torch_compile
from superopt.errors import UsageError

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[2,3] b, float[4,3] a) => (float[2,4] y) { t = Transpose(a) m = MatMul(b, t) y = Relu(m) }
"""
A = np.arange(12, dtype=np.float32).reshape(4, 3)
B = np.full((2, 3), 0.5, np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(TEXT), path)
    return path


@pytest.mark.parametrize(
    ("peer", "library", "said"),
    [
        (openvino, "openvino", "OpenVINO is not installed"),
        (torch_compile, "torch", "torch is not installed"),
        (torch_compile, "onnx2torch", "onnx2torch is not installed"),
    ],
)
def test_what_is_missing_is_named(
    peer: object, library: str, said: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if peer is torch_compile:
        fake(monkeypatch)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UsageError, match=said) as e:
        peer.prepare(model, {"b": B, "a": A}, 1)  # type: ignore[attr-defined]
    assert 'pip install "superopt-onnx[bench]"' in str(e.value)


class Fake:
    """torch and onnx2torch as far as they are used; `told` is what they were told."""

    def __init__(self) -> None:
        self.told: list[object] = []
        self.fails: Exception | None = None

    def convert(self, path: str) -> "Fake":
        if self.fails:
            raise self.fails
        self.told.append(Path(path).name)
        return self

    def eval(self) -> "Fake":
        return self

    def compile(self, f: object, *, fullgraph: bool, options: object) -> object:
        self.told += [fullgraph, options]
        return f

    def make_fx(self, f: object) -> object:
        def trace(*given: np.ndarray) -> object:
            return lambda *again: self.told.append([x.shape for x in again])

        return trace


def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    it = Fake()
    names = {
        "torch": SimpleNamespace(
            __version__="2.0",
            no_grad=nullcontext,
            set_num_threads=lambda n: it.told.append(n),
            set_float32_matmul_precision=lambda how: it.told.append(how),
            from_numpy=lambda x: x,
            compile=it.compile,
        ),
        "torch.fx.experimental.proxy_tensor": SimpleNamespace(make_fx=it.make_fx),
        "onnx2torch": SimpleNamespace(convert=it.convert),
    }
    for name in ("torch.fx", "torch.fx.experimental"):
        names[name] = SimpleNamespace()
    for name, module in names.items():
        monkeypatch.setitem(sys.modules, name, module)
    return it


def test_options_passed_to_torch(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    it = fake(monkeypatch)
    run = torch_compile.prepare(model, {"b": B, "a": A}, 3)
    once = [3, "highest", "model.onnx", True, {"freezing": True}, [(2, 3), (4, 3)]]
    assert it.told == once  # compiled by the first call
    run()
    assert it.told == [*once, [(2, 3), (4, 3)]]
    assert torch_compile.version() == "2.0"


def test_inputs_go_in_the_models_order(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = fake(monkeypatch)
    turned = onnx.parser.parse_model(
        TEXT.replace("float[2,3] b, float[4,3] a", "float[4,3] a, float[2,3] b")
    )
    onnx.save(turned, tmp_path / "turned.onnx")
    superopt.bench([model, tmp_path / "turned.onnx"], vs=("torch",), seconds=0.1)
    name, shapes = it.told.index("turned.onnx"), [(4, 3), (2, 3)]
    assert shapes not in it.told[:name]
    assert shapes in it.told[name:]


def test_a_model_that_torch_does_not_take(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch).fails = NotImplementedError("no Trilu " + "of this kind " * 40)
    (one, two) = superopt.bench([model], vs=("ort", "torch"), seconds=0.1)
    assert one.latency is not None
    assert two.latency is None
    assert two.note.startswith("torch.compile cannot compile")
    assert "no Trilu" in two.note
    assert len(two.note) < 300


def test_an_importer_that_does_not_load(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch)
    (tmp_path / "onnx2torch.py").write_text("raise RuntimeError('torchvision::nms is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "onnx2torch")
    with pytest.raises(UsageError, match="torchvision::nms is missing"):
        torch_compile.prepare(model, {"b": B, "a": A}, 1)


def test_torch_for_real(model: Path) -> None:
    try:
        for name in ("torch", "onnx2torch"):
            pytest.importorskip(name, reason=f"the extra bench is not installed: no {name}")
    except RuntimeError as e:
        pytest.skip(f"torch and torchvision of different kinds: {e}")
    if not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler")
    feeds = {"b": B, "a": A}
    got = np.asarray(torch_compile.prepare(model, feeds, 1)())
    (wanted,) = ort.run(ort.load_session(model, threads=1), feeds).values()
    np.testing.assert_allclose(got, np.asarray(wanted), rtol=1e-6)
    (row,) = superopt.bench([model], vs=("torch",), seconds=0.2)
    assert row.latency is not None
    assert row.latency.us_median > 0
    assert row.runtime.startswith("torch 2.")
