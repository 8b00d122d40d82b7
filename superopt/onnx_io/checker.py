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
from superopt.onnx_io.forked_check import (
    NO_MEMORY,
    PATIENCE,
    Complaint,
    checked,
    limit,
    said_here,
)

MANY: Final = 32  # models by forks of this process: by then they took as long as another one starts
_SLACK: Final = 10.0  # seconds beyond what a check may take in which its answer must be there
_ASKED: Final = struct.Struct("<qq")  # bytes of the model, seconds
_START: Final = (
    "import sys; sys.path[:] = {path!r}; from superopt.onnx_io.checker import serve; serve()"
)


@dataclass(slots=True)
class _Server:
    """A process that checks models, and our end of the connection to it."""

    process: int
    line: socket.socket
    ready: bool = False


_lock = threading.Lock()
_checked = 0  # models so far, by forks of this process
_server: _Server | None = None
_failed = False  # it cannot be started


def complaint(data: bytes, seconds: int) -> Complaint | None:
    """Return what `onnx.checker.check_model(full_check=True)` reports for this ModelProto, or None.

    It also reports inferred types that no tensor can have. `seconds` limits processor time. Raises
    OutOfTime if the time of the call ends first.
    """
    global _checked
    if _lock.acquire(blocking=False):  # who checks in another thread meanwhile forks
        try:
            if (server := _running()) is not None:
                return _ask(server, data, seconds)
        except (OSError, ValueError):
            _drop()
        except BaseException:  # an answer that nobody reads would be taken for the next one
            _drop()
            raise
        finally:
            _lock.release()
    _checked += 1
    return checked(data, seconds)


def _running() -> _Server | None:
    """Return the server if it is ready; otherwise start it once enough models were checked."""
    global _server, _failed
    if _server is None:
        if _failed or _checked < MANY or not _python():
            return None
        try:
            _server = _started()
        except (OSError, NotImplementedError):
            _failed = True
        return None
    if not _server.ready:
        if not select.select([_server.line], [], [], 0)[0]:
            return None
        if _server.line.recv(1) != b"\n":
            _failed = True
            raise OSError("it ended")
        _server.ready = True
    return _server


def _python() -> bool:
    """True if this executable is a Python interpreter that can run a script; an embedding program
    is not."""
    name = Path(sys.executable or "").name
    return hasattr(os, "fork") and bool(re.match(r"(python|pypy)[\d.]*$", name))


def _started() -> _Server:
    ours, theirs = socket.socketpair()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        process = os.posix_spawn(
            sys.executable,
            [sys.executable, "-c", _START.format(path=sys.path)],
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


def _ask(server: _Server, data: bytes, seconds: int) -> Complaint | None:
    """Send a model to the server and return its answer. Raises OSError or ValueError if none
    comes."""
    # To one that has ended nothing is sent, and no signal ends us, as by a pipe one might.
    server.line.sendall(_ASKED.pack(len(data), seconds) + data, getattr(socket, "MSG_NOSIGNAL", 0))
    end = min(time.monotonic() + seconds * PATIENCE + _SLACK, guard.current().end)
    answer = b""
    while not answer.endswith(b"\n"):
        if not select.select([server.line], [], [], max(0.0, end - time.monotonic()))[0]:
            raise TimeoutError
        part = server.line.recv(1 << 16)
        if not part:
            raise OSError("it ended")
        answer += part
    text = json.loads(answer)
    return Complaint(text) if text else None


def _drop() -> None:
    """Stop the server; the next one starts after FORKS_BEFORE_SERVER further models."""
    server = _forget()
    if server is not None:
        with contextlib.suppress(OSError):
            os.kill(server.process, signal.SIGKILL)
            os.waitpid(server.process, 0)


def _forget() -> _Server | None:
    """Close the connection to the server and return the server, if there was one."""
    global _server, _checked
    server, _server, _checked = _server, None, 0
    if server is not None:
        server.line.close()
    return server


def _be_a_fork() -> None:
    """Reset the lock and the server in a forked child: both belong to the parent."""
    global _lock
    _lock = threading.Lock()
    _forget()


atexit.register(_drop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_be_a_fork)


def serve() -> None:
    """Server loop: check the models that arrive on standard input until it ends."""
    _write(1, b"\n")
    answers = os.dup(1)
    os.dup2(2, 1)  # the checker prints
    while asked := _read(_ASKED.size):
        size, seconds = _ASKED.unpack(asked)
        data = _read(size)
        limit(data, seconds)
        if (text := said_here(data)) == NO_MEMORY:
            return  # which may be for what others left
        _write(answers, json.dumps(text).encode() + b"\n")


def _read(size: int) -> bytes:
    """Read `size` bytes from standard input; return no bytes at its end."""
    parts = []
    while size > 0:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write(pipe: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(pipe, rest) :]
