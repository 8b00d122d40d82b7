"""The memory of a state between calls (stateful_call.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

import numpy as np

from superopt.compilation.frontend.input_arrays import InputPort

BUFFER_GROWTH = 2.0  # times what is needed, where a state needs a larger buffer


@dataclass(slots=True)
class StateBuffer:
    """A state, which a call reads and the next one continues.

    memory: what it is the first part of, of the shape `grown_shape` if that is known, if calls
    write it in place. spare: else, the bytes to which the next call writes, and `current` those
    of `array`.
    """

    port: InputPort
    memory: np.ndarray | None = None
    current: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    spare: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint8))
    grown_shape: tuple[int, ...] | None = None
    known_array: np.ndarray | None = None

    @property
    def array(self) -> np.ndarray | None:
        """The state; None before the first call."""
        if self.grown_shape is not None:
            assert self.memory is not None
            self.array = _first_part(self.memory, self.grown_shape)
        return self.known_array

    @array.setter
    def array(self, array: np.ndarray | None) -> None:
        self.known_array, self.grown_shape = array, None

    def reserve(self, before: np.ndarray, axis: int | None, capacity: int) -> np.ndarray:
        """Return memory with so many elements along an axis, whose first part is `before`: the
        state, or what it is before the first call. axis: None for memory of its size."""
        shape = before.shape
        if axis is not None:
            shape = (*shape[:axis], capacity, *shape[axis + 1 :])
        is_here = self.memory is not None and self.memory.shape == shape
        if self.memory is None or not is_here:
            self.memory = np.empty(shape, before.dtype)
        if not (is_here and before.base is self.memory):
            _first_part(self.memory, before.shape)[...] = before
            self.current = self.spare = np.empty(0, np.uint8)
            if self.array is not None:
                self.array = _first_part(self.memory, before.shape)
        return self.memory

    def advance_in_place(self, shape: tuple[int, ...]) -> None:
        """Let the first part of the memory, of this shape, be the state."""
        self.grown_shape = shape

    def next_array(
        self, shape: tuple[int, ...], dtype: np.dtype, growth: float = BUFFER_GROWTH
    ) -> np.ndarray:
        """Return memory for the next state. growth: times the bytes, if more is allocated."""
        size = prod(shape) * dtype.itemsize
        if size > len(self.spare):
            self.spare = np.empty(int(growth * size), np.uint8)
        return self.spare[:size].view(dtype).reshape(shape)

    def advance(self, array: np.ndarray) -> None:
        """Let an array that `next_array` gave be the state."""
        self.array, self.memory = array, None
        self.current, self.spare = self.spare, self.current


def _first_part(memory: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return memory[tuple(slice(n) for n in shape)]
