"""Conversion and checks of the arrays and tensors that are passed to a model on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from superopt.compilation.frontend.input_arrays import InputPort, as_input_array
from superopt.errors import UsageError
from superopt.kernels.runtime.gpu_device import from_dlpack, is_gpu_tensor


@cache
def dtype_name(dtype: object) -> str:
    """Return numpy's name of an element type of torch or numpy."""
    return str(dtype).removeprefix("torch.")


def all_on_gpu(arrays: Iterable[Any]) -> bool:
    """True if all of these are tensors on a GPU."""
    return all(map(is_gpu_tensor, arrays))


def check_devices(
    ports: Sequence[InputPort], arrays: Sequence[Any], gpu_number: int | None
) -> None:
    """Raise UsageError for tensors of another GPU than the kernels'."""
    for p, x in zip(ports, arrays, strict=True):
        if is_gpu_tensor(x) and gpu_number is not None and x.get_device() != gpu_number:
            raise UsageError(
                f"input {p.name!r} is on cuda:{x.get_device()}",
                f"the model was compiled for cuda:{gpu_number}", "move it to this GPU",
            )  # fmt: skip


def as_gpu_inputs(
    ports: Sequence[InputPort], feeds: Mapping[str, Any], default_input: Callable[[str], Any]
) -> list[Any]:
    """Return the inputs in order as arrays or tensors; other objects are read by DLPack.
    default_input: returns the model's value of an input. Raises UsageError."""
    if not isinstance(feeds, Mapping):
        raise UsageError(
            f"inputs are a {type(feeds).__name__}", "inputs are given by name", "pass a dict"
        )
    names = {p.name for p in ports}
    for name in feeds:
        if name not in names:
            raise UsageError(
                f"no input {name!r}", f"the inputs are {', '.join(sorted(names)) or 'none'}",
                "remove it",
            )  # fmt: skip
    out = []
    for p in ports:
        if p.name not in feeds and p.has_default:
            out.append(default_input(p.name))
            continue
        if p.name not in feeds:
            raise UsageError(
                f"no value for input {p.name!r}", f"it is {p.type_text}", "pass an array"
            )
        x = from_dlpack(feeds[p.name])
        if is_gpu_tensor(x):
            shape, kind = x.shape, dtype_name(x.dtype)
            fits = p.shape is None or len(p.shape) == len(shape)
            if kind != dtype_name(p.dtype) or not fits:
                raise UsageError(
                    f"input {p.name!r} is {kind}{list(shape)}",
                    f"the model expects {p.type_text}", "pass such a tensor",
                )  # fmt: skip
            out.append(x)
        else:
            out.append(as_input_array(p, x))
    return out
