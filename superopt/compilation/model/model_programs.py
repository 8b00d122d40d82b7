"""The programs of a compiled model, by symbolic sizes: compiled, found in the cache, or dropped."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from superopt.compilation.frontend.input_arrays import (
    InputPort,
    Sizes,
    check_sizes,
    has_symbolic_sizes,
    match_sizes,
    shape_arrays,
    sorted_sizes,
)
from superopt.compilation.model.shape_policy import ShapePolicy
from superopt.compilation.model.size_classes import SizeClasses
from superopt.compilation.model.steps import Variant, held_bytes
from superopt.compilation.runtime import background_worker, fork_safety
from superopt.cost.machine import PROGRAM_MEMORY_DIVISOR
from superopt.errors import OutOfMemory, UsageError

if TYPE_CHECKING:
    from superopt.compilation.fallback.ort_segment import GivenModel
    from superopt.compilation.fallback.whole_model import Fallback
    from superopt.compilation.model.bound_call import BoundCall
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.device import Device, RepeatedCall
    from superopt.compilation.model.states.state_programs import StateNames, StatePrograms
    from superopt.compilation.runtime.child_process import Child
    from superopt.ir import graph
    from superopt.onnx_io.import_.model import Model

CLOSE_POLL_S: Final = 0.001  # until `close` looks again whether calls have ended


class ModelReference(Protocol):
    """How to open the model in another process."""

    def reduce(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return a function and its arguments, as object.__reduce__ does."""
        ...


