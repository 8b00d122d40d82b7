"""Models compiled for a GPU that are kept whole, so that another process has them soon
(entries.py): it needs neither the model nor torch or Triton, whose machine code is kept with the
plan (kernels/cuda/image.py).

A model's key is made from its files (SHA-256), options, the GPU, torch's and Triton's files,
superopt's own and the store of measurements.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from superopt.cost.folder import store_file
from superopt.kernels.cuda.driver import find_gpu
from superopt.kernels.cuda.image import Image, image_from_dict
from superopt.kernels.runtime.gpu_device import empty_cache
from superopt.kernels.runtime.loaded_image import (
    DeviceProgram,
    InterpretedProgram,
    load_interpreted,
    load_on_device,
)
from superopt.pipeline import entries

WITH = ("torch", "triton")  # what compiles


@dataclass(frozen=True, slots=True)
class Place:
    """Where kernels run: "cuda", or "cpu" in the interpreter; the GPU's name, capability and
    number."""

    device: str
    gpu: str
    capability: tuple[int, int]
    number: int | None = None


def place() -> Place | None:
    """None where there is none: who compiles says why."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return Place("cpu", "Triton's interpreter", (0, 0))
    try:
        found = find_gpu()
    except RuntimeError:
        return None
    return Place("cuda", found.name, found.capability, found.number)


@dataclass(frozen=True, slots=True)
class Options:
    """What a model is compiled with; see `superopt.compile`. store: where measurements are kept."""

    precision: str
    float_class: str
    vendor: bool
    streams: int
    store: Path | None

    def key(self, digest: str, on: Place) -> str:
        """Of a model whose files have this digest."""
        about = (
            "cuda", entries.FORMAT, digest, self.precision, self.float_class, self.vendor,
            self.streams, on.device, on.gpu, on.capability, *map(installed, WITH), np.__version__,
            sys.version, entries.own_files(), entries.state_of(store_file(self.store)),
        )  # fmt: skip
        return entries.sum_of(about)


def installed(name: str) -> list[int] | None:
    """What tells that a package is as it was. It is not imported."""
    found = find_spec(name)
    return None if found is None or found.origin is None else entries.state_of(Path(found.origin))


@dataclass(frozen=True, slots=True)
class Ready:
    """A program that is the whole model. takes: numbers of the model's inputs; gives: of the
    program's outputs, for each of the model's; options: how problems are computed, by their keys,
    in the order of these."""

    program: DeviceProgram | InterpretedProgram
    takes: tuple[int, ...]
    gives: tuple[int, ...]
    options: Mapping[str, str]

    @property
    def number(self) -> int | None:
        """Of the GPU."""
        return self.program.number

    @property
    def bytes(self) -> int:
        """Of the device's memory."""
        return self.program.image.size

    def buffers(self) -> dict[int, Any]:
        """Tensors where inputs are read, by their numbers."""
        return dict(zip(self.takes, self.program.buffers(), strict=True))

    def run(self, given: Sequence[Any], there: str) -> list[Any]:
        """The outputs, of inputs in order: tensors on the device `there`, or, if it is none,
        numpy's."""
        out = self.program.run([given[n] for n in self.takes], bool(there))
        return [out[n] for n in self.gives]


def find(key: str, sizes: Sequence[tuple[str, int]], on: Place) -> Ready | None:
    """The program for these sizes; None where there is none that is whole."""

    def made(about: dict[str, Any], texts: bytes) -> Ready | None:
        image = image_from_dict(about["image"])
        known = np.empty(image.known, np.uint8)
        if not entries.filled(own, known, about["check"]):
            return None
        program: DeviceProgram | InterpretedProgram | None
        if on.device == "cuda":
            program = _started(image, texts, known, on.number)
        else:
            program = load_interpreted(image, texts, known)
        if program is None:
            return None
        return Ready(program, tuple(about["takes"]), tuple(about["gives"]), dict(about["options"]))

    own = entries.sum_of((key, sizes))
    return entries.program(own, made)


def _started(
    image: Image, texts: bytes, known: np.ndarray, number: int | None
) -> DeviceProgram | None:
    """None where the driver does not take it: who compiles says more. Where it has no memory for
    it, what torch keeps of that, and nobody uses, goes back first."""
    for last in (False, True):
        try:
            return load_on_device(image, texts, known, number)
        except RuntimeError as e:
            if last or "out of memory" not in str(e) or "torch" not in sys.modules:
                return None
        empty_cache("cuda")
    return None
