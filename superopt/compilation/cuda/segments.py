"""The steps of a compiled model on a GPU: compiled segments, and programs from the disk cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from superopt.compilation.model.steps import (
    KernelStep,
    MemoryHolder,
    ModelBinding,
    ValueArrays,
)
from superopt.kernels.runtime.gpu_device import to_array
from superopt.kernels.runtime.sized_program import interpret_sized_image, load_sized_on_device

if TYPE_CHECKING:
    from superopt.compilation.cuda.device import CudaDevice
    from superopt.kernels.cuda.sized_image import SizedImage
    from superopt.kernels.runtime.gpu_program import GpuProgram
    from superopt.kernels.runtime.loaded_image import DeviceProgram, InterpretedProgram
    from superopt.kernels.runtime.sized_program import SizedProgram
    from superopt.plan.graph.partition import Segment
    from superopt.plan.program.constant_pool import PackedConstants
    from superopt.plan.program.image import CountCall
    from superopt.plan.program.program import Program
    from superopt.plan.program.size_formulas import SizeFormulas


@dataclass(frozen=True, slots=True)
class GpuSegment(KernelStep):
    """A segment as kernels, with its memory."""

    segment: Segment
    program: Program
    gpu_program: GpuProgram
    binding: ModelBinding | None = None

    def run(self, env: ValueArrays) -> None:
        """Run the segment. Its outputs are tensors on the device that it owns."""
        self.gpu_program.run([env[v] for v in self.segment.inputs])
        env.update(zip(self.segment.outputs, self.gpu_program.outputs, strict=True))

    def run_bound(self, arrays: Sequence[Any], *, on_device: bool) -> list[Any]:
        assert self.binding is not None
        self.gpu_program.run([arrays[n] for n in self.binding.input_numbers])
        found = [self.gpu_program.outputs[n] for n in self.binding.output_numbers.values()]
        return found if on_device else [*map(to_array, found)]

    @property
    def gpu_number(self) -> int | None:
        """The number of the GPU that its kernels run on."""
        return self.gpu_program.number

    @property
    def launch_count(self) -> int:
        return len(self.gpu_program.launches)

    def constant_blocks(self) -> Mapping[int, int]:
        held = self.gpu_program.constants
        return {} if held is None else {id(held): held.numel() * held.element_size()}

    def work_blocks(self) -> Mapping[int, int]:
        constants = sum(self.constant_blocks().values())
        return {id(self.gpu_program): self.gpu_program.memory_bytes - constants}


@dataclass(frozen=True, slots=True)
class CachedProgram(KernelStep):
    """A program from the disk cache that is the whole model. It has no plan: `Executable.variant`
    compiles it again where one is needed."""

    loaded: DeviceProgram | InterpretedProgram
    binding: ModelBinding

    @property
    def segment(self) -> Segment:
        raise LookupError("a program from the disk cache has no plan")

    @property
    def program(self) -> Program:
        raise LookupError("a program from the disk cache has no plan")

    def run(self, env: ValueArrays) -> None:
        raise LookupError("a program from the disk cache is run by run_bound")

    def run_bound(self, arrays: Sequence[Any], *, on_device: bool) -> list[Any]:
        """Return the outputs for inputs in order: tensors on the device, or numpy arrays."""
        out = self.loaded.run([arrays[n] for n in self.binding.input_numbers], on_device)
        return [out[n] for n in self.binding.output_numbers.values()]

    @property
    def gpu_number(self) -> int | None:
        """The number of the GPU that its kernels run on."""
        return self.loaded.number

    def input_buffers(self) -> dict[int, Any]:
        """Return the tensors from which kernels read the model's inputs, by input number."""
        return dict(zip(self.binding.input_numbers, self.loaded.buffers(), strict=True))

    @property
    def program_identity(self) -> int:
        return self.loaded.identity

    def constant_blocks(self) -> Mapping[int, int]:
        return self.loaded.constant_blocks()

    def work_blocks(self) -> Mapping[int, int]:
        return self.loaded.work_blocks()


@dataclass(frozen=True, slots=True)
class SymbolicGpuSegment(MemoryHolder):
    """A segment as kernels for all sizes that its formulas admit; it is the whole model. example:
    the sizes for which it was compiled. constants, code: what the disk cache keeps; None if it came
    from there."""

    loaded: SizedProgram
    formulas: SizeFormulas
    example: Mapping[str, int]
    binding: ModelBinding
    constants: PackedConstants | None = None
    code: bytes | None = None

    @property
    def programs(self) -> tuple[SymbolicGpuSegment]:
        return (self,)

    @property
    def memory_holder(self) -> MemoryHolder:
        return self

    @property
    def program_identity(self) -> int:
        return id(self.loaded)

    def constant_blocks(self) -> Mapping[int, int]:
        return self.loaded.constant_blocks()

    def work_blocks(self) -> Mapping[int, int]:
        return self.loaded.work_blocks()

    def is_running(self) -> bool:
        """Return False: calls of a GPU hold its lock."""
        return False

    def at_sizes(
        self, sizes: Mapping[str, int], count_call: CountCall | None = None
    ) -> CachedProgram:
        """Return the segment at given sizes, on the same memory."""
        known = self.formulas.at_sizes(sizes)
        return CachedProgram(self.loaded.at_sizes(known.words, known.memory_bytes), self.binding)


def load_sized_program(
    image: SizedImage, code: bytes, constants: PackedConstants, device: CudaDevice
) -> SizedProgram:
    """Load a program for a class of sizes."""
    if device.torch_device == "cpu":
        return interpret_sized_image(image, code, constants)
    return load_sized_on_device(image, code, constants, device.gpu_number)
