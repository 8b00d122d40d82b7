"""The worker process: what happens in it stays in it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from superopt import ort
from superopt.errors import SuperoptError, UsageError
from superopt.ort import Failure, Worker, child_process
from superopt.ort import worker as worker_module
from tests.support.onnx_io.tiny_models import (
    FLOAT,
    INT64,
    endless,
    matmul,
    pad_before_weight,
    single,
)
from tests.support.paths import ROOT

X = {"x": np.ones(1, np.float32)}
NEG = single("Neg", {"x": (FLOAT, [1])})


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


def works(worker: Worker) -> bool:
    found = worker.run(NEG, X)
    return not isinstance(found, Failure) and np.array_equal(found["y"], [-1])  # type: ignore[arg-type]


def pid_of(worker: Worker) -> int:
    assert worker._child is not None
    return worker._child.process.pid


def alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 20
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def later(seconds: float, act: Callable[[], object]) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


def test_values_of_all_kinds(worker: Worker) -> None:
    bf16 = single("Cast", {"x": (FLOAT, [1])}, out=TensorProto.BFLOAT16, to=TensorProto.BFLOAT16)
    found = worker.run(bf16, X)
    assert isinstance(found, dict)
    y = found["y"]
    assert isinstance(y, np.ndarray)
    assert (y.dtype.name, y.tolist()) == ("bfloat16", [1.0])
    text = single("Identity", {"x": (TensorProto.STRING, [])}, out=TensorProto.STRING)
    assert worker.run(text, {"x": np.array("ü")}) == {"y": np.array("ü", dtype=object)}


def test_refusals_leave_the_process_alone(worker: Worker) -> None:
    assert works(worker)
    pid = pid_of(worker)
    for model, feeds, message in (
        (b"garbage", X, "onnxruntime cannot load the model"),
        ("/nowhere/model.onnx", X, "there is no such file"),
        (NEG, {}, "no value for input 'x'"),
        (NEG, {"x": np.ones(2, np.float32)}, "Got: 2 Expected: 1"),
        (
            single("Div", {"a": (INT64, [1]), "b": (INT64, [1])}, out=INT64),
            None,
            "division by zero",
        ),
    ):
        zero = {"a": np.ones(1, np.int64), "b": np.zeros(1, np.int64)}
        found = worker.run(model, zero if feeds is None else feeds)
        assert isinstance(found, Failure)
        assert (found.kind, message in found.message) == ("error", True), found
        assert "\n" not in found.message
    assert works(worker)
    assert pid_of(worker) == pid


def test_a_loaded_model_runs_many_times(worker: Worker) -> None:
    loaded = worker.load(NEG)
    assert not isinstance(loaded, Failure)
    for i in range(3):
        found = worker.run(loaded, {"x": np.array([i], np.float32)})
        assert found == {"y": np.array([-i], np.float32)}
    worker.unload(loaded)
    assert isinstance(worker.run(loaded, X), Failure)


def test_a_run_without_end_is_ended() -> None:
    with Worker() as worker:
        loaded = worker.load(NEG)
        assert not isinstance(loaded, Failure)
        found = worker.run(endless(), X, limit=0.5)
        assert found == Failure("time", "took longer than 0.5 s while running a model")
        assert works(worker)
        assert worker.start_count == 2
        found = worker.run(loaded, X)
        assert found == Failure("died", "the process that held the model died: load it again")


def test_a_process_that_dies_is_reported_and_replaced() -> None:
    with Worker() as worker:
        assert works(worker)
        pid = pid_of(worker)
        later(0.3, lambda: os.kill(pid, signal.SIGSEGV))
        found = worker.run(endless(), X, limit=30)
        assert found == Failure("died", "the process was killed by SIGSEGV while running a model")
        assert works(worker)
        assert worker.start_count == 2

        # Between two requests nobody is to blame.
        assert worker._child is not None
        process = worker._child.process
        process.kill()
        process.wait(20)  # a process of several threads is a zombie before all of them have ended
        assert works(worker)
        assert worker.start_count == 3


def test_which_of_several_models_ended_the_process() -> None:
    with Worker() as worker:
        assert works(worker)
        pid = pid_of(worker)
        later(0.5, lambda: os.kill(pid, signal.SIGKILL))
        found = ort.time_interleaved([NEG, endless()], X, limit=30, worker=worker)
        size = len(NEG), len(endless())
        assert found == Failure(
            "died",
            "the process was killed by SIGKILL (out of memory?) while timing a model of "
            f"{size[0]} bytes against a model of {size[1]} bytes: running model 2 of 2",
        )
        times = ort.time_single([NEG, endless(), NEG], limit=0.5, worker=worker)
        assert [isinstance(t, Failure) for t in times] == [False, True, False]
        assert isinstance(times[1], Failure)
        assert times[1].message.endswith(f"while timing model 2 of 3, a model of {size[1]} bytes")


def test_ctrl_c_ends_a_request_and_its_process() -> None:
    with Worker() as worker:
        assert works(worker)
        pid = pid_of(worker)
        later(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            worker.run(endless(), X, limit=30)
        assert gone(pid)
        assert works(worker)


def python(script: str, *args: str, **options: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", script, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        **options,
    )


def test_ctrl_c_does_not_reach_the_worker() -> None:
    """A terminal sends it to the whole group of the process in front."""
    script = """
