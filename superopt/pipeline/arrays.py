"""Arrays that people give to a compiled model, and what is said of those that they get."""

from __future__ import annotations

from typing import Any

import numpy as np

from superopt.errors import UsageError
from superopt.report.compiled import OutputValue
from superopt.te.dtype import to_numpy
from superopt.te.expr import TensorType


def described(name: str, x: np.ndarray) -> OutputValue:
    """An output in a line."""
    numbers = isinstance(x, np.ndarray) and x.size > 0 and x.dtype.kind in "biuf"
    least, most = (float(np.min(x)), float(np.max(x))) if numbers else (None, None)
    shape = list(x.shape) if isinstance(x, np.ndarray) else ""
    kind = x.dtype if isinstance(x, np.ndarray) else type(x).__name__
    return OutputValue(name, f"{kind}{shape}", least, most)


def _array(name: str, t: TensorType, given: Any, wanted: np.dtype) -> np.ndarray:
    if isinstance(given, (np.ndarray, np.generic)):
        return np.asarray(given)
    if not isinstance(given, (list, tuple, int, float, bool)):
        if not hasattr(given, "__dlpack__"):
            raise UsageError(
                f"input {name!r} is a {type(given).__name__}",
                "inputs are numpy arrays, or tensors that speak DLPack",
                f"give an array: {t}",
            )
        return np.from_dlpack(given)
    numbers = np.asarray(given)
    with np.errstate(all="ignore"):
        out = numbers.astype(wanted)
    if out.dtype.kind in "iub" and not np.array_equal(out, numbers):
        raise UsageError(
            f"input {name!r} has numbers that are no {wanted}", f"the model says {t}",
            "give an array of this type",
        )  # fmt: skip
    return out


def as_array(name: str, t: TensorType, given: Any) -> np.ndarray:
    """An input's array: contiguous, of the type that the model says. Raises UsageError."""
    if t.dtype is None:
        return given  # type: ignore[no-any-return]  # a sequence, or nothing: onnxruntime's matter
    wanted = to_numpy(t.dtype)
    try:
        array = _array(name, t, given, wanted)
    except (ValueError, TypeError, BufferError, RuntimeError) as e:  # of lists, and of libraries
        raise UsageError(
            f"input {name!r} is a {type(given).__name__} that is no array", str(e),
            f"give an array: {t}",
        ) from None  # fmt: skip
    if array.dtype != wanted:
        todo = f"use .astype({str(wanted)!r})"
        raise UsageError(f"input {name!r} is {array.dtype}", f"the model says {t}", todo)
    if t.shape is not None and array.ndim != len(t.shape):
        raise UsageError(
            f"input {name!r} has shape {list(array.shape)}",
            f"the model says {t}",
            f"give it {len(t.shape)} dimensions",
        )
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
