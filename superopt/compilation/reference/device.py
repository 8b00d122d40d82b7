"""The reference device: numpy arrays in the memory of the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from superopt.compilation.frontend.compile_options import CompileOptions
from superopt.compilation.model.device import Device


@dataclass(frozen=True, slots=True)
class ReferenceDevice(Device):
    """The interpreter of kernels. Models are compiled in the call: planning takes less time than a
    run."""

    name: ClassVar[str] = "reference"
    eager_sizes: ClassVar[int] = 1 << 30
    compiles_in_background: ClassVar[bool] = False

    def __str__(self) -> str:
        return "interpreted"


def open_device(options: CompileOptions) -> ReferenceDevice:
    """Return the device."""
    return ReferenceDevice()
