"""Arrays in .npz files whose names are those of a model's inputs or outputs."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from superopt.errors import UsageError
from superopt.onnx_io.export.atomic_files import atomic_files
from superopt.onnx_io.import_.model import Model
from superopt.te.expr.dtype import STRING, to_numpy


def read_inputs(
    inputs: Path | str | Mapping[str, np.ndarray] | None,
) -> dict[str, np.ndarray] | None:
    """Return arrays by input name, from a file or as given; None for None. Never unpickles.

    Raises UsageError for a file that is not an .npz of plain arrays.
    """
    if inputs is None:
        return None
    if isinstance(inputs, Mapping):
        return {k: np.asarray(v) for k, v in inputs.items()}
    how = "save it with numpy.savez(file, **{name: array})"
    try:
        found = np.load(inputs, allow_pickle=False)
        if isinstance(found, np.ndarray):
            raise UsageError(f"{inputs} holds no inputs", "it is a single unnamed array", how)
        with found as data:
            return {name: data[name] for name in data.files}
    except (OSError, ValueError, TypeError, zipfile.BadZipFile, EOFError, AttributeError) as e:
        raise UsageError(
            f"{inputs} holds no inputs",
            str(e).splitlines()[0] if str(e) else type(e).__name__, how,
        ) from None  # fmt: skip


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays by name to an .npz file of exactly this name, atomically. Any names are allowed.
    Strings are written as numpy strings, so nothing is pickled.

    Raises UsageError if the file cannot be written.
    """
    with atomic_files() as create, zipfile.ZipFile(create(path).file, "w") as archive:
        for name, given in arrays.items():
            array = np.asanyarray(given)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                plain = array.astype(str) if array.dtype == object else array
                np.lib.format.write_array(file, plain, allow_pickle=False)


def check_inputs(model: Model, arrays: Mapping[str, np.ndarray] | None) -> None:
    """Raise UsageError if the arrays do not fit the model's inputs."""
    if arrays is None:
        return
    wanted = {i.name: i.type for i in model.graph.inputs}
    needed = {i.name for i in model.graph.inputs if i not in model.input_defaults}
    for name in arrays:
        if name not in wanted:
            raise UsageError(
                f"the model has no input {name}",
                f"its inputs are {', '.join(wanted)}",
                "rename the array",
            )
    for name in sorted(needed - set(arrays)):
        raise UsageError(
            f"input {name} has no value", "no array has this name", "add an array of this name"
        )
    for name, array in arrays.items():
        t = wanted[name]
        if t.dtype is None:
            raise UsageError(
                f"input {name} cannot be passed", "it is not a tensor", "omit --inputs"
            )
        strings = t.dtype == STRING and array.dtype.kind in "OUST"
        if array.dtype != to_numpy(t.dtype) and not strings:
            raise UsageError(
                f"input {name} is {array.dtype}",
                f"the model expects {t.dtype}",
                "convert the array",
            )
        fits = t.shape is None or (
            len(t.shape) == array.ndim
            and all(
                not isinstance(d, int) or d == n for d, n in zip(t.shape, array.shape, strict=True)
            )
        )
        if not fits:
            raise UsageError(
                f"input {name} has shape {array.shape}",
                f"the model expects {t}",
                "reshape the array",
            )
