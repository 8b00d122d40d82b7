"""Compiled models: calls of them, and what they are asked for besides.

What a call needs is here; the compiler is loaded when something is asked of it.
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
    """A model that was compiled. What a call at other sizes of its inputs does is its policy's to
    say (new_sizes.py); programs for sizes that were called longest ago go where all would take more
    than a part of the memory (PART).

    ports: inputs; outputs: names. on: returns the processor. make: gives the compiler. find, keep:
    steps that were compiled earlier, in this process or another; what to do with those that are
    new. Calls from several threads wait for each other.
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
    # What was called last, in which most calls fit.
    _last: LastCall | None = None

    def __post_init__(self) -> None:
        forks.known.add(self)

    def forked(self) -> threading.RLock:
        self.new_sizes.pending.clear()  # what compiled them is not in this process
        return threading.RLock()

    def __repr__(self) -> str:
        given, made = ", ".join(f"{p.name}: {p.text}" for p in self.ports), ", ".join(self.outputs)
        return f"<Executable ({given}) => ({made}), threads={self.threads}>"

    def __call__(self, /, **feeds: Any) -> dict[str, np.ndarray]:
        """The outputs by name, in the model's order; inputs are given by their names."""
        return self.run(feeds)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """The outputs by name, in the model's order."""
        # First the usual case in as few steps as Python allows: arrays as they are to be, of the
        # shapes of the last call.
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
            except Exception:  # of a dozen types; the other way says what is wrong
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
            except Exception:  # of a dozen types; the other way says what is wrong
                return self._run(feeds)
        return self._called(last, given)

    def _called(self, last: LastCall, given: list[np.ndarray]) -> dict[str, np.ndarray]:
        with self.lock:
            try:
                out = last.new()
            except MemoryError as e:
                what = "no memory for the outputs"
                raise UsageError(what, str(e), "give smaller inputs") from None
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
        """The outputs where a call at these sizes does not wait for a compiler."""
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
        except Exception:  # of a dozen types; compiled code may run what it refuses, or says more
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
        """A call at these sizes ran in onnxruntime; compile for them once that would have paid."""
        with self.lock:
            self.new_sizes.note_spent(key, seconds)
            if self.new_sizes.is_due(key) and not self.compiler.all_fall_back:
                specialize.submit(self, key, given)

    def _fallback(self) -> Fallback | None:
        """Runs the whole model in onnxruntime, at any sizes."""
        steps = self.compiler.elsewhere()
        if steps is None:
            return None
        (whole,) = steps
        assert isinstance(whole, Fallback)
        return whole

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing of this model is compiled in the background.

        timeout: seconds; None: as long as it takes. False where that is over before."""
        return background.worker().wait(id(self), timeout)

    def given(self, feeds: Mapping[str, Any]) -> list[np.ndarray]:
        """The inputs' arrays; raises UsageError where they are not as the model says."""
        if not isinstance(feeds, Mapping):
            raise UsageError(
                f"inputs are a {type(feeds).__name__}", "they are given by name", "give a dict"
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
                    f"values were given for {', '.join(map(repr, feeds)) or 'none'}",
                    f"give an array: {port.text}",
                )
        self._known(feeds)
        return out

    def _known(self, feeds: Mapping[str, Any]) -> None:
        """Raises UsageError for a name that is no input's."""
        names = [p.name for p in self.ports]
        for name in feeds:
            if name not in names:
                raise UsageError(
                    f"no input {name!r}", f"there are {', '.join(names) or 'none'}", "leave it out"
                )

    def sizes(self, arrays: list[np.ndarray]) -> dict[str, int]:
        """The symbolic sizes; raises UsageError where shapes do not fit."""
        plain = sizes_of(self.ports, arrays)
        return self.compiler.sizes(arrays) if plain is None else plain

    def variant(self, sizes: Mapping[str, int]) -> Steps:
        """The steps for inputs of these sizes."""
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
        """Use these steps at these sizes, and give up others that were used longest ago where all
        take too much memory. self.lock is held."""
        self.new_sizes.settled.pop(key, None)
        if key not in self.variants:
            self._last = None  # it may run in onnxruntime, at these sizes
        self.variants.pop(key, None)
        self.variants[key] = steps  # as the last one
        most = (machine.memory() or UNKNOWN) // PART
        while len(self.variants) > 1 and held_bytes(self.variants.values()) > most:
            old = next(iter(self.variants))
            del self.variants[old]
            self.new_sizes.note_gone(old)

    def at(self, sizes: Mapping[str, int]) -> Executable:
        """The model itself, or the one that is compiled for these sizes alone (Compiler.at)."""
        made = self.compiler.at(sizes)
        if made is self.compiler:
            return self
        out = made.executable()
        out.lock = self.lock  # memory is the same
        out.variants[()] = self.variant(sizes)
        return out

    @property
    def machine(self) -> Machine:
        """What it is compiled for."""
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
        """Where object files are kept."""
        return self.compiler.folder

    def fallen(self, sizes: Mapping[str, int]) -> list[tuple[graph.Node, str]]:
        """The nodes that run in onnxruntime, and why."""
        why = self.new_sizes.settled.get(tuple(sorted(sizes.items())), "")
        return self.compiler.fallen(sizes, why)

    def fallbacks(self) -> list[tuple[graph.Node, str]]:
        """The same, at each of the sizes that it was compiled for, or that are known."""
        known = self.variants or ({} if symbolic(self.ports) else {(): []})
        return [found for key in tuple(known) for found in self.fallen(dict(key))]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise UsageError(
            "a compiled model cannot be pickled or copied", "it is machine code in this process",
            "use save and superopt.load, or compile the model where it is needed",
        )  # fmt: skip

    def profile(self, feeds: Mapping[str, Any] | None = None, *, seconds: float = 2.0) -> Profile:
        """How long each kernel takes, and how long it must take at least on this machine.

        feeds: inputs by name; else they are drawn. seconds: how long the model is run. `print` it
        for a table; its `svg()` is a picture.
        """
        return self.compiler.profile(self, feeds, seconds)

    @property
    def precision(self) -> str:
        """In which floats of 32 bits are computed."""
        return "fp32"

    def accuracy(self, shapes: Mapping[str, int] | None = None, *, sets: int = 2) -> Accuracy:
        """How far outputs are from the original's in float64, on so many sets of drawn inputs, and
        whether that is within float32's tolerance; `print` it for a table. shapes: symbolic sizes.
        It evaluates the whole model twice for each set, with numpy."""
        return self.compiler.accuracy(self, shapes or {}, sets)

    def save(self, path: str | Path) -> None:
        """Write the compiled model to a file, for `superopt.load`.

        It holds the model, how each kernel is computed, and constants as kernels read them, for
        the sizes that were compiled so far; no machine code. Raises UsageError where it cannot be
        written.
        """
        with self.lock:
            self.compiler.save(self, Path(path))

    def export(self, path: str | Path, *, shapes: Mapping[str, int] | None = None) -> Exported:
        """Write the model as a shared object that C can call, with its header and weights.

            exe.export("out/resnet")  # out/libresnet.so, out/resnet.h, out/resnet.weights

        path: a folder, for files named as the model is, or the files' name. shapes: symbolic sizes,
        where not exactly one set of them was compiled. The code is for Linux on x86-64, and for
        processors that have what this one has.

        Raises UsageError where parts run in onnxruntime, where there is no C compiler, and where
        a file cannot be written.
        """
        with self.lock:
            self.new_sizes.settled.clear()  # it is compiled, whatever is faster
            return self.compiler.export(self, Path(path), shapes or {})

    def tune(
        self,
        sizes: Mapping[str, int],
        budget: float,
        store: Store,
        progress: Progress = lambda event: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Tuned:
        """Find faster ways to compute the kernels for inputs of these sizes, and take them.

        budget: seconds.
        """
        steps = self.variant(sizes)
        done = self.compiler.tune(steps, budget, store, progress, stop)
        with self.lock:
            # What was kept was made with the options before.
            self.find, self.keep = lambda key: None, lambda key, made: None
            self.variants.clear()
            self._last = None
        self.variant(sizes)
        return done
