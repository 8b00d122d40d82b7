"""The last call of a compiled model: what a call with the same input shapes checks and runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.cpu.dynamic_if import DynamicIf
from superopt.compilation.fallback.whole_model import Fallback, NamedCall
from superopt.compilation.frontend.input_arrays import InputPort
from superopt.compilation.runtime import fork_safety
from superopt.compilation.runtime.native_segment import ModelBinding, NativeSegment

if TYPE_CHECKING:
    from superopt.compilation.cpu.sequential_call import ModelCall


@dataclass(frozen=True, slots=True)
class LastCall:
    """A program that is the whole model, with its inputs and outputs: see NativeSegment and
    ModelBinding. model_call: instead, runs the parts of a model that is not one program.
    named_call: instead, takes the inputs by name, also arrays that are not contiguous."""

    inputs: tuple[tuple[str, np.dtype | None, tuple[int, ...]], ...]
    input_numbers: tuple[int, ...] | None  # None: all inputs in order
    allocate_outputs: Callable[[], list[np.ndarray]]
    output_numbers: tuple[tuple[str, int], ...]
    call: Callable[[tuple[np.ndarray, ...]], None]
    model_call: ModelCall | None = None
    named_call: NamedCall | None = None

    @classmethod
    def from_step(
        cls, step: Fallback | DynamicIf, ports: Sequence[InputPort], arrays: Sequence[Any]
    ) -> LastCall | None:
        return cls.from_named_call(step.named_call, ports, arrays)

    @classmethod
    def from_named_call(
        cls, named_call: NamedCall | None, ports: Sequence[InputPort], arrays: Sequence[Any]
    ) -> LastCall | None:
        """Return the last call of a function that takes inputs by name; None if there is none, or
        an input is a non-tensor."""
        if named_call is None or any(p.dtype is None for p in ports):
            return None
        inputs = tuple((p.name, p.dtype, a.shape) for p, a in zip(ports, arrays, strict=True))
        return cls(inputs, None, list, (), do_nothing, None, named_call)

    @classmethod
    def from_native(
        cls,
        native: NativeSegment,
        binding: ModelBinding,
        ports: Sequence[InputPort],
        arrays: Sequence[np.ndarray],
    ) -> LastCall:
        inputs = tuple((p.name, p.dtype, a.shape) for p, a in zip(ports, arrays, strict=True))
        takes = None if binding.input_numbers == tuple(range(len(ports))) else binding.input_numbers
        return cls(
            inputs,
            takes,
            native.allocate_outputs,
            (*binding.output_numbers.items(),),
            native.code.call,
        )


def with_lock(model_call: ModelCall, lock_owner: fork_safety.HasLock) -> ModelCall:
    """Return the function with a lock around it, for kernels whose memory serves one call at a
    time. lock_owner: has the lock, which another one replaces in a forked process."""

    def call(arrays: Sequence[Any]) -> dict[str, Any]:
        with lock_owner.lock:
            return model_call(arrays)

    return call


def do_nothing(arrays: tuple[np.ndarray, ...]) -> None:
    """The call of a model that is not one program."""
