"""An LRU list of programs for several sizes of a model on a GPU: each holds a copy of the weights,
and the least recently used are dropped when all would take more than a part of the memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from superopt.cost import machine
from superopt.cost.machine import PART, UNKNOWN
from superopt.kernels.cuda import driver
from superopt.pipeline.gpu_last import Sizes


@cache
def memory(number: int | None) -> int:
    """Return the memory of a GPU in bytes; for None that of the CPU, where the interpreter runs."""
    return machine.memory() or UNKNOWN if number is None else driver.device_memory_bytes(number)


@dataclass(slots=True)
class Recent:
    """program_bytes: by sizes, the most recently used last."""

    number: int | None
    held: dict[Sizes, int] = field(default_factory=dict)

    def used(self, sizes: Sizes, size: int) -> list[Sizes]:
        """Mark a program as used; return the sizes whose programs must be dropped for it."""
        self.held.pop(sizes, None)
        self.held[sizes] = size
        out = []
        while len(self.held) > 1 and sum(self.held.values()) > memory(self.number) // PART:
            out.append(next(iter(self.held)))
            del self.held[out[-1]]
        return out
