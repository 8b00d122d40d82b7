"""Kernels for a GPU run in Triton's interpreter, or on a GPU, in memory that begins as NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from superopt.compilation.cuda import load_program
from superopt.compilation.cuda.device import CudaDevice
from superopt.kernels.runtime import gpu_program
from tests.support.gpu.device import choose


def interpret(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Kernels run where tests/support/gpu/device.py says, for fixed sizes; memory begins as NaN;
    and nothing was measured before."""
    choose(monkeypatch)
    monkeypatch.setattr(CudaDevice, "has_size_classes", False)
    monkeypatch.setenv("SUPEROPT_CACHE", str(cache))
    import torch

    made = gpu_program.build_program

    def poisoned(*given: Any, **more: Any) -> gpu_program.GpuProgram:
        out = made(*given, **more)
        out.memory[more["zeroed_bytes"] :].fill_(255)
        for x in out.workspaces:
            x.fill_(255)
        for k in out.loaded.values():
            for t, _ in k.text.scratch:
                k.own_tensors[t].view(torch.uint8).fill_(255)
        for x in out.outputs:
            x.fill_(float("nan") if x.is_floating_point() else 7)
        return out

    monkeypatch.setattr(load_program, "build_program", poisoned)
