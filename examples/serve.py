"""Serve a model over HTTP by the Open Inference Protocol (needs fastapi and uvicorn).

python examples/serve.py model.onnx [--port 8000] [--workers 2] [--queue 64]

The model is a file of ONNX, or of `superopt compile -o`. SIGTERM ends the server when it has
answered the requests that it has.
"""

import argparse
import functools
from pathlib import Path

import uvicorn
from inference_app import make_app

import superopt


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    for option, default in (("--port", 8000), ("--workers", 2), ("--queue", 64)):
        parser.add_argument(option, type=int, default=default)
    given = parser.parse_args()
    load = superopt.load if given.model.suffix == ".superopt" else superopt.compile
    open_model = functools.partial(load, given.model, threads=1)
    app = make_app(open_model, given.model.stem, given.workers, given.queue)
    uvicorn.run(app, host=given.host, port=given.port, timeout_graceful_shutdown=30)


if __name__ == "__main__":
    main()