import os, signal, sys, time
import numpy as np
from superopt.ort import Worker
model, x = bytes.fromhex(sys.argv[1]), {"x": np.ones(1, np.float32)}
with Worker() as worker:
    worker.run(model, x)
    try:
        os.killpg(0, signal.SIGINT)
        time.sleep(5)
    except KeyboardInterrupt:
        print("interrupted")
    print(worker.run(model, x)["y"], worker.start_count)
"""
    process = python(script, NEG.hex(), start_new_session=True)
    out, err = process.communicate(timeout=60)
    assert (out, err) == ("interrupted\n[-1.] 1\n", "")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="sees processes in /proc")
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_it_ends_with_its_parent(busy: bool) -> None:
    script = """
import sys
import numpy as np
from superopt.ort import Worker
worker = Worker()
x = {"x": np.ones(1, np.float32)}
worker.run(bytes.fromhex(sys.argv[1]), x)
print(worker._child.process.pid, flush=True)
worker.run(bytes.fromhex(sys.argv[2]), x)
sys.stdin.read()
"""
    process = python(script, NEG.hex(), (endless() if busy else NEG).hex(), stdin=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        time.sleep(0.3)
        assert alive(pid)
        process.kill()
        assert gone(pid)


def test_it_ends_with_the_object_and_with_close() -> None:
    worker = Worker()
    assert works(worker)
    first = pid_of(worker)
    worker.close()
    assert not alive(first)
    worker.close()
    assert works(worker)
    second = pid_of(worker)
    del worker
    assert gone(second)


def test_start_up_files_that_print_and_modules_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the interpreter prints by itself is no answer; the working directory is no library."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("print('hello from the administrator')")
    (tmp_path / "onnxruntime.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.chdir(tmp_path)
    with Worker() as worker:
        assert works(worker)


def test_a_worker_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "_CHILD_CODE", "raise SystemExit('no such luck')")
    with Worker() as worker, pytest.raises(SuperoptError) as error:
        worker.run(NEG, X)
    assert error.value.what == "the worker process does not start"
    assert error.value.why.endswith("ended with exit code 1 (no such luck)")
    monkeypatch.setattr(child_process.sys, "executable", "/nowhere/python")
    with pytest.raises(SuperoptError, match="No such file"):
        Worker().run(NEG, X)
    monkeypatch.setattr(child_process, "is_installed", lambda: False)
    with pytest.raises(UsageError) as missing:
        Worker().run(NEG, X)
    assert missing.value.todo == 'pip install "superopt-onnx[ort]"'


def test_large_models_go_through_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker: Worker
) -> None:
    monkeypatch.setattr(worker_module, "_SPOOL_BYTES", 10)
    monkeypatch.setattr(worker_module.tempfile, "tempdir", str(tmp_path))
    used = []
    spooled = Path.write_bytes

    def spy(path: Path, data: bytes) -> int:
        used.append(path)
        return spooled(path, data)

    monkeypatch.setattr(Path, "write_bytes", spy)
    assert works(worker)
    assert [path.parent.parent for path in used] == [tmp_path]
    assert list(tmp_path.iterdir()) == []

    def full(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert works(worker)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_only_runs_without_optimization(worker: Worker) -> None:
    tried = ort.run_at_all_levels(
        pad_before_weight(), {"x": np.ones((1, 3, 8, 8), np.float32)}, worker=worker
    )
    assert [t.level for t in tried] == list(ort.optimization_levels())
    assert tried[0].ok
    bad = [t for t in tried if not t.ok]
    if not bad:
        pytest.skip("this onnxruntime has no longer the defect")
    assert "not a graph input, initializer, or output of a previous node" in bad[0].message
    fine = ort.run_at_all_levels(NEG, X, worker=worker)
    assert all(t.ok and not t.message for t in fine)


def test_from_several_threads(worker: Worker) -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        for i in range(10):
            x = np.array([number * 100 + i], np.float32)
            found = worker.run(NEG, {"x": x})
            if isinstance(found, Failure) or not np.array_equal(found["y"], -x):  # type: ignore[arg-type]
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert ort.shared_worker() is ort.shared_worker()


def test_the_largest_matmul_a_test_affords(worker: Worker) -> None:
    """Megabytes in both directions."""
    a = np.random.default_rng(0).standard_normal((1000, 1000)).astype(np.float32)
    found = worker.run(matmul(1000), {"a": a, "b": np.eye(1000, dtype=np.float32)})
    assert isinstance(found, dict)
    np.testing.assert_allclose(found["y"], a, rtol=1e-6)  # type: ignore[arg-type]
