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

from superopt.cost import machine
from superopt.cost.machine import PART, UNKNOWN
from superopt.errors import Unlike, UsageError
from superopt.pipeline import background, forks, specialize
from superopt.pipeline.arrays import Port, as_array, sizes_of, symbolic
from superopt.pipeline.branch import Branch
from superopt.pipeline.fallback import Fallback
from superopt.pipeline.held import held_bytes
from superopt.pipeline.last_call import LastCall, locked, nothing
from superopt.pipeline.native import Native
from superopt.pipeline.new_sizes import NewSizes

if TYPE_CHECKING:
    from superopt.cost.store import Store
    from superopt.ir import graph
    from superopt.kernels.runtime.engine import Machine
    from superopt.onnx_io.import_.model import Model
    from superopt.pipeline.compile import Compiler
    from superopt.pipeline.steps import Foreign
    from superopt.pipeline.tune import Progress
    from superopt.report.accuracy import Accuracy
    from superopt.report.compiled import Exported, Tuned
    from superopt.report.profile import Profile

Sizes = tuple[tuple[str, int], ...]
Steps = list["Native | Foreign | Fallback | Branch"]
_NDARRAY = np.ndarray


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class Executable:
    """A compiled model. `shape_policy` decides what a call at new input sizes does. The least
    recently used variants are dropped when all of them would take more than a part of the memory
    (PART).

    output_names: in order. get_machine: returns the processor. make_compiler: returns the compiler.
    find_cached, store_cached: find steps compiled earlier, here or in another process; store new
    ones. Calls from several threads wait for each other.
    """

    ports: tuple[Port, ...]
    outputs: tuple[str, ...]
    threads: int
    on: Callable[[], Machine]
    make: Callable[[], Compiler]
    find: Callable[[Sizes], Native | Fallback | None] = lambda sizes: None
    keep: Callable[[Sizes, Steps], None] = lambda sizes, steps: None
    variants: dict[Sizes, Steps] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    new_sizes: NewSizes = field(default_factory=NewSizes)
    _compiler: Compiler | None = None
    # the last call; most calls have the same input shapes
    _last: LastCall | None = None

    def __post_init__(self) -> None:
        forks.known.add(self)

    def forked(self) -> threading.RLock:
        self.new_sizes.pending.clear()  # the thread that compiled them is not in this process
        return threading.RLock()

    def __repr__(self) -> str:
        given, made = ", ".join(f"{p.name}: {p.text}" for p in self.ports), ", ".join(self.outputs)
        return f"<Executable ({given}) => ({made}), threads={self.threads}>"

    def __call__(self, /, **feeds: Any) -> dict[str, np.ndarray]:
        """Return the outputs by name, in the model's order; inputs are keyword arguments."""
        return self.run(feeds)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the outputs by name, in the model's order."""
        # The fast path for the common case: arrays of the right types, with the shapes of the last
        # call.
        last = self._last
        if last is None or type(feeds) is not dict or len(feeds) != len(last.inputs):
            return self._run(feeds)
        if last.by_name is not None:
            for name, dtype, shape in last.inputs:
                a = feeds.get(name)
                if type(a) is not _NDARRAY or a.dtype is not dtype or a.shape != shape:
                    return self._run(feeds)
            try:
                return last.by_name(feeds)
            except Exception:  # of many types; the slow path reports the error
                return self._run(feeds)
        given = []
        for name, dtype, shape in last.inputs:
            a = feeds.get(name)
            if (
                type(a) is not _NDARRAY or a.dtype is not dtype or a.shape != shape
                or not a.flags.c_contiguous
            ):  # fmt: skip
                return self._run(feeds)
            given.append(a)
        if last.direct is not None:
            try:
                return last.direct(given)
            except Exception:  # of many types; the slow path reports the error
                return self._run(feeds)
        return self._called(last, given)

    def _called(self, last: LastCall, given: list[np.ndarray]) -> dict[str, np.ndarray]:
        with self.lock:
            try:
                out = last.new()
            except MemoryError as e:
                what = "no memory for the outputs"
                raise UsageError(what, str(e), "pass smaller inputs") from None
            last.call((*(given if last.takes is None else [given[n] for n in last.takes]), *out))
        return {name: out[n] for name, n in last.gives}

    def _run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        given = self.given(feeds)
        sizes = self.sizes(given)
        key = tuple(sorted(sizes.items()))
        if key not in self.variants and (out := self._in_onnxruntime(key, given)) is not None:
            return out
        with self.lock:
            steps = self.variant(sizes)
            first = steps[0] if len(steps) == 1 else None
            if isinstance(first, Fallback | Branch):
                self._last = LastCall.whole(first, self.ports, given)
                return first.call(given)
            if not isinstance(first, Native) or first.whole is None:
                made = self.compiler.at(sizes)
                if (direct := made.direct(steps)) is not None:
                    ports = zip(self.ports, given, strict=True)
                    inputs = tuple((p.name, p.dtype, a.shape) for p, a in ports)
                    alone = not any(isinstance(s, Native) for s in steps)
                    one = direct if alone else locked(direct, weakref.proxy(self))
                    self._last = LastCall(inputs, None, list, (), nothing, one)
                try:
                    return made.run(steps, given)
                except Unlike as e:
                    made.outside(e)
                    self._last = None
                    self.variants.pop(key)
                    return made.run(self.variant(sizes), given)
        self._last = last = LastCall.of(first, first.whole, self.ports, given)
        return self._called(last, given)

    def _in_onnxruntime(self, key: Sizes, given: list[np.ndarray]) -> dict[str, np.ndarray] | None:
        """Return the outputs if a call at these sizes runs in ONNX Runtime; None if it must
        compile."""
        policy = self.new_sizes
        with self.lock:
            if key in self.variants or policy.in_call(key, bool(self.variants)):
                return None
            if key not in policy.spent and (found := self.find(key)) is not None:
                self.take(key, [found])
                return None
            policy.prepare(self._fallback)
            whole = policy.fallback
        if whole is None:
            return None
        begin = time.perf_counter()
        try:
            out = whole.call(given)
        except Exception:  # of many types; compiled code may succeed, or report the error
            return None
        self._note_spent(key, time.perf_counter() - begin, given)
        if key not in self.variants and (by_name := whole.by_name) is not None:
            exe, names = weakref.proxy(self), [p.name for p in self.ports]

            def again(feeds: dict[str, Any]) -> dict[str, Any]:
                begin = time.perf_counter()
                out = by_name(feeds)
                seconds = time.perf_counter() - begin
                exe._note_spent(key, seconds, [feeds[name] for name in names])
                return out

            self._last = LastCall.named(again, self.ports, given)
        return out

    def _note_spent(self, key: Sizes, seconds: float, given: list[np.ndarray]) -> None:
        """Count a call at these sizes in ONNX Runtime; compile for them once that would have
        paid."""
        with self.lock:
            self.new_sizes.note_spent(key, seconds)
            if self.new_sizes.is_due(key) and not self.compiler.all_fall_back:
                specialize.submit(self, key, given)

    def _fallback(self) -> Fallback | None:
        """Return a session that runs the whole model in ONNX Runtime, at any sizes; None if it is
        not installed."""
        steps = self.compiler.elsewhere()
        if steps is None:
            return None
        (whole,) = steps
        assert isinstance(whole, Fallback)
        return whole

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no background compilation of this model is left.

        timeout: seconds; None to wait without limit. Returns False on timeout.
        """
        return background.worker().wait(id(self), timeout)

    def given(self, feeds: Mapping[str, Any]) -> list[np.ndarray]:
        """Return the arrays of the inputs. Raises UsageError if they do not fit the model."""
        if not isinstance(feeds, Mapping):
            raise UsageError(
                f"inputs are a {type(feeds).__name__}", "inputs are given by name", "pass a dict"
            )
        out = []
        for port in self.ports:
            array = feeds.get(port.name, self)
            if array is not self:
                out.append(as_array(port, array))
            elif port.optional:
                out.append(self.compiler.default(port.name))
            else:
                self._known(feeds)
                raise UsageError(
                    f"no value for input {port.name!r}",
                    f"given inputs: {', '.join(map(repr, feeds)) or 'none'}",
                    f"pass an array: {port.text}",
                )
        self._known(feeds)
        return out

    def _known(self, feeds: Mapping[str, Any]) -> None:
        """Raise UsageError for a name that is not an input's."""
        names = [p.name for p in self.ports]
        for name in feeds:
            if name not in names:
                raise UsageError(
                    f"no input {name!r}",
                    f"the inputs are {', '.join(names) or 'none'}",
                    "remove it",
                )

    def sizes(self, arrays: list[np.ndarray]) -> dict[str, int]:
        """Return the symbolic sizes. Raises UsageError if shapes do not fit."""
        plain = sizes_of(self.ports, arrays)
        return self.compiler.sizes(arrays) if plain is None else plain

    def variant(self, sizes: Mapping[str, int]) -> Steps:
        """Return the steps for inputs of these sizes; compile them if needed."""
        with self.lock:
            return self._variant(tuple(sorted(sizes.items())))

    def _variant(self, key: Sizes) -> Steps:
        steps = self.variants.get(key)
        if steps is None and (found := self.find(key)) is not None:
            steps = [found]
        if steps is None:
            begin = time.thread_time()
            with background.compiling():
                steps = self.compiler.compiled(dict(key))
            self.new_sizes.note_compiled(time.thread_time() - begin)
            self.keep(key, steps)
        self.take(key, steps)
        return steps

    def take(self, key: Sizes, steps: Steps) -> None:
        """Use these steps at these sizes; drop the least recently used ones if all take too much
        memory."""
        self.new_sizes.settled.pop(key, None)
        if key not in self.variants:
            self._last = None  # it may run in ONNX Runtime at these sizes
        self.variants.pop(key, None)
        self.variants[key] = steps  # as the most recently used
        most = (machine.memory() or UNKNOWN) // PART
        while len(self.variants) > 1 and held_bytes(self.variants.values()) > most:
            old = next(iter(self.variants))
            del self.variants[old]
            self.new_sizes.note_gone(old)

    def at(self, sizes: Mapping[str, int]) -> Executable:
        """Return this executable, or the one for these sizes alone (Compiler.compiler_for)."""
        made = self.compiler.at(sizes)
        if made is self.compiler:
            return self
        out = made.executable()
        out.lock = self.lock  # they share memory
        out.variants[()] = self.variant(sizes)
        return out

    @property
    def machine(self) -> Machine:
        """The processor that it is compiled for."""
        return self.on()

    @property
    def compiler(self) -> Compiler:
        with self.lock:
            if self._compiler is None:
                self._compiler = self.make()
            return self._compiler

    @property
    def model(self) -> Model:
        return self.compiler.model

    @property
    def folder(self) -> Path | None:
        """The folder of object files."""
        return self.compiler.folder

    def fallen(self, sizes: Mapping[str, int]) -> list[tuple[graph.Node, str]]:
        """Return the nodes that run in ONNX Runtime at these sizes, each with the reason."""
        why = self.new_sizes.settled.get(tuple(sorted(sizes.items())), "")
        return self.compiler.fallen(sizes, why)

    def fallbacks(self) -> list[tuple[graph.Node, str]]:
        """Return the nodes that run in ONNX Runtime, with reasons, at all compiled sizes."""
        known = self.variants or ({} if symbolic(self.ports) else {(): []})
        return [found for key in tuple(known) for found in self.fallen(dict(key))]

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

    def export(self, path: str | Path, *, shapes: Mapping[str, int] | None = None) -> Exported:
        """Write the model as a shared object that C can call, with its header and weights.

            exe.export("out/resnet")  # out/libresnet.so, out/resnet.h, out/resnet.weights

        path: a folder, for files named after the model, or the files' name. shapes: symbolic sizes,
        unless exactly one set was compiled. The code is for x86-64 Linux, and for processors with
        the features of this one.

        Raises UsageError if nodes run in ONNX Runtime, without a C compiler, and if a file cannot
        be written.
        """
        with self.lock:
            self.new_sizes.settled.clear()  # compile it, whichever is faster
            return self.compiler.export(self, Path(path), shapes or {})

    def tune(
        self,
        sizes: Mapping[str, int],
        budget: float,
        store: Store,
        progress: Progress = lambda event: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Tuned:
        """Find faster options for the kernels at these sizes, and use them. budget: seconds."""
        steps = self.variant(sizes)
        done = self.compiler.tune(steps, budget, store, progress, stop)
        with self.lock:
            # Cached variants were compiled with the old options.
            self.find, self.keep = lambda key: None, lambda key, made: None
            self.variants.clear()
            self._last = None
        self.variant(sizes)
        return done
