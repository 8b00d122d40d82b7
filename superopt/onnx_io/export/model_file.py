"""Write model files atomically; weights are streamed from their source.

A model with external data is two files and so two renames, the data first. Weights of the original
that are in a data file in or below the new file's folder stay there: the new file refers to them.
Links would not do: ONNX's checker and its loader refuse data with a symbolic or a hard link, also
under its old name.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import onnx
import onnx_ir as ir

from superopt.errors import ModelError, UsageError
from superopt.onnx_io.export.atomic_files import (
    CreateFile,
    NewFile,
    atomic_files,
    resolve_target,
)
from superopt.onnx_io.read import wire
from superopt.onnx_io.read.ir_conversion import skeleton_from_model
from superopt.onnx_io.read.mapped_file import Backing, Region, map_file
from superopt.onnx_io.read.protos import all_bodies
from superopt.onnx_io.read.skeleton import (
    PROTOBUF_LIMIT,
    Blob,
    Skeleton,
    blob_size,
    copy_blob,
    skeleton_from_proto,
    stub_index,
)
from superopt.onnx_io.read.source import Source, read_model

_PAGE_BYTES: Final = 4096  # alignment of large tensors in a data file, so that they can be mapped


@dataclass(slots=True)
class WrittenWeights:
    """Where the large initializers of a written model are.

    referenced: bytes that stay in files of the original, by their locations; data: the new data
    file, with new_bytes of new tensors and copied_bytes of the original's; origins: the regions of
    the original that were copied, by their offsets in that file.
    """

    referenced: dict[str, int] = field(default_factory=dict)
    data: Path | None = None
    new_bytes: int = 0
    copied_bytes: int = 0
    origins: dict[int, Region] = field(default_factory=dict)


def write_model(
    model: ir.Model | onnx.ModelProto,
    path: str | Path,
    *,
    original: Source,
    is_durable: bool = True,
) -> WrittenWeights:
    """Write `model`, derived from `original`, to `path`, which may be the path of `original`.

    Initializers go to `<path>.data` if those of `original` were external, or if the model would
    exceed 2 GB; never to a data file of `original`, unless `original` itself is overwritten. Those
    of `original` in a data file in or below the folder of `path` stay there, unless `original` is
    overwritten. is_durable: as in `atomic_files`. Raises UsageError if the file cannot be written;
    ValueError if IR version or opset imports differ.
    """
    target = resolve_target(path)
    if isinstance(model, onnx.ModelProto):
        skeleton, _ = skeleton_from_proto(model, original.folder, target.name)
    else:
        skeleton = skeleton_from_model(model, target.name)
    _check_versions(skeleton.shared_proto, original.skeleton.shared_proto)
    return _write_skeleton(skeleton, target, original, is_durable)


def write_source(source: Source, path: str | Path) -> None:
    """Write a source that was made by `Source.with_proto`, which may be large. Initializers go to
    `<path>.data` as in `write_model`. Raises UsageError if the file cannot be written; ModelError
    if it is too large."""
    _write_skeleton(source.skeleton, resolve_target(path), source)


def move_model(
    made: Source, path: str | Path, *, original: Source, origins: Mapping[int, Region]
) -> WrittenWeights:
    """Write the model of a file that `write_model` derived from `original` to another path, as
    `write_model` does there. origins: of the weights in its data file."""
    blobs = tuple(
        origins.get(b.offset, b) if isinstance(b, Region) and b.location is not None else b
        for b in made.skeleton.blobs
    )
    return _write_skeleton(replace(made.skeleton, blobs=blobs), resolve_target(path), original)


def _write_skeleton(
    skeleton: Skeleton, target: Path, original: Source, is_durable: bool = True
) -> WrittenWeights:
    sizes = [blob_size(blob) for blob in skeleton.blobs]
    pieces = wire.restore_tensors(skeleton.data, lambda i: wire.raw_fields(i, sizes[i]))
    written = WrittenWeights()
    with atomic_files(is_durable=is_durable) as new:
        if original.has_external_data or wire.total_size(pieces) > PROTOBUF_LIMIT:
            pieces, written = _DataWriter(skeleton, sizes, target, original, new).write()
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
    return written


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


@dataclass(slots=True)
class _DataWriter:
    """Writes the large initializers of a model to a data file, which is created for the first one
    that does not stay where it is."""

    skeleton: Skeleton
    sizes: Sequence[int]
    target: Path
    original: Source
    create: CreateFile
    data: NewFile | None = None
    written: WrittenWeights = field(default_factory=WrittenWeights)

    def write(self) -> tuple[list[wire.Piece], WrittenWeights]:
        """Write the data file; return the pieces of the model that refers to it, and what was
        written."""
        initializers = {
            index
            for place in all_bodies(self.skeleton.shared_proto)
            if isinstance(place.body, onnx.GraphProto)
            for tensor in place.body.initializer
            if (index := stub_index(tensor)) is not None
        }
        kept = _referable_files(self.target, self.original)

        def encode(index: int) -> list[wire.Piece]:
            if index not in initializers:  # in an attribute, where runtimes do not look for files
                return wire.raw_fields(index, self.sizes[index])
            blob = self.skeleton.blobs[index]
            if isinstance(blob, Region) and (location := kept.get(id(blob.backing))) is not None:
                known = self.written.referenced
                known[location] = known.get(location, 0) + blob.size
                return _external_fields(location, blob.offset, blob.size)
            return self._append(blob, self.sizes[index])

        return wire.restore_tensors(self.skeleton.data, encode), self.written

    def _append(self, blob: Blob, size: int) -> list[wire.Piece]:
        written = self.written
        if self.data is None:
            self.data = self.create(_data_path(self.target, self.original))
            written.data = self.data.target
        offset = -(-self.data.file.tell() // _PAGE_BYTES) * _PAGE_BYTES
        self.data.file.seek(offset)
        copy_blob(blob, self.data.file)
        is_copy = isinstance(blob, Region) and blob.location is not None
        if isinstance(blob, Region) and blob.location is not None:
            written.origins[offset] = blob
        written.copied_bytes += size if is_copy else 0
        written.new_bytes += 0 if is_copy else size
        return _external_fields(self.data.target.name, offset, size)


def _external_fields(location: str, offset: int, size: int) -> list[wire.Piece]:
    entries = {"location": location, "offset": offset, "length": size}
    return [wire.external_fields({key: str(value) for key, value in entries.items()})]


def _referable_files(target: Path, original: Source) -> dict[int, str]:
    """Return the locations by which a model at `target` may refer to the data files of `original`,
    by the ids of their mappings: of those in or below its folder. None if it is overwritten."""
    if original.path is not None and _is_same_file(target, original.path):
        return {}
    found: dict[int, str] = {}
    for backing in original.skeleton.files.values():
        path = Path(os.path.realpath(backing.name))
        with contextlib.suppress(ValueError):
            location = path.relative_to(target.parent).as_posix()
            if backing.is_current() and ".." not in location:
                found[id(backing)] = location
    return found


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
        if there.digest() == backing.digest():
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
