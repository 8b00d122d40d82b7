"""Executables: calls of compiled models, and what they provide besides.

This module holds what a call needs; the compiler is loaded on demand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.compilation.frontend.input_arrays import (
    InputPort,
    Sizes,
    check_sizes,
    has_symbolic_sizes,
    match_sizes,
    shape_arrays,
    signature_text,
)
from superopt.compilation.model.onnxruntime_calls import run_in_onnxruntime
from superopt.compilation.model.shape_policy import ShapePolicy
from superopt.compilation.model.size_classes import MAX_SAVED_SIZES, SizeClasses, bind_size_class
from superopt.compilation.model.steps import Variant, held_bytes
from superopt.compilation.runtime import background_worker, fork_safety
from superopt.cost.machine import PROGRAM_MEMORY_DIVISOR
from superopt.errors import OutOfMemory, RuntimeMismatch, UsageError, positive_seconds
from superopt.report.data.notebook import preformatted

if TYPE_CHECKING:
    from superopt.compilation.model.compiler import Compiler
    from superopt.compilation.model.device import Device, Progress, RepeatedCall
    from superopt.cost.store import Store
    from superopt.ir import graph
    from superopt.onnx_io.import_.model import Model
    from superopt.report.compilation.accuracy import Accuracy
    from superopt.report.compilation.compile_report import ExportReport, TuningReport
    from superopt.report.compilation.profile import Profile

MAX_TUNED_OPTIONS = 24  # of a kernel that are measured, if its options are not searched by rounds


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Executable:
    """A compiled model. Calls from several threads wait for each other. The least recently used
    variants are dropped when all take more than a part of the device's memory.

    Attributes:
        input_ports, output_names: In the model's order.

    Example:
        >>> exe = superopt.compile("model.onnx")
        >>> {name: y.shape for name, y in exe(x=np.zeros((4, 6), np.float32)).items()}
        {'p': (4, 5), 'q': (4, 3)}
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

    def __post_init__(self) -> None:
        fork_safety.lock_owners.add(self)
        self.size_classes.is_supported = self.device.has_size_classes

    def lock_after_fork(self) -> Any:
        self.shape_policy.pending.clear()  # the thread that compiled them is not in this process
        self.last_call = None
        return self.device.lock_after_fork()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the lock, and make the device the current one of this thread."""
        with self.lock, self.device.activate():
            yield

    def __repr__(self) -> str:
        return f"<Executable {signature_text(self.input_ports, self.output_names)}, {self.device}>"

    def _repr_html_(self) -> str:
        return preformatted(repr(self))

    def __call__(self, /, **feeds: Any) -> dict[str, Any]:
        """Return the outputs by name, in the model's order; inputs are keyword arguments."""
        return self.run(feeds)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name, in the model's order.

        numpy inputs give numpy outputs. If all inputs are tensors on the model's GPU (of torch, or
        by DLPack), the outputs are torch tensors that the program owns: the next call overwrites
        them. Such calls run on torch's current stream, each after the previous one. If another
        stream reads the outputs, the next call's stream must wait for it.
        """
        repeated = self.last_call
        if repeated is not None and (out := repeated(feeds)) is not None:
            return out
        return self._run_checked(feeds)

    def _run_checked(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        given = self.input_arrays(feeds)
        sizes = self.infer_sizes(given)
        key = sorted_sizes(sizes)
        fed = [x for p, x in zip(self.input_ports, given, strict=True) if p.name in feeds]
        on_device = bool(fed) and all(map(self.device.is_on_device, fed))
        if key not in self.variants and not bind_size_class(self, key):
            out = run_in_onnxruntime(self, key, given)
            if out is not None:
                return {n: self.device.to_device(x) for n, x in out.items()} if on_device else out
        with self.exclusive():
            if key not in self.variants:  # another call may have dropped it
                bind_size_class(self, key)
            variant = self.runnable(sizes)
            self.device.check_inputs(self.input_ports, given, variant)
            call = partial(self.device.repeated_call, self, variant, given, on_device=on_device)
            self.last_call = call() if len(fed) == len(given) else None
            try:
                return self.run_variant(variant, given, on_device=on_device)
            except RuntimeMismatch as e:
                self.compiler_for(sizes).fall_back_entirely(e)
                self.device.synchronize()  # it may still run
                self.variants.pop(key, None)
                self.last_call = None
                del variant  # its memory is free when the other one is compiled
                return self.run_variant(self.variant(sizes), given, on_device=on_device)

    def run_variant(
        self, variant: Variant, arrays: Sequence[Any], *, on_device: bool
    ) -> dict[str, Any]:
        """Return the outputs by name; the caller holds the lock."""
        found = variant.run(self.device, arrays, on_device=on_device)
        return dict(zip(self.output_names, found, strict=True))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no background compilation of this model is left.

        timeout: seconds; None to wait without limit. Returns False on timeout.
        """
        return background_worker.background_worker().wait(id(self), timeout)

    def input_arrays(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the arrays of the inputs. Raises UsageError if they do not fit the model."""
        return self.device.as_inputs(self.input_ports, feeds, self._default_input)

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
        compiler.compile_branches(variant)
        self.shape_policy.add_compile_time(clock() - begin)
        if options is None:
            self.store_cached(key, variant)
        return variant

    def set_variant(self, key: Sizes, variant: Variant) -> None:
        """Use this variant at these sizes; drop the least recent ones beyond a limit of memory."""
        self.shape_policy.fallback_reasons.pop(key, None)
        if key not in self.variants:
            self.last_call = None  # it may run in ONNX Runtime at these sizes
        self.variants.pop(key, None)
        self.variants[key] = variant  # as the most recently used
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
        self.last_call = None

    def compiler_for(self, sizes: Mapping[str, int]) -> Compiler:
        """Return the compiler, or the one for these sizes alone."""
        return self.compiler.compiler_for(sizes)

    def executable_for(self, sizes: Mapping[str, int]) -> Executable:
        """Return this executable, or the one for these sizes alone (Compiler.compiler_for)."""
        made = self.compiler_for(sizes)
        if made is self.compiler:
            return self
        out = made.executable()
        out.lock = self.lock  # they share memory
        out.variants[()] = self.variant(sizes)
        return out

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
    def precision(self) -> str:
        """The precision that fp32 values are computed in."""
        return self.device.precision

    def fallback_nodes(self, sizes: Mapping[str, int]) -> list[tuple[graph.Node, str]]:
        """Return the nodes that run in ONNX Runtime at these sizes, each with the reason."""
        key = sorted_sizes(sizes)
        why = self.shape_policy.fallback_reasons.get(key, "")
        if not why and key not in self.variants:
            check_sizes(self.input_ports, sizes)
            self.variant(sizes)
        return self.compiler.fallback_nodes(sizes, why)

    def known_sizes(self) -> tuple[Sizes, ...]:
        """Return the sizes that it is compiled for, or the only ones of the model."""
        if not self.variants and not has_symbolic_sizes(self.input_ports):
            return ((),)
        return tuple(self.variants)

    def fallbacks(self) -> list[tuple[graph.Node, str]]:
        """Return the nodes that run in ONNX Runtime, with reasons, at all compiled sizes."""
        return [found for key in self.known_sizes() for found in self.fallback_nodes(dict(key))]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UsageError(
            "a compiled model cannot be pickled or copied", "it holds machine code of this process",
            "use save and superopt.load, or compile the model in the other process",
        )  # fmt: skip

    def buffers(self, shapes: Mapping[str, int] | None = None) -> dict[str, Any]:
        """Return the memory from which kernels read inputs, as tensors on the device, by name. A
        call with one of these copies nothing: let the input's producer write there. The program
        owns the tensors until it is tuned or its memory is freed.

        shapes: symbolic sizes. There are none on the CPU, of models with parts in ONNX Runtime, and
        of inputs that no kernel reads. Raises UsageError for other sizes than the model's.
        """
        sizes = dict(shapes or {})
        check_sizes(self.input_ports, sizes)
        with self.exclusive():
            found = self.device.input_buffers(self.runnable(sizes))
        return {p.name: found[n] for n, p in enumerate(self.input_ports) if n in found}

    def prepare_run(self, feeds: Mapping[str, Any]) -> Callable[[], object]:
        """Return a function that runs with these inputs, copied to the device, and waits for the
        outputs."""
        with self.device.activate():
            held = {n: self.device.to_device(x) for n, x in feeds.items()}
        if not self.device.is_asynchronous:
            return partial(self.run, held)

        def run() -> object:
            out = self.run(held)
            with self.device.activate():
                self.device.synchronize()
            return out

        return run

    def profile(
        self,
        feeds: Mapping[str, Any] | None = None,
        *,
        shapes: Mapping[str, int] | None = None,
        seconds: float = 2.0,
        stop: Callable[[], bool] = lambda: False,
    ) -> Profile:
        """Measure the time of each kernel, and compute its lower bound on this machine.

        feeds: inputs by name; None: random ones for the sizes in `shapes`. seconds: how long the
        model runs. stop: ends it early. `print` the result; its `svg()` is a roofline plot.
        """
        with self.exclusive():
            generator = self.compiler.generator
            return generator.profile(self, feeds, dict(shapes or {}), seconds, stop)

    def accuracy(self, shapes: Mapping[str, int] | None = None, *, sets: int = 2) -> Accuracy:
        """Compare outputs with the original's in float64 on `sets` sets of random inputs, and with
        the precision's tolerance. `print` the result for a table. shapes: values of symbolic sizes.
        Evaluates the whole model twice for each set, with numpy."""
        return self.compiler.accuracy(self, shapes or {}, sets)

    def save(self, path: str | Path) -> None:
        """Write the compiled model to a file, for `superopt.load`.

        The file holds the model, the option of each kernel, and packed constants for the sizes that
        have a program of their own, or of the last calls. Raises UsageError if it is not written.
        """
        with self.exclusive():
            own = [key for key, v in self.variants.items() if not v.is_of_class]
            kept = sorted(own or [*self.variants][-MAX_SAVED_SIZES:])
            self.compiler.save({key: self.variant(dict(key)) for key in kept}, Path(path))

    def export(self, path: str | Path, *, shapes: Mapping[str, int] | None = None) -> ExportReport:
        """Write the model as a shared object that C can call, with its header and weights.

            exe.export("out/resnet")  # out/libresnet.so, out/resnet.h, out/resnet.weights

        path: a folder, for files named after the model, or the files' name. shapes: symbolic sizes,
        unless exactly one set was compiled. The code is for x86-64 Linux, and for processors with
        the features of this one.

        Raises UsageError for another target than the CPU, if nodes run in ONNX Runtime, without a C
        compiler, and if a file cannot be written.
        """
        with self.exclusive():
            self.shape_policy.fallback_reasons.clear()  # compile it, whichever is faster
            return self.compiler.generator.export(self, Path(path), shapes or {})

    def tune(
        self,
        sizes: Mapping[str, int],
        *,
        budget: float = 90.0,
        max_options: int = MAX_TUNED_OPTIONS,
        store: Store | None = None,
        progress: Progress = lambda event: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> TuningReport:
        """Find faster options for the kernels at these sizes, and use them from now on.

        sizes: of symbolic dimensions. budget: seconds. max_options: of each kernel, on a GPU.
        store: keeps measurements; its best options are measured again beside new ones. progress: is
        called with each result. stop: returns whether to end early.

        Raises UsageError for other sizes than those of the model, and for a budget that is not
        positive.
        """
        check_sizes(self.input_ports, sizes)
        positive_seconds("budget", budget)
        variant = self.variant(sizes)
        with self.device.activate():
            done = self.compiler.tune(variant, store, budget, max_options, progress, stop)
        with self.exclusive():  # cached variants were compiled with the old options
            self.find_cached, self.store_cached = lambda key: None, lambda key, made: None
            self.drop_variants()
        self.variant(sizes)
        return done


def sorted_sizes(sizes: Mapping[str, int]) -> Sizes:
    """Return the key of these sizes."""
    return tuple(sorted(sizes.items()))
