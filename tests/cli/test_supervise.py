"""Every command on files that ask for unbounded time or memory: it ends in time, says what it gave
up, stays within its memory, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from superopt.cli.supervise import descendants
from superopt.guard import resident_bytes
from tests.support.commands import share_rule_library, superopt_process
from tests.support.onnx_io.hostile import KINDS, write

BUDGET = 3.0  # seconds
MOST_SECONDS = 1.2 * BUDGET + 5
MAX_MEMORY = 1_500_000_000
POLL_SECONDS = 0.05
OVERSHOOT = 1.25  # times its memory: a process is looked at five times a second
HANGS = 120.0  # seconds after which a test ends a command itself

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended: its exit code, output, seconds, and most bytes of memory."""

    code: int
    out: str
    err: str
    seconds: float
    peak: int


@contextmanager
def started(folder: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """The command line in a process of its own, with caches and temporary files in `folder`."""
    for name in ("tmp", "cache"):
        (folder / name).mkdir(exist_ok=True)
    share_rule_library(folder / "cache")
    environment = {
        **os.environ, "TMPDIR": str(folder / "tmp"), "XDG_CACHE_HOME": str(folder / "cache"),
        "SUPEROPT_CACHE": str(folder / "cache"),
    }  # fmt: skip
    with superopt_process(arguments, environment, HANGS) as process:
        yield process


def run(folder: Path, *arguments: object) -> Done:
    """A command to its end."""
    begin, peak = time.monotonic(), 0
    ended = threading.Event()
    with started(folder, *arguments) as process:

        def watch() -> None:
            nonlocal peak
            while not ended.wait(POLL_SECONDS):
                family = [process.pid, *descendants(process.pid)]
                peak = max(peak, sum(map(resident_bytes, family)))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            out, err = process.communicate()
        finally:
            ended.set()
            watcher.join()
        return Done(process.returncode, out, err, time.monotonic() - begin, peak)


def arguments(command: str, model: Path, folder: Path) -> list[object]:
    """The arguments of a command for a model, with its budget."""
    budget = f"{BUDGET:g}s"
    inputs = folder / "x.npz"
    np.savez(inputs, x=np.ones(4, np.float32))
    other = folder / "other.onnx"
    if command in ("verify", "rules derive"):
        copy = onnx.load(str(model))
        copy.graph.node.insert(0, onnx.helper.make_node("Identity", ["x"], ["renamed"]))
        for node in copy.graph.node[1:]:
            node.input[:] = ["renamed" if name == "x" else name for name in node.input]
        other.write_bytes(copy.SerializeToString())
    table: dict[str, list[object]] = {
        "optimize": ["optimize", model, "-o", folder / "fast.onnx", "--budget", budget],
        "verify": ["verify", model, other, "--limit", budget],
        "compile": ["compile", model, "--budget", budget],
        "run": ["run", model, "--inputs", inputs, "--budget", budget],
        "export": ["export", model, "-o", folder / "exported", "--budget", budget],
        "bench": ["bench", model, "--seconds", "1s", "--budget", budget],
        "profile": ["profile", model, "--seconds", "1", "--budget", budget],
        "tune": ["tune", model, "--budget", budget],
        "explain": ["explain", model, "y", "--budget", budget],
        "rules derive": ["rules", "derive", model, other, "--limit", budget],
    }
    return [*table[command], "--max-memory", MAX_MEMORY]


COMMANDS = [
    "optimize", "verify", "compile", "run", "export", "bench", "profile", "tune", "explain",
    "rules derive",
]  # fmt: skip
QUICK = {
    ("loop-2^60", "optimize"), ("loop-2^60", "run"), ("constant-of-shape", "verify"),
    ("empty-nodes-2000000", "optimize"), ("nested-functions-2^30", "compile"),
}  # fmt: skip
SLOW = pytest.mark.slow


@pytest.mark.ci
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("kind", "command"),
    [pytest.param(k, c, marks=() if (k, c) in QUICK else SLOW) for k in KINDS for c in COMMANDS],
)
def test_a_command_ends_within_its_limits(kind: str, command: str, tmp_path: Path) -> None:
    model = write(kind, tmp_path)
    given = model.read_bytes()
    if len(given) > 1_000_000 and command in ("verify", "rules derive"):
        pytest.skip("a second model is as large")
    done = run(tmp_path, *arguments(command, model, tmp_path))
    assert done.seconds < MOST_SECONDS, done.err
    assert done.code in (0, 2, 3, 5), done.err
    assert "Traceback" not in done.err
    if done.code in (2, 3) or (done.code == 5 and not done.out):
        assert "error: " in done.err
        assert len(done.err.rpartition("error: ")[2].splitlines()) >= 2
    assert done.peak < OVERSHOOT * MAX_MEMORY
    assert not list((tmp_path / "tmp").iterdir())
    fast = tmp_path / "fast.onnx"
    assert fast.exists() or (command, done.code) != ("optimize", 0)
    if fast.exists() and not (tmp_path / "fast.superopt.json").exists():
        assert fast.read_bytes() == given


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    """Until the command says so on standard error."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    pytest.fail(f"nothing said {text!r}")


def alive(process: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


@pytest.mark.ci
@pytest.mark.one_in(2)
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_an_endless_model_ends_at_a_signal(sent: signal.Signals, tmp_path: Path) -> None:
    """Within two seconds, with all its processes; SIGTERM leaves a whole model, or none."""
    model = write("loop-2^60", tmp_path)
    fast = tmp_path / "fast.onnx"
    with started(tmp_path, "optimize", model, "-o", fast, "--budget", "100s") as process:
        wait_for(process, "] load: ")
        time.sleep(3.0)
        family = descendants(process.pid)
        begin = time.monotonic()
        process.send_signal(sent)
        _, err = process.communicate(timeout=HANGS)
        took = time.monotonic() - begin
        while any(map(alive, family)) and time.monotonic() - begin < 2 * took + 5:
            time.sleep(POLL_SECONDS)
    assert family
    assert not any(map(alive, family))
    assert took < 2.0
    assert process.returncode in ((0, 130) if sent == signal.SIGTERM else (-sent,))
    if sent == signal.SIGTERM:
        assert "SIGTERM" in err or "stopping with what there is" in err
        assert not list((tmp_path / "tmp").iterdir())
    assert not fast.exists() or fast.read_bytes() == model.read_bytes()


@pytest.mark.ci
def test_a_command_without_handlers_ends_at_sigterm(tmp_path: Path) -> None:
    """`run` has nothing to keep, and its C++ code is never interrupted by Python."""
    model = write("loop-2^60", tmp_path)
    given = arguments("run", model, tmp_path)
    with started(tmp_path, *given[:-4], "--budget", "100s") as process:
        time.sleep(4.0)
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=HANGS)
    assert time.monotonic() - begin < 2.0
    assert process.returncode == 130
    assert "error: aborted\n" in err
    assert not list((tmp_path / "tmp").iterdir())


def test_a_small_model_is_not_held_up(tmp_path: Path) -> None:
    """The parent hands on the exit code, and both streams, of what did not reach its limits."""
    model = write("powers-2^200", tmp_path)
    same = run(tmp_path, "verify", model, model, "--limit", "60s", "--max-memory", "1GB")
    assert (same.code, same.err) == (0, same.err)
    assert "proved" in same.out
    wrong = run(tmp_path, "verify", model, tmp_path / "absent.onnx")
    assert wrong.code == 2
    assert wrong.err.startswith("error: ")
