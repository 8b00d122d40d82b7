"""A child process that runs onnxruntime: its crashes are reported, and it is restarted."""

import contextlib
import itertools
import os
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from superopt import guard
from superopt.ort.child import Child, end, start
from superopt.ort.runtime import Source
from superopt.ort.values import Feeds, Value
from superopt.ort.wire import Blob, Header, pack_values, receive, send, unpack_values

_SPOOL_BYTES = 32 << 20
MEMORY_PART = 0.9  # of the call's memory limit: freed memory is not returned at once


@dataclass(frozen=True, slots=True)
class Failed:
    """A request without a result.

    `error`: onnxruntime rejected it or failed; `died`: the process ended, as in a crash or out of
    memory; `time`: it was killed at the time limit; `skipped`: no time was left to try.
    """

    kind: Literal["error", "died", "time", "skipped"]
    message: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that stays loaded in a worker, until it is unloaded or the process dies."""

    id: int
    start: int  # which of the worker's processes holds it


class Worker:
    """A process that loads, runs and times models, one request at a time.

    Starts with the first request and again after it died. It is a context manager; the process also
    ends by `close`, with the object, and when this process ends. `limit` is the default time limit
    of a request in seconds. Ctrl-C does not reach the process; when it interrupts a request here,
    the process is killed.
    """

    def __init__(self, *, limit: float = 300.0) -> None:
        self.limit = limit
        self.starts = 0
        self._child: Child | None = None
        self._finalizer: weakref.finalize[..., Worker] | None = None
        self._ids = itertools.count()
        self._lock = threading.RLock()

    @property
    def process(self) -> int | None:
        """Return the process id; None if none runs."""
        return None if self._child is None else self._child.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process, if there is one; the next request starts another."""
        with self._lock:
            child, self._child = self._child, None
            if self._finalizer is not None:
                self._finalizer.detach()
            if child is not None:
                end(child)

    def load(
        self, model: Source, *, threads: int = 1, level: str = "all", limit: float | None = None
    ) -> Loaded | Failed:
        """Load a model for several runs."""
        with self._lock:
            number = next(self._ids)
            request = {"do": "load", "id": number, "threads": threads, "level": level}
            reply = self.ask(request, (), f"loading {title(model)}", limit, [model])
            return reply if isinstance(reply, Failed) else Loaded(number, self.starts)

    def drop(self, loaded: Loaded) -> None:
        """Free a loaded model."""
        with self._lock:
            if self._child is not None and loaded.start == self.starts:
                self.ask({"do": "drop", "id": loaded.id}, (), "freeing a model", None)

    def run(
        self,
        model: Source | Loaded,
        feeds: Feeds,
        *,
        threads: int = 1,
        level: str = "all",
        limit: float | None = None,
    ) -> dict[str, Value] | Failed:
        """Return the model's outputs by name, for inputs of any ONNX dtype.

        A `LoadedModel` keeps the threads and level that it was loaded with.
        """
        if not isinstance(model, Loaded):
            loaded = self.load(model, threads=threads, level=level, limit=limit)
            if isinstance(loaded, Failed):
                return loaded
            found = self.run(loaded, feeds, limit=limit)
            self.drop(loaded)
            return found
        with self._lock:
            self._started()
            if model.start != self.starts:
                return Failed("died", "the process that held the model died: load it again")
            values, blobs = pack_values(feeds)
            request = {"do": "run", "id": model.id, "values": values}
            reply = self.ask(request, blobs, "running a model", limit)
            if isinstance(reply, Failed):
                return reply
            header, packed = reply
            return unpack_values(header["values"], packed)

    def ask(
        self,
        header: Header,
        blobs: Sequence[Blob],
        doing: str,
        limit: float | None,
        models: Sequence[Source | Loaded] = (),
        stop: Callable[[Header], bool] = lambda stage: False,
    ) -> tuple[Header, list[bytearray]] | Failed:
        """Send one request and return its answer; `activity` names it in failure messages.

        The models are added to the header as `models`. `stop` is called with every stage; once it
        is true the process is told to stop with what it has. Raises SuperoptError if no process can
        be started.
        """
        limit = self.limit if limit is None else limit
        limits = guard.current()
        if limits.seconds_left() <= 0:
            return Failed("time", f"no time was left for {doing}")
        with self._lock, contextlib.ExitStack() as stack:
            blobs = list(blobs)
            header = {**header, "models": [_entry(model, blobs, stack) for model in models]}
            header["memory"] = memory = (
                int(MEMORY_PART * limits.max_memory) - guard.resident_bytes()
            )
            if memory <= 0:
                return Failed("error", f"no memory is left for {doing}")
            child = self._started()
            if any(isinstance(m, Loaded) and m.start != self.starts for m in models):
                return Failed("died", "the process that held the model died: load it again")
            stage, late, answered = "", threading.Event(), threading.Event()
            begin = time.monotonic()
            stack.callback(answered.set)
            ends = (child, begin + max(limit, 0.0), limits, late, answered)
            threading.Thread(target=_end_late, args=ends, daemon=True).start()
            try:
                send(child.stdin, header, blobs)
                while "stage" in (reply := receive(child.stdout))[0]:
                    stage = f": {reply[0]['stage']}"
                    if stop(reply[0]):
                        send(child.stdin, {"do": "enough"})
            except (EOFError, OSError):
                self._child = None
                why = end(child)
                if late.is_set():
                    most = min(limit, limits.end - begin)
                    return Failed("time", f"took longer than {most:.4g} s while {doing}{stage}")
                return Failed("died", f"the process {why} while {doing}{stage}")
            except BaseException:  # Ctrl-C: nobody will read the pending answer
                self._child = None
                child.process.kill()
                end(child)
                raise
            finally:
                answered.set()
            if late.is_set():  # answered in the last moment, and killed all the same
                self._child = None
                end(child)
            if reply[0]["ok"]:
                return reply
            message = reply[0]["message"]
            if reply[0].get("memory") and limits.max_memory < guard.NO_MEMORY_LIMIT:
                message = f"{doing} needs more than {guard.size_text(memory)}: {message}"
            return Failed("error", message)

    def _started(self) -> Child:
        child = self._child
        if child is not None and child.parent == os.getpid() and child.process.poll() is None:
            return child
        if child is not None and child.parent == os.getpid():
            end(child)
        self._child = child = start()
        # The process ends with its object, and with the interpreter.
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = weakref.finalize(self, end, child)
        self.starts += 1
        return child


