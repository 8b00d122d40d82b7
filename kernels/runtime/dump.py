"""The text of a kernel after each pass: lowering passes, then the CPU's."""

from __future__ import annotations

from superopt.kernels.loops.tile import Kernel
from superopt.kernels.runtime.cpu import Machine, optimized_text


def pass_texts(kernel: Kernel, text: str, machine: Machine) -> list[tuple[str, str]]:
    """Return (pass name, text) in order. text: the kernel's LLVM text.

    expressions, schedule, stages, loops   see loops/lower.py tile
    the kernel in the tile-level form ll, optimized.ll                       LLVM text before and
    after optimization
    """
    made = [(name, str(given)) for name, given in kernel.passes]
    return [
        *made,
        ("tile", str(kernel)),
        ("ll", text),
        ("optimized.ll", optimized_text(text, machine)),
    ]
