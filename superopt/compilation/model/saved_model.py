"""Compiled models in files: the model, with each weight once, the options of its kernels, and
machine code for named processors on request (cpu/machine_code.py). Packed constants are made again.
Reading a file with code for this processor imports neither the compiler nor ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from superopt.compilation.frontend.allowed_transforms import AllowedTransforms
from superopt.errors import SuperoptError
from superopt.onnx_io.export import section_file
from superopt.onnx_io.read.mapped_file import Region

WEIGHT_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class SavedContents:
    """What is in a file. graph: the model without large weights. weights: the section of weights,
    and where each begins and its bytes. code: what JSON says of the machine code; None if there is
    none. processors: a section for each processor."""

    path: Path
    graph: Region
    weights: section_file.Section
    places: tuple[tuple[int, int], ...]
    code: Mapping[str, Any] | None
    processors: tuple[section_file.Section, ...]

    def weight_views(self) -> list[memoryview]:
        """Return the weights, each with the zeros up to the next one."""
        view, end = self.weights.region.view(), self.weights.region.size
        return [view[at : min(at + padded_size(size), end)] for at, size in self.places]


@dataclass(frozen=True, slots=True)
class SavedModel:
    """The contents of a saved model.

    label: its name. vector_bytes: of the vectors that it was
    compiled for. allowed: the allowed transforms. options: of problems, as text, by key. sizes: the
    compiled sets of symbolic sizes. target, precision, vendor, streams: arguments of `compile`.
    contents: of the file, if it was read.
    """

    label: str
    allowed: AllowedTransforms
    options: Mapping[str, str]
    sizes: tuple[dict[str, int], ...]
    threads: int = 1
    vector_bytes: int = 64
    target: str = "cpu"
    precision: str = "fp32"
    vendor: bool = True
    streams: int = 4
    contents: SavedContents | None = None


def padded_size(size: int) -> int:
    """Return the bytes that a weight takes in a file."""
    return -(-size // WEIGHT_ALIGNMENT_BYTES) * WEIGHT_ALIGNMENT_BYTES


def read_saved_model(path: Path) -> SavedModel:
    """Read a saved model. Raises UsageError if the file is not one, or its description or its graph
    is damaged; weights and machine code are checked when they are read."""
    about, found = section_file.read_sections(path)
    try:
        graph, weights, *others = found  # format 2 has packed constants, too
        places = tuple((int(at), int(size)) for at, size in about["weights"])
        label, region = str(about["model"]), graph.check()
        for at, size in places:
            if not 0 <= at <= at + size <= weights.region.size:
                raise ValueError(f"{size} bytes at {at} are beyond the weights")
        return SavedModel(
            label,
            AllowedTransforms(str(about["float_class"]), bool(about.get("partial", True))),
            {str(k): str(o) for k, o in dict(about["schedules"]).items()},
            tuple({str(n): int(v) for n, v in dict(each).items()} for each in about["sizes"]),
            max(int(about["threads"]), 1),
            int(about["width"]),
            str(about.get("target", "cpu")),
            str(about.get("precision", "fp32")),
            bool(about.get("vendor", True)),
            int(about.get("streams", 4)),
            SavedContents(path, region, weights, places, about.get("code"), tuple(others)),
        )
    except SuperoptError:
        raise
    except Exception as e:  # any error in parsing the description
        raise section_file.damaged_file_error(
            path, f"its description: {type(e).__name__}: {e}"
        ) from None
