"""A model as given by the caller: its bytes, their origin, and the onnx_ir model in them."""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import onnx
import onnx_ir as ir

from superopt.errors import ModelError, UsageError
from superopt.onnx_io.read.ir_conversion import model_from_skeleton, skeleton_from_model
from superopt.onnx_io.read.mapped_file import Backing, Region, map_file
from superopt.onnx_io.read.skeleton import (
    PROTOBUF_LIMIT,
    Skeleton,
    blob_size,
    complete_skeleton,
    skeleton_from_bytes,
    skeleton_from_proto,
    stub_fields,
)

# What people give by mistake, by how it begins.
_OTHER_FORMATS: Final = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "run `git lfs pull`"),
    (b"PK\x03\x04", "a zip archive, such as a PyTorch checkpoint", "export it with torch.onnx"),
    (b"\x89HDF", "an HDF5 file, such as a Keras model", "convert it with tf2onnx"),
    (b"<!DOCTYPE", "a web page", "download the file itself, not the page that shows it"),
    (b"<html", "a web page", "download the file itself, not the page that shows it"),
    (b"superopt", "a compiled model", "`superopt run` and `superopt.load` take it"),
    (b"\x80\x02", "a Python pickle", "export the model with torch.onnx"),
)


ModelLike = str | Path | bytes | onnx.ModelProto | ir.Model  # the forms in which a model is given


@dataclass(frozen=True, eq=False)
class Source:
    """A model that was read but not yet validated.

    `raw` is its original file, so that it can be copied byte for byte; None if it was given as an
    object without a file. `size_bytes` counts the model's file and its external data. Not slotted,
    because `model` and `sha256` are cached.
    """

    label: str  # for messages: the file's name, or "the model"
    path: Path | None
    folder: Path | None  # where external data is
    raw: Region | None
    skeleton: Skeleton
    size_bytes: int

    @cached_property
    def model(self) -> ir.Model:
        """The onnx_ir model; large tensors are views of the mapped files (`mapped_file.region_of`).

        It is shared: a change is visible to all users. Raises ModelError for what onnx_ir cannot
        represent: map types, sparse tensors, training information.
        """
        return model_from_skeleton(self.skeleton, self.label)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the model's file, then of the name and the SHA-256 of each external data file.

        Without external data this equals the output of `sha256sum`.
        """
        digest = hashlib.sha256()
        if self.raw is not None:
            self.raw.update_hash(digest)
            for location, backing in sorted(self.skeleton.files.items()):
                digest.update(location.encode())
                digest.update(backing.digest().encode())
            return digest.hexdigest()
        digest.update(self.skeleton.data)
        for blob in self.skeleton.blobs:
            if isinstance(blob, Region):
                blob.update_hash(digest)
            else:
                digest.update(blob.tobytes())
        return digest.hexdigest()

    def share_digests(self, other: "Source") -> None:
        """Take the digests of those data files that another source has, too."""
        for backing in self.skeleton.files.values():
            for known in other.skeleton.files.values():
                backing.share_digest(known)

    def held_bytes(self) -> tuple[int, int]:
        """Return the bytes of the model in memory, and of the mapped files that it is read from."""
        blobs = self.skeleton.blobs
        regions = [b for b in (*blobs, self.raw) if isinstance(b, Region)]
        mapped = {id(r.backing): len(r.backing.view) for r in regions if r.backing.mapping}
        held = (b for b in blobs if not isinstance(b, Region) or not b.backing.mapping)
        return len(self.skeleton.data) + sum(map(blob_size, held)), sum(mapped.values())

    def with_proto(self, model: onnx.ModelProto) -> "Source":
        """Return a source with another ModelProto (with stubs) over the same tensors. It has no
        file."""
        skeleton = replace(self.skeleton, data=model.SerializeToString())
        return replace(self, path=None, raw=None, skeleton=skeleton)

    def with_imported_proto(self, model: onnx.ModelProto) -> "Source":
        """Return the same file, but import `model` (with stubs). Digest and copies remain those of
        the file."""
        return replace(self, skeleton=replace(self.skeleton, data=model.SerializeToString()))

    def check_unchanged(self) -> None:
        """Raise ModelError if a file of the model was modified since it was read."""
        own = [] if self.raw is None else [self.raw]
        regions = (*own, *(b for b in self.skeleton.blobs if isinstance(b, Region)))
        stored = dict.fromkeys(r.backing for r in regions)
        for backing in (*stored, *self.skeleton.files.values()):
            if not backing.is_unchanged():
                raise ModelError(
                    f"{backing.name} was written again since it was read",
                    "what was computed before is of other weights",
                    "read the model anew; a new file that is renamed over it changes nothing",
                )

    def current_path(self) -> Path | None:
        """Return the path of the model's file if it is unmodified, else None."""
        if self.path is None or self.raw is None or self.folder is None:
            return None
        path, held = self.folder / self.path.name, (self.raw.backing, *self.skeleton.files.values())
        there = all(b.mapping is not None and b.is_current() for b in held)
        return path if there else None

    def release_pages(self) -> None:
        """Release the mapped pages of the model's files; they are read again on access."""
        regions = [] if self.raw is None else [self.raw]
        regions += [b for b in self.skeleton.blobs if isinstance(b, Region)]
        for backing in dict.fromkeys(
            (*(r.backing for r in regions), *self.skeleton.files.values())
        ):
            backing.release(0, len(backing.view))

    @property
    def has_external_data(self) -> bool:
        return bool(self.skeleton.files)


