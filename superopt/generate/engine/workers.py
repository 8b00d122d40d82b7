"""Run the tasks of a run: in this process, in several processes, or by Ray."""

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


class TaskMap(Protocol):
    """Maps a module-level function over inputs, in order."""

    def __call__(self, do: Callable[[T], R], what: Sequence[T], /) -> Iterable[R]: ...


@contextmanager
def worker_pool(jobs: int, ray: str | None = None) -> Iterator[TaskMap]:
    """Yield a task map over `jobs` processes, or over Ray: the cluster at this address, or `local`,
    which starts one with `jobs` CPUs. After an error or Ctrl-C no process remains.

    Raises UsageError if Ray is not installed or not reachable, and if a process was killed.
    """
    jobs = limit_jobs(jobs)
    if ray is not None:
        with _ray_cluster(ray, jobs) as each:
            yield each
    elif jobs == 1:
        yield map
    else:
        with _process_pool(jobs) as each:
            yield each


def limit_jobs(jobs: int) -> int:
    """Return the number of processes: more than cores take more memory and no less time. Two are
    always allowed, so that their results can be compared with those of one."""
    if hasattr(os, "sched_getaffinity"):
        return min(jobs, max(2, len(os.sched_getaffinity(0))))
    return min(jobs, max(2, os.cpu_count() or 1))


# --- processes ------------------------------------------------------------------------------------


@contextmanager
def _process_pool(jobs: int) -> Iterator[TaskMap]:
    context = get_context("spawn")
    lifeline, ours = context.Pipe(duplex=False)
    with (
        lifeline,
        ours,
        ProcessPoolExecutor(
            jobs, mp_context=context, initializer=_init_worker, initargs=(lifeline,)
        ) as pool,
    ):

        def each(do: Callable[[T], R], what: Sequence[T], /) -> Iterable[R]:
            # not `map`: it cancels the rest after an error, and a broken pool then reports that
            with _defer_interrupt():
                futures = [pool.submit(do, one) for one in what]
            return (f.result() for f in futures)

        try:
            yield each
        except BrokenProcessPool as e:
            ours.close()
            raise UsageError(
                "a process of the generator was killed",
                f"there were {jobs} of them; they ran out of memory, or ran the script "
                "again that started them",
                "use fewer jobs, and call it under `if __name__ == '__main__':` in a "
                "script; earlier results are kept, and the same call continues",
            ) from e
        except BaseException:
            ours.close()
            raise


def _init_worker(lifeline: Connection) -> None:
    """Initialize a worker: its parent handles Ctrl-C, and it exits with its parent, even if that
    was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # results have no cycles, and collecting them takes a tenth of the time
    gc.set_threshold(100_000, 20, 20)
    threading.Thread(target=_exit_with_parent, args=(lifeline,), daemon=True).start()


def _exit_with_parent(lifeline: Connection) -> None:
    with suppress(EOFError, OSError):
        lifeline.recv()  # nothing is ever sent: returns when the other end is closed
    os._exit(1)


@contextmanager
def _defer_interrupt() -> Iterator[None]:
    """Defer Ctrl-C until the end: a half-started process would not exit by itself. Processes
    started here never receive it, not even before `_init_worker`."""
    heard: list[int] = []
    handler = None
    if (
        threading.current_thread() is threading.main_thread()
    ):  # only the main thread may set handlers
        handler = signal.signal(signal.SIGINT, lambda n, _: heard.append(n))
    with _block_sigint():
        try:
            yield
        finally:
            if handler is not None:
                signal.signal(signal.SIGINT, handler)
    if heard:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def _block_sigint() -> Iterator[None]:
    """Block SIGINT, which processes started here inherit. Other threads of this process may still
    receive it."""
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
CONNECT_SECONDS = 5.0  # seconds for a connection; Ray itself retries for many minutes
MAX_PENDING_TASKS = 1024  # tasks that are submitted to Ray at a time: pending tasks take memory


@contextmanager
def _ray_cluster(address: str, jobs: int) -> Iterator[TaskMap]:
    # no network but to the workers: Ray sends usage statistics by default
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
                with _defer_interrupt():  # a half-started cluster would not exit by itself
                    ray.init(
                        address=LOCAL, num_cpus=jobs, include_dashboard=False, **_QUIET_OPTIONS
                    )
            elif ours:
                _check_address(address)
                ray.init(address=address, **_QUIET_OPTIONS)
            theirs = ray.get(ray.remote(_version).remote())
        except (OSError, ValueError, RuntimeError, ImportError, ray.exceptions.RayError) as e:
            raise UsageError(
                f"Ray at {address} cannot be used",
                f"{type(e).__name__}: {e}".strip().splitlines()[-1],
                "start it by `ray start --head` with this superopt installed on every "
                f"machine, or pass {LOCAL}",
            ) from e
        if theirs != _version():
            raise UsageError(
                f"the workers of Ray at {address} have another superopt version",
                f"{theirs} there, {_version()} here: their results could differ",
                "install the same version on every machine",
            )

        def each(do: Callable[[T], R], what: Sequence[T], /) -> Iterator[R]:
            task = ray.remote(do)
            pending: deque[Any] = deque()
            for one in what:
                pending.append(task.remote(one))
                if len(pending) >= MAX_PENDING_TASKS:
                    yield ray.get(pending.popleft())
            while pending:
                yield ray.get(pending.popleft())

        yield each
    finally:
        if ours:
            ray.shutdown()


_QUIET_OPTIONS: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


def _version() -> str:
    return __version__


def _check_address(address: str) -> None:
    """Raise ValueError for an invalid address, OSError if nobody listens."""
    if address == AUTO:
        return
    found = re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:([0-9]{1,5})", address)
    if found is None:
        raise ValueError(f"an address must be HOST:PORT, ray://HOST:PORT, {AUTO} or {LOCAL}")
    socket.create_connection((found[1], int(found[2])), CONNECT_SECONDS).close()
