"""A program in this process: code, constants and memory, and calls of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from superopt.kernels.cpu import Machine, linked, object_code
from superopt.kernels.cpu_run import run_text
from superopt.plan.build import Program

ALIGNED = 64


@dataclass(frozen=True, slots=True)
class Code:
    """Code of a program. `run` takes tables of pointers; `engine` owns the code."""

    program: Program
    run: Callable[..., None]
    constants: np.ndarray
    memory: np.ndarray
    workspace: np.ndarray
    engine: Any

    def __call__(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Compute the outputs: contiguous arrays of the right types, all of them."""
        table = (ctypes.c_void_p * (len(inputs) + len(outputs)))(
            *(a.ctypes.data for a in inputs), *(a.ctypes.data for a in outputs)
        )
        self.run(table, self.memory.ctypes.data, self.constants.ctypes.data,
                 self.workspace.ctypes.data)  # fmt: skip


def code(program: Program, machine: Machine, folder: Path | None) -> Code:
    texts = [text for _, text in program.kernels.values()]
    texts.append(run_text(program.calls))
    engine = linked([object_code(t, machine, folder) for t in texts], machine)
    constants = aligned(program.constant_bytes)
    for at, load in program.constants:
        array = np.ascontiguousarray(load())
        constants[at : at + array.nbytes] = array.reshape(-1).view(np.uint8)
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(engine.get_function_address("run"))
    return Code(program, run, constants, aligned(program.memory), aligned(program.workspace),
                      engine)  # fmt: skip


def aligned(size: int) -> np.ndarray:
    """Zeros, from a multiple of 64 bytes on."""
    held = np.zeros(size + ALIGNED, np.uint8)
    begin = -held.ctypes.data % ALIGNED
    return held[begin : begin + size]
