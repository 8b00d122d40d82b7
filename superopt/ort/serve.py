"""The worker's side: answers requests from standard input until it ends.

Runs in a process of its own (see `superopt.ort.worker`), so that a crash, a hang or the end of the
memory in onnxruntime takes nothing else with it.  Each request gets any number of `stage` frames,
which say what is being done in case it is the last thing done, and one final frame with `ok`.
"""

import contextlib
import os
import queue
import re
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Protocol

from superopt import guard
from superopt.errors import SuperoptError
from superopt.ort.runtime import Session, Source, _ort, plain, run, session
from superopt.ort.timing import (
    SPINNING,
    FixedCost,
    as_json,
    fixed_cost,
    interleave,
    prepare,
    time_alone,
    without,
)
from superopt.ort.values import Feeds
from superopt.ort.wire import READY, Blob, Header, pack_values, receive, send, unpack_values

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# What onnxruntime and the C++ library say where an allocation fails.
NO_MEMORY = re.compile(r"bad_alloc|bad allocation|Failed to allocate memory|out of memory")
Answer = tuple[Header, Sequence[Blob]]
Blobs = list[bytearray]


class Say(Protocol):
    """Tells the parent what is being done, and the times of the round before."""

    def __call__(self, stage: str, row: Sequence[float] = ()) -> None: ...


def main() -> None:
    """Serves until standard input ends, which it does when the parent does."""
    # Standard output is the wire: whatever else is printed goes to standard error.
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if resource is not None:  # a crash is expected one day, gigabytes of core file are not wanted
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # Where memory runs out, this process goes and not the one that waits for it.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("800")
    requests: queue.SimpleQueue[tuple[Header, Blobs]] = queue.SimpleQueue()
    # A thread of its own, so that the parent's end is seen in the middle of a long run as well.
    enough = threading.Event()
    threading.Thread(target=_listen, args=(source, requests, enough), daemon=True).start()
    sessions: dict[int, Session] = {}
    fixed: dict[int, FixedCost] = {}
    _ort()
    own = _address_space() - guard.resident_bytes()
    sink.write(READY)
    sink.flush()
    while True:
        request = requests.get()
        _limit_memory(own + request[0]["memory"])
        _answer(request, sessions, fixed, enough, sink)


def _address_space() -> int:
    """Bytes of addresses that this process uses; 0 where that is not known."""
    with contextlib.suppress(OSError), open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _limit_memory(size: int) -> None:
    """Let allocations fail that would take this process beyond `size` bytes of addresses."""
    if resource is not None:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        size = max(size, 0)
        unlimited = most == resource.RLIM_INFINITY
        soft = size if unlimited else min(size, most)
        with contextlib.suppress(OSError, ValueError, OverflowError):
            resource.setrlimit(resource.RLIMIT_AS, (soft if soft < 1 << 60 else most, most))


def _listen(
    source: IO[bytes], requests: queue.SimpleQueue[tuple[Header, Blobs]], enough: threading.Event
) -> None:
    """Queues requests; `enough` is no request, but about the one before it, and not answered."""
    try:
        while True:
            header, blobs = receive(source)
            if header["do"] == "enough":
                enough.set()
                continue
            enough.clear()
            requests.put((header, blobs))
    except (EOFError, OSError):
        os._exit(0)


def _answer(
    request: tuple[Header, Blobs],
    sessions: dict[int, Session],
    fixed: dict[int, FixedCost],
    enough: threading.Event,
    sink: IO[bytes],
) -> None:
    def say(stage: str, row: Sequence[float] = ()) -> None:
        send(sink, {"stage": stage, "round": list(row)})

    try:
        header, blobs = _do(*request, sessions, fixed, enough, say)
    except SuperoptError as error:
        header, blobs = {"ok": False, "message": " ".join(str(error).split())}, ()
    except MemoryError:
        header, blobs = {"ok": False, "message": "out of memory", "memory": True}, ()
    except Exception as error:  # a failed request must not end the worker
        header, blobs = {"ok": False, "message": f"{type(error).__name__}: {plain(error)}"}, ()
    if not header["ok"] and NO_MEMORY.search(header["message"]):
        header["memory"] = True
    send(sink, header, blobs)


def _do(
    header: Header,
    blobs: Blobs,
    sessions: dict[int, Session],
    fixed: dict[int, FixedCost],
    enough: threading.Event,
    say: Say,
) -> Answer:
    match header["do"]:
        case "load":
            (entry,) = header["models"]
            loaded = session(_model(entry, blobs), header["threads"], header["level"])
            sessions[header["id"]] = loaded
            return {"ok": True}, ()
        case "drop":
            sessions.pop(header["id"], None)
            return {"ok": True}, ()
        case "run":
            values, packed = pack_values(run(sessions[header["id"]], _feeds(header, blobs)))
            return {"ok": True, "values": values}, packed
        case "time":
            threads = header["threads"]
            if header["subtract"] and threads not in fixed:
                fixed[threads] = fixed_cost(threads)
            (entry,) = header["models"]
            loaded = session(_model(entry, blobs), threads, header["level"])
            given = _feeds(header, blobs) if header["values"] is not None else None
            timing = time_alone(loaded, given, header["aim_us"], header["most"])
            if header["subtract"]:
                timing = without(fixed[threads], timing)
            return {"ok": True, "timing": as_json(timing)}, ()
        case "interleave":
            return {"ok": True, "times": _interleave(header, blobs, sessions, enough, say)}, ()
        case unknown:
            raise ValueError(f"no request {unknown!r}")


def _interleave(
    header: Header,
    blobs: Blobs,
    sessions: Mapping[int, Session],
    enough: threading.Event,
    say: Say,
) -> list[list[float]]:
    feeds, runs = _feeds(header, blobs), []
    for number, entry in enumerate(header["models"], 1):
        if "loaded" in entry:
            loaded = sessions[entry["loaded"]]
        else:
            say(f"loading model {number} of {len(header['models'])}")
            loaded = session(_model(entry, blobs), header["threads"], header["level"])
        if "blob" in entry:
            blobs[entry["blob"]] = bytearray()  # loaded: its bytes are not needed twice
        runs.append(prepare(loaded, feeds))
        say(f"running model {number} of {len(header['models'])}")
        runs[-1]()

    def heard(times: list[list[float]]) -> bool:
        row = [t[-1] for t in times if t]
        say(f"timing {len(runs)} models in turns, round {len(times[0]) + 1}", row)
        return enough.is_set()

    pause = SPINNING if header["threads"] > 1 else 0.0
    return interleave(runs, header["seconds"], header["rounds"], header["seed"], heard, pause=pause)


def _model(entry: Header, blobs: Blobs) -> Source:
    path: str | None = entry.get("path")
    return bytes(blobs[entry["blob"]]) if path is None else path


def _feeds(header: Header, blobs: Blobs) -> Feeds:
    return unpack_values(header["values"], blobs)


if __name__ == "__main__":
    main()
