"""The worker's side: answer requests from standard input until it ends.

Runs in its own process (see `superopt.ort.worker`), so that a crash, a hang or running out of
memory in onnxruntime affects nothing else. Each request gets any number of `stage` frames, which
name the current work in case it is the last, and one final frame with `ok`.
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
from superopt.ort.profiled_plan import read_node_plan
from superopt.ort.sessions import Session, Source, _ort, error_text, load_session, run
from superopt.ort.tensors import Feeds
from superopt.ort.timing import (
    SPIN_SECONDS,
    FixedCost,
    bind_run,
    interleave,
    measure_fixed_cost,
    subtract_fixed_cost,
    time_session,
    timing_fields,
)
from superopt.ort.wire import READY, Blob, Header, pack_values, receive, send, unpack_values

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# Messages of onnxruntime and the C++ library when an allocation fails.
NO_MEMORY = re.compile(r"bad_alloc|bad allocation|Failed to allocate memory|out of memory")
Answer = tuple[Header, Sequence[Blob]]
Blobs = list[bytearray]


class ProgressCallback(Protocol):
    """Sends the parent the current stage, and the times of the previous round."""

    def __call__(self, stage: str, row: Sequence[float] = ()) -> None: ...


def main() -> None:
    """Serve until standard input ends, as it does when the parent exits."""
    # Standard output is the pipe to the parent: all other output goes to standard error.
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if resource is not None:  # no core files of gigabytes after a crash
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # If memory runs out, the kernel should kill this process and not the parent.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("800")
    requests: queue.SimpleQueue[tuple[Header, Blobs]] = queue.SimpleQueue()
    # A separate thread notices the parent's exit during a long run as well.
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
    """Return the size of this process's address space in bytes; 0 if unknown."""
    with contextlib.suppress(OSError), open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _limit_memory(size: int) -> None:
    """Make allocations fail that would grow the address space beyond `size` bytes."""
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
    """Queue requests; `enough` is a message about the current request, and not answered."""
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
        header, blobs = _handle_request(*request, sessions, fixed, enough, say)
    except SuperoptError as error:
        header, blobs = {"ok": False, "message": " ".join(str(error).split())}, ()
    except MemoryError:
        header, blobs = {"ok": False, "message": "out of memory", "memory": True}, ()
    except Exception as error:  # a failed request must not end the worker
        header, blobs = {"ok": False, "message": f"{type(error).__name__}: {error_text(error)}"}, ()
    if not header["ok"] and NO_MEMORY.search(header["message"]):
        header["memory"] = True
    send(sink, header, blobs)


def _handle_request(
    header: Header,
    blobs: Blobs,
    sessions: dict[int, Session],
    fixed: dict[int, FixedCost],
    enough: threading.Event,
    say: ProgressCallback,
) -> Answer:
    match header["do"]:
        case "load":
            (entry,) = header["models"]
            model, exact = _model_source(entry, blobs), header["exact_integers"]
            loaded = load_session(model, header["threads"], header["level"], exact)
            sessions[header["id"]] = loaded
            return {"ok": True}, ()
        case "drop":
            sessions.pop(header["id"], None)
            return {"ok": True}, ()
        case "run":
            values, packed = pack_values(run(sessions[header["id"]], _unpack_feeds(header, blobs)))
            return {"ok": True, "values": values}, packed
        case "time":
            threads = header["threads"]
            if header["subtract"] and threads not in fixed:
                fixed[threads] = measure_fixed_cost(threads)
            (entry,) = header["models"]
            loaded = load_session(_model_source(entry, blobs), threads, header["level"])
            given = _unpack_feeds(header, blobs) if header["values"] is not None else None
            timing = time_session(loaded, given, header["aim_us"], header["most"])
            if header["subtract"]:
                timing = subtract_fixed_cost(fixed[threads], timing)
            return {"ok": True, "timing": timing_fields(timing)}, ()
        case "plan":
            (entry,) = header["models"]
            plan = read_node_plan(_model_source(entry, blobs), header["threads"])
            return {"ok": True, "results": plan.results, "us": plan.us}, [plan.model]
        case "interleave":
            return {"ok": True, "times": _interleave(header, blobs, sessions, enough, say)}, ()
        case unknown:
            raise ValueError(f"no request {unknown!r}")


def _interleave(
    header: Header,
    blobs: Blobs,
    sessions: Mapping[int, Session],
    enough: threading.Event,
    say: ProgressCallback,
) -> list[list[float]]:
    feeds, runs = _unpack_feeds(header, blobs), []
    for number, entry in enumerate(header["models"], 1):
        if "loaded" in entry:
            loaded = sessions[entry["loaded"]]
        else:
            say(f"loading model {number} of {len(header['models'])}")
            loaded = load_session(_model_source(entry, blobs), header["threads"], header["level"])
        if "blob" in entry:
            blobs[entry["blob"]] = bytearray()  # loaded: its bytes are not needed any more
        runs.append(bind_run(loaded, feeds))
        say(f"running model {number} of {len(header['models'])}")
        runs[-1]()

    def heard(times: list[list[float]]) -> bool:
        row = [t[-1] for t in times if t]
        say(f"timing {len(runs)} models in turns, round {len(times[0]) + 1}", row)
        return enough.is_set()

    pause = SPIN_SECONDS if header["threads"] > 1 else 0.0
    return interleave(runs, header["seconds"], header["rounds"], header["seed"], heard, pause=pause)


def _model_source(entry: Header, blobs: Blobs) -> Source:
    path: str | None = entry.get("path")
    return bytes(blobs[entry["blob"]]) if path is None else path


def _unpack_feeds(header: Header, blobs: Blobs) -> Feeds:
    return unpack_values(header["values"], blobs)


if __name__ == "__main__":
    main()
