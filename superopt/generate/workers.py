"""Where the tasks of a run are done: in this process, in several ones, or by Ray."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

from superopt import __version__
from superopt.errors import UsageError

T = TypeVar("T")
R = TypeVar("R")


class Each(Protocol):
    """Maps a function of a module, in order."""

    def __call__(self, do: Callable[[T], R], what: Sequence[T], /) -> Iterable[R]: ...


@contextmanager
def workers(jobs: int, ray: str | None = None) -> Iterator[Each]:
    """In so many processes, or by Ray: the cluster at this address, or `local`, which starts one of
    as many CPUs. After an error, or Ctrl-C, none of them is left.

    Raises UsageError where Ray is not installed, or not there; and where a process was killed.
    """
    jobs = at_most(jobs)
    if ray is not None:
        with _cluster(ray, jobs) as each:
            yield each
    elif jobs == 1:
        yield map
    else:
        with _processes(jobs) as each:
            yield each


def at_most(jobs: int) -> int:
    """More processes than cores take more memory and no less time. Two may be had anywhere, so that
    what they find can be compared with what one finds."""
    if hasattr(os, "sched_getaffinity"):
        return min(jobs, max(2, len(os.sched_getaffinity(0))))
    return min(jobs, max(2, os.cpu_count() or 1))


# --- processes ------------------------------------------------------------------------------------


@contextmanager
def _processes(jobs: int) -> Iterator[Each]:
    context = get_context("spawn")
    lifeline, ours = context.Pipe(duplex=False)
    with (
        lifeline,
        ours,
        ProcessPoolExecutor(
            jobs, mp_context=context, initializer=_begin, initargs=(lifeline,)
        ) as pool,
    ):

        def each(do: Callable[[T], R], what: Sequence[T], /) -> Iterable[R]:
            # not `map`: it cancels what is left after an error, and a pool that breaks then says so
            with _not_heard():
                futures = [pool.submit(do, one) for one in what]
            return (f.result() for f in futures)

        try:
            yield each
        except BrokenProcessPool as e:
            ours.close()
            raise UsageError(
                "a process of the generator was killed",
                f"there were {jobs} of them; they were out of memory, or begin the script again"
                " that started them",
                "give fewer jobs, and call it under `if __name__ == '__main__':` in a script;"
                " what was found is not lost, the same call goes on",
            ) from e
        except BaseException:
            ours.close()
            raise


def _begin(lifeline: Connection) -> None:
    """Before a worker's first task: Ctrl-C is its parent's to hear, and it ends with its parent,
    even one that was killed and could not say so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # what is made has no cycles, and looking for some takes a tenth of the time
    gc.set_threshold(100_000, 20, 20)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()


def _end_with(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv()  # nothing is ever sent: this ends when nobody holds the other end
    os._exit(1)


@contextmanager
def _not_heard() -> Iterator[None]:
    """Ctrl-C waits until the end: a process that is half started does not go away by itself.
    Processes that are started meanwhile never hear of it, not even before `_begin`."""
    heard: list[int] = []
    handler = None
    if threading.current_thread() is threading.main_thread():  # the only one that may set handlers
        handler = signal.signal(signal.SIGINT, lambda n, _: heard.append(n))
    with _blocked():
        try:
            yield
        finally:
            if handler is not None:
                signal.signal(signal.SIGINT, handler)
    if heard:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def _blocked() -> Iterator[None]:
    """What is started here inherits that SIGINT is blocked. This process may still be told of it
    in another thread, such as those of a library."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- Ray ------------------------------------------------------------------------------------------

LOCAL = "local"
AUTO = "auto"  # the cluster that runs on this machine
PATIENCE = 5.0  # seconds for a connection; Ray itself goes on for many minutes
AHEAD = 1024  # tasks that are handed to Ray at a time: what waits there takes memory


@contextmanager
def _cluster(address: str, jobs: int) -> Iterator[Each]:
    # no network but to the workers: Ray reports its use to its makers unless it is told not to
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as e:
        raise UsageError(
            "ray is not installed",
            f"ray={address} needs it: {e}",
            'pip install "superopt-onnx[dist]"',
        ) from None
    ours = not ray.is_initialized()  # a caller may be in a cluster already
    try:
        try:
            if ours and address == LOCAL:
                with _not_heard():  # half a cluster does not go away by itself
                    ray.init(address=LOCAL, num_cpus=jobs, include_dashboard=False, **_SILENT)
            elif ours:
                _check_address(address)
                ray.init(address=address, **_SILENT)
            theirs = ray.get(ray.remote(_version).remote())
        except (OSError, ValueError, RuntimeError, ImportError, ray.exceptions.RayError) as e:
            raise UsageError(
                f"Ray at {address} cannot be used",
                f"{type(e).__name__}: {e}".strip().splitlines()[-1],
                "start it by `ray start --head` where this superopt is installed on every machine,"
                f" or give {LOCAL}",
            ) from e
        if theirs != _version():
            raise UsageError(
                f"the workers of Ray at {address} have another superopt",
                f"{theirs} there, {_version()} here: what they find would not be the same",
                "install the same one on every machine",
            )

        def each(do: Callable[[T], R], what: Sequence[T], /) -> Iterator[R]:
            task = ray.remote(do)
            pending: deque[Any] = deque()
            for one in what:
                pending.append(task.remote(one))
                if len(pending) >= AHEAD:
                    yield ray.get(pending.popleft())
            while pending:
                yield ray.get(pending.popleft())

        yield each
    finally:
        if ours:
            ray.shutdown()


_SILENT: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


def _version() -> str:
    return __version__


def _check_address(address: str) -> None:
    """Raises ValueError for what is no address, OSError where nobody listens."""
    if address == AUTO:
        return
    found = re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:([0-9]{1,5})", address)
    if found is None:
        raise ValueError(f"an address is HOST:PORT, ray://HOST:PORT, {AUTO} or {LOCAL}")
    socket.create_connection((found[1], int(found[2])), PATIENCE).close()
