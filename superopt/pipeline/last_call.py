"""What a compiled model ran last, in which most calls fit: what they check, and what they run."""

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
    """A program that is the whole model, and what it takes and gives: see Native and Whole. direct:
    in its place, the parts of a model that is not one program. by_name: in its place, what takes
    the inputs by name, and arrays that are not contiguous, too."""

    inputs: tuple[tuple[str, np.dtype | None, tuple[int, ...]], ...]
    takes: tuple[int, ...] | None  # None where these are all inputs in order
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
        """Of what takes inputs by name; None where there is none, or an input is no tensor."""
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
    """The same, for kernels whose memory is one call's at a time. exe: has the lock, which is
    another one in a forked process."""

    def call(arrays: Sequence[Any]) -> dict[str, Any]:
        with exe.lock:
            return direct(arrays)

    return call


def nothing(arrays: tuple[np.ndarray, ...]) -> None:
    """The call of a model that is no one program."""
