"""What benchmarks of compiled models share: a model in turns with onnxruntime and OpenVINO."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from superopt import ort
from superopt.baselines import openvino
from superopt.compilation.model.executable import Executable
from superopt.ort.timing import SPIN_SECONDS, bind_run, interleave

ROUNDS = 15
RUNTIMES = ("superopt", "onnxruntime", "openvino")
GRAPHS = ("graph in onnxruntime", "graph in openvino")  # an optimized model in the peers


def drawn(
    session: ort.Session, seed: int, sizes: Mapping[str, int], below: int = 2
) -> dict[str, np.ndarray]:
    """Standard normal floats, whole numbers from 0 to `below`; 8 for sizes that are not named."""
    rng = np.random.default_rng(seed)
    out = {}
    for port in session.inputs:
        shape = [d if isinstance(d, int) else sizes.get(str(d), 8) for d in port.shape]
        whole = "int64" in port.type
        out[port.name] = (
            rng.integers(0, below, shape)
            if whole
            else rng.standard_normal(shape).astype(np.float32)
        )
    return out


def in_turns(
    exe: Executable,
    session: ort.Session,
    path: Path,
    feeds: Mapping[str, np.ndarray],
    threads: int,
    seconds: float,
    fast: Path | None = None,
) -> dict[str, object]:
    """us: medians of each of RUNTIMES, in one process, one after another in each round, and of
    GRAPHS, where there is a `fast` model. ratio: of the better peer in a round to ours, the median.
    error: the largest difference of an output from onnxruntime's, by the output's rms."""
    wanted, got = ort.run(session, feeds), exe.run(feeds)
    error = max(difference(got[n], np.asarray(w)) for n, w in wanted.items())
    runs: list[Callable[[], object]] = [
        lambda: exe.run(feeds),
        bind_run(session, feeds),
        openvino.prepare(path, feeds, threads),
    ]
    if fast is not None:
        again = ort.load_session(fast, threads)
        runs += [bind_run(again, feeds), openvino.prepare(fast, feeds, threads)]
    pause = SPIN_SECONDS if threads > 1 else 0.0
    times = interleave(runs, seconds, ROUNDS, 0, pause=pause)
    us = {name: statistics.median(t) for name, t in zip((*RUNTIMES, *GRAPHS), times, strict=False)}
    best = [min(pair) for pair in zip(*times[1:3], strict=True)]
    ratio = statistics.median(b / a for a, b in zip(times[0], best, strict=True))
    return {"us": us, "ratio": ratio, "error": error}


def difference(got: np.ndarray, wanted: np.ndarray) -> float:
    """The largest one by the rms of what is wanted; of whole numbers, whether there is one."""
    if wanted.dtype.kind != "f":
        return float(np.max(got != wanted, initial=0))
    rms = math.sqrt(float(np.mean(np.square(wanted, dtype=np.float64)))) or 1.0
    return float(np.max(np.abs(got.astype(np.float64) - wanted), initial=0)) / rms


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))
