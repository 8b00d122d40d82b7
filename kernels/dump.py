"""A kernel after each pass, as text: those that make the tile-level form, and those of the CPU."""

from __future__ import annotations

from superopt.kernels.cpu import Machine, optimized
from superopt.kernels.tile import Kernel


def passes(kernel: Kernel, text: str, machine: Machine) -> list[tuple[str, str]]:
    """The passes' names in their order, and what each of them gave. text: the kernel as LLVM's.

    expressions, schedule, stages, loops   see lower.py
    tile                                   the kernel in the tile-level form
    ll, optimized.ll                       LLVM's text, as it is written and as code is made of it
    """
    made = [(name, str(given)) for name, given in kernel.passes]
    return [*made, ("tile", str(kernel)), ("ll", text), ("optimized.ll", optimized(text, machine))]
