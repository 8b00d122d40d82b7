"""The CPU as a device: calls of machine code on numpy arrays."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from superopt.compilation.cpu.class_call import repeated_class_call
from superopt.compilation.cpu.native_segment import native_call
from superopt.compilation.cpu.sequential_call import model_call
from superopt.compilation.fallback.whole_model import Fallback
from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.frontend.input_arrays import InputPort
from superopt.compilation.model.control_flow.dynamic_if import ControlFlow
from superopt.compilation.model.device import Device
from superopt.compilation.model.repeated_call import (
    repeated_any_size_call,
    repeated_model_call,
    repeated_named_call,
)

if TYPE_CHECKING:
    from superopt.compilation.model.device import RepeatedCall
    from superopt.compilation.model.executable import Executable
    from superopt.compilation.model.steps import Variant


@dataclass(frozen=True, slots=True)
class CpuDevice(Device):
    """A CPU. threads: of kernels. precision: "bf16": products of float32 values are computed in
    bfloat16 where that is faster."""

    name: ClassVar[str] = "cpu"
    has_size_classes: ClassVar[bool] = True
    has_runtime_sizes: ClassVar[bool] = True
    has_concurrent_calls: ClassVar[bool] = True
    keeps_states: ClassVar[bool] = True
    rounds_operands: ClassVar[bool] = True
    threads: int = 1
    precision: str = "fp32"

    @property
    def kernel_threads(self) -> int:
        return self.threads

    def __str__(self) -> str:
        return f"threads={self.threads}" + f", {self.precision}" * (self.precision != "fp32")

    def repeated_call(
        self, exe: Executable, variant: Variant, arrays: Sequence[Any], *, on_device: bool
    ) -> RepeatedCall | None:
        ports, (first, *others) = exe.input_ports, (*variant, None)
        if isinstance(first, ControlFlow) and variant.is_of_class:
            return repeated_any_size_call(first.named_call, ports)
        if len(others) == 1 and isinstance(first, Fallback | ControlFlow):
            return repeated_named_call(first.named_call, ports, arrays)
        if (call := repeated_class_call(exe)) is not None:
            return call
        if variant.bound_step is not None:
            return _repeated_native_call(variant.bound_step, ports, arrays)
        if (direct := model_call(variant, exe.output_names)) is None:
            return None
        return repeated_model_call(direct, ports, arrays)

    def repeated_class_call(self, exe: Executable) -> RepeatedCall | None:
        return repeated_class_call(exe)

    def compile_clock(self) -> float:
        return time.thread_time()


def _repeated_native_call(
    native: Any, ports: Sequence[InputPort], arrays: Sequence[Any]
) -> RepeatedCall:
    """Return the repeated call of a segment that is the whole model."""
    return repeated_model_call(native_call(native, len(ports)), ports, arrays)


def open_device(options: CompileOptions) -> CpuDevice:
    """Return the device of these options."""
    return CpuDevice(options.threads, options.precision)