def _end_late(
    child: Child,
    at: float,
    limits: guard.Guard,
    late: threading.Event,
    answered: threading.Event,
) -> None:
    """Kill the process at `deadline` (time.monotonic()), or at the guard's deadline if that is
    earlier; the pipe that is being read ends with it. Does nothing once it has answered."""
    while (left := min(at, limits.end) - time.monotonic()) > 0:
        if answered.wait(min(left, guard.END_POLL_SECONDS)):
            return
    if not answered.is_set():
        late.set()
        child.process.kill()


def title(model: Source | Loaded) -> str:
    """Return a model's name for messages."""
    if isinstance(model, Loaded):
        return "a loaded model"
    return f"a model of {len(model)} bytes" if isinstance(model, bytes) else os.fspath(model)


def _entry(model: Source | Loaded, blobs: list[Blob], stack: contextlib.ExitStack) -> Header:
    """Return a model for a request's header; small ones go to `blobs`, large ones to a file.

    onnxruntime needs half the memory to read a file as to receive and parse bytes.
    """
    if isinstance(model, Loaded):
        return {"loaded": model.id}
    if not isinstance(model, bytes):
        return {"path": os.path.abspath(os.fspath(model))}
    if len(model) > _SPOOL_BYTES:
        with contextlib.suppress(OSError):  # no space on the disk: use the pipe
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="superopt-"))
            path = Path(folder, "model.onnx")
            path.write_bytes(model)
            return {"path": str(path)}
    blobs.append(model)
    return {"blob": len(blobs) - 1}


_shared: Worker | None = None


def shared() -> Worker:
    """Return the shared worker of this process."""
    global _shared
    if _shared is None:
        _shared = Worker()
    return _shared
