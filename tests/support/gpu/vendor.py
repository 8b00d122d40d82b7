"""Kernels of vendor libraries: chosen by the test, and listed."""

from __future__ import annotations

from typing import Any

import pytest

from superopt.kernels.algorithms.gpu import gpu_space
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.option import Option


def taken(monkeypatch: pytest.MonkeyPatch, tried: bool = False) -> None:
    """Have the library compute what it is offered."""
    choice = gpu_space.choose

    def choose(p: Problem, wanted: Option | None, fallback: Any = None, **may: bool) -> Any:
        some = [o for o in gpu_space.options(p, **may) if o.algorithm == "library"]
        if len(some) > tried:
            return gpu_space.build_choice(p, some[tried])
        return choice(p, wanted, fallback=fallback or {}, **may)

    monkeypatch.setattr(gpu_space, "choose", choose)


def libraries(exe: Any) -> list[str]:
    """What the library computes, of all steps."""
    (part,) = exe.variant({}).kernel_steps
    return [c.kernel.library for c in part.gpu_program.calls if c.kernel.library]
