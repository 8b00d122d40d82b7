"""The cache of programs compiled for a GPU (entries.py): another process needs neither the model
nor torch or Triton, because the machine code is stored with the plan (kernels/cuda/image.py).

A model's key is the digest of its files (SHA-256), options, the GPU, torch's and Triton's files,
superopt's own files and the store of measurements.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.cache import entries
from superopt.compilation.cache.class_entries import (
    class_key,
    read_class_formulas,
    read_constants,
    write_class_formulas,
    write_constants,
)
from superopt.compilation.cuda.device import CudaDevice
from superopt.compilation.cuda.segments import (
    CachedProgram,
    SymbolicGpuSegment,
    load_sized_program,
)
from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.frontend.input_arrays import Sizes
from superopt.compilation.model.size_classes import SizeClass
from superopt.compilation.model.steps import ModelBinding, Variant
from superopt.cost.cache_folders import store_path
from superopt.cost.disk_cache import record_written
from superopt.kernels.cuda.image import Image, image_from_dict
from superopt.kernels.cuda.sized_image import sized_image_from_dict, sized_image_to_dict
from superopt.kernels.runtime.gpu_device import empty_cache
from superopt.kernels.runtime.loaded_image import (
    DeviceProgram,
    InterpretedProgram,
    load_interpreted,
    load_on_device,
)
from superopt.plan.program.size_formulas import SizeFormulas

if TYPE_CHECKING:
    from superopt.compilation.model.compiler import Compiler
    from superopt.onnx_io.import_.model import Model

COMPILER_PACKAGES = ("torch", "triton", "onnxruntime")  # whose versions change what runs


def open_program_cache(
    options: CompileOptions, device: CudaDevice, digest: str, load_compiler: Callable[[], Compiler]
) -> CudaProgramCache:
    """Return the cached programs of a model whose files have this digest."""
    about = (
        "cuda", entries.FORMAT_VERSION, digest, device.precision, options.allowed.float_class,
        options.vendor, options.streams, device.torch_device, device.gpu_name, device.capability,
        *map(entries.package_state, COMPILER_PACKAGES), np.__version__, sys.version,
        entries.package_state_digest(), entries.file_state(store_path(options.store)),
    )  # fmt: skip
    return CudaProgramCache(entries.digest_json(about), device, load_compiler)


@dataclass(frozen=True, slots=True)
class CudaProgramCache:
    """The cached programs of a model. load_compiler: returns its compiler."""

    key: str
    device: CudaDevice
    load_compiler: Callable[[], Compiler]

    def find(self, sizes: Sizes) -> Variant | None:
        """Return the program for these sizes; None if there is no intact one."""
        return find_program(
            self.key,
            sizes,
            self.device,
            lambda: self.load_compiler().compiler_for(dict(sizes)).model,
        )

    def store(self, sizes: Sizes, variant: Variant, expected_seconds: float) -> None:
        """Store a program that is a whole model."""
        generator: Any = self.load_compiler().generator
        generator.store_variant(self.key, sizes, variant)

    def find_classes(self) -> Sequence[SizeClass] | None:
        """Return the programs for classes of sizes; None if the model is known to have none."""
        found = read_class_formulas(self.key)
        if found is None:
            return None
        return [
            SizeClass(
                each, cache(partial(self._find_steps, each)), lambda: self.load_compiler().model
            )
            for each in found
        ]

    def store_class(self, made: SizeClass | None) -> None:
        """Store a program for a class of sizes; None: the model has none."""
        known = [] if made is None else [c.formulas for c in self.find_classes() or ()]
        if made is not None:
            step = (*(made.load_steps() or ()), None)[0]
            if not isinstance(step, SymbolicGpuSegment) or not self._write_step(step):
                return
            known.append(made.formulas)
        write_class_formulas(self.key, known)

    def _write_step(self, step: SymbolicGpuSegment) -> bool:
        """Write the program of a class; False if it cannot be written."""
        if step.code is None or step.constants is None:
            return False
        written = write_constants(step.constants)
        if written is None:
            return False
        described, small, size = written
        about = {
            "image": sized_image_to_dict(step.loaded.image), "example": step.example,
            "code": len(step.code), "constants": described,
            "takes": step.binding.input_numbers, "gives": [*step.binding.output_numbers.items()],
        }  # fmt: skip
        entries.write_program(class_key(self.key, step.formulas), about, (step.code, *small))
        record_written(size + len(step.code) + sum(map(len, small)))
        return True

    def _find_steps(self, formulas: SizeFormulas) -> tuple[SymbolicGpuSegment] | None:
        """Return the only step of a class; None if it is not intact."""

        def parse_program(about: dict[str, Any], texts: bytes) -> SymbolicGpuSegment | None:
            image, end = sized_image_from_dict(about["image"]), about["code"]
            constants = read_constants(about["constants"], image.constant_bytes, texts[end:])
            if constants is None:
                return None
            try:
                loaded = load_sized_program(image, texts[:end], constants, self.device)
            except RuntimeError:  # of the driver: the compiler reports more
                return None
            binding = ModelBinding(tuple(about["takes"]), dict(about["gives"]))
            return SymbolicGpuSegment(loaded, formulas, dict(about["example"]), binding)

        found = entries.read_program(class_key(self.key, formulas), parse_program)
        return None if found is None else (found,)

    def compile_seconds(self) -> float | None:
        """Return the expected time of compiling for further sizes; None if unknown."""
        return None


def find_program(
    key: str,
    sizes: Sizes,
    device: CudaDevice,
    load_model: Callable[[], Model],
) -> Variant | None:
    """Return the program for these sizes; None if there is no intact one. load_model: returns the
    model."""

    def parse_program(about: dict[str, Any], texts: bytes) -> Variant | None:
        image = image_from_dict(about["image"])
        known = np.empty(image.known, np.uint8)
        if not entries.read_constants(own, known, about["check"]):
            return None
        program: DeviceProgram | InterpretedProgram | None
        if device.torch_device == "cuda":
            program = _load_on_device(image, texts, known, device.gpu_number)
        else:
            program = load_interpreted(image, texts, known)
        if program is None:
            return None
        binding = ModelBinding(tuple(about["takes"]), dict(about["gives"]))
        return Variant((CachedProgram(program, binding),), load_model, dict(about["options"]))

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
