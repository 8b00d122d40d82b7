"""Measure the latency of the server of examples/serve.py beside the same server with onnxruntime.

    python scripts/bench_serve.py MODEL... [--clients 1,4] [--workers 2] [--seconds 5] [--rounds 4]
        [--warm-up 10] [--markdown FILE]

Needs fastapi and uvicorn. Both servers run at once, each with its worker threads, of one thread
each. Clients keep their connections, send .npz bodies and wait for each answer. Rounds of both
alternate; the times of all rounds count together, and the median of the rounds' ratios is printed.
"""

from __future__ import annotations

import argparse
import http.client
import io
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
KINDS = ("superopt", "onnxruntime")
NPZ = "application/x-npz"
START_SECONDS = 120.0
HEADINGS = (
    "model", "clients", "superopt p50 ms", "p99", "requests/s", "onnxruntime p50 ms", "p99",
    "requests/s", "p50 ratio", "p99 ratio", "largest difference",
)  # fmt: skip


class OrtModel:
    """An onnxruntime session with the parts of an executable that the application uses."""

    is_closed = False

    def __init__(self, path: Path) -> None:
        from superopt import ort
        from superopt.ort.sessions import load_session

        self._session, self._run = load_session(path, 1), ort.run
        self.input_ports: tuple[object, ...] = ()
        self.output_names = tuple(p.name for p in self._session.outputs)

    def __enter__(self) -> OrtModel:
        return self

    def __exit__(self, *error: object) -> None: ...

    def run(self, feeds: dict[str, np.ndarray]) -> dict[str, object]:
        return dict(self._run(self._session, feeds))


def serve(kind: str, path: Path, port: int, workers: int) -> None:
    """Serve until the process is terminated."""
    sys.path.insert(0, str(EXAMPLES))
    import uvicorn
    from inference_app import make_app

    import superopt

    def open_model() -> object:
        return OrtModel(path) if kind == "onnxruntime" else superopt.compile(path, threads=1)

    app = make_app(open_model, "model", workers)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning", access_log=False)


@contextmanager
def start_server(kind: str, path: Path, workers: int) -> Iterator[int]:
    """Start a server of this kind; yield its port once it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, __file__, str(path), "--serve", kind, "--port", str(port)]
    with subprocess.Popen([*words, "--workers", str(workers)]) as child:
        try:
            _wait_until_ready(child, port)
            yield port
        finally:
            child.terminate()


def _wait_until_ready(child: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and child.poll() is None:
        try:
            if _request(http.client.HTTPConnection("127.0.0.1", port), "GET", "/v2/health/ready"):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the server did not start")


def _request(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None
) -> bytes:
    connection.request(method, path, body, {"Content-Type": NPZ} if body else {})
    response = connection.getresponse()
    data = response.read()
    if response.status != 200:
        raise SystemExit(f"{path}: {response.status} {data[:200]!r}")
    return data


@dataclass(slots=True)
class Round:
    """Seconds of each request of a round, and of the round."""

    latencies: list[float]
    seconds: float

    def quantile(self, part: float) -> float:
        return float(np.quantile(self.latencies, part))


def measure_round(port: int, body: bytes, clients: int, seconds: float) -> Round:
    """Let so many clients send requests for some seconds."""
    latencies: list[list[float]] = [[] for _ in range(clients)]
    begin = time.monotonic()

    def send(own: list[float]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        while time.monotonic() < begin + seconds:
            sent = time.perf_counter()
            _request(connection, "POST", "/v2/models/model/infer", body)
            own.append(time.perf_counter() - sent)
        connection.close()

    threads = [threading.Thread(target=send, args=(own,)) for own in latencies]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return Round([x for own in latencies for x in own], time.monotonic() - begin)


def drawn_body(path: Path) -> bytes:
    """Return an .npz body with random inputs: normal floats, zeros and ones; sizes without a number
    are 1."""
    from superopt.onnx_io.import_.dtypes import dtype_of
    from superopt.onnx_io.read.source import read_model
    from superopt.te.expr.dtype import to_numpy

    rng, arrays = np.random.default_rng(0), {}
    graph = read_model(path).model.graph
    for v in graph.inputs:
        if v.name in graph.initializers or v.dtype is None:
            continue
        dtype = to_numpy(dtype_of(v.dtype))  # type: ignore[arg-type]
        shape = [d if isinstance(d, int) else 1 for d in v.shape or ()]
        drawn = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        arrays[v.name or ""] = drawn.astype(dtype)
    np.savez(file := io.BytesIO(), **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def compare(path: Path, clients: Sequence[int], given: argparse.Namespace) -> list[list[str]]:
    """Return a row for each number of clients."""
    body, rows = drawn_body(path), []
    with (
        start_server(KINDS[0], path, given.workers) as own,
        start_server(KINDS[1], path, given.workers) as other,
    ):
        ports = (own, other)
        for port in ports:  # programs for the sizes of the requests are compiled meanwhile
            measure_round(port, body, 1, given.warm_up)
        difference = _largest_difference(ports, body)
        for count in clients:
            rounds: tuple[list[Round], list[Round]] = ([], [])
            for _ in range(given.rounds):
                for found, port in zip(rounds, ports, strict=True):
                    found.append(measure_round(port, body, count, given.seconds))
            rows.append(_row(path, count, rounds, difference))
            print(" ".join(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _largest_difference(ports: Sequence[int], body: bytes) -> float:
    connections = [http.client.HTTPConnection("127.0.0.1", p) for p in ports]
    a, b = (
        np.load(io.BytesIO(_request(c, "POST", "/v2/models/model/infer", body)))
        for c in connections
    )
    return max(float(np.abs(a[k].astype(np.float64) - b[k]).max(initial=0)) for k in a.files)


def _row(
    path: Path, clients: int, rounds: Sequence[Sequence[Round]], difference: float
) -> list[str]:
    row = [path.stem, str(clients)]
    for found in rounds:
        whole = Round([x for r in found for x in r.latencies], sum(r.seconds for r in found))
        rate = len(whole.latencies) / whole.seconds
        row += [f"{1e3 * whole.quantile(q):.2f}" for q in (0.5, 0.99)] + [f"{rate:.0f}"]
    for q in (0.5, 0.99):
        ratios = [b.quantile(q) / a.quantile(q) for a, b in zip(*rounds, strict=True)]
        row.append(f"{statistics.median(ratios):.2f}")
    return [*row, f"{difference:.1e}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--clients", default="1,4")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--warm-up", type=float, default=10.0)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.models[0], given.port, given.workers)
        return
    counts = [int(n) for n in given.clients.split(",")]
    rows = [row for path in given.models for row in compare(path, counts, given)]
    lines = (HEADINGS, ["---"] * len(HEADINGS), *rows)
    text = "\n".join(f"| {' | '.join(row)} |" for row in lines)
    print(text)
    if given.markdown is not None:
        given.markdown.write_text(text + "\n")


if __name__ == "__main__":
    main()
