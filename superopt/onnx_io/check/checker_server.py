"""Run onnx's checker in a fork of this process, or in a small server process.

The cost of a fork grows with the process: 13 ms at 300 MB, while checking a small model takes 0.1
ms. A process that checks many models starts a server that contains only the checker. A model that
crashes the server is checked again in a fork, and so are all models if the server fails.
"""

import atexit
import contextlib
import json
import os
import re
import select
import signal
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from superopt import guard
from superopt.onnx_io.check.forked_checker import (
    OUT_OF_MEMORY,
    WALL_TIME_FACTOR,
    CheckFailure,
    check_in_fork,
    check_in_process,
    limit_resources,
)

FORKS_BEFORE_SERVER: Final = (
    32  # models by forks of this process: by then they took as long as another one starts
)
_ANSWER_SLACK_SECONDS: Final = (
    10.0  # seconds beyond what a check may take in which its answer must be there
)
START_SECONDS: Final = 20.0  # within which the server starts on a loaded machine
_REQUEST_HEADER: Final = struct.Struct("<qq")  # bytes of the model, seconds
_SERVER_SCRIPT: Final = (
    "import sys; sys.path[:] = {path!r}; "
    "from superopt.onnx_io.check.checker_server import serve; serve()"
)


@dataclass(slots=True)
class _Server:
    """A process that checks models, and our end of the connection to it."""

    process: int
    connection: socket.socket
    ready: bool = False


_lock = threading.Lock()
_forked_checks = 0  # models so far, by forks of this process
_server: _Server | None = None
_start_failed = False  # it cannot be started
_forks_are_unsafe = False  # the server checks the first models, too


def avoid_forks() -> None:
    """Let the server check all models from now on. A fork of a process whose threads run C++ code
    may wait forever for a lock that a thread held, such as those of PyTorch."""
    global _forks_are_unsafe
    _forks_are_unsafe = True


def run_checker(data: bytes, seconds: int) -> CheckFailure | None:
    """Return what `onnx.checker.check_model(full_check=True)` reports for this ModelProto, or None.

    It also reports inferred types that no tensor can have. `seconds` limits processor time. Raises
    OutOfTime if the time of the call ends first.
    """
    global _forked_checks
    if _lock.acquire(blocking=_forks_are_unsafe):  # who checks in another thread meanwhile forks
        try:
            if (server := _ready_server()) is not None:
                return _request_check(server, data, seconds)
        except (OSError, ValueError):
            _stop_server()
        except BaseException:  # an answer that nobody reads would be taken for the next one
            _stop_server()
            raise
        finally:
            _lock.release()
    _forked_checks += 1
    return check_in_fork(data, seconds)


def _ready_server() -> _Server | None:
    """Return the server if it is ready; otherwise start it once enough models were checked."""
    global _server, _start_failed
    if _server is None:
        is_early = _forked_checks < FORKS_BEFORE_SERVER and not _forks_are_unsafe
        if _start_failed or is_early or not _is_python_executable():
            return None
        try:
            _server = _start_server()
        except (OSError, NotImplementedError):
            _start_failed = True
        if _server is None or not _forks_are_unsafe:
            return None
    if not _server.ready:
        wait = START_SECONDS if _forks_are_unsafe else 0
        if not select.select([_server.connection], [], [], wait)[0]:
            return None
        if _server.connection.recv(1) != b"\n":
            _start_failed = True
            raise OSError("the checker process exited")
        _server.ready = True
    return _server


def _is_python_executable() -> bool:
    """True if this executable is a Python interpreter that can run a script; an embedding program
    is not."""
    name = Path(sys.executable or "").name
    return hasattr(os, "fork") and bool(re.match(r"(python|pypy)[\d.]*$", name))


def _start_server() -> _Server:
    ours, theirs = socket.socketpair()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        process = os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", _SERVER_SCRIPT.format(path=sys.path)],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), 0),
                (os.POSIX_SPAWN_DUP2, theirs.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, nowhere, 2),
            ],
            setpgroup=0,  # an interrupt from the keyboard is for us
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        os.close(nowhere)
    return _Server(process, ours)


def _request_check(server: _Server, data: bytes, seconds: int) -> CheckFailure | None:
    """Send a model to the server and return its answer. Raises OSError or ValueError if none
    comes."""
    # To one that has ended nothing is sent, and no signal ends us, as by a pipe one might.
    server.connection.sendall(
        _REQUEST_HEADER.pack(len(data), seconds) + data, getattr(socket, "MSG_NOSIGNAL", 0)
    )
    end = min(
        time.monotonic() + seconds * WALL_TIME_FACTOR + _ANSWER_SLACK_SECONDS,
        guard.current_guard().deadline,
    )
    answer = b""
    while not answer.endswith(b"\n"):
        if not select.select([server.connection], [], [], max(0.0, end - time.monotonic()))[0]:
            raise TimeoutError
        part = server.connection.recv(1 << 16)
        if not part:
            raise OSError("the checker process exited")
        answer += part
    text = json.loads(answer)
    return CheckFailure(text) if text else None


def _stop_server() -> None:
    """Stop the server; the next one starts after FORKS_BEFORE_SERVER further models."""
    server = _detach_server()
    if server is not None:
        with contextlib.suppress(OSError):
            os.kill(server.process, signal.SIGKILL)
            os.waitpid(server.process, 0)


def _detach_server() -> _Server | None:
    """Close the connection to the server and return the server, if there was one."""
    global _server, _forked_checks
    server, _server, _forked_checks = _server, None, 0
    if server is not None:
        server.connection.close()
    return server


def _reset_after_fork() -> None:
    """Reset the lock and the server in a forked child: both belong to the parent."""
    global _lock
    _lock = threading.Lock()
    _detach_server()


atexit.register(_stop_server)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)


def serve() -> None:
    """Server loop: check the models that arrive on standard input until it ends."""
    _write_all(1, b"\n")
    answers = os.dup(1)
    os.dup2(2, 1)  # the checker prints
    while asked := _read_stdin(_REQUEST_HEADER.size):
        size, seconds = _REQUEST_HEADER.unpack(asked)
        data = _read_stdin(size)
        limit_resources(data, seconds)
        if (text := check_in_process(data)) == OUT_OF_MEMORY:
            return  # which may be for what others left
        _write_all(answers, json.dumps(text).encode() + b"\n")


def _read_stdin(size: int) -> bytes:
    """Read `size` bytes from standard input; return no bytes at its end."""
    parts = []
    while size > 0:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write_all(pipe: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(pipe, rest) :]
