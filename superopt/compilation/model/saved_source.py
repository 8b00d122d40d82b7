"""Write models into files of compiled models (saved_model.py), and read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from superopt import __version__
from superopt.compilation.model.saved_model import SavedModel, padded_size
from superopt.kernels.loops.option import Option
from superopt.onnx_io.export import section_file
from superopt.onnx_io.read.mapped_file import Region
from superopt.onnx_io.read.protos import stored_tensors
from superopt.onnx_io.read.skeleton import (
    Skeleton,
    blob_size,
    copy_blob,
    expected_bytes,
    stub_index,
)
from superopt.onnx_io.read.source import Source


@dataclass(frozen=True, slots=True)
class WrittenCode:
    """Machine code to be written: what JSON says of it, and a section for each processor."""

    about: Mapping[str, Any]
    processors: tuple[bytes, ...]


def write_saved_model(
    saved: SavedModel, source: Source, path: Path, code: WrittenCode | None = None
) -> None:
    """Write the file. Raises UsageError if it cannot be written."""
    skeleton = source.skeleton
    places, end = [], 0
    for blob in skeleton.blobs:
        places.append((end, blob_size(blob)))
        end += padded_size(blob_size(blob))
    about = {
        "superopt": __version__,
        "model": saved.label,
        "threads": saved.threads,
        "width": saved.vector_bytes,
        "float_class": saved.allowed.float_class,
        "partial": saved.allowed.partial_rules,
        "weights": places,
        "schedules": saved.options,
        "sizes": saved.sizes,
        "target": saved.target,
        "precision": saved.precision,
        "vendor": saved.vendor,
        "streams": saved.streams,
    }
    if code is not None:
        about["code"] = code.about

    def graph(file: BinaryIO) -> None:
        file.write(skeleton.data)

    def weights(file: BinaryIO) -> None:
        for blob, (_, size) in zip(skeleton.blobs, places, strict=True):
            copy_blob(blob, file)
            file.write(bytes(padded_size(size) - size))

    def text(data: bytes) -> section_file.SectionWriter:
        def put(file: BinaryIO) -> None:
            file.write(data)

        return put

    others = () if code is None else map(text, code.processors)
    section_file.write_sections(path, about, [graph, weights, *others])


def saved_options(saved: SavedModel) -> dict[str, Option]:
    """Return the options of problems, by key. Raises UsageError if the file is damaged."""
    try:
        return {key: Option.parse(text) for key, text in saved.options.items()}
    except (ValueError, LookupError, TypeError) as e:
        assert saved.contents is not None
        raise section_file.damaged_file_error(saved.contents.path, f"an option: {e}") from None


def saved_source(saved: SavedModel) -> Source:
    """Return the model of a file. Raises UsageError if the file is damaged."""
    assert saved.contents is not None
    path, graph, places = saved.contents.path, saved.contents.graph, saved.contents.places
    weights = saved.contents.weights.check()
    blobs = tuple(Region(weights.backing, weights.offset + at, size) for at, size in places)
    skeleton = Skeleton(bytes(graph.view()), blobs)
    for tensor, name, _ in stored_tensors(skeleton.shared_proto):
        index = stub_index(tensor)
        if index is None:
            continue
        if index >= len(blobs) or expected_bytes(tensor) != blobs[index].size:
            raise section_file.damaged_file_error(path, f"{name} has other bytes than its type")
    size = graph.size + weights.size
    return Source(saved.label, path, path.absolute().parent, None, skeleton, size)
