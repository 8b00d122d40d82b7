"""The cache of programs compiled for a GPU (entries.py): another process needs neither the model
nor torch or Triton, because the machine code is stored with the plan (kernels/cuda/image.py).

A model's key is the digest of its files (SHA-256), options, the GPU, torch's and Triton's files,
superopt's own files and the store of measurements.
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

from superopt.compilation.cache import entries
from superopt.cost.cache_folders import store_path
from superopt.kernels.cuda.driver import find_gpu
from superopt.kernels.cuda.image import Image, image_from_dict
from superopt.kernels.runtime.gpu_device import empty_cache
from superopt.kernels.runtime.loaded_image import (
    DeviceProgram,
    InterpretedProgram,
    load_interpreted,
    load_on_device,
)

COMPILER_PACKAGES = ("torch", "triton")  # packages that compile kernels


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """Where kernels run: "cuda", or "cpu" in the interpreter; the GPU's name, compute capability
    and number."""

    device: str
    gpu_name: str
    capability: tuple[int, int]
    gpu_number: int | None = None


def find_gpu_place() -> GpuPlace | None:
    """Return the place; None if there is no GPU: the compiler reports why."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return GpuPlace("cpu", "Triton's interpreter", (0, 0))
    try:
        found = find_gpu()
    except RuntimeError:
        return None
    return GpuPlace("cuda", found.name, found.capability, found.number)


@dataclass(frozen=True, slots=True)
class CudaCacheOptions:
    """What a model is compiled with; see `superopt.compile`. store: the file of measurements."""

    precision: str
    float_class: str
    vendor: bool
    streams: int
    store: Path | None

    def cache_key(self, digest: str, place: GpuPlace) -> str:
        """Return the key of a model whose files have this digest."""
        about = (
            "cuda", entries.FORMAT_VERSION, digest, self.precision, self.float_class, self.vendor,
            self.streams, place.device, place.gpu_name, place.capability,
            *map(package_state, COMPILER_PACKAGES), np.__version__,
            sys.version, entries.package_state_digest(), entries.file_state(store_path(self.store)),
        )  # fmt: skip
        return entries.digest_json(about)


def package_state(name: str) -> list[int] | None:
    """Return the state of a package's files, without importing it."""
    found = find_spec(name)
    return None if found is None or found.origin is None else entries.file_state(Path(found.origin))


@dataclass(frozen=True, slots=True)
class CachedProgram:
    """A cached program that is the whole model. input_numbers: of the model's inputs;
    output_numbers: of the program's outputs, for each of the model's; options: of problems, by key,
    in order."""

    program: DeviceProgram | InterpretedProgram
    input_numbers: tuple[int, ...]
    output_numbers: tuple[int, ...]
    options: Mapping[str, str]

    @property
    def gpu_number(self) -> int | None:
        """The number of the GPU."""
        return self.program.number

    @property
    def device_bytes(self) -> int:
        """Its bytes of device memory."""
        return self.program.image.size

    def input_buffers(self) -> dict[int, Any]:
        """Return the tensors that inputs are read from, by input number."""
        return dict(zip(self.input_numbers, self.program.buffers(), strict=True))

    def run(self, arrays: Sequence[Any], device: str) -> list[Any]:
        """Return the outputs for inputs in order: tensors on `device`, or numpy arrays if it is
        empty."""
        out = self.program.run([arrays[n] for n in self.input_numbers], bool(device))
        return [out[n] for n in self.output_numbers]


def find_program(
    key: str, sizes: Sequence[tuple[str, int]], place: GpuPlace
) -> CachedProgram | None:
    """Return the program for these sizes; None if there is no intact one."""

    def parse_program(about: dict[str, Any], texts: bytes) -> CachedProgram | None:
        image = image_from_dict(about["image"])
        known = np.empty(image.known, np.uint8)
        if not entries.read_constants(own, known, about["check"]):
            return None
        program: DeviceProgram | InterpretedProgram | None
        if place.device == "cuda":
            program = _load_on_device(image, texts, known, place.gpu_number)
        else:
            program = load_interpreted(image, texts, known)
        if program is None:
            return None
        return CachedProgram(
            program, tuple(about["takes"]), tuple(about["gives"]), dict(about["options"])
        )

    own = entries.digest_json((key, sizes))
    return entries.read_program(own, parse_program)


def _load_on_device(
    image: Image, texts: bytes, constants: np.ndarray, gpu_number: int | None
) -> DeviceProgram | None:
    """Load a program onto the device. None if the driver rejects it: the compiler reports more. If
    memory is short, free what torch caches first."""
    for last in (False, True):
        try:
            return load_on_device(image, texts, constants, gpu_number)
        except RuntimeError as e:
            if last or "out of memory" not in str(e) or "torch" not in sys.modules:
                return None
        empty_cache("cuda")
    return None
