"""OpenVINO as a baseline in benchmarks (extra `bench`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from superopt.errors import UsageError


def prepare(
    path: Path,
    feeds: Mapping[str, np.ndarray],
    threads: int,
    precision: str = "f32",
    rounds_activations: bool = False,
) -> Callable[[], object]:
    """Return a function that runs the model once, in float32.

    precision: OpenVINO's name of another one. Without a name, on CPUs with bf16 units OpenVINO
    would use bf16. rounds_activations: to 8 bits, in groups of 32, before products with weights of
    few bits, which is OpenVINO's default. Raises UsageError if OpenVINO is missing or rejects the
    model.
    """
    try:
        import openvino as ov
    except ImportError:
        raise UsageError(
            "OpenVINO is not installed",
            "--vs openvino needs it",
            'pip install "superopt-onnx[bench]"',
        ) from None
    try:
        core = ov.Core()
        options = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": precision,
            "PERFORMANCE_HINT": "LATENCY",
        }
        if not rounds_activations:
            options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
        request = core.compile_model(str(path), "CPU", options).create_infer_request()
        for name, array in feeds.items():
            request.set_tensor(name, ov.Tensor(np.ascontiguousarray(array)))
        request.infer()
    except RuntimeError as e:
        reason = str(e).strip().splitlines()[-1]
        raise UsageError(
            f"OpenVINO cannot run {path}", reason, "remove openvino from --vs"
        ) from None
    return request.infer  # type: ignore[no-any-return]


def version() -> str:
    """Return OpenVINO's version."""
    import openvino as ov

    return str(ov.__version__).split("-")[0]
