"""External data: the files beside a model that hold its large tensors. They are untrusted.

The `location` entries of a model are paths to open. They may only name regular files inside the
model's folder: no '..', no absolute path, no link, since each of these could make another file of
this machine part of the model.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx

from superopt.errors import ModelError
from superopt.onnx_io.read.mapped_file import Backing, Region, map_file


def external_entries(tensor: onnx.TensorProto, label: str) -> dict[str, str]:
    """Return the tensor's external_data as a dict. Raises ModelError for a duplicate key."""
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key in entries:
            raise _refusal(label, tensor.name, f"its external data gives {entry.key!r} twice")
        entries[entry.key] = entry.value
    return entries


def open_region(
    folder: Path,
    entries: Mapping[str, str],
    *,
    size: int | None,
    tensor: str,
    label: str,
    files: dict[str, Backing],
) -> Region:
    """Return the bytes that `entries` (location, offset, length) refer to in a file under `folder`.

    `size` is the size by shape and dtype, used where no length is given. `files` caches the
    mappings by location. Raises ModelError if the path is not allowed (see the module), if the file
    is missing, or if the range is outside the file.
    """
    location = entries.get("location", "")
    if location not in files:
        files[location] = _map_external_file(folder, location, tensor, label)
    backing = files[location]
    offset = _integer_entry(entries, "offset", 0, tensor, label)
    left = len(backing.view) - offset
    length = _integer_entry(entries, "length", left if size is None else size, tensor, label)
    if left < 0 or length > left:
        raise ModelError(
            f"{label}: the external data of {tensor!r} is not inside its file",
            f"it needs bytes {offset} to {offset + length} of {location!r}, "
            f"which has {len(backing.view)} bytes",
            "get the complete data file again: this one was cut short or belongs to another model",
        )
    return Region(backing, offset, length, location)


def _map_external_file(folder: Path, location: str, tensor: str, label: str) -> Backing:
    """Map the file at `location` under `folder`. Raises ModelError if the path is not allowed."""
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    if not location or "\0" in location or str(posix) == ".":
        raise _refusal(label, tensor, f"its external data has no usable location: {location!r}")
    if posix.is_absolute() or windows.is_absolute() or windows.drive or windows.root:
        raise _refusal(label, tensor, f"its data is at {location!r}, which is an absolute path")
    if ".." in location:  # as a part it escapes; inside a name onnx refuses it too
        raise _refusal(label, tensor, f"its data is at {location!r}, which may leave the folder")
    path = folder
    for part in posix.parts:
        path /= part
        if path.is_symlink():
            raise _refusal(label, tensor, f"its data is at {location!r}, and {part!r} is a link")
    try:
        # Nonblocking, or a named pipe would make us wait for its writer.
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        descriptor = os.open(path, flags | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        raise ModelError(
            f"{label}: the external data of {tensor!r} cannot be read",
            f"{path}: {error.strerror or error}",
            f"put the file {location!r} beside the model, where the model expects it",
        ) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _refusal(
                label, tensor, f"its data is at {location!r}, which is not a regular file"
            )
        if status.st_nlink > 1:
            why = f"its data is at {location!r}, which is a hard link, one of {status.st_nlink}"
            raise _refusal(label, tensor, why)
        return map_file(path, descriptor)
    finally:
        os.close(descriptor)


def _integer_entry(
    entries: Mapping[str, str], key: str, default: int, tensor: str, label: str
) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise _refusal(label, tensor, f"its external data has {key} {text[:40]!r}, not a number")
    return int(text)


def _refusal(label: str, tensor: str, why: str) -> ModelError:
    return ModelError(
        f"{label}: the external data of {tensor!r} is refused",
        why,
        "keep data files as plain copies in the model's folder, named by their relative path",
    )
