"""Executables: calls of compiled models, and what they provide besides.

This module holds what a call needs; the compiler is loaded on demand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from superopt.compilation.frontend.input_arrays import (
    check_sizes,
    check_values,
    signature_text,
    sorted_sizes,
)
from superopt.compilation.model.bound_call import BoundCall, bind_arrays
from superopt.compilation.model.classes.runtime_counts import watch_counts
from superopt.compilation.model.control_flow.dynamic_if import ControlFlow
from superopt.compilation.model.control_flow.part_calls import PartNotCompiled, on_missing
from superopt.compilation.model.device import NO_CONTEXT
from superopt.compilation.model.explain_memory import explain_memory
from superopt.compilation.model.model_programs import ModelPrograms, closed_error
from superopt.compilation.model.onnxruntime_calls import run_in_onnxruntime, run_whole_model
from superopt.compilation.model.size_classes import bind_compiled_part, bind_size_class
from superopt.compilation.model.states.stateful_call import StatefulCall, bind_state
from superopt.compilation.model.steps import Variant
from superopt.compilation.runtime import background_worker
from superopt.errors import RuntimeMismatch, UsageError, positive_seconds
from superopt.loading.given_sizes import as_size_mapping
from superopt.report.data.notebook import preformatted

if TYPE_CHECKING:
    from superopt.compilation.model.device import Progress
    from superopt.cost.store import Store
    from superopt.ir import graph
    from superopt.report.compilation.accuracy import Accuracy
    from superopt.report.compilation.compile_report import ExportReport, TuningReport
    from superopt.report.compilation.kernel_explanation import KernelExplanation
    from superopt.report.compilation.memory_use import MemoryUse
    from superopt.report.compilation.profile import Profile

MAX_TUNED_OPTIONS = 24  # of a kernel that are measured, if its options are not searched by rounds


@dataclass(slots=True, eq=False, repr=False)
class Executable(ModelPrograms):
    """A compiled model. On a CPU several threads may call it at the same time: each call has memory
    of its own, and weights and code are shared. On a GPU calls wait for each other.

    Attributes:
        input_ports, output_names: In the model's order.

    Example:
        >>> exe = superopt.compile("model.onnx")
        >>> {name: y.shape for name, y in exe(x=np.zeros((4, 6), np.float32)).items()}
        {'p': (4, 5), 'q': (4, 3)}
    """

    def __repr__(self) -> str:
        signature = signature_text(self.input_ports, self.output_names)
        return f"<Executable {signature}, {'closed' if self.is_closed else self.device}>"

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
        if self.is_closed:
            raise closed_error()
        given = self.input_arrays(feeds)
        sizes = self.infer_sizes(given)
        check_values(self.input_ports, given, sizes)
        key = sorted_sizes(sizes)
        fed = [x for p, x in zip(self.input_ports, given, strict=True) if p.name in feeds]
        on_device = bool(fed) and all(map(self.device.is_on_device, fed))
        is_whole = len(fed) == len(given)
        missing = on_missing(self, key)
        if key not in self.variants and missing == "raise":
            bind_compiled_part(self, key)
        elif key not in self.variants and not bind_size_class(self, key):
            out = None if missing == "compile" else run_in_onnxruntime(self, key, given)
            if out is not None:
                return {n: self.device.to_device(x) for n, x in out.items()} if on_device else out
        concurrent = self.device.has_concurrent_calls
        with NO_CONTEXT if concurrent else self.exclusive():
            variant = self.variants.get(key) if concurrent else None
            with self.try_lock(blocking=variant is None) as locked:
                if locked or variant is None:  # else it does not wait for another call
                    variant = self._variant_of_call(sizes, given, is_whole, on_device)
            try:
                return self.run_variant(variant, given, on_device=on_device)
            except PartNotCompiled:
                if (whole := run_whole_model(self, key, given)) is None:
                    raise
                return whole
            except RuntimeMismatch as e:
                del variant  # its memory is free when the other one is compiled
                self._fall_back_entirely(sizes, e)
            return self.run_variant(self.variant(sizes), given, on_device=on_device)

    def _variant_of_call(
        self, sizes: Mapping[str, int], arrays: Sequence[Any], is_whole: bool, on_device: bool
    ) -> Variant:
        """Return what runs these inputs, and let calls with inputs like these run it. is_whole: no
        input has its default."""
        with self.exclusive():
            if sorted_sizes(sizes) not in self.variants:  # another call may have dropped it
                bind_size_class(self, sorted_sizes(sizes))
            variant = self.runnable(sizes)
            watch_counts(self, sorted_sizes(sizes), variant)
            self.device.check_inputs(self.input_ports, arrays, variant)
            call = partial(self.device.repeated_call, self, variant, arrays, on_device=on_device)
            self.last_call = call() if is_whole else None
            return variant

    def _fall_back_entirely(self, sizes: Mapping[str, int], error: RuntimeMismatch) -> None:
        """Run the whole model in ONNX Runtime at these sizes from now on."""
        with self.exclusive():
            self.compiler_for(sizes).fall_back_entirely(error)
            self.device.synchronize()  # it may still run
            self.variants.pop(sorted_sizes(sizes), None)
            self.last_call = None

    def run_variant(
        self, variant: Variant, arrays: Sequence[Any], *, on_device: bool
    ) -> dict[str, Any]:
        """Return the outputs by name; the caller holds the lock if calls are not concurrent."""
        found = variant.run(self.device, arrays, on_device=on_device)
        return dict(zip(self.output_names, found, strict=True))

    def bind(
        self, *, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None
    ) -> BoundCall:
        """Return a call on fixed arrays: it reads these inputs and writes these outputs in place.

            call = exe.bind(inputs={"x": x}, outputs={"y": y})
            x[...] = 1
            call()  # y has the results

        A call checks nothing, allocates nothing and copies nothing if the whole model is kernels
        (`call.is_direct`); else outputs are copied from those of the parts in ONNX Runtime. Sizes
        are those of the inputs. If no program has them, they are compiled here, not in the call. A
        call keeps the program that it was bound to: bind again after `tune`. One thread at a time
        may make a bound call; several bound calls may run at the same time.

        inputs: numpy arrays by name, contiguous, of the model's types; inputs with a default may be
        missing. outputs: numpy arrays by name, contiguous, writable, of the shapes and types that
        `run` returns for these inputs, that overlap no other array; an output that is not named
        gets an array that belongs to the call. Raises UsageError for others.
        """
        return bind_arrays(self, inputs, outputs or {})

    def bind_state(
        self,
        state: Mapping[str, str],
        *,
        sizes: Mapping[str, int] | None = None,
        capacity: int | None = None,
    ) -> StatefulCall:
        """Return a call that keeps outputs as inputs of the next call, as decoders need it.

            decode = exe.bind_state({"present.0.key": "past_key_values.0.key", ...})
            logits = decode.run({"input_ids": tokens, ...})["logits"]
            decode.reset()  # for the next text

        On a CPU a state that grows at the end of an axis stays in memory with room for more: a call
        writes the new elements there. A cache that is written at positions is written in place.
        Another state has two buffers, of which a call reads one and writes the other. Before the
        first call states are zeros, of length 0 along symbolic axes whose size no input has.

        state: names of inputs by those of outputs. sizes: of symbolic axes of states, such as the
        capacity of a cache. capacity: the greatest length of a state that grows; a call that would
        exceed it raises UsageError. Raises UsageError for names that the model does not have.
        """
        return bind_state(self, state, sizes or {}, capacity)

    def close(self) -> None:
        """Free the memory, code and threads. Calls after this raise UsageError, also bound ones.

        Calls that run kernels finish first. A call within onnxruntime frees its session when it
        ends. What is being compiled in the background is not compiled further.
        `with superopt.compile(...) as exe:` closes the model at the end of the block.
        """
        for each in self.executables():
            background_worker.background_worker().end_job(id(each))
        self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def memory(self) -> MemoryUse:
        """Return the memory that the programs hold: `print` it for a table.

        Each program has a row: the weights that it reads, which programs share, its code, and its
        contexts. A context is the memory of one call; there are as many as there were calls at the
        same time, of which a program keeps at most 32 idle ones, and at most 256 MiB if it is more
        than one. Large outputs that were dropped are kept for further calls.
        """
        with self.exclusive():
            return explain_memory(self)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no background compilation of this model is left.

        timeout: seconds; None to wait without limit. Returns False on timeout.
        """
        worker = background_worker.background_worker()
        end = None if timeout is None else time.monotonic() + timeout
        for each in self.executables():
            left = None if end is None else max(end - time.monotonic(), 0.0)
            if not worker.wait(id(each), left):
                return False
        return True

    def executables(self) -> Iterator[Executable]:
        """Yield this one, and those of its branches and loops."""
        yield self
        steps = {id(s): s for v in tuple(self.variants.values()) for s in v}
        for part in (
            p for s in steps.values() if isinstance(s, ControlFlow) for p in s.executables
        ):
            yield from part.executables()

    def executable_for(self, sizes: Mapping[str, int]) -> Executable:
        """Return this executable, or the one for these sizes alone (Compiler.compiler_for)."""
        made = self.compiler_for(sizes)
        if made is self.compiler:
            return self
        out = made.executable()
        out.lock = self.lock  # they share memory
        out.variants[()] = self.variant(sizes)
        return out

    def fallbacks(self) -> list[tuple[graph.Node, str]]:
        """Return the nodes that run in ONNX Runtime, with reasons, at all compiled sizes."""
        with self.exclusive():
            return [found for key in self.known_sizes() for found in self.fallback_nodes(dict(key))]

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return the model's file, its digest and the options: unpickling compiles the file, or
        finds its programs in the cache. Raises UsageError for a model without a file."""
        if self.is_closed:
            raise closed_error()
        if self.reference is None:
            raise UsageError(
                "a model compiled from memory cannot be pickled or copied",
                "a pickle names the model's file, and this one has none",
                "compile the model from a file, or use save and superopt.load",
            )
        return self.reference.reduce()

    def buffers(self, shapes: Mapping[str, int] | None = None) -> dict[str, Any]:
        """Return the memory from which kernels read inputs, as tensors on the device, by name. A
        call with one of these copies nothing: let the input's producer write there. The program
        owns the tensors until it is tuned or its memory is freed.

        shapes: symbolic sizes. There are none on the CPU, of models with parts in ONNX Runtime, and
        of inputs that no kernel reads. Raises UsageError for other sizes than the model's.
        """
        sizes = check_sizes(self.input_ports, shapes)
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
            return generator.profile(self, feeds, as_size_mapping(shapes), seconds, stop)

    def explain_kernel(
        self, kernel: str, feeds: Mapping[str, Any] | None = None, *,
        shapes: Mapping[str, int] | None = None, seconds: float = 2.0,
    ) -> KernelExplanation:  # fmt: skip
        """Say why a kernel has its schedule: the candidates with their estimated costs, the
        machine's figures, and what bounded the block sizes. `print` the result.

        kernel: its number in the table of `profile`, from 1 for the slowest, or a part of its
        label. Others: as in `profile`, which runs first. Raises UsageError without candidates.
        """
        with self.exclusive():
            generator = self.compiler.generator
            sizes = as_size_mapping(shapes)
            found = generator.profile(self, feeds, sizes, seconds, lambda: False)
            return generator.explain_kernel(self, found, kernel)

    def accuracy(self, shapes: Mapping[str, int] | None = None, *, sets: int = 2) -> Accuracy:
        """Compare outputs with the original's in float64 on `sets` sets of random inputs, and with
        the precision's tolerance. `print` the result for a table. shapes: values of symbolic sizes.
        Evaluates the whole model twice for each set, with numpy."""
        return self.compiler.accuracy(self, as_size_mapping(shapes), sets)

    def save(self, path: str | Path, *, aot: str | Sequence[str] = ()) -> None:
        """Write the compiled model to a file, for `superopt.load`.

        It holds the model, each weight once, and options of kernels, for the sizes with a program
        of their own, or of the last calls. aot: CPUs whose machine code it holds, too ("native",
        "x86-64-v3", .. or several with commas). Raises UsageError if it is not written.
        """
        with self.exclusive():
            self.compiler.save(self, Path(path), aot)

    def export(
        self, path: str | Path, *, shapes: Mapping[str, int] | None = None,
        cpu: str | None = None, target: str | None = None,
    ) -> ExportReport:  # fmt: skip
        """Write the model as a library that C can call, with its header and weights.

        path: a folder, for files named after the model, or the files' name. shapes: symbolic sizes;
        calls pass those that are missing (all are needed if the model has no programs for classes
        of sizes). target: "x86_64-linux", "aarch64-linux", "x86_64-windows", "wasm" (an ES module),
        or this system. cpu: "native", or one of the target's, as "x86-64-v3" or "neoverse-n1".

        Raises UsageError for nodes that run in ONNX Runtime, missing sizes, and a missing linker.
        """
        with self.exclusive():
            self.shape_policy.fallback_reasons.clear()  # compile it, whichever is faster
            sizes = as_size_mapping(shapes)
            return self.compiler.generator.export(self, Path(path), sizes, cpu, target)

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
        sizes = check_sizes(self.input_ports, sizes, "sizes")
        positive_seconds("budget", budget)
        variant = self.variant(sizes)
        with self.device.activate():
            done = self.compiler.tune(variant, store, budget, max_options, progress, stop)
        with self.exclusive():  # cached variants were compiled with the old options
            self.find_cached, self.store_cached = lambda key: None, lambda key, made: None
            self.drop_variants()
        self.variant(sizes)
        return done
