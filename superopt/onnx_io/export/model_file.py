"""Write model files atomically; weights are streamed from their source.

A model with external data is two files and so two renames, the data first.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import onnx
import onnx_ir as ir

from superopt.errors import ModelError, UsageError
from superopt.onnx_io.export.atomic_files import NewFile, atomic_files, resolve_target
from superopt.onnx_io.read import wire
from superopt.onnx_io.read.ir_conversion import skeleton_from_model
from superopt.onnx_io.read.mapped_file import Backing, map_file
from superopt.onnx_io.read.protos import all_bodies
from superopt.onnx_io.read.skeleton import (
    PROTOBUF_LIMIT,
    Skeleton,
    blob_size,
    copy_blob,
    skeleton_from_proto,
    stub_index,
)
from superopt.onnx_io.read.source import Source, read_model

_PAGE_BYTES: Final = 4096  # alignment of large tensors in a data file, so that they can be mapped


def write_model(model: ir.Model | onnx.ModelProto, path: str | Path, *, original: Source) -> None:
    """Write `model`, derived from `original`, to `path`, which may be the path of `original`.

    Initializers go to `<path>.data` if those of `original` were external, or if the model would
    exceed 2 GB; never to a data file of `original`, unless `original` itself is overwritten. Raises
    UsageError if the file cannot be written; ValueError if IR version or opset imports differ.
    """
    target = resolve_target(path)
    if isinstance(model, onnx.ModelProto):
        skeleton, _ = skeleton_from_proto(model, original.folder, target.name)
    else:
        skeleton = skeleton_from_model(model, target.name)
    _check_versions(skeleton.shared_proto, original.skeleton.shared_proto)
    _write_skeleton(skeleton, target, original)


def write_source(source: Source, path: str | Path) -> None:
    """Write a source that was made by `Source.with_proto`, which may be large. Initializers go to
    `<path>.data` as in `write_model`. Raises UsageError if the file cannot be written; ModelError
    if it is too large."""
    _write_skeleton(source.skeleton, resolve_target(path), source)


def _write_skeleton(skeleton: Skeleton, target: Path, original: Source) -> None:
    sizes = [blob_size(blob) for blob in skeleton.blobs]
    pieces = wire.restore_tensors(skeleton.data, lambda i: wire.raw_fields(i, sizes[i]))
    with atomic_files() as new:
        if original.has_external_data or wire.total_size(pieces) > PROTOBUF_LIMIT:
            data = new(_data_path(target, original))
            pieces = _write_data_file(skeleton, sizes, data)
            if wire.total_size(pieces) > PROTOBUF_LIMIT:
                raise ModelError(
                    f"{target.name} is too large for protobuf",
                    f"without its initializers it has {wire.total_size(pieces)} bytes still",
                    "make initializers of the tensors in Constant nodes",
                )
        model_file = new(target)
        for piece in pieces:
            if isinstance(piece, wire.Slot):
                copy_blob(skeleton.blobs[piece.index], model_file.file)
            else:
                model_file.file.write(piece)


def copy_unchanged(source: Source, path: str | Path) -> None:
    """Copy the source to `path` byte for byte, with its external data files.

    Raises UsageError if the file cannot be written, or if another model's data file would be
    overwritten.
    """
    target = resolve_target(path)
    if source.raw is None:
        write_model(source.model, path, original=source)
        return
    if source.path is not None and _is_same_file(target, source.path):
        return
    beside = source.folder is not None and _is_same_file(target.parent, source.folder)
    with atomic_files() as new:
        for location, backing in source.skeleton.files.items():
            if not beside and _needs_copy(target, location, backing):
                (target.parent / location).parent.mkdir(parents=True, exist_ok=True)
                backing.full_region().copy_to(new(target.parent / location).file)
        source.raw.copy_to(new(target).file)


def _write_data_file(skeleton: Skeleton, sizes: Sequence[int], data: NewFile) -> list[wire.Piece]:
    """Write the large initializers to a data file; return the pieces of the model that refers to
    it."""
    initializers = {
        index
        for place in all_bodies(skeleton.shared_proto)
        if isinstance(place.body, onnx.GraphProto)
        for tensor in place.body.initializer
        if (index := stub_index(tensor)) is not None
    }

    def encode(index: int) -> list[wire.Piece]:
        if index not in initializers:  # in an attribute, where runtimes do not look for files
            return wire.raw_fields(index, sizes[index])
        offset = -(-data.file.tell() // _PAGE_BYTES) * _PAGE_BYTES
        data.file.seek(offset)
        copy_blob(skeleton.blobs[index], data.file)
        entries = {"location": data.target.name, "offset": offset, "length": sizes[index]}
        return [wire.external_fields({key: str(value) for key, value in entries.items()})]

    return wire.restore_tensors(skeleton.data, encode)


def _check_versions(new: onnx.ModelProto, old: onnx.ModelProto) -> None:
    """Raise ValueError if the versions differ: a newer one might not run where the original ran."""
    opsets = [{o.domain: o.version for o in model.opset_import} for model in (old, new)]
    if old.ir_version != new.ir_version or opsets[0] != opsets[1]:
        raise ValueError(
            f"the model to write has IR version {new.ir_version} and opsets {opsets[1]}, "
            f"but the one it was made from has {old.ir_version} and {opsets[0]}"
        )


def _data_path(target: Path, original: Source) -> Path:
    """Return the path of the data file: beside the model, and not over data that `original`
    needs."""
    overwritten = original.path is not None and _is_same_file(target, original.path)
    kept = [] if overwritten else [Path(file.name) for file in original.skeleton.files.values()]
    number = 0
    while True:
        name = f"{target.name}.{number}.data" if number else f"{target.name}.data"
        candidate = target.with_name(name)
        if not any(_is_same_file(candidate, path) for path in kept):
            return candidate
        number += 1


def _needs_copy(target: Path, location: str, backing: Backing) -> bool:
    """True if a data file must be written. Raises UsageError if another file has its path."""
    path = target.parent / location
    if not path.exists():
        return True
    if path.is_file() and path.stat().st_size == len(backing.view):
        with path.open("rb") as file:
            there = map_file(path, file.fileno())
        if there.full_region().digest() == backing.full_region().digest():
            return False
    with contextlib.suppress(ModelError):
        if location in read_model(target).skeleton.files:
            return True  # it belongs to the model that is overwritten
    raise UsageError(
        f"{path} would be overwritten",
        f"the model keeps its data in {location!r}, and another file of that name is there",
        "write to another folder, or move that file away",
    )


def _is_same_file(a: Path, b: Path) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:
        return False
