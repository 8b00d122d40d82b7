"""A web application that answers requests of the Open Inference Protocol by a model; see serve.py.

Requests run at the same time, one on each worker thread: calls of one `Executable` share weights.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request, Response
from open_inference import (
    NPZ,
    arrays_of_json,
    arrays_of_npz,
    describe,
    json_response,
    npz_of_arrays,
)

from superopt.errors import UsageError


def make_app(open_model, name: str, workers: int = 2, queue: int = 64) -> FastAPI:
    """Return the application. open_model: returns a context manager of an executable; queue:
    requests that may wait for a worker; more get status 503."""

    @asynccontextmanager
    async def lifespan(app: FastAPI):
        with open_model() as app.state.exe, ThreadPoolExecutor(workers) as app.state.pool:
            app.state.count = 0
            yield

    app = FastAPI(title=name, lifespan=lifespan)
    app.get("/v2/health/live")(lambda: {"live": True})
    app.get("/v2/health/ready")(lambda: {"ready": not app.state.exe.is_closed})
    app.get(f"/v2/models/{name}")(lambda: describe(app.state.exe, name))

    @app.post(f"/v2/models/{name}/infer")
    async def infer(request: Request) -> Response:
        if app.state.count >= workers + queue:
            raise HTTPException(503, "too many requests wait", {"Retry-After": "1"})
        app.state.count += 1
        try:
            is_npz = request.headers.get("content-type") == NPZ
            feeds = (arrays_of_npz if is_npz else arrays_of_json)(await request.body())
            run, loop = app.state.exe.run, asyncio.get_running_loop()
            found = await loop.run_in_executor(app.state.pool, run, feeds)
            data = npz_of_arrays(found) if is_npz else json_response(name, found)
            return Response(data, media_type=NPZ if is_npz else "application/json")
        except (UsageError, ValueError, KeyError, TypeError) as error:  # names, types, shapes
            raise HTTPException(400, f"{type(error).__name__}: {error}") from None
        finally:
            app.state.count -= 1

    return app
