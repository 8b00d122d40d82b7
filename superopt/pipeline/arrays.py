"""Arrays that people give to a compiled model."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.errors import UsageError
from superopt.pipeline.dlpack import bfloat16


@dataclass(frozen=True, slots=True)
class Port:
    """An input of a model. dtype: None for what is no tensor; shape: numbers, names of symbolic
    sizes, or other texts for what is computed of these; None where the model does not say; text:
    its type, for messages; optional: has the model a value for it?"""

    name: str
    dtype: np.dtype | None
    shape: tuple[int | str, ...] | None
    text: str
    optional: bool = False


def symbolic(ports: Sequence[Port]) -> bool:
    """Are sizes among these that only a call tells?"""
    return any(isinstance(d, str) for p in ports for d in p.shape or ())


def checked_sizes(ports: Sequence[Port], sizes: Mapping[str, int]) -> None:
    """Raises UsageError for sizes that are no numbers, and for others than inputs have."""
    for name, n in sizes.items():
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0:
            raise UsageError(f"{name} = {n!r}", "a size is a whole number", "give one")
    dims = {d for p in ports for d in p.shape or () if isinstance(d, str)}
    if all(d.isidentifier() for d in dims) and dims != sizes.keys():
        raise UsageError(
            f"sizes of {', '.join(sizes) or 'nothing'}",
            f"inputs have {', '.join(sorted(dims)) or 'no symbolic sizes'}",
            "give the size of each of these",
        )


def sizes_of(ports: Sequence[Port], arrays: Sequence[np.ndarray]) -> dict[str, int] | None:
    """The symbolic sizes, where this is plain; None where something does not fit or is not
    plain."""
    out: dict[str, int] = {}
    for port, array in zip(ports, arrays, strict=True):
        if port.dtype is None or port.shape is None or len(port.shape) != array.ndim:
            return None
        for d, n in zip(port.shape, array.shape, strict=True):
            if isinstance(d, str) and not d.isidentifier():
                return None
            if n != (d if isinstance(d, int) else out.setdefault(d, n)):
                return None
    return out


def _array(port: Port, given: Any, wanted: np.dtype) -> np.ndarray:
    masked = sys.modules.get("numpy.ma")  # which numpy loads when it is first asked for
    if masked is not None and isinstance(given, masked.MaskedArray):
        raise UsageError(
            f"input {port.name!r} is a masked array", "a model takes all elements of its inputs",
            "use .filled(value), or .data for all elements as they are",
        )  # fmt: skip
    if isinstance(given, (np.ndarray, np.generic)):
        array = np.asarray(given)
        texts = wanted.kind == "O" and array.dtype.kind in "UT"  # as files have them
        return array.astype(object) if texts else array
    if not isinstance(given, (list, tuple, int, float, bool)):
        if not hasattr(given, "__dlpack__"):
            raise UsageError(
                f"input {port.name!r} is a {type(given).__name__}",
                "inputs are numpy arrays, or tensors that speak DLPack",
                f"give an array: {port.text}",
            )
        if hasattr(given, "resolve_neg"):  # DLPack does not say that torch's numbers are others'
            given = given.resolve_neg()  # negatives
        if wanted.name == "bfloat16" and (found := bfloat16(given, wanted)) is not None:
            return found
        return np.from_dlpack(given)
    numbers = np.asarray(given)
    with np.errstate(all="ignore"):
        out = numbers.astype(wanted)
    if out.dtype.kind in "iub" and not np.array_equal(out, numbers):
        raise UsageError(
            f"input {port.name!r} has numbers that are no {wanted}", f"the model says {port.text}",
            "give an array of this type",
        )  # fmt: skip
    return out


def as_array(port: Port, given: Any) -> np.ndarray:
    """An input's array: contiguous, of the type that the model says. Raises UsageError."""
    name, wanted = port.name, port.dtype
    if wanted is None:
        return given  # type: ignore[no-any-return]  # a sequence, or nothing: onnxruntime's matter
    try:
        array = _array(port, given, wanted)
    except (UsageError, MemoryError):
        raise
    except Exception as e:  # of lists, and of libraries: any
        raise UsageError(
            f"input {name!r} is a {type(given).__name__} that is no array", str(e),
            f"give an array: {port.text}",
        ) from None  # fmt: skip
    if array.dtype != wanted:
        todo = f"use .astype({str(wanted)!r})"
        raise UsageError(f"input {name!r} is {array.dtype}", f"the model says {port.text}", todo)
    if port.shape is not None and array.ndim != len(port.shape):
        raise UsageError(
            f"input {name!r} has shape {list(array.shape)}",
            f"the model says {port.text}",
            f"give it {len(port.shape)} dimensions",
        )
    if array.flags.c_contiguous:
        return array
    try:
        return np.ascontiguousarray(array)
    except MemoryError:
        raise UsageError(
            f"input {name!r} of shape {list(array.shape)} takes {array.nbytes} bytes",
            "its elements do not lie one after the other, and there is no memory for such a copy",
            "give fewer at a time",
        ) from None
