"""The last call of a compiled model: what a call with the same input shapes checks and runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.pipeline import forks
from superopt.pipeline.arrays import Port
from superopt.pipeline.branch import Branch
from superopt.pipeline.fallback import ByName, Fallback
from superopt.pipeline.native import Native, Whole

if TYPE_CHECKING:
    from superopt.pipeline.in_turn import Direct


@dataclass(frozen=True, slots=True)
class LastCall:
    """A program that is the whole model, with its inputs and outputs: see NativeSegment and
    ModelBinding. model_call: instead, runs the parts of a model that is not one program.
    named_call: instead, takes the inputs by name, also arrays that are not contiguous."""

    inputs: tuple[tuple[str, np.dtype | None, tuple[int, ...]], ...]
    takes: tuple[int, ...] | None  # None: all inputs in order
    new: Callable[[], list[np.ndarray]]
    gives: tuple[tuple[str, int], ...]
    call: Callable[[tuple[np.ndarray, ...]], None]
    direct: Direct | None = None
    by_name: ByName | None = None

    @classmethod
    def whole(
        cls, step: Fallback | Branch, ports: Sequence[Port], given: Sequence[Any]
    ) -> LastCall | None:
        return cls.named(step.by_name, ports, given)

    @classmethod
    def named(
        cls, by_name: ByName | None, ports: Sequence[Port], given: Sequence[Any]
    ) -> LastCall | None:
        """Return the last call of a function that takes inputs by name; None if there is none, or
        an input is a non-tensor."""
        if by_name is None or any(p.dtype is None for p in ports):
            return None
        inputs = tuple((p.name, p.dtype, a.shape) for p, a in zip(ports, given, strict=True))
        return cls(inputs, None, list, (), nothing, None, by_name)

    @classmethod
    def of(
        cls, native: Native, whole: Whole, ports: Sequence[Port], given: Sequence[np.ndarray]
    ) -> LastCall:
        inputs = tuple((p.name, p.dtype, a.shape) for p, a in zip(ports, given, strict=True))
        takes = None if whole.takes == tuple(range(len(ports))) else whole.takes
        return cls(inputs, takes, native.new, (*whole.gives.items(),), native.code.call)


def locked(direct: Direct, exe: forks.Locked) -> Direct:
    """Return the function with a lock around it, for kernels whose memory serves one call at a
    time. lock_owner: has the lock, which another one replaces in a forked process."""

    def call(arrays: Sequence[Any]) -> dict[str, Any]:
        with exe.lock:
            return direct(arrays)

    return call


def nothing(arrays: tuple[np.ndarray, ...]) -> None:
    """The call of a model that is not one program."""
