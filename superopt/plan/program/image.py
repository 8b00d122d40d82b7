"""A program in this process: code, constants, memory, and calls. This module does not depend on
planning, so that a cached program loads fast."""

from __future__ import annotations

import ctypes
import os
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.kernels.runtime.engine import Machine, link_objects
from superopt.kernels.runtime.thread_pool import start_pool
from superopt.plan.program.call_context import CallContext, make_context, no_context_memory

if TYPE_CHECKING:
    from superopt.plan.program.constant_pool import PackedConstants
    from superopt.plan.program.program import Program

Run = Callable[..., None]
CountCall = Callable[[tuple[np.ndarray, ...], float], bool]


@dataclass(frozen=True, slots=True)
class ProgramImage:
    """A compiled program. objects: object files with `run`; with `work` for several threads; and
    with `enter` if Python's objects have the expected layout. constant_bytes, memory_bytes,
    workspace_bytes: sizes. call_count: of kernels and loops."""

    objects: tuple[bytes, ...]
    threads: int
    has_enter: bool
    constant_bytes: int
    memory_bytes: int
    workspace_bytes: int
    call_count: int = 0


@dataclass(slots=True)
class LoadedProgram:
    """A loaded program. `run` takes a table of pointers and addresses, `enter` a tuple of arrays
    and a table of addresses. `engine` owns the code, of `code_bytes` bytes as object files.
    load_plan: returns the plan.

    Calls may run at the same time: each takes a context of `idle`, or a new one, and gives it back.
    The lists and dictionaries are changed by single operations, which Python makes one after the
    other, so that there is no lock. contexts: all that exist, by identity. max_idle: contexts that
    are kept.
    """

    load_plan: Callable[[], Program]
    threads: int
    run: Run
    work: Run | None
    enter: Run | None
    constants: PackedConstants
    memory_bytes: int
    workspace_bytes: int
    engine: Any
    call_count: int = 0
    code_bytes: int = 0
    max_idle: int = 1
    idle: list[CallContext] = field(default_factory=list)
    contexts: weakref.WeakValueDictionary[int, CallContext] = field(
        default_factory=weakref.WeakValueDictionary
    )

    @property
    def program(self) -> Program:
        return self.load_plan()

    @property
    def own_bytes(self) -> int:
        """Return the bytes that this program owns, without machine code; constants may be
        shared."""
        return sum(c.own_bytes for c in self.live_contexts())

    def live_contexts(self) -> list[CallContext]:
        """Return the contexts that are idle or in a call."""
        return [c for ref in self.contexts.valuerefs() if (c := ref()) is not None]

    def is_running(self) -> bool:
        """True if a call has a context; not one that a signal handler has interrupted to ask."""
        return len(self.live_contexts()) > len(self.idle) + self._interrupted_calls()

    def _interrupted_calls(self) -> int:
        """Return how many calls of this thread wait until the caller returns."""
        frame, count = sys._getframe().f_back, 0
        while frame is not None:
            count += frame.f_code is _CALL_CODE and frame.f_locals["self"] is self
            frame = frame.f_back
        return count

    def make_context(self) -> CallContext:
        """Return a new context. Raises MemoryError."""
        made = make_context(
            self.memory_bytes, self.workspace_bytes, self.threads, self.constants.table.ctypes.data
        )
        self.contexts[id(made)] = made
        self._limit_idle(made)
        return made

    def _limit_idle(self, context: CallContext) -> None:
        """Keep only as many idle contexts as are admitted of those like this one."""
        self.max_idle = context.idle_limit()
        del self.idle[self.max_idle :]

    def _another_context(self) -> CallContext:
        try:
            return self.make_context()
        except MemoryError as e:
            raise no_context_memory(self.memory_bytes, str(e)) from None

    def __call__(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Compute the outputs: contiguous arrays of the right types."""
        self.call((*inputs, *outputs))

    def call(
        self, arrays: tuple[np.ndarray, ...], memory_bytes: int = 0, workspace_bytes: int = 0
    ) -> None:
        """Compute the outputs; arrays: the inputs, then the outputs. memory_bytes, workspace_bytes:
        what a program of symbolic sizes needs for this call."""
        idle = self.idle
        try:
            context = idle.pop()
        except IndexError:
            context = self._another_context()
        try:
            if (memory_bytes or workspace_bytes) and (
                memory_bytes > len(context.memory) or workspace_bytes > len(context.workspaces[0])
            ):
                context.reserve(memory_bytes, workspace_bytes)
                self._limit_idle(context)
            if self.enter is None:
                self.run(pointer_table(arrays), *context.addresses, self.thread_state(context))
                return
            if self.work is not None:
                context.address_table[3] = self.thread_state(context)
            self.enter(arrays, context.address_table)
        finally:
            if len(idle) < self.max_idle:
                idle.append(context)

    @property
    def loaded_program(self) -> LoadedProgram:
        """The program, as of SizedCode."""
        return self

    def at_sizes(
        self,
        memory_bytes: int,
        workspace_bytes: int,
        words: Sequence[int],
        count_call: CountCall | None,
    ) -> SizedCode:
        """Return a program of symbolic sizes at given ones; see SizedCode."""
        values = np.array(words, np.int64)
        return SizedCode(self, memory_bytes, workspace_bytes, values, count_call)

    def thread_state(self, context: CallContext) -> int:
        """Return the address of the state that a context's threads share; start them once in each
        process. Each context has threads of its own: the state is that of one call."""
        if self.work is None:
            return 0
        pool = context.pool
        if pool is None or pool.pid != os.getpid():
            owns = (self.engine, self.constants, context.memory, context.workspaces)
            others = [w.ctypes.data for w in context.workspaces[1:]]
            pool = context.pool = start_pool(self.work, others, owns, self.call_count)
        return int(pool.state.ctypes.data)


_CALL_CODE = LoadedProgram.call.__code__


@dataclass(slots=True)
class SizedCode:
    """A program of symbolic sizes at given ones: it is called as a LoadedProgram. words: the values
    that it reads, its last argument. count_call: is given the arrays and the seconds of each call,
    until it returns False."""

    loaded_program: LoadedProgram
    memory_bytes: int
    workspace_bytes: int
    words: np.ndarray
    count_call: CountCall | None = None

    @property
    def program(self) -> Program:
        return self.loaded_program.program

    @property
    def constants(self) -> PackedConstants:
        return self.loaded_program.constants

    @property
    def own_bytes(self) -> int:
        return self.loaded_program.own_bytes

    def __call__(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Compute the outputs: contiguous arrays of the right types."""
        self.call((*inputs, *outputs))

    def call(self, arrays: tuple[np.ndarray, ...]) -> None:
        """Compute the outputs; arrays: the inputs, then the outputs."""
        given, count = (*arrays, self.words), self.count_call
        if count is None:
            self.loaded_program.call(given, self.memory_bytes, self.workspace_bytes)
            return
        begin = time.perf_counter()
        self.loaded_program.call(given, self.memory_bytes, self.workspace_bytes)
        if not count(arrays, time.perf_counter() - begin):
            self.count_call = None


def pointer_table(arrays: Sequence[np.ndarray]) -> Any:
    """Return the addresses of the arrays' elements."""
    return (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))


def load_image(
    image: ProgramImage,
    constants: PackedConstants,
    machine: Machine,
    load_plan: Callable[[], Program],
) -> LoadedProgram:
    """Return the program, ready to be called. Raises MemoryError."""
    engine = link_objects(image.objects, machine)
    run, work, enter = entry_points(engine, image)
    out = LoadedProgram(
        load_plan, image.threads, run, work, enter, constants, image.memory_bytes,
        image.workspace_bytes, engine, image.call_count, sum(map(len, image.objects)),
    )  # fmt: skip
    out.idle.append(out.make_context())
    return out


def entry_points(
    engine: Any, image: ProgramImage, *, timed: bool = False
) -> tuple[Run, Run | None, Run | None]:
    """Return the entry points `run`, `work` (with several threads) and `enter` (if present)."""

    def found(name: str, *kinds: Any) -> Run:
        return ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(name))

    place = ctypes.c_void_p
    run = found("run", *[place] * (6 if timed else 5))
    work = found("work", place, place) if image.threads > 1 else None
    return run, work, found("enter", ctypes.py_object, place) if image.has_enter else None
