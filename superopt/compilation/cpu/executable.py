"""Executables for the CPU: calls, and what they provide besides.

This module holds what a call needs; the compiler is loaded on demand.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.compilation.cpu import specialize
from superopt.compilation.cpu.dynamic_if import DynamicIf
from superopt.compilation.cpu.last_call import LastCall, do_nothing, with_lock
from superopt.compilation.cpu.native_steps import drop_least_recent
from superopt.compilation.cpu.shape_policy import ShapePolicy
from superopt.compilation.fallback.whole_model import Fallback
from superopt.compilation.frontend.input_arrays import (
    InputPort,
    as_input_arrays,
    has_symbolic_sizes,
    match_sizes,
    signature_text,
)
from superopt.compilation.runtime import background_worker, fork_safety
from superopt.compilation.runtime.native_segment import NativeSegment
from superopt.errors import RuntimeMismatch, UsageError
from superopt.report.data.notebook import preformatted

if TYPE_CHECKING:
    from superopt.compilation.cpu.model_compiler import Compiler
    from superopt.compilation.cpu.tune_kernels import Progress
    from superopt.compilation.fallback.ort_segment import OrtSegment
    from superopt.cost.store import Store
    from superopt.ir import graph
    from superopt.kernels.runtime.engine import Machine
    from superopt.onnx_io.import_.model import Model
    from superopt.report.compilation.accuracy import Accuracy
    from superopt.report.compilation.compile_report import ExportReport, TuningReport
    from superopt.report.compilation.profile import Profile

Sizes = tuple[tuple[str, int], ...]
Steps = list["NativeSegment | OrtSegment | Fallback | DynamicIf"]
_NDARRAY_TYPE = np.ndarray


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Executable:
    """A compiled model. `shape_policy` decides what a call at new input sizes does. The least
    recently used variants are dropped when all of them would take more than a part of the memory
    (PART).

    output_names: in order. get_machine: returns the processor. make_compiler: returns the compiler.
    find_cached, store_cached: find steps compiled earlier, here or in another process; store new
    ones. Calls from several threads wait for each other.
    """

    input_ports: tuple[InputPort, ...]
    output_names: tuple[str, ...]
    threads: int
    get_machine: Callable[[], Machine]
    make_compiler: Callable[[], Compiler]
    find_cached: Callable[[Sizes], NativeSegment | Fallback | None] = lambda sizes: None
    store_cached: Callable[[Sizes, Steps], None] = lambda sizes, steps: None
    variants: dict[Sizes, Steps] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    shape_policy: ShapePolicy = field(default_factory=ShapePolicy)
    _compiler: Compiler | None = None
    # the last call; most calls have the same input shapes
    _last_call: LastCall | None = None

    def __post_init__(self) -> None:
        fork_safety.lock_owners.add(self)

    def lock_after_fork(self) -> threading.RLock:
        self.shape_policy.pending.clear()  # the thread that compiled them is not in this process
        return threading.RLock()

    def __repr__(self) -> str:
        text = signature_text(self.input_ports, self.output_names)
        return f"<Executable {text}, threads={self.threads}>"

    def _repr_html_(self) -> str:
        return preformatted(repr(self))

    def __call__(self, /, **feeds: Any) -> dict[str, np.ndarray]:
        """Return the outputs by name, in the model's order; inputs are keyword arguments."""
        return self.run(feeds)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the outputs by name, in the model's order."""
        # The fast path for the common case: arrays of the right types, with the shapes of the last
        # call.
        last = self._last_call
        if last is None or type(feeds) is not dict or len(feeds) != len(last.inputs):
            return self._run_checked(feeds)
        if last.named_call is not None:
            for name, dtype, shape in last.inputs:
                a = feeds.get(name)
                if type(a) is not _NDARRAY_TYPE or a.dtype is not dtype or a.shape != shape:
                    return self._run_checked(feeds)
            try:
                return last.named_call(feeds)
            except Exception:  # of many types; the slow path reports the error
                return self._run_checked(feeds)
        given = []
        for name, dtype, shape in last.inputs:
            a = feeds.get(name)
            if (
                type(a) is not _NDARRAY_TYPE or a.dtype is not dtype or a.shape != shape
                or not a.flags.c_contiguous
            ):  # fmt: skip
                return self._run_checked(feeds)
            given.append(a)
        if last.model_call is not None:
            try:
                return last.model_call(given)
            except Exception:  # of many types; the slow path reports the error
                return self._run_checked(feeds)
        return self._run_last_call(last, given)

    def _run_last_call(self, last: LastCall, arrays: list[np.ndarray]) -> dict[str, np.ndarray]:
        with self.lock:
            try:
                out = last.allocate_outputs()
            except MemoryError as e:
                what = "no memory for the outputs"
                raise UsageError(what, str(e), "pass smaller inputs") from None
            last.call(
                (
                    *(
                        arrays
                        if last.input_numbers is None
                        else [arrays[n] for n in last.input_numbers]
                    ),
                    *out,
                )
            )
        return {name: out[n] for name, n in last.output_numbers}

    def _run_checked(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        given = self.input_arrays(feeds)
        sizes = self.infer_sizes(given)
        key = tuple(sorted(sizes.items()))
        if key not in self.variants and (out := self._run_in_onnxruntime(key, given)) is not None:
            return out
        with self.lock:
            steps = self.variant(sizes)
            first = steps[0] if len(steps) == 1 else None
            if isinstance(first, Fallback | DynamicIf):
                self._last_call = LastCall.from_step(first, self.input_ports, given)
                return first.call(given)
            if not isinstance(first, NativeSegment) or first.binding is None:
                made = self.compiler.compiler_for(sizes)
                if (direct := made.model_call(steps)) is not None:
                    ports = zip(self.input_ports, given, strict=True)
                    inputs = tuple((p.name, p.dtype, a.shape) for p, a in ports)
                    alone = not any(isinstance(s, NativeSegment) for s in steps)
                    one = direct if alone else with_lock(direct, weakref.proxy(self))
                    self._last_call = LastCall(inputs, None, list, (), do_nothing, one)
                try:
                    return made.run(steps, given)
                except RuntimeMismatch as e:
                    made.fall_back_entirely(e)
                    self._last_call = None
                    self.variants.pop(key)
                    return made.run(self.variant(sizes), given)
        self._last_call = last = LastCall.from_native(first, first.binding, self.input_ports, given)
        return self._run_last_call(last, given)

    def _run_in_onnxruntime(
        self, key: Sizes, arrays: list[np.ndarray]
    ) -> dict[str, np.ndarray] | None:
        """Return the outputs if a call at these sizes runs in ONNX Runtime; None if it must
        compile."""
        policy = self.shape_policy
        with self.lock:
            if key in self.variants or policy.compiles_in_call(key, bool(self.variants)):
                return None
            if key not in policy.fallback_times and (found := self.find_cached(key)) is not None:
                self.set_variant(key, [found])
                return None
            policy.load_fallback(self._make_fallback)
            whole = policy.fallback
        if whole is None:
            return None
        begin = time.perf_counter()
        try:
            out = whole.call(arrays)
        except Exception:  # of many types; compiled code may succeed, or report the error
            return None
        self._add_fallback_time(key, time.perf_counter() - begin, arrays)
        if key not in self.variants and (by_name := whole.named_call) is not None:
            exe, names = weakref.proxy(self), [p.name for p in self.input_ports]

            def again(feeds: dict[str, Any]) -> dict[str, Any]:
                begin = time.perf_counter()
                out = by_name(feeds)
                seconds = time.perf_counter() - begin
                exe._add_fallback_time(key, seconds, [feeds[name] for name in names])
                return out

            self._last_call = LastCall.from_named_call(again, self.input_ports, arrays)
        return out

    def _add_fallback_time(self, key: Sizes, seconds: float, arrays: list[np.ndarray]) -> None:
        """Count a call at these sizes in ONNX Runtime; compile for them once that would have
        paid."""
        with self.lock:
            self.shape_policy.add_fallback_time(key, seconds)
            if self.shape_policy.is_due(key) and not self.compiler.is_all_fallback:
                specialize.submit_specialization(self, key, arrays)

    def _make_fallback(self) -> Fallback | None:
        """Return a session that runs the whole model in ONNX Runtime, at any sizes; None if it is
        not installed."""
        steps = self.compiler.fallback_variant()
        if steps is None:
            return None
        (whole,) = steps
        assert isinstance(whole, Fallback)
        return whole

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no background compilation of this model is left.

        timeout: seconds; None to wait without limit. Returns False on timeout.
        """
        return background_worker.background_worker().wait(id(self), timeout)

    def input_arrays(self, feeds: Mapping[str, Any]) -> list[np.ndarray]:
        """Return the arrays of the inputs. Raises UsageError if they do not fit the model."""
        return as_input_arrays(
            self.input_ports, feeds, lambda name: self.compiler.default_input(name)
        )

    def infer_sizes(self, arrays: list[np.ndarray]) -> dict[str, int]:
        """Return the symbolic sizes. Raises UsageError if shapes do not fit."""
        plain = match_sizes(self.input_ports, arrays)
        return self.compiler.infer_sizes(arrays) if plain is None else plain

    def variant(self, sizes: Mapping[str, int]) -> Steps:
        """Return the steps for inputs of these sizes; compile them if needed."""
        with self.lock:
            return self._variant_locked(tuple(sorted(sizes.items())))

    def _variant_locked(self, key: Sizes) -> Steps:
        steps = self.variants.get(key)
        if steps is None and (found := self.find_cached(key)) is not None:
            steps = [found]
        if steps is None:
            begin = time.thread_time()
            with background_worker.compile_lock():
                steps = self.compiler.compile_variant(dict(key))
            self.shape_policy.add_compile_time(time.thread_time() - begin)
            self.store_cached(key, steps)
        self.set_variant(key, steps)
        return steps

    def set_variant(self, key: Sizes, steps: Steps) -> None:
        """Use these steps at these sizes; drop the least recently used ones if all take too much
        memory."""
        self.shape_policy.fallback_reasons.pop(key, None)
        if key not in self.variants:
            self._last_call = None  # it may run in ONNX Runtime at these sizes
        self.variants.pop(key, None)
        self.variants[key] = steps  # as the most recently used
        for old in drop_least_recent(self.variants):
            self.shape_policy.reset_fallback_time(old)

    def executable_for(self, sizes: Mapping[str, int]) -> Executable:
        """Return this executable, or the one for these sizes alone (Compiler.compiler_for)."""
        made = self.compiler.compiler_for(sizes)
        if made is self.compiler:
            return self
        out = made.executable()
        out.lock = self.lock  # they share memory
        out.variants[()] = self.variant(sizes)
        return out

    @property
    def machine(self) -> Machine:
        """The processor that it is compiled for."""
        return self.get_machine()

    @property
    def compiler(self) -> Compiler:
        with self.lock:
            if self._compiler is None:
                self._compiler = self.make_compiler()
            return self._compiler

    @property
    def model(self) -> Model:
        return self.compiler.model

    @property
    def object_folder(self) -> Path | None:
        """The folder of object files."""
        return self.compiler.object_folder

    def fallback_nodes(self, sizes: Mapping[str, int]) -> list[tuple[graph.Node, str]]:
        """Return the nodes that run in ONNX Runtime at these sizes, each with the reason."""
        why = self.shape_policy.fallback_reasons.get(tuple(sorted(sizes.items())), "")
        return self.compiler.fallback_nodes(sizes, why)

    def fallbacks(self) -> list[tuple[graph.Node, str]]:
        """Return the nodes that run in ONNX Runtime, with reasons, at all compiled sizes."""
        known = self.variants or ({} if has_symbolic_sizes(self.input_ports) else {(): []})
        return [found for key in tuple(known) for found in self.fallback_nodes(dict(key))]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UsageError(
            "a compiled model cannot be pickled or copied", "it holds machine code of this process",
            "use save and superopt.load, or compile the model in the other process",
        )  # fmt: skip

    def profile(self, feeds: Mapping[str, Any] | None = None, *, seconds: float = 2.0) -> Profile:
        """Measure the time of each kernel, and compute its lower bound on this machine.

        feeds: inputs by name; None to draw random ones. seconds: how long the model runs. `print`
        the result for a table; its `svg()` is a roofline plot.
        """
        return self.compiler.profile(self, feeds, seconds)

    @property
    def precision(self) -> str:
        """The precision that fp32 values are computed in."""
        return "fp32"

    def accuracy(self, shapes: Mapping[str, int] | None = None, *, sets: int = 2) -> Accuracy:
        """Compare outputs with the original's in float64 on `sets` sets of random inputs, and with
        the fp32 tolerance. `print` the result for a table. shapes: values of symbolic sizes.
        Evaluates the whole model twice for each set, with numpy."""
        return self.compiler.accuracy(self, shapes or {}, sets)

    def save(self, path: str | Path) -> None:
        """Write the compiled model to a file, for `superopt.load`.

        The file holds the model, the option of each kernel, and packed constants for the sizes
        compiled so far; no machine code. Raises UsageError if it cannot be written.
        """
        with self.lock:
            self.compiler.save(self, Path(path))

    def export(self, path: str | Path, *, shapes: Mapping[str, int] | None = None) -> ExportReport:
        """Write the model as a shared object that C can call, with its header and weights.

            exe.export("out/resnet")  # out/libresnet.so, out/resnet.h, out/resnet.weights

        path: a folder, for files named after the model, or the files' name. shapes: symbolic sizes,
        unless exactly one set was compiled. The code is for x86-64 Linux, and for processors with
        the features of this one.

        Raises UsageError if nodes run in ONNX Runtime, without a C compiler, and if a file cannot
        be written.
        """
        with self.lock:
            self.shape_policy.fallback_reasons.clear()  # compile it, whichever is faster
            return self.compiler.export(self, Path(path), shapes or {})

    def tune(
        self,
        sizes: Mapping[str, int],
        budget: float,
        store: Store,
        progress: Progress = lambda event: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> TuningReport:
        """Find faster options for the kernels at these sizes, and use them. budget: seconds."""
        steps = self.variant(sizes)
        done = self.compiler.tune(steps, budget, store, progress, stop)
        with self.lock:
            # Cached variants were compiled with the old options.
            self.find_cached, self.store_cached = lambda key: None, lambda key, made: None
            self.variants.clear()
            self._last_call = None
        self.variant(sizes)
        return done
