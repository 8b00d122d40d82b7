"""Executables for a GPU: calls, and what they provide besides.

This module holds what a call needs; the compiler is loaded on demand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.cuda.gpu_inputs import all_on_gpu, as_gpu_inputs, check_devices
from superopt.compilation.cuda.last_call import LastCall, Sizes, sorted_sizes
from superopt.compilation.cuda.program_cache import CachedProgram
from superopt.compilation.cuda.program_lru import ProgramLru
from superopt.compilation.cuda.shape_policy import ShapePolicy
from superopt.compilation.frontend.input_arrays import (
    InputPort,
    check_sizes,
    match_sizes,
    signature_text,
)
from superopt.compilation.runtime import fork_safety
from superopt.errors import OutOfMemory, RuntimeMismatch, UsageError, positive_seconds
from superopt.kernels.runtime.gpu_device import empty_cache, synchronize, to_device, use_gpu
from superopt.report.data.notebook import preformatted

if TYPE_CHECKING:
    from superopt.compilation.cuda.model_compiler import Compiler
    from superopt.compilation.cuda.segments import Variant
    from superopt.cost.store import Store
    from superopt.ir import graph
    from superopt.kernels.algorithms.problem import Problem
    from superopt.kernels.loops.option import Option
    from superopt.onnx_io.import_.model import Model
    from superopt.report.compilation.accuracy import Accuracy
    from superopt.report.compilation.compile_report import TuningReport
    from superopt.report.compilation.profile import Profile

MAX_KNOWN_SHAPES = 1000  # remembered shapes of inputs


def _fork_error() -> UsageError:
    return UsageError(
        "the model was compiled for a GPU before this process was forked",
        "GPU memory belongs to the parent", "start processes by spawn, and compile in them",
    )  # fmt: skip


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class CudaExecutable:
    """A model compiled for a GPU, once for each set of sizes. The least recently used programs are
    dropped if memory is too small (`program_lru`); rare sizes may run in ONNX Runtime
    (`shape_policy`).

    output_names: in order; device: "cuda", or "cpu" in the interpreter. make_compiler: returns the
    compiler. find_cached, store_cached: find what another process compiled; store what is new.
    variants, cached_programs: by sizes; known_sizes: by input shapes; defaults: of inputs.
    gpu_number: need not be the current GPU. Calls from several threads wait for each other.
    """

    input_ports: tuple[InputPort, ...]
    output_names: tuple[str, ...]
    precision: str
    device: str
    make_compiler: Callable[[], Compiler]
    find_cached: Callable[[Sizes], CachedProgram | None] = lambda sizes: None
    store_cached: Callable[[Sizes, Variant], None] = lambda sizes, made: None
    variants: dict[Sizes, Variant] = field(default_factory=dict)
    cached_programs: dict[Sizes, CachedProgram] = field(default_factory=dict)
    gpu_number: int | None = None
    lock: threading.RLock | fork_safety.LostLock = field(default_factory=threading.RLock)
    known_sizes: dict[Any, Mapping[str, int]] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    shape_policy: ShapePolicy[Variant] = field(default_factory=ShapePolicy)
    program_lru: ProgramLru = field(init=False)
    _compiler: Compiler | None = None
    _last_call: LastCall | None = None

    def __post_init__(self) -> None:
        self.program_lru = ProgramLru(self.gpu_number if self.device == "cuda" else None)
        fork_safety.lock_owners.add(self)

    def lock_after_fork(self) -> threading.RLock | fork_safety.LostLock:
        """Return the lock in a forked process: GPU memory is not available there."""
        return threading.RLock() if self.device == "cpu" else fork_safety.LostLock(_fork_error)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock and make its GPU the current one of this thread."""
        with self.lock, use_gpu(self.gpu_number):
            yield

    def __repr__(self) -> str:
        text = signature_text(self.input_ports, self.output_names)
        return f"<CudaExecutable {text}, {self.precision} on {self.device}>"

    def _repr_html_(self) -> str:
        return preformatted(repr(self))

    def __call__(self, /, **feeds: Any) -> dict[str, Any]:
        """Return the outputs by name, in the model's order; inputs are keyword arguments."""
        return self.run(feeds)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name. numpy inputs give numpy outputs. If all inputs are tensors on
        the device (of torch, or others by DLPack), the outputs are torch tensors that the program
        owns: the next call overwrites them. Calls run on torch's current stream, each after the
        previous one. If another stream reads the outputs, the next call's stream must wait for it.
        """
        last, there = self._last_call, self.device
        given = None if last is None else last.match_inputs(feeds)
        with self.lock, use_gpu(self.gpu_number):
            made: Variant | CachedProgram | None = None
            if last is not None and given is not None:
                made = self.variants.get(last.sizes) or self.cached_programs.get(last.sizes)
            if made is None or given is None:
                given = self.input_arrays(feeds)
                fed = [x for p, x in zip(self.input_ports, given, strict=True) if p.name in feeds]
                there = self.device if fed and all_on_gpu(fed) else ""
                sizes = self.infer_sizes(given)
                if (out := self._run_rare_sizes(sizes, given, there)) is not None:
                    return out
                made = self._program(sizes)
                check_devices(self.input_ports, given, made.gpu_number)
                alike = there and len(fed) == len(given)
                self._last_call = (
                    LastCall.from_call(sizes, self.input_ports, given) if alike else None
                )
            try:
                found = made.run(given, there)
            except RuntimeMismatch as e:
                self.compiler.fall_back_entirely(self.variant(self.infer_sizes(given)), e)
                self._clear_programs()
                found = self.variant(self.infer_sizes(given)).run(given, there)
        return dict(zip(self.output_names, found, strict=True))

    def _run_rare_sizes(
        self, sizes: Mapping[str, int], arrays: Sequence[Any], device: str
    ) -> dict[str, Any] | None:
        """Return the outputs if compiling for these sizes does not pay yet; else None."""
        key = sorted_sizes(sizes)
        if (
            key in self.variants
            or key in self.cached_programs
            or not self.shape_policy.is_too_early(key)
        ):
            return None
        if (made := self.find_cached(key)) is not None:
            self.cached_programs[key] = made
            return None
        out = self.shape_policy.run_fallback(self.compiler, key, arrays)
        return (
            out if out is None or not device else {n: to_device(x, device) for n, x in out.items()}
        )

    def buffers(self, shapes: Mapping[str, int] | None = None) -> dict[str, Any]:
        """Return the memory from which kernels read inputs, as torch tensors on the device, by
        name. A call with one of these copies nothing: let the input's producer write there. The
        program owns the tensors until it is tuned or its memory is freed.

        shapes: symbolic sizes. Models with parts in ONNX Runtime have no buffers, nor do inputs
        that no kernel reads. Raises UsageError for other sizes than those of the model.
        """
        sizes = dict(shapes or {})
        check_sizes(self.input_ports, sizes)
        with self.exclusive():
            found = self.program(sizes).input_buffers()
        return {p.name: found[n] for n, p in enumerate(self.input_ports) if n in found}

    def prepare_run(self, feeds: Mapping[str, Any]) -> Callable[[], object]:
        """Return a function that runs with these inputs, copied to the device, and waits for the
        outputs."""
        held = dict(feeds)
        if self.device == "cuda":  # the interpreter reads arrays
            with use_gpu(self.gpu_number):
                held = {n: to_device(x, self.device) for n, x in feeds.items()}

        def run() -> object:
            out = self.run(held)
            with use_gpu(self.gpu_number):
                synchronize(self.device)
            return out

        return run

    def input_arrays(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the inputs as arrays or tensors; other objects are read by DLPack. Raises
        UsageError."""
        return as_gpu_inputs(self.input_ports, feeds, self._default_input)

    def _default_input(self, name: str) -> Any:
        """Return the model's default value of an input; it is on the device after the first
        call."""
        if name not in self.defaults:
            own = self.compiler.default_input(name)
            self.defaults[name] = to_device(own, self.device) if self.device == "cuda" else own
        return self.defaults[name]

    def infer_sizes(self, arrays: Sequence[Any]) -> Mapping[str, int]:
        """Return the symbolic sizes. Raises UsageError if shapes do not fit."""
        shapes = tuple(None if p.dtype is None else tuple(x.shape)
                       for p, x in zip(self.input_ports, arrays, strict=True))  # fmt: skip
        if None in shapes:
            return self._infer_sizes(arrays)
        found = self.known_sizes.get(shapes)
        if found is None:
            if len(self.known_sizes) >= MAX_KNOWN_SHAPES:
                self.known_sizes.clear()
            found = self.known_sizes[shapes] = self._infer_sizes(arrays)
        return found

    def _infer_sizes(self, arrays: Sequence[Any]) -> dict[str, int]:
        blank = [x if p.dtype is None else np.broadcast_to(np.zeros((), p.dtype), tuple(x.shape))
                 for p, x in zip(self.input_ports, arrays, strict=True)]  # fmt: skip
        plain = match_sizes(self.input_ports, blank)
        return self.compiler.infer_sizes(blank) if plain is None else plain

    def program(self, sizes: Mapping[str, int]) -> Variant | CachedProgram:
        """Return what runs inputs of these sizes: a cached program, or a compiled one."""
        with self.exclusive():
            return self._program(sizes)

    def _program(self, sizes: Mapping[str, int]) -> Variant | CachedProgram:
        key = sorted_sizes(sizes)
        if key in self.variants:
            return self.variant(sizes)
        if key not in self.cached_programs:
            made = self.find_cached(key)
            if made is None:
                return self.variant(sizes)
            self.cached_programs[key] = made
        self._mark_used(key, self.cached_programs[key])
        return self.cached_programs[key]

    def _mark_used(self, key: Sizes, program: Variant | CachedProgram) -> None:
        """Mark a program as used; drop others if all of them are too large."""
        for old in self.program_lru.mark_used(key, program.device_bytes):
            synchronize(self.device)  # it may still run
            self.variants.pop(old, None)
            self.cached_programs.pop(old, None)
            self.shape_policy.reset_fallback_time(old)

    def _clear_programs(self) -> None:
        """Drop all programs."""
        synchronize(self.device)  # programs may still run
        for some in (self.variants, self.cached_programs, self.program_lru.program_bytes):
            some.clear()

    def variant(self, sizes: Mapping[str, int]) -> Variant:
        """Return the compiled steps for these sizes. A cached program is planned again with its
        options, and replaced."""
        key = sorted_sizes(sizes)
        with self.exclusive():
            if key not in self.variants:
                # Free its memory before compiling.
                how = self.cached_programs.pop(key).options if key in self.cached_programs else None
                begin = time.perf_counter()
                self.variants[key] = self._compile(sizes, how or {})
                self.shape_policy.add_compile_time(time.perf_counter() - begin)
                if how is None:
                    self.store_cached(key, self.variants[key])
            self._mark_used(key, self.variants[key])
            return self.variants[key]

    def _compile(self, sizes: Mapping[str, int], options: Mapping[str, str]) -> Variant:
        compiler = self.compiler  # initialises torch, which selects GPUs from here on
        with use_gpu(self.gpu_number):
            try:
                return compiler.compile_variant(sizes, options)
            except OutOfMemory:
                if not self.variants and not self.cached_programs:
                    raise
                self._clear_programs()
            empty_cache(self.device)
            return compiler.compile_variant(sizes, options)

    @property
    def compiler(self) -> Compiler:
        with self.exclusive():
            if self._compiler is None:
                self._compiler = self.make_compiler()
            return self._compiler

    @property
    def model(self) -> Model:
        return self.compiler.model

    @property
    def dot_precision(self) -> str:
        """The precision of fp32 products, as Triton names it."""
        return self.compiler.dot_precision

    def fallback_nodes(self, sizes: Mapping[str, int]) -> list[tuple[graph.Node, str]]:
        """Return the nodes that run in ONNX Runtime, each with the reason. Raises UsageError for
        other sizes."""
        check_sizes(self.input_ports, sizes)
        return self.compiler.fallback_nodes(self.variant(sizes), sizes)

    def tune(
        self,
        sizes: Mapping[str, int],
        *,
        budget: float = 90.0,
        max_options: int = 12,
        store: Store | None = None,
        on_result: Callable[[Problem, Mapping[Option, float]], None] = lambda p, found: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> TuningReport:
        """Measure the `max_options` most promising options of each kernel, those with the most work
        first, and use the fastest from now on.

        sizes: of symbolic dimensions. budget: seconds. store: keeps measurements; its best options
        are measured again beside new ones. on_result: called with each problem and its times.

        Raises UsageError for other sizes than those of the model, and for a budget that is not
        positive.
        """
        check_sizes(self.input_ports, sizes)
        positive_seconds("budget", budget)
        made = self.variant(sizes)
        with use_gpu(self.gpu_number):
            report = self.compiler.tune(made, store, budget, max_options, on_result, stop)
        with self.exclusive():
            # Cached programs were compiled with the old options.
            self.find_cached, self.store_cached = lambda key: None, lambda key, made: None
            self._clear_programs()
        self.variant(sizes)
        return report

    def profile(self, feeds: Mapping[str, Any] | None = None, *, seconds: float = 2.0) -> Profile:
        """Measure the time of each kernel alone, with warm memory, and compute its lower bound on
        this GPU. `print` the result for a table; its `svg()` is a plot. feeds: inputs by name; None
        to draw them. seconds: approximate total."""
        with self.exclusive():
            return self.compiler.profile(self, feeds, seconds)

    def accuracy(self, shapes: Mapping[str, int] | None = None, *, sets: int = 2) -> Accuracy:
        """Compare outputs with the original's in float64 on `sets` sets of random inputs, and with
        the precision's tolerance. shapes: symbolic sizes. Evaluates the whole model twice for each
        set."""
        return self.compiler.accuracy(self, shapes or {}, sets)

    def export(self, path: str | Path, **how: Any) -> None:
        """Raise UsageError: exported libraries run on a CPU."""
        raise UsageError(
            f"{self.model.source.label} is for a GPU", "exported libraries run on a CPU",
            'compile it for target="cpu"',
        )  # fmt: skip

    def save(self, path: str | Path) -> None:
        """Write the model and its kernels' options to a file, for `superopt.load`. Raises
        UsageError if it cannot be written."""
        with self.exclusive():
            known = {*self.variants, *self.cached_programs}
        made = {key: self.variant(dict(key)) for key in sorted(known)}
        self.compiler.save(made, Path(path))
