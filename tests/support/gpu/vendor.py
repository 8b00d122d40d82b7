"""Kernels of vendor libraries: chosen by the test, and listed."""

from __future__ import annotations

from typing import Any

import pytest

from superopt.kernels.algorithms import space
from superopt.kernels.algorithms.problem import Problem
from superopt.kernels.loops.option import Option


def taken(monkeypatch: pytest.MonkeyPatch, tried: bool = False) -> None:
    """Have the library compute what it is offered."""
    choice = space.choose

    def choose(
        p: Problem, wanted: Option | None, target: str, fallback: Any = None, **may: bool
    ) -> Any:
        some = [o for o in space.options(p, target, **may) if o.algorithm == "vendor"]
        if len(some) > tried:
            return space.build_choice(p, some[tried], target)
        return choice(p, wanted, target, fallback=fallback or {}, **may)

    monkeypatch.setattr(space, "choose", choose)


def libraries(exe: Any) -> list[str]:
    """What the library computes, of all steps."""
    (part,) = exe.variant({}).kernel_steps
    return [c.kernel.library for c in part.gpu_program.calls if c.kernel.library]
