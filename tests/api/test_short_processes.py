"""Processes that end while a child compiles for them: the child goes on and fills the cache."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import superopt
from superopt.compilation.runtime import child_process
from superopt.cost.cache_folders import default_folder, ready_folder
from tests.support.compilation.models import F, model, near, reference

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(
    not child_process.CAN_RUN_CHILDREN, reason="no child processes on this platform"
)
WIDTHS = (64, 96, 80, 112, 48, 144, 72, 88, 56, 104)  # many kernels, which take some seconds
SCRIPT = """
import os, sys
import numpy as np
import superopt
exe = superopt.compile(sys.argv[1], threads=1)
pid = exe.waiting_child.process.pid
if "nothing" not in sys.argv:
    exe(x=np.ones((100, 64), np.float32))
print(pid, flush=True)
if "close" in sys.argv:
    exe.close()
if "interrupt" in sys.argv:
    raise KeyboardInterrupt
if "kill" in sys.argv:
    os.kill(os.getpid(), 9)
"""
MAX_EXIT_S = 8.0  # of a loaded machine; a wait for the thread takes ten more


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    out = tmp_path / "m.onnx"
    rng = np.random.default_rng(0)
    weights = {
        f"w{k}": (rng.standard_normal(shape) / 8).astype(np.float32)
        for k, shape in enumerate(pairwise(WIDTHS))
    }
    nodes = []
    for k, (a, b) in enumerate(pairwise(["x", *(f"y{k}" for k in range(len(weights)))])):
        nodes.append(helper.make_node("MatMul", [a, f"w{k}"], [f"a{k}"]))
        nodes.append(helper.make_node("Softmax", [f"a{k}"], [b], axis=-1))
    onnx.save(model(nodes, {"x": (F, ["n", 64])}, [b], weights), out)
    return out


def start(path: Path, *how: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(path), *how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(script: subprocess.Popen[str]) -> int:
    """Wait for the end of a script; return the process identifier of its child."""
    assert script.stdout is not None
    line = script.stdout.readline()
    begin = time.monotonic()
    _, errors = script.communicate(timeout=60)
    assert time.monotonic() - begin < MAX_EXIT_S
    assert line, errors
    return int(line)


def is_running(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def wait_for_end(pid: int, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while is_running(pid):
        assert time.monotonic() < end
        time.sleep(0.05)


def has_class(path: Path) -> bool:
    exe = superopt.compile(path, threads=1)
    found = exe.waiting_child is None and exe.size_classes.admits({"n": 100})
    x = np.random.default_rng(1).standard_normal((100, 64)).astype(np.float32)
    near(exe(x=x), reference(onnx.load(path), {"x": x}))
    exe.close()
    return found


def test_the_next_process_has_the_class(path: Path) -> None:
    pid = finish(start(path))
    assert is_running(pid)
    assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)
    wait_for_end(pid)
    assert has_class(path)
    assert not [*ready_folder().glob("*.tmp*")]


@pytest.mark.ci
@pytest.mark.parametrize("how", ["nothing", "close", "interrupt"])
def test_no_child_goes_on(how: str, path: Path) -> None:
    wait_for_end(finish(start(path, how)), 15)
    assert not has_class(path)


def test_the_child_of_a_process_that_was_killed_ends(path: Path) -> None:
    wait_for_end(finish(start(path, "kill")))


@pytest.fixture
def lock_of_another_process(tmp_path: Path) -> Iterator[None]:
    """Another process has left a child."""
    default_folder().mkdir(mode=0o700)
    with (default_folder() / child_process.LOCK_NAME).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.mark.usefixtures("lock_of_another_process")
def test_one_child_goes_on_at_a_time(path: Path) -> None:
    pid = finish(start(path))
    wait_for_end(pid, 15)
    assert not has_class(path)


@pytest.mark.ci
def test_processes_at_the_same_time_leave_one_child(path: Path) -> None:
    pids = [*map(finish, [start(path) for _ in range(3)])]
    time.sleep(0.5)
    assert sum(map(is_running, pids)) <= 1
    for pid in pids:
        wait_for_end(pid)
    assert has_class(path)


def test_no_child_goes_on_without_the_cache(path: Path) -> None:
    exe = superopt.compile(path, threads=1)
    child = exe.take_child()
    assert child is not None
    (default_folder() / child_process.LOCK_NAME).unlink()
    child.leave()
    assert child.process.wait(10) == -signal.SIGKILL
    child.close()


def test_a_child_that_goes_on_has_limits(path: Path) -> None:
    exe = superopt.compile(path, threads=1)
    child = exe.take_child()
    assert child is not None
    child.leave()
    found = resource.prlimit(child.process.pid, resource.RLIMIT_CPU)
    assert found == (child_process.LEFT_CPU_SECONDS,) * 2
    child.process.kill()
    child.process.wait()
    child.close()
