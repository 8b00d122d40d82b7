"""Programs for several sizes of a model on a GPU: each keeps a copy of the weights there, and those
used longest ago go where all would take more than a part of its memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from superopt.cost import machine
from superopt.cost.machine import PART, UNKNOWN
from superopt.kernels.cuda import driver
from superopt.pipeline.gpu_last import Sizes


@cache
def memory(number: int | None) -> int:
    """Bytes, of this GPU; None: where the interpreter's kernels run."""
    return machine.memory() or UNKNOWN if number is None else driver.device_memory_bytes(number)


@dataclass(slots=True)
class Recent:
    """held: bytes, by sizes, those used last at the end. number: of the GPU."""

    number: int | None
    held: dict[Sizes, int] = field(default_factory=dict)

    def used(self, sizes: Sizes, size: int) -> list[Sizes]:
        """A program of so many bytes is used: those that go for it."""
        self.held.pop(sizes, None)
        self.held[sizes] = size
        out = []
        while len(self.held) > 1 and sum(self.held.values()) > memory(self.number) // PART:
            out.append(next(iter(self.held)))
            del self.held[out[-1]]
        return out
