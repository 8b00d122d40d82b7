"""An NVIDIA GPU as a device, or Triton's interpreter in its place."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from superopt.compilation.cuda.gpu_inputs import all_on_gpu, as_gpu_inputs, check_devices
from superopt.compilation.cuda.segments import CachedProgram, GpuSegment
from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.frontend.input_arrays import InputPort
from superopt.compilation.model.device import Device
from superopt.compilation.runtime import fork_safety
from superopt.errors import RuntimeMismatch, UsageError
from superopt.kernels.cuda import driver
from superopt.kernels.cuda.input_aliasing import WrittenRanges
from superopt.kernels.runtime.gpu_device import (
    current_gpu_number,
    empty_cache,
    execution_device,
    synchronize,
    to_array,
    to_device,
    use_gpu,
)

if TYPE_CHECKING:
    from superopt.compilation.model.device import RepeatedCall
    from superopt.compilation.model.executable import Executable
    from superopt.compilation.model.steps import Variant

# By precision of float32 values: the precision of products of such in memory, as Triton names it.
DOT_PRECISIONS = {"fp32": "ieee", "tf32": "tf32", "fp16": "ieee", "bf16": "ieee"}
INSTALL_HINT = (
    'pip install "superopt-onnx[gpu]" on a machine with an NVIDIA GPU; "superopt doctor" shows '
    "what is installed, and TRITON_INTERPRET=1 runs kernels on the CPU, slowly"
)


@dataclass(frozen=True, slots=True)
class CudaDevice(Device):
    """A GPU. torch_device: "cuda", or "cpu" in the interpreter. gpu_number: need not be the current
    GPU; None in the interpreter, and for the current one. Programs are compiled in the call: other
    threads may not use the GPU while a CUDA graph is captured."""

    name: ClassVar[str] = "cuda"
    eager_sizes: ClassVar[int] = 16
    compiles_in_background: ClassVar[bool] = False
    is_asynchronous: ClassVar[bool] = True
    has_size_classes: ClassVar[bool] = True
    torch_device: str
    precision: str = "fp32"
    gpu_name: str = ""
    capability: tuple[int, int] = (0, 0)
    gpu_number: int | None = None

    @property
    def fallback_threads(self) -> int:
        return os.cpu_count() or 1

    def __str__(self) -> str:
        return f"{self.precision} on {self.torch_device}"

    @property
    def dot_precision(self) -> str:
        """The precision of fp32 products, as Triton names it."""
        return DOT_PRECISIONS[self.precision]

    def as_inputs(
        self,
        ports: Sequence[InputPort],
        feeds: Mapping[str, Any],
        default_input: Callable[[str], Any],
    ) -> list[Any]:
        """Return the inputs as arrays or tensors; other objects are read by DLPack."""
        return as_gpu_inputs(ports, feeds, default_input)

    def check_inputs(
        self, ports: Sequence[InputPort], arrays: Sequence[Any], variant: Variant
    ) -> None:
        numbers = (s.gpu_number for s in variant if isinstance(s, GpuSegment | CachedProgram))
        check_devices(ports, arrays, next(numbers, None))

    def is_on_device(self, x: object) -> bool:
        return all_on_gpu([x])

    def to_device(self, x: Any) -> Any:
        return to_device(x, self.torch_device)

    def to_host(self, x: Any) -> Any:
        return to_array(x) if type(x).__module__.startswith("torch") else x

    def copy(self, x: Any) -> Any:
        if type(x).__module__.startswith("torch"):
            return x.clone()
        return x if x is None else x.copy()

    def prepare_run(self, variant: Variant, arrays: list[Any]) -> list[Any]:
        runs = [s.gpu_program for s in variant.kernel_steps]
        for r in runs if len(runs) > 1 else ():  # else one would overwrite what another still reads
            r.wait_for_last_run()
        graph = variant.model.graph
        if not {*graph.inputs} & {*graph.outputs} and len(variant) == 1:
            return arrays
        written = (x for r in runs for x in (*r.inputs, *r.outputs))  # a later step may read these
        return WrittenRanges.from_tensors(written).copy_aliased(arrays)

    def input_buffers(self, variant: Variant) -> Mapping[int, Any]:
        step = variant[0] if len(variant) == 1 else None
        if isinstance(step, CachedProgram):
            return step.input_buffers()
        if not isinstance(step, GpuSegment):
            return {}
        numbers = {v: n for n, v in enumerate(variant.model.graph.inputs)}
        own = zip(step.segment.inputs, step.gpu_program.inputs, strict=True)
        return {numbers[v]: x for v, x in own if v in numbers}

    def repeated_call(
        self, exe: Executable, variant: Variant, arrays: Sequence[Any], *, on_device: bool
    ) -> RepeatedCall | None:
        if not on_device:
            return None
        kinds = [(p.name, type(x), x.dtype, x.shape, x.get_device())
                 for p, x in zip(exe.input_ports, arrays, strict=True)]  # fmt: skip
        owner, names = weakref.proxy(exe), exe.output_names

        def call(feeds: Mapping[str, Any]) -> dict[str, Any] | None:
            if type(feeds) is not dict or len(feeds) != len(kinds):
                return None
            given = []
            for name, kind, dtype, shape, number in kinds:
                x: Any = feeds.get(name)
                if type(x) is not kind or x.dtype != dtype or x.shape != shape:
                    return None
                if x.get_device() != number:
                    return None
                given.append(x)
            with owner.lock, use_gpu(self.gpu_number):
                try:
                    found = variant.run(self, given, on_device=True)
                except RuntimeMismatch:  # the slow path compiles the model again
                    return None
            return dict(zip(names, found, strict=True))

        return call

    def activate(self) -> AbstractContextManager[object]:
        return use_gpu(self.gpu_number)

    def synchronize(self) -> None:
        synchronize(self.torch_device)

    def release_memory(self) -> None:
        empty_cache(self.torch_device)

    def memory_bytes(self) -> int:
        if self.gpu_number is None:
            return Device.memory_bytes(self)
        return _gpu_memory_bytes(self.gpu_number)

    def lock_after_fork(self) -> Any:
        """Return the lock in a forked process: GPU memory is not available there."""
        if self.torch_device == "cpu":
            return threading.RLock()
        return fork_safety.LostLock(_fork_error)


@cache
def _gpu_memory_bytes(gpu_number: int) -> int:
    return driver.device_memory_bytes(gpu_number)


def _fork_error() -> UsageError:
    return UsageError(
        "the model was compiled for a GPU before this process was forked",
        "GPU memory belongs to the parent", "start processes by spawn, and compile in them",
    )  # fmt: skip


def check_precision(precision: str) -> None:
    """Raise UsageError for an unknown precision."""
    if precision not in DOT_PRECISIONS:
        names = ", ".join(DOT_PRECISIONS)
        raise UsageError(f"precision {precision!r}", f"precisions are {names}", "use one of them")


def find_device(precision: str) -> CudaDevice | None:
    """Return the current GPU, or Triton's interpreter if TRITON_INTERPRET=1 selects it, without
    loading torch; None if there is no GPU: `open_gpu` reports why. Raises UsageError for an
    unknown precision."""
    check_precision(precision)
    if os.environ.get("TRITON_INTERPRET") == "1":
        return CudaDevice("cpu", precision, "Triton's interpreter")
    try:
        found = driver.find_gpu()
    except RuntimeError:
        return None
    return CudaDevice("cuda", precision, found.name, found.capability, found.number)


def open_gpu(precision: str, gpu_number: int | None = None) -> CudaDevice:
    """Return a GPU, with torch initialised. gpu_number: None for the current GPU. Raises UsageError
    if there is none, or for an unknown precision."""
    check_precision(precision)
    try:
        torch_device = execution_device()
        own = current_gpu_number(torch_device)  # initialises torch's GPUs
    except RuntimeError as e:
        raise UsageError("target cuda", str(e), INSTALL_HINT) from None
    number = own if gpu_number is None else gpu_number
    return CudaDevice(torch_device, precision, gpu_number=number)


def open_device(options: CompileOptions) -> CudaDevice:
    """Return the device of these options. Raises UsageError if there is none."""
    return find_device(options.precision) or open_gpu(options.precision)
