"""Start and end the process of a worker."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from superopt import guard
from superopt.errors import SuperoptError, UsageError
from superopt.ort.sessions import is_installed
from superopt.ort.wire import READY

_START_SECONDS = 120.0  # for importing onnxruntime from a cold network disk
# Imports this superopt, wherever it is, and nothing from the working directory.
_CHILD_CODE = (
    "import sys; root = sys.argv[1]; root in sys.path or sys.path.insert(0, root); "
    "from superopt.ort.serve import main; main()"
)


@dataclass(frozen=True, slots=True)
class ChildProcess:
    """A process that serves requests, its pipes, and the process that started it."""

    process: subprocess.Popen[bytes]
    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]
    parent_pid: int


def start_process() -> ChildProcess:
    """Start a process and wait until it is ready.

    Raises UsageError without onnxruntime, SuperoptError if the process does not start.
    """
    if not is_installed():
        raise UsageError(
            "onnxruntime is not installed",
            "measuring and checking models needs it",
            'pip install "superopt-onnx[ort]"',
        )
    child = _spawn(tempfile.TemporaryFile())  # noqa: SIM115 (closed by end)
    late = threading.Event()
    seconds = min(_START_SECONDS, max(guard.current_guard().seconds_left(), 0.0))
    timer = threading.Timer(seconds, kill_at_timeout, (child.process, late))
    timer.daemon = True
    timer.start()
    try:
        # The interpreter's start-up files may print before it.
        while (line := child.stdout.readline()) != READY:
            if not line:
                raise EOFError
    except (EOFError, OSError):
        why = end_process(child)
        guard.check_time("starting onnxruntime")
        raise SuperoptError(
            "the worker process does not start",
            f"{sys.executable} {why}",
            'try: python -c "import onnxruntime"',
        ) from None
    except BaseException:
        child.process.kill()
        end_process(child)
        raise
    finally:
        timer.cancel()
    return child


def _spawn(stderr: IO[bytes]) -> ChildProcess:
    root = str(Path(__file__).resolve().parents[2])
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD_CODE, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "ORT_DISABLE_TELEMETRY": "1"},
            start_new_session=True,  # Ctrl-C is for this process, which decides what it means
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
    except OSError as error:
        stderr.close()
        raise SuperoptError(
            "the worker process does not start",
            f"{sys.executable}: {error}",
            "free some memory, or allow more processes (ulimit -u)",
        ) from error
    assert process.stdin is not None
    assert process.stdout is not None
    return ChildProcess(process, process.stdin, process.stdout, stderr, os.getpid())


def kill_at_timeout(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    """Kill the process at the time limit, which ends the pipe that is being read."""
    late.set()
    process.kill()


def end_process(child: ChildProcess) -> str:
    """End the process if it lives, release its resources, and return how it ended."""
    if child.parent_pid != os.getpid():  # inherited by a fork
        return "belongs to another process"
    if child.stderr.closed:
        return "had already ended"
    with contextlib.suppress(OSError):
        child.stdin.close()
    try:
        code = child.process.wait(2)
    except subprocess.TimeoutExpired:
        child.process.kill()
        code = child.process.wait()
    child.stdout.close()
    last = _last_line(child.stderr)
    child.stderr.close()
    how = f"ended with exit code {code}"
    if code < 0:
        known = {number.value: number.name for number in signal.Signals}
        how = f"was killed by {known.get(-code, f'signal {-code}')}"
        if -code == signal.SIGKILL:
            how += " (out of memory?)"
    return how + (f" ({last})" if last else "")


def _last_line(stream: IO[bytes]) -> str:
    with contextlib.suppress(OSError):
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - 2000))
        lines = [text for line in stream.read().splitlines() if (text := line.strip())]
        if lines:
            return lines[-1].decode(errors="replace")[:200]
    return ""