class SessionCache(Protocol):
    """The session of a model for calls that run in ONNX Runtime, as the disk cache has it."""

    def find_session(self) -> Fallback | None:
        """Return the session, opened without the compiler; None if it is not known how."""
        ...

    def store_session(self, given: GivenModel) -> None:
        """Store how the session was opened."""


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class ModelPrograms:
    """A model and its programs. The least recently used variants are dropped when all take more
    than a part of the device's memory.

    lock: held where these are changed; calls do not hold it where the device has concurrent calls.
    """

    input_ports: tuple[InputPort, ...]
    output_names: tuple[str, ...]
    device: Device
    make_compiler: Callable[[], Compiler]
    find_cached: Callable[[Sizes], Variant | None] = lambda sizes: None
    store_cached: Callable[[Sizes, Variant], None] = lambda sizes, variant: None
    variants: dict[Sizes, Variant] = field(default_factory=dict)
    size_classes: SizeClasses = field(default_factory=SizeClasses)
    lock: Any = field(default_factory=threading.RLock)
    shape_policy: ShapePolicy = field(default_factory=ShapePolicy)
    defaults: dict[str, Any] = field(default_factory=dict)
    _compiler: Compiler | None = None
    last_call: RepeatedCall | None = None  # runs inputs like the last ones
    bound_calls: weakref.WeakSet[BoundCall] = field(default_factory=weakref.WeakSet)
    is_closed: bool = False
    reference: ModelReference | None = None  # None: it has no file
    session_cache: SessionCache | None = None
    state_programs: dict[StateNames, StatePrograms] = field(default_factory=dict)
    waiting_child: Child | None = None  # has opened the model, and waits for sizes
    may_branch: bool = False  # with an If or Loop: a child compiles what a call needs

    def __post_init__(self) -> None:
        fork_safety.lock_owners.add(self)
        self.size_classes.is_supported = self.device.has_size_classes

    def lock_after_fork(self) -> Any:
        self.shape_policy.pending.clear()  # the thread that compiled them is not in this process
        self.last_call = self.waiting_child = None
        return self.device.lock_after_fork()

    def keep_child(self, child: Child) -> None:
        """Keep a child process that has opened the model until sizes are known."""
        self.waiting_child = child
        background_worker.background_worker().keep_waiting(child)
        weakref.finalize(self, _end_child, child).atexit = False  # it ends when this process does

    def take_child(self) -> Child | None:
        """Return the child process that waits for sizes, once; None if it has ended."""
        child, self.waiting_child = self.waiting_child, None
        is_waiting = child is not None and background_worker.background_worker().take_waiting(child)
        return child if is_waiting else None

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock, and make the device the current one of this thread. Raises UsageError if
        the model is closed."""
        with self.lock, self.device.activate():
            if self.is_closed:
                raise closed_error()
            yield

    @contextmanager
    def try_lock(self, *, blocking: bool = False) -> Iterator[bool]:
        """Hold the lock if no other thread has it; return whether it is held. Calls that need not
        change anything here do not wait: each wait is a switch of threads. blocking: wait."""
        locked = self.lock.acquire(blocking)
        try:
            yield locked
        finally:
            if locked:
                self.lock.release()

    def compile_in_calls(self) -> None:
        """Let the first call wait for its program, without the session of ONNX Runtime that would
        run it."""
        with self.exclusive():
            policy = self.shape_policy
            if policy.is_first_due and not policy.pending and not self.may_branch:
                policy.first_in_background = policy.is_first_due = False
                policy.fallback = None

    def input_arrays(
        self, feeds: Mapping[str, Any], ports: Sequence[InputPort] | None = None
    ) -> list[Any]:
        """Return the arrays of the inputs, or of these. Raises UsageError if they do not fit."""
        wanted = self.input_ports if ports is None else ports
        return self.device.as_inputs(wanted, feeds, self._default_input)

    def _default_input(self, name: str) -> Any:
        """Return the model's default value of an input, on the device after the first call."""
        if name not in self.defaults:
            self.defaults[name] = self.device.to_device(self.compiler.default_input(name))
        return self.defaults[name]

    def infer_sizes(self, arrays: Sequence[Any]) -> dict[str, int]:
        """Return the symbolic sizes. Raises UsageError if shapes do not fit."""
        plain = match_sizes(self.input_ports, arrays)
        if plain is not None:
            return plain
        return self.compiler.infer_sizes(shape_arrays(self.input_ports, arrays))

    def variant(self, sizes: Mapping[str, int]) -> Variant:
        """Return the steps for inputs of these sizes, with their plans; compile them if needed."""
        with self.exclusive():
            found = self.runnable(sizes)
            if (options := found.options) is not None or found.is_of_class:
                self.last_call = None
                del found, self.variants[sorted_sizes(sizes)]  # free its memory before compiling
                found = self._compile(sorted_sizes(sizes), options)
                self.set_variant(sorted_sizes(sizes), found)
            return found

    def runnable(self, sizes: Mapping[str, int]) -> Variant:
        """Return what runs inputs of these sizes: as `variant`, or a program from the disk cache
        without its plan."""
        key = sorted_sizes(sizes)
        with self.exclusive():
            variant = self.variants.get(key) or self.find_cached(key) or self._compile(key, None)
            self.set_variant(key, variant)
            return variant

    def _compile(self, key: Sizes, options: Mapping[str, str] | None) -> Variant:
        compiler, clock = self.compiler, self.device.compile_clock
        begin = clock()
        with background_worker.compile_lock():
            try:
                variant = compiler.compile_variant(dict(key), options)
            except OutOfMemory:
                if not self.variants and options is None:  # nothing was freed
                    raise
                self.drop_variants()
                self.device.release_memory()
                variant = compiler.compile_variant(dict(key), options)
        self.shape_policy.add_compile_time(clock() - begin)
        if options is None:
            self.store_cached(key, variant)
        compiler.compile_branches(variant)  # which use the cache now
        return variant

    def set_variant(self, key: Sizes, variant: Variant) -> None:
        """Use this variant at these sizes, as the most recent one; drop the least recent ones
        beyond a limit of memory if it is new."""
        is_new = self.variants.pop(key, None) is not variant
        self.variants[key] = variant
        if not is_new:
            return
        self.shape_policy.fallback_reasons.pop(key, None)
        self.last_call = None  # it may run another program at these sizes
        limit = self.device.memory_bytes() // PROGRAM_MEMORY_DIVISOR
        while len(self.variants) > 1 and held_bytes(self.variants.values()) > limit:
            self.device.synchronize()  # it may still run
            old = next(iter(self.variants))
            del self.variants[old]
            self.shape_policy.reset_fallback_time(old)

    def drop_variants(self) -> None:
        """Drop everything that is compiled."""
        self.device.synchronize()  # it may still run
        for key in self.variants:
            self.shape_policy.reset_fallback_time(key)
        self.variants.clear()
        self.size_classes.clear()
        self.state_programs.clear()
        self.last_call = None

    def release(self) -> None:
        """Drop everything that calls need, and wait for calls that run kernels now; no call begins
        after this."""
        with self.lock, self.device.activate():
            if self.is_closed:
                return
            self.is_closed = True
            steps = [s for v in self.variants.values() for s in v.kernel_steps]
            states = list(self.state_programs.values())
            for bound in list(self.bound_calls):
                bound.run = _raise_closed
            self.drop_variants()
            self.size_classes.cache = None
            self.find_cached, self.store_cached = lambda key: None, lambda key, made: None
            self.session_cache = None
            if (child := self.take_child()) is not None:
                child.close()
            self.make_compiler, self._compiler = _raise_closed, None
            self.shape_policy = ShapePolicy()  # it has a session
            self.defaults.clear()
        while any(s.is_running() for s in (*steps, *states)):
            time.sleep(CLOSE_POLL_S)
        del steps, states  # their memory is free
        with self.device.activate():
            self.device.release_memory()

    def compiler_for(self, sizes: Mapping[str, int]) -> Compiler:
        """Return the compiler, or the one for these sizes alone."""
        return self.compiler.compiler_for(sizes)

    @property
    def compiler(self) -> Compiler:
        with self.exclusive():
            if self._compiler is None:
                self._compiler = self.make_compiler()
            return self._compiler

    @property
    def has_compiler(self) -> bool:
        """True if the compiler is loaded; a process with all programs from the disk cache needs
        none."""
        return self._compiler is not None

    @property
    def is_all_fallback(self) -> bool:
        """True if the model runs entirely in ONNX Runtime. Where that is cached, no compiler is
        loaded, and all sizes have programs."""
        return self.has_compiler and self.compiler.is_all_fallback

    @property
    def model(self) -> Model:
        return self.compiler.model

    @property
    def precision(self) -> str:
        """The precision that fp32 values are computed in."""
        return self.device.precision

    def fallback_nodes(self, sizes: Mapping[str, int]) -> list[tuple[graph.Node, str]]:
        """Return the nodes that run in ONNX Runtime at these sizes, each with the reason."""
        key = sorted_sizes(sizes)
        why = self.shape_policy.fallback_reasons.get(key, "")
        if not why and key not in self.variants:
            sizes = check_sizes(self.input_ports, sizes)
            self.variant(sizes)
        return self.compiler.fallback_nodes(sizes, why)

    def known_sizes(self) -> tuple[Sizes, ...]:
        """Return the sizes that it is compiled for, or the only ones of the model."""
        if not self.variants and not has_symbolic_sizes(self.input_ports):
            return ((),)
        return tuple(self.variants)


def _end_child(child: Child) -> None:
    """End a child that waits for sizes of a model which is gone."""
    if background_worker.background_worker().take_waiting(child):
        child.close()


def _raise_closed() -> NoReturn:
    raise closed_error()


def closed_error() -> UsageError:
    return UsageError(
        "the compiled model is closed", "its code and memory are gone", "compile or load it again"
    )
