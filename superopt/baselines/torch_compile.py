"""torch.compile as a baseline in benchmarks (extra `bench`); onnx2torch reads the model."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from superopt.errors import UsageError

MAX_REASON_CHARACTERS = 160  # characters of an error's reason
# Options of torch.compile: weights are constants, packed ahead of time.
_OPTIONS: dict[str, Any] = {"freezing": True}
# On a GPU also: kernels are captured as CUDA graphs, as in mode reduce-overhead.
_GPU_OPTIONS: dict[str, Any] = {**_OPTIONS, "triton.cudagraphs": True}
_TORCH_DTYPES = {"fp16": "float16", "bf16": "bfloat16"}


def prepare(
    path: Path,
    feeds: Mapping[str, np.ndarray],
    threads: int,
    device: str = "cpu",
    precision: str = "fp32",
) -> Callable[[], object]:
    """Return a function that runs the model once, in float32; on "cuda", in `precision`, with
    inputs on the device, synchronized at the end.

    feeds: in the order of the model's inputs. The model is first traced with them, so that indices
        and shapes among its constants are numbers to torch.compile, and compiled as one graph. The
        number of threads is that of the whole process. Raises UsageError if torch, onnx2torch or a
        C++ compiler is missing, or if one of them rejects the model.
    """
    try:
        import onnx2torch
        import torch
        from torch.fx.experimental.proxy_tensor import make_fx
    except ImportError as e:
        missing = e.name or "torch"
        raise UsageError(
            f"{missing} is not installed",
            "--vs torch needs it",
            'pip install "superopt-onnx[bench]"',
        ) from None
    except (RuntimeError, OSError) as e:  # such as torch for the CPU with torchvision for a GPU
        raise UsageError(
            "onnx2torch cannot be imported",
            str(e),
            "install matching builds of torch and torchvision",
        ) from None
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.set_num_threads(threads)
            torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
            given = [torch.from_numpy(np.ascontiguousarray(array)) for array in feeds.values()]
            module = onnx2torch.convert(str(path)).eval()
            if device != "cpu":
                torch.backends.cudnn.allow_tf32 = precision == "tf32"
                kind = getattr(torch, _TORCH_DTYPES.get(precision, "float32"))
                module, given = move_to_device(module, given, device, kind)
            traced = make_fx(module)(*given)
            options = _OPTIONS if device == "cpu" else _GPU_OPTIONS
            compiled = torch.compile(traced, fullgraph=True, options=options)
            compiled(*given)  # compiles
    except Exception as e:  # of a dozen types without a common base
        reason = textwrap.shorten(str(e), MAX_REASON_CHARACTERS) or type(e).__name__
        raise UsageError(
            f"torch.compile cannot compile {path}", reason, "remove torch from --vs"
        ) from None

    def run() -> object:
        with torch.no_grad():
            out = compiled(*given)
        if device != "cpu":
            torch.cuda.synchronize()
        return out

    return run


def move_to_device(
    module: Any, inputs: list[Any], device: str, dtype: Any
) -> tuple[Any, list[Any]]:
    """Move a module and inputs to a device: floats to `dtype`, NCHW tensors to channels_last."""
    import torch

    last = torch.channels_last
    some = [x.to(device, dtype if x.is_floating_point() else x.dtype) for x in inputs]
    some = [x.contiguous(memory_format=last) if x.dim() == 4 else x for x in some]
    return module.to(device, dtype, memory_format=last), some


def version() -> str:
    """Return torch's version."""
    import torch

    return str(torch.__version__)
