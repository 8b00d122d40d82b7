"""torch.compile on the CPU as a peer in benchmarks (extra `bench`); onnx2torch reads the model."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from superopt.errors import UsageError

LONGEST = 160  # characters of a reason
# Of torch.compile: weights are constants, packed ahead of time.
_OPTIONS: dict[str, Any] = {"freezing": True}


def prepare(path: Path, feeds: Mapping[str, np.ndarray], threads: int) -> Callable[[], object]:
    """One run of the model in float32 as a call without arguments.

    feeds: in the order of the model's inputs. The model is traced with them first, so that indices
    and shapes among its constants are numbers to torch.compile, and compiled as a whole. The
    number of threads is that of the whole process. Raises UsageError where torch, onnx2torch or
    a C++ compiler is missing, and where one of them does not take the model.
    """
    try:
        import onnx2torch
        import torch
        from torch.fx.experimental.proxy_tensor import make_fx
    except ImportError as e:
        missing = e.name or "torch"
        raise UsageError(
            f"{missing} is not installed", "--vs torch needs it", 'pip install "superopt[bench]"'
        ) from None
    except (RuntimeError, OSError) as e:  # as with torch for the CPU and torchvision for a GPU
        raise UsageError(
            "onnx2torch cannot be imported", str(e), "install torch and torchvision of one kind"
        ) from None
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.set_num_threads(threads)
            torch.set_float32_matmul_precision("highest")
            given = [torch.from_numpy(np.ascontiguousarray(array)) for array in feeds.values()]
            traced = make_fx(onnx2torch.convert(str(path)).eval())(*given)
            compiled = torch.compile(traced, fullgraph=True, options=_OPTIONS)
            compiled(*given)  # compiles
    except Exception as e:  # of a dozen types without a common base
        reason = textwrap.shorten(str(e), LONGEST) or type(e).__name__
        raise UsageError(
            f"torch.compile does not take {path}", reason, "leave torch out of --vs"
        ) from None

    def run() -> object:
        with torch.no_grad():
            return compiled(*given)

    return run


def version() -> str:
    """torch's version."""
    import torch

    return str(torch.__version__)
