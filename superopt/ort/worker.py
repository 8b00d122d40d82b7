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
from superopt.ort.child_process import ChildProcess, end_process, start_process
from superopt.ort.sessions import Source
from superopt.ort.tensors import Feeds, Value
from superopt.ort.wire import Blob, Header, pack_values, receive, send, unpack_values

_SPOOL_BYTES = 32 << 20
MEMORY_FRACTION = 0.9  # of the call's memory limit: freed memory is not returned at once


@dataclass(frozen=True, slots=True)
class Failure:
    """A request without a result.

    `error`: onnxruntime rejected it or failed; `died`: the process ended, as in a crash or out of
    memory; `time`: it was killed at the time limit; `skipped`: no time was left to try.
    """

    kind: Literal["error", "died", "time", "skipped"]
    message: str


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that stays loaded in a worker, until it is unloaded or the process dies."""

    id: int
    process_number: int  # which of the worker's processes holds it


class Worker:
    """A process that loads, runs and times models, one request at a time.

    Starts with the first request and again after it died. It is a context manager; the process also
    ends by `close`, with the object, and when this process ends. `limit` is the default time limit
    of a request in seconds. Ctrl-C does not reach the process; when it interrupts a request here,
    the process is killed.
    """

    def __init__(self, *, limit: float = 300.0) -> None:
        self.limit = limit
        self.start_count = 0
        self._child: ChildProcess | None = None
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
                end_process(child)

    def load(
        self,
        model: Source,
        *,
        threads: int = 1,
        level: str = "all",
        limit: float | None = None,
        exact_integers: bool = False,
    ) -> LoadedModel | Failure:
        """Load a model for several runs. exact_integers: as `unsigned_weights` of
        `load_session`."""
        with self._lock:
            number = next(self._ids)
            request = {"do": "load", "id": number, "threads": threads, "level": level}
            request["exact_integers"] = exact_integers
            reply = self.request(request, (), f"loading {model_title(model)}", limit, [model])
            return reply if isinstance(reply, Failure) else LoadedModel(number, self.start_count)

    def unload(self, loaded: LoadedModel) -> None:
        """Free a loaded model."""
        with self._lock:
            if self._child is not None and loaded.process_number == self.start_count:
                self.request({"do": "drop", "id": loaded.id}, (), "freeing a model", None)

    def run(
        self,
        model: Source | LoadedModel,
        feeds: Feeds,
        *,
        threads: int = 1,
        level: str = "all",
        limit: float | None = None,
        exact_integers: bool = False,
    ) -> dict[str, Value] | Failure:
        """Return the model's outputs by name, for inputs of any ONNX dtype.

        A `LoadedModel` keeps the options that it was loaded with.
        """
        if not isinstance(model, LoadedModel):
            loaded = self.load(
                model, threads=threads, level=level, limit=limit, exact_integers=exact_integers
            )
            if isinstance(loaded, Failure):
                return loaded
            found = self.run(loaded, feeds, limit=limit)
            self.unload(loaded)
            return found
        with self._lock:
            self._ensure_started()
            if model.process_number != self.start_count:
                return Failure("died", "the process that held the model died: load it again")
            values, blobs = pack_values(feeds)
            request = {"do": "run", "id": model.id, "values": values}
            reply = self.request(request, blobs, "running a model", limit)
            if isinstance(reply, Failure):
                return reply
            header, packed = reply
            return unpack_values(header["values"], packed)

    def request(
        self,
        header: Header,
        blobs: Sequence[Blob],
        activity: str,
        limit: float | None,
        models: Sequence[Source | LoadedModel] = (),
        stop: Callable[[Header], bool] = lambda stage: False,
    ) -> tuple[Header, list[bytearray]] | Failure:
        """Send one request and return its answer; `activity` names it in failure messages.

        The models are added to the header as `models`. `stop` is called with every stage; once it
        is true the process stops with its results so far. Raises SuperoptError if no process can
        be started.
        """
        limit = self.limit if limit is None else limit
        limits = guard.current_guard()
        if limits.seconds_left() <= 0:
            return Failure("time", f"no time was left for {activity}")
        with self._lock, contextlib.ExitStack() as stack:
            blobs = list(blobs)
            header = {**header, "models": [_model_entry(model, blobs, stack) for model in models]}
            header["memory"] = memory = (
                int(MEMORY_FRACTION * limits.max_memory) - guard.resident_bytes()
            )
            if memory <= 0:
                return Failure("error", f"no memory is left for {activity}")
            child = self._ensure_started()
            if any(
                isinstance(m, LoadedModel) and m.process_number != self.start_count for m in models
            ):
                return Failure("died", "the process that held the model died: load it again")
            stage, late, answered = "", threading.Event(), threading.Event()
            begin = time.monotonic()
            stack.callback(answered.set)
            ends = (child, begin + max(limit, 0.0), limits, late, answered)
            threading.Thread(target=_kill_at_deadline, args=ends, daemon=True).start()
            try:
                send(child.stdin, header, blobs)
                while "stage" in (reply := receive(child.stdout))[0]:
                    stage = f": {reply[0]['stage']}"
                    if stop(reply[0]):
                        send(child.stdin, {"do": "enough"})
            except (EOFError, OSError):
                self._child = None
                why = end_process(child)
                if late.is_set():
                    most = min(limit, limits.deadline - begin)
                    return Failure("time", f"took longer than {most:.4g} s while {activity}{stage}")
                return Failure("died", f"the process {why} while {activity}{stage}")
            except BaseException:  # Ctrl-C: nobody will read the pending answer
                self._child = None
                child.process.kill()
                end_process(child)
                raise
            finally:
                answered.set()
            if late.is_set():  # answered in the last moment, and killed all the same
                self._child = None
                end_process(child)
            if reply[0]["ok"]:
                return reply
            message = reply[0]["message"]
            if reply[0].get("memory") and limits.max_memory < guard.NO_MEMORY_LIMIT:
                message = f"{activity} needs more than {guard.size_text(memory)}: {message}"
            return Failure("error", message)

    def _ensure_started(self) -> ChildProcess:
        child = self._child
        if child is not None and child.parent_pid == os.getpid() and child.process.poll() is None:
            return child
        if child is not None and child.parent_pid == os.getpid():
            end_process(child)
        self._child = child = start_process()
        # The process ends with its object, and with the interpreter.
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = weakref.finalize(self, end_process, child)
        self.start_count += 1
        return child


def _kill_at_deadline(
    child: ChildProcess,
    deadline: float,
    limits: guard.Guard,
    late: threading.Event,
    answered: threading.Event,
) -> None:
    """Kill the process at `deadline` (time.monotonic()), or at the guard's deadline if that is
    earlier; the pipe that is being read ends with it. Does nothing once it has answered."""
    while (left := min(deadline, limits.deadline) - time.monotonic()) > 0:
        if answered.wait(min(left, guard.DEADLINE_POLL_SECONDS)):
            return
    if not answered.is_set():
        late.set()
        child.process.kill()


def model_title(model: Source | LoadedModel) -> str:
    """Return a model's name for messages."""
    if isinstance(model, LoadedModel):
        return "a loaded model"
    return f"a model of {len(model)} bytes" if isinstance(model, bytes) else os.fspath(model)


def _model_entry(
    model: Source | LoadedModel, blobs: list[Blob], stack: contextlib.ExitStack
) -> Header:
    """Return a model for a request's header; small ones go to `blobs`, large ones to a file.

    onnxruntime needs half the memory to read a file as to receive and parse bytes.
    """
    if isinstance(model, LoadedModel):
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


def shared_worker() -> Worker:
    """Return the shared worker of this process."""
    global _shared
    if _shared is None:
        _shared = Worker()
    return _shared
