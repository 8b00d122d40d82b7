"""Compiled models in files: the model, with each weight once, and the options of its kernels.
Packed constants and machine code are made again, or found in the user's cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from superopt import __version__
from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
from superopt.errors import SuperoptError
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

WEIGHT_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class SavedModel:
    """The contents of a saved model.

    vector_bytes: of the vectors that it was compiled for. allowed: the allowed transforms. options:
    of problems, by key. sizes: the compiled sets of symbolic sizes. target, precision, vendor,
    streams: arguments of `compile`.
    """

    source: Source
    allowed: AllowedTransforms
    options: Mapping[str, Option]
    sizes: tuple[dict[str, int], ...]
    threads: int = 1
    vector_bytes: int = 64
    target: str = "cpu"
    precision: str = "fp32"
    vendor: bool = True
    streams: int = 4


def write_saved_model(saved: SavedModel, path: Path) -> None:
    """Write the file. Raises UsageError if it cannot be written."""
    skeleton = saved.source.skeleton
    places, end = [], 0
    for blob in skeleton.blobs:
        places.append((end, blob_size(blob)))
        end += -(-blob_size(blob) // WEIGHT_ALIGNMENT_BYTES) * WEIGHT_ALIGNMENT_BYTES
    about = {
        "superopt": __version__,
        "model": saved.source.label,
        "threads": saved.threads,
        "width": saved.vector_bytes,
        "float_class": saved.allowed.float_class,
        "partial": saved.allowed.partial_rules,
        "weights": places,
        "schedules": {key: str(option) for key, option in saved.options.items()},
        "sizes": saved.sizes,
        "target": saved.target,
        "precision": saved.precision,
        "vendor": saved.vendor,
        "streams": saved.streams,
    }

    def graph(file: BinaryIO) -> None:
        file.write(skeleton.data)

    def weights(file: BinaryIO) -> None:
        for blob, (_, size) in zip(skeleton.blobs, places, strict=True):
            copy_blob(blob, file)
            file.write(bytes(-size % WEIGHT_ALIGNMENT_BYTES))

    section_file.write_sections(path, about, [graph, weights])


def read_saved_model(path: Path) -> SavedModel:
    """Read a saved model. Raises UsageError if the file is not one, or is damaged."""
    about, found = section_file.read_sections(path)
    try:
        graph, weights, *_ = found  # format 2 has packed constants, too
        places = [(int(at), int(size)) for at, size in about["weights"]]
        return SavedModel(
            _source(path, str(about["model"]), graph, weights, places),
            AllowedTransforms(str(about["float_class"]), bool(about.get("partial", True))),
            {str(k): Option.parse(str(o)) for k, o in dict(about["schedules"]).items()},
            tuple({str(n): int(v) for n, v in dict(each).items()} for each in about["sizes"]),
            max(int(about["threads"]), 1),
            int(about["width"]),
            str(about.get("target", "cpu")),
            str(about.get("precision", "fp32")),
            bool(about.get("vendor", True)),
            int(about.get("streams", 4)),
        )
    except SuperoptError:
        raise
    except Exception as e:  # any error in parsing the description
        raise section_file.damaged_file_error(
            path, f"its description: {type(e).__name__}: {e}"
        ) from None


def _source(
    path: Path, label: str, graph: Region, weights: Region, places: list[tuple[int, int]]
) -> Source:
    blobs = []
    for at, size in places:
        if not 0 <= at <= at + size <= weights.size:
            raise ValueError(f"{size} bytes at {at} are beyond the weights")
        blobs.append(Region(weights.backing, weights.offset + at, size))
    skeleton = Skeleton(bytes(graph.view()), tuple(blobs))
    for tensor, name, _ in stored_tensors(skeleton.shared_proto):
        index = stub_index(tensor)
        if index is not None and expected_bytes(tensor) != blobs[index].size:
            raise ValueError(f"{name} has {blobs[index].size} bytes")
    return Source(label, path, path.absolute().parent, None, skeleton, graph.size + weights.size)
