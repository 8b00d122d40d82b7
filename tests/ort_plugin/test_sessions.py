"""Models in onnxruntime's sessions with superopt's execution provider."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import superopt
from tests.support.compilation.models import F, drawn, model, near, net, picture, reference
from tests.support.ort_plugin.sessions import (
    CASES,
    MISSING,
    REASON,
    export,
    open_session,
    run_session,
)

pytestmark = pytest.mark.skipif(MISSING, reason=REASON)


@pytest.mark.parametrize("name", CASES)
def test_an_exported_model_computes_what_onnxruntime_does(name: str, tmp_path: Path) -> None:
    m, calls, theirs = CASES[name]
    path, report = export(m, tmp_path, threads=2)
    ops = [n.op_type for n in onnx.load(path).graph.node]
    assert ops.count("EPContext") == len(report.parts) > 0
    assert {*ops} - {"EPContext", "Constant"} == theirs
    for options in ({}, {"threads": "own"}):
        session = open_session(path, options)
        for feeds in calls:
            near(run_session(session, feeds), reference(m, dict(feeds)))


@pytest.mark.parametrize("name", CASES)
def test_a_session_compiles_what_kernels_run(name: str) -> None:
    m, calls, _ = CASES[name]
    session = open_session(m.SerializeToString())
    for feeds in calls:
        near(run_session(session, feeds), reference(m, dict(feeds)))
    assert session.get_providers()[0] == "SuperoptExecutionProvider"


def test_an_exported_folder_can_be_moved(tmp_path: Path) -> None:
    _, report = export(net(), tmp_path)
    shutil.move(tmp_path / "out", tmp_path / "elsewhere")
    (tmp_path / "m.onnx").unlink()
    session = open_session(tmp_path / "elsewhere/m_ctx.onnx")
    near(run_session(session, {"x": picture(2, 9)}), reference(net(), {"x": picture(2, 9)}))
    assert {Path(f).name for f, _ in report.files} == {
        p.name for p in (tmp_path / "elsewhere").iterdir()
    }


def test_an_embedded_model_is_one_file(tmp_path: Path) -> None:
    path, _ = export(net(), tmp_path, embed=True)
    data = path.read_bytes()
    shutil.rmtree(tmp_path / "out")
    session = open_session(data)
    near(run_session(session, {"x": picture(2, 9)}), reference(net(), {"x": picture(2, 9)}))


def test_fixed_sizes_are_those_of_the_model(tmp_path: Path) -> None:
    path, _ = export(net(), tmp_path, shapes={"n": 3})
    session = open_session(path)
    assert session.get_inputs()[0].shape == [3, 3, 9, 9]
    near(run_session(session, {"x": picture(3, 9)}), reference(net(), {"x": picture(3, 9)}))
    with pytest.raises(Exception, match="Expected: 3"):
        run_session(session, {"x": picture(2, 9)})


def test_a_model_from_memory_needs_its_folder(tmp_path: Path) -> None:
    path, _ = export(net(), tmp_path)
    with pytest.raises(Exception, match="has no folder: set the option"):
        open_session(path.read_bytes())
    session = open_session(path.read_bytes(), {"folder": str(path.parent)})
    near(run_session(session, {"x": picture(2, 9)}), reference(net(), {"x": picture(2, 9)}))


def test_other_sizes_are_refused_with_the_reason(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Add", ["x", "y"], ["z"])]
    m = model(nodes, {"x": (F, ["n", 70]), "y": (F, ["n", 70])}, ["z"])
    path, _ = export(m, tmp_path)
    session = open_session(path)
    near(run_session(session, {"x": drawn(4, 70), "y": drawn(4, 70)}), {"z": 2 * drawn(4, 70)})
    with pytest.raises(Exception, match="n is 4 in axis 0 of input x, and 3 in axis 0 of input y"):
        run_session(session, {"x": drawn(4, 70), "y": drawn(3, 70)})


@pytest.mark.parametrize("is_exported", [True, False])
@pytest.mark.parametrize("options", [{}, {"threads": "own"}], ids=str)
def test_calls_at_the_same_time(is_exported: bool, options: dict, tmp_path: Path) -> None:
    m = net()
    path = export(m, tmp_path, threads=2)[0] if is_exported else None
    session = open_session(m.SerializeToString() if path is None else path, options)
    feeds = [{"x": picture(1 + n % 3, 9) + n} for n in range(8)]
    wanted = [run_session(session, f) for f in feeds]
    failures: list[object] = []

    def call(n: int) -> None:
        try:
            for _ in range(50):
                got = run_session(session, feeds[n])
                for name, y in wanted[n].items():
                    np.testing.assert_allclose(got[name], y, rtol=1e-5, atol=1e-6)
        except Exception as e:
            failures.append(e)

    threads = [threading.Thread(target=call, args=[n]) for n in range(len(feeds))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []


def test_outputs_are_written_to_bound_memory(tmp_path: Path) -> None:
    path, _ = export(net(), tmp_path, shapes={"n": 2})
    session = open_session(path)
    x = picture(2, 9)
    y, d = np.zeros((2, 10), np.float32), np.zeros((2, 16, 9, 9), np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    for name, out in (("y", y), ("d", d)):
        binding.bind_output(name, "cpu", 0, np.float32, out.shape, out.ctypes.data)
    session.run_with_iobinding(binding)
    near({"y": y, "d": d}, reference(net(), {"x": x}))


def test_the_provider_is_of_this_version() -> None:
    (device, *_) = superopt.ort_register()
    assert (device.ep_name, device.ep_vendor) == ("SuperoptExecutionProvider", "superopt")
    assert device.ep_metadata["version"] == superopt.__version__


def test_a_library_of_the_same_provider_may_be_registered(tmp_path: Path) -> None:
    m = net()
    path, _ = export(m, tmp_path)
    copy = path.parent / "libsuperopt_ort.so"
    onnxruntime.register_execution_provider_library("exported", str(copy))
    try:
        session = open_session(m.SerializeToString())
        near(run_session(session, {"x": picture(2, 9)}), reference(m, {"x": picture(2, 9)}))
        assert "SuperoptExecutionProvider" in session.get_providers()
        del session
    finally:
        onnxruntime.unregister_execution_provider_library("exported")


def test_an_error_in_superopt_leaves_the_model_to_onnxruntime(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr("superopt.ort_plugin.host_compiler.choose_parts", fail)
    m = net()
    session = open_session(m.SerializeToString())
    near(run_session(session, {"x": picture(2, 9)}), reference(m, {"x": picture(2, 9)}))
    assert "an error in superopt" in caplog.text