def read_model(source: ModelLike) -> Source:
    """Read a model from a path, a file's bytes, or an object, which is not changed.

    Weights are not copied: a file and its external data are memory-mapped. Raises ModelError if the
    file is missing or is not an ONNX file, or if its external data is missing or outside its
    folder; UsageError for another type of argument. `validate` checks the model.
    """
    match source:
        case str() | Path():
            return _read_file(Path(source))
        case bytes():
            backing = Backing("the model", memoryview(source))
            return _source_from_backing(backing, "the model", None)
        case onnx.ModelProto():
            skeleton, written = skeleton_from_proto(source, None, "the model")
            raw = None if written is None else written.full_region()
            return _make_source("the model", None, raw, skeleton)
        case _ if not hasattr(source, "graph"):
            raise UsageError(
                f"{type(source).__name__} is not a model",
                "a model is a path, a file's bytes, a ModelProto or an onnx_ir model",
                "give one of these",
            )
        case _:
            return _make_source("the model", None, None, skeleton_from_model(source, "the model"))


def hash_weights(source: Source) -> None:
    """Compute the digests of a model's data files while there is time: reports name them."""
    for backing in source.skeleton.files.values():
        backing.digest()


def page_releaser(*sources: Source) -> Callable[[], None]:
    """Return a function that releases the mapped pages of models."""

    def release() -> None:
        for source in sources:
            source.release_pages()

    return release


def read_parts(model: onnx.ModelProto, large: Mapping[str, bytes]) -> Source:
    """Read a model whose initializers of these names have their data in `large`, by name, which is
    not copied. `model` is changed. Raises ModelError as `read_model` does."""
    label, blobs = "the model", list[Region]()
    for tensor in model.graph.initializer:
        if (data := large.get(tensor.name)) is not None:
            tensor.MergeFromString(stub_fields(len(blobs)))
            blobs.append(Backing(label, memoryview(data)).full_region())
    skeleton = complete_skeleton(model.SerializeToString(), model, blobs, None, label)
    return _make_source(label, None, None, skeleton)


def _read_file(path: Path) -> Source:
    what = f"{path} cannot be read"
    try:
        # Nonblocking, or a named pipe would make us wait for its writer.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags | getattr(os, "O_CLOEXEC", 0))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelError(what, f"{reason}", "check the path: it must name an ONNX file") from None
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise ModelError(what, "it is a directory", "name the .onnx file in it")
        if not stat.S_ISREG(mode):
            raise ModelError(what, "it is not a regular file", "copy the model to a file first")
        try:
            backing = map_file(path, descriptor)
        except (OSError, ValueError) as error:
            short = isinstance(error, OSError) and error.errno == errno.ENOMEM
            todo = "give the process more memory" if short else "copy the model to a local disk"
            raise ModelError(what, str(error), todo) from None
    finally:
        os.close(descriptor)
    return _source_from_backing(backing, path.name, path)


def _source_from_backing(backing: Backing, label: str, path: Path | None) -> Source:
    size = len(backing.view)
    start = bytes(backing.view[:64]).lstrip()
    if size == 0:
        raise ModelError(
            f"{label}: this is not a readable ONNX file",
            "it is empty (0 bytes)",
            "export or download the model again",
        )
    for magic, what, todo in _OTHER_FORMATS:
        if start.lower().startswith(magic.lower()):
            raise ModelError(f"{label}: this is not a readable ONNX file", f"it is {what}", todo)
    if size > PROTOBUF_LIMIT:
        raise ModelError(
            f"{label}: this file is too large for protobuf",
            f"it has {size} bytes, and a protobuf message has at most {PROTOBUF_LIMIT}",
            "save the model with external data (onnx.save_model with save_as_external_data=True)",
        )
    folder = None if path is None else path.absolute().parent
    return _make_source(
        label, path, backing.full_region(), skeleton_from_bytes(backing, folder, label)
    )


def _make_source(label: str, path: Path | None, raw: Region | None, skeleton: Skeleton) -> Source:
    if raw is None:
        size = len(skeleton.data) + sum(blob_size(blob) for blob in skeleton.blobs)
    else:
        size = raw.size + sum(len(backing.view) for backing in skeleton.files.values())
    folder = None if path is None else path.absolute().parent
    return Source(label, path, folder, raw, skeleton, size)
