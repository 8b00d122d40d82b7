"""An LRU list of programs for several sizes of a model on a GPU: each holds a copy of the weights,
and the least recently used are dropped when all would take more than a part of the memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from superopt.compilation.cuda.last_call import Sizes
from superopt.cost import machine
from superopt.cost.machine import PROGRAM_MEMORY_DIVISOR, UNKNOWN_MEMORY_BYTES
from superopt.kernels.cuda import driver


@cache
def memory_bytes(gpu_number: int | None) -> int:
    """Return the memory of a GPU in bytes; for None that of the CPU, where the interpreter runs."""
    return (
        machine.memory_bytes() or UNKNOWN_MEMORY_BYTES
        if gpu_number is None
        else driver.device_memory_bytes(gpu_number)
    )


@dataclass(slots=True)
class ProgramLru:
    """program_bytes: by sizes, the most recently used last."""

    gpu_number: int | None
    program_bytes: dict[Sizes, int] = field(default_factory=dict)

    def mark_used(self, sizes: Sizes, size: int) -> list[Sizes]:
        """Mark a program as used; return the sizes whose programs must be dropped for it."""
        self.program_bytes.pop(sizes, None)
        self.program_bytes[sizes] = size
        out = []
        while (
            len(self.program_bytes) > 1
            and sum(self.program_bytes.values())
            > memory_bytes(self.gpu_number) // PROGRAM_MEMORY_DIVISOR
        ):
            out.append(next(iter(self.program_bytes)))
            del self.program_bytes[out[-1]]
        return out
