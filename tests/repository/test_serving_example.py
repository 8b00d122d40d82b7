"""The server of examples/serve.py answers, refuses what does not fit, and ends on SIGTERM."""

from __future__ import annotations

import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import superopt
from tests.support.paths import ROOT

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

EXAMPLES = ROOT / "examples"
INFER = "/v2/models/model/infer"
NPZ = "application/x-npz"


@contextmanager
def start_server(folder: Path, *options: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A server of the examples' model, and its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    subprocess.run([sys.executable, EXAMPLES / "small_model.py"], cwd=folder, check=True)
    paths = os.pathsep.join((str(ROOT), *sys.path))
    with subprocess.Popen(
        [sys.executable, EXAMPLES / "serve.py", "model.onnx", "--port", str(port), *options],
        cwd=folder, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths},
    ) as child:  # fmt: skip
        timer = threading.Timer(60, child.kill)
        timer.start()
        try:
            while child.poll() is None:
                try:
                    assert ask(port, "GET", "/v2/health/ready") == (200, b'{"ready":true}')
                    break
                except ConnectionError:
                    time.sleep(0.1)
            yield port, child
        finally:
            timer.cancel()
            child.kill()


def ask(
    port: int, method: str, path: str, body: bytes | None = None, kind: str = "application/json"
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, {"Content-Type": kind})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def json_body(name: str, data: Sequence[object], shape: Sequence[int], kind: str = "FP32") -> bytes:
    tensor = {"name": name, "datatype": kind, "shape": list(shape), "data": list(data)}
    return json.dumps({"inputs": [tensor]}).encode()


def npz_body(**arrays: np.ndarray) -> bytes:
    np.savez(file := io.BytesIO(), **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def test_the_server_answers_validates_and_ends(tmp_path: Path) -> None:
    with start_server(tmp_path) as (port, child):
        rng = np.random.default_rng(0)
        status, data = ask(port, "GET", "/v2/models/model")
        about = json.loads(data)
        assert (status, about["name"]) == (200, "model")
        assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 64]}]
        assert about["outputs"] == [{"name": "y"}]

        x = rng.standard_normal((3, 64)).astype(np.float32)
        with superopt.compile(tmp_path / "model.onnx") as exe:
            expected = exe(x=x)["y"]
        status, data = ask(port, "POST", INFER, json_body("x", x.ravel().tolist(), x.shape))
        (output,) = json.loads(data)["outputs"]
        assert (status, output["name"], output["shape"]) == (200, "y", [3, 64])
        assert (np.array(output["data"], np.float32).reshape(3, 64) == expected).all()

        def by_npz(rows: int) -> bool:
            given = np.repeat(x[:1], rows, axis=0)
            status, data = ask(port, "POST", INFER, npz_body(x=given), NPZ)
            found = np.load(io.BytesIO(data))["y"]
            same = np.allclose(found, expected[:1], rtol=1e-5, atol=1e-6)
            return bool(status == 200 and found.shape == (rows, 64) and same)

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(by_npz, [1, 2, 3, 4] * 8))

        refused = {
            json_body("z", [1.0], [1]): "no input 'z'",
            json_body("x", [1.0] * 3, [1, 3]): "axis 1 is 3, not 64",
            json_body("x", [1.0] * 64, [1, 65]): "cannot reshape",
            json_body("x", [1] * 64, [1, 64], "INT64"): "x",
            json_body("x", ["a"] * 64, [1, 64]): "could not convert",
            b"{}": "inputs",
            b"nonsense": "Expecting value",
        }
        for body, why in refused.items():
            status, data = ask(port, "POST", INFER, body)
            assert status == 400, body
            assert why in json.loads(data)["detail"]
        status, data = ask(port, "POST", INFER, b"no zip file", NPZ)
        assert (status, "not an .npz file" in data.decode()) == (400, True)
        assert ask(port, "GET", "/v2/health/live")[0] == 200

        child.send_signal(signal.SIGTERM)
        _, log = child.communicate(timeout=20)
        assert child.returncode in (0, -signal.SIGTERM)
        assert "Application shutdown complete" in log


def test_requests_that_would_wait_too_long_are_refused(tmp_path: Path) -> None:
    with start_server(tmp_path, "--workers", "1", "--queue", "0") as (port, _):
        body = npz_body(x=np.zeros((50_000, 64), np.float32))
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda n: ask(port, "POST", INFER, body, NPZ), range(16)))
        assert {status for status, _ in answers} == {200, 503}
        assert ask(port, "POST", INFER, npz_body(x=np.zeros((1, 64), np.float32)), NPZ)[0] == 200
