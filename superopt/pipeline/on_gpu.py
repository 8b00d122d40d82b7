"""Executables for a GPU: calls, and what they provide besides.

This module holds what a call needs; the compiler is loaded on demand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from superopt.errors import OutOfMemory, Unlike, UsageError, seconds
from superopt.kernels.runtime.gpu_device import (
    empty_cache,
    from_dlpack,
    is_gpu_tensor,
    synchronize,
    to_device,
    use_gpu,
)
from superopt.pipeline import forks
from superopt.pipeline.arrays import Port, as_array, checked_sizes, sizes_of
from superopt.pipeline.gpu_last import Last, Sizes, sorted_sizes
from superopt.pipeline.gpu_ready import Ready
from superopt.pipeline.rare import Rare
from superopt.pipeline.recent import Recent

if TYPE_CHECKING:
    from superopt.cost.store import Store
    from superopt.ir import graph
    from superopt.kernels.algorithms.problem import Problem
    from superopt.kernels.loops.option import Option
    from superopt.onnx_io.import_.model import Model
    from superopt.pipeline.cuda import Compiler
    from superopt.pipeline.gpu_parts import Variant
    from superopt.report.accuracy import Accuracy
    from superopt.report.compiled import Tuned
    from superopt.report.profile import Profile

MOST = 1000  # remembered shapes of inputs


@cache
def name_of(dtype: object) -> str:
    """Return numpy's name of an element type of torch or numpy."""
    return str(dtype).removeprefix("torch.")


def _forked() -> UsageError:
    return UsageError(
        "the model was compiled for a GPU before this process was forked",
        "GPU memory belongs to the parent", "start processes by spawn, and compile in them",
    )  # fmt: skip


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class OnGpu:
    """A model compiled for a GPU, once for each set of sizes. The least recently used programs are
    dropped if memory is too small (`program_lru`); rare sizes may run in ONNX Runtime
    (`shape_policy`).

    output_names: in order; device: "cuda", or "cpu" in the interpreter. make_compiler: returns the
    compiler. find_cached, store_cached: find what another process compiled; store what is new.
    variants, cached_programs: by sizes; known_sizes: by input shapes; defaults: of inputs.
    gpu_number: need not be the current GPU. Calls from several threads wait for each other.
    """

    ports: tuple[Port, ...]
    outputs: tuple[str, ...]
    precision: str
    device: str
    make: Callable[[], Compiler]
    find: Callable[[Sizes], Ready | None] = lambda sizes: None
    keep: Callable[[Sizes, Variant], None] = lambda sizes, made: None
    variants: dict[Sizes, Variant] = field(default_factory=dict)
    found: dict[Sizes, Ready] = field(default_factory=dict)
    number: int | None = None
    lock: threading.RLock | forks.Lost = field(default_factory=threading.RLock)
    known: dict[Any, Mapping[str, int]] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    rare: Rare[Variant] = field(default_factory=Rare)
    recent: Recent = field(init=False)
    _compiler: Compiler | None = None
    _last: Last | None = None

    def __post_init__(self) -> None:
        self.recent = Recent(self.number if self.device == "cuda" else None)
        forks.known.add(self)

    def forked(self) -> threading.RLock | forks.Lost:
        """Return the lock in a forked process: GPU memory is not available there."""
        return threading.RLock() if self.device == "cpu" else forks.Lost(_forked)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock and make its GPU the current one of this thread."""
        with self.lock, use_gpu(self.number):
            yield

    def __repr__(self) -> str:
        given, made = ", ".join(f"{p.name}: {p.text}" for p in self.ports), ", ".join(self.outputs)
        return f"<CudaExecutable ({given}) => ({made}), {self.precision} on {self.device}>"

    def __call__(self, /, **feeds: Any) -> dict[str, Any]:
        """Return the outputs by name, in the model's order; inputs are keyword arguments."""
        return self.run(feeds)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name. numpy inputs give numpy outputs. If all inputs are tensors on
        the device (of torch, or others by DLPack), the outputs are torch tensors that the program
        owns: the next call overwrites them. Calls run on torch's current stream, each after the
        previous one. If another stream reads the outputs, the next call's stream must wait for it.
        """
        last, there = self._last, self.device
        given = None if last is None else last.again(feeds)
        with self.lock, use_gpu(self.number):
            made: Variant | Ready | None = None
            if last is not None and given is not None:
                made = self.variants.get(last.sizes) or self.found.get(last.sizes)
            if made is None or given is None:
                given = self.given(feeds)
                fed = [x for p, x in zip(self.ports, given, strict=True) if p.name in feeds]
                there = self.device if fed and all(map(is_gpu_tensor, fed)) else ""
                sizes = self.sizes(given)
                if (out := self._rarely(sizes, given, there)) is not None:
                    return out
                made = self._ready(sizes)
                self._there(made, given)
                alike = there and len(fed) == len(given)
                self._last = Last.of(sizes, self.ports, given) if alike else None
            try:
                found = made.run(given, there)
            except Unlike as e:
                self.compiler.outside(self.variant(self.sizes(given)), e)
                self._gone()
                found = self.variant(self.sizes(given)).run(given, there)
        return dict(zip(self.outputs, found, strict=True))

    def _rarely(
        self, sizes: Mapping[str, int], given: Sequence[Any], there: str
    ) -> dict[str, Any] | None:
        """Return the outputs if compiling for these sizes does not pay yet; else None."""
        key = sorted_sizes(sizes)
        if key in self.variants or key in self.found or not self.rare.waits(key):
            return None
        if (made := self.find(key)) is not None:
            self.found[key] = made
            return None
        out = self.rare.run(self.compiler, key, given)
        return out if out is None or not there else {n: to_device(x, there) for n, x in out.items()}

    def buffers(self, shapes: Mapping[str, int] | None = None) -> dict[str, Any]:
        """Return the memory from which kernels read inputs, as torch tensors on the device, by
        name. A call with one of these copies nothing: let the input's producer write there. The
        program owns the tensors until it is tuned or its memory is freed.

        shapes: symbolic sizes. Models with parts in ONNX Runtime have no buffers, nor do inputs
        that no kernel reads. Raises UsageError for other sizes than those of the model.
        """
        sizes = dict(shapes or {})
        checked_sizes(self.ports, sizes)
        with self.alone():
            found = self.ready(sizes).buffers()
        return {p.name: found[n] for n, p in enumerate(self.ports) if n in found}

    def _there(self, made: Variant | Ready, given: Sequence[Any]) -> None:
        """Raise UsageError for tensors of another GPU than the kernels'."""
        for p, x in zip(self.ports, given, strict=True):
            if is_gpu_tensor(x) and made.number is not None and x.get_device() != made.number:
                raise UsageError(
                    f"input {p.name!r} is on cuda:{x.get_device()}",
                    f"the model was compiled for cuda:{made.number}", "move it to this GPU",
                )  # fmt: skip

    def prepared(self, feeds: Mapping[str, Any]) -> Callable[[], object]:
        """Return a function that runs with these inputs, copied to the device, and waits for the
        outputs."""
        held = dict(feeds)
        if self.device == "cuda":  # the interpreter reads arrays
            with use_gpu(self.number):
                held = {n: to_device(x, self.device) for n, x in feeds.items()}

        def run() -> object:
            out = self.run(held)
            with use_gpu(self.number):
                synchronize(self.device)
            return out

        return run

    def given(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the inputs as arrays or tensors; other objects are read by DLPack. Raises
        UsageError."""
        if not isinstance(feeds, Mapping):
            raise UsageError(
                f"inputs are a {type(feeds).__name__}", "inputs are given by name", "pass a dict"
            )
        names = {p.name for p in self.ports}
        for name in feeds:
            if name not in names:
                raise UsageError(
                    f"no input {name!r}", f"the inputs are {', '.join(sorted(names)) or 'none'}",
                    "remove it",
                )  # fmt: skip
        out = []
        for p in self.ports:
            if p.name not in feeds and p.optional:
                out.append(self._default(p.name))
                continue
            if p.name not in feeds:
                raise UsageError(
                    f"no value for input {p.name!r}", f"it is {p.text}", "pass an array"
                )
            x = from_dlpack(feeds[p.name])
            if is_gpu_tensor(x):
                shape, kind = x.shape, name_of(x.dtype)
                fits = p.shape is None or len(p.shape) == len(shape)
                if kind != name_of(p.dtype) or not fits:
                    raise UsageError(
                        f"input {p.name!r} is {kind}{list(shape)}", f"the model wants {p.text}",
                        "pass such a tensor",
                    )  # fmt: skip
                out.append(x)
            else:
                out.append(as_array(p, x))
        return out

    def _default(self, name: str) -> Any:
        """Return the model's default value of an input; it is on the device after the first
        call."""
        if name not in self.defaults:
            own = self.compiler.default(name)
            self.defaults[name] = to_device(own, self.device) if self.device == "cuda" else own
        return self.defaults[name]

    def sizes(self, given: Sequence[Any]) -> Mapping[str, int]:
        """Return the symbolic sizes. Raises UsageError if shapes do not fit."""
        shapes = tuple(None if p.dtype is None else tuple(x.shape)
                       for p, x in zip(self.ports, given, strict=True))  # fmt: skip
        if None in shapes:
            return self._sizes(given)
        found = self.known.get(shapes)
        if found is None:
            if len(self.known) >= MOST:
                self.known.clear()
            found = self.known[shapes] = self._sizes(given)
        return found

    def _sizes(self, given: Sequence[Any]) -> dict[str, int]:
        blank = [x if p.dtype is None else np.broadcast_to(np.zeros((), p.dtype), tuple(x.shape))
                 for p, x in zip(self.ports, given, strict=True)]  # fmt: skip
        plain = sizes_of(self.ports, blank)
        return self.compiler.sizes(blank) if plain is None else plain

    def ready(self, sizes: Mapping[str, int]) -> Variant | Ready:
        """Return what runs inputs of these sizes: a cached program, or a compiled one."""
        with self.alone():
            return self._ready(sizes)

    def _ready(self, sizes: Mapping[str, int]) -> Variant | Ready:
        key = sorted_sizes(sizes)
        if key in self.variants:
            return self.variant(sizes)
        if key not in self.found:
            made = self.find(key)
            if made is None:
                return self.variant(sizes)
            self.found[key] = made
        self._used(key, self.found[key])
        return self.found[key]

    def _used(self, key: Sizes, made: Variant | Ready) -> None:
        """Mark a program as used; drop others if all of them are too large."""
        for old in self.recent.used(key, made.bytes):
            synchronize(self.device)  # it may still run
            self.variants.pop(old, None)
            self.found.pop(old, None)
            self.rare.gone(old)

    def _gone(self) -> None:
        """Drop all programs."""
        synchronize(self.device)  # programs may still run
        for some in (self.variants, self.found, self.recent.held):
            some.clear()

    def variant(self, sizes: Mapping[str, int]) -> Variant:
        """Return the compiled steps for these sizes. A cached program is planned again with its
        options, and replaced."""
        key = sorted_sizes(sizes)
        with self.alone():
            if key not in self.variants:
                # Free its memory before compiling.
                how = self.found.pop(key).options if key in self.found else None
                begin = time.perf_counter()
                self.variants[key] = self._compiled(sizes, how or {})
                self.rare.compiled(time.perf_counter() - begin)
                if how is None:
                    self.keep(key, self.variants[key])
            self._used(key, self.variants[key])
            return self.variants[key]

    def _compiled(self, sizes: Mapping[str, int], how: Mapping[str, str]) -> Variant:
        compiler = self.compiler  # initialises torch, which selects GPUs from here on
        with use_gpu(self.number):
            try:
                return compiler.compiled(sizes, how)
            except OutOfMemory:
                if not self.variants and not self.found:
                    raise
                self._gone()
            empty_cache(self.device)
            return compiler.compiled(sizes, how)

    @property
    def compiler(self) -> Compiler:
        with self.alone():
            if self._compiler is None:
                self._compiler = self.make()
            return self._compiler

    @property
    def model(self) -> Model:
        return self.compiler.model

    @property
    def dots(self) -> str:
        """The precision of fp32 products, as Triton names it."""
        return self.compiler.dots

    def fallen(self, sizes: Mapping[str, int]) -> list[tuple[graph.Node, str]]:
        """Return the nodes that run in ONNX Runtime, each with the reason. Raises UsageError for
        other sizes."""
        checked_sizes(self.ports, sizes)
        return self.compiler.fallen(self.variant(sizes), sizes)

    def tune(
        self,
        sizes: Mapping[str, int],
        *,
        budget: float = 90.0,
        most: int = 12,
        store: Store | None = None,
        seen: Callable[[Problem, Mapping[Option, float]], None] = lambda p, found: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> Tuned:
        """Measure the `max_options` most promising options of each kernel, those with the most work
        first, and use the fastest from now on.

        sizes: of symbolic dimensions. budget: seconds. store: keeps measurements; its best options
        are measured again beside new ones. on_result: called with each problem and its times.

        Raises UsageError for other sizes than those of the model, and for a budget that is not
        positive.
        """
        checked_sizes(self.ports, sizes)
        seconds("budget", budget)
        made = self.variant(sizes)
        with use_gpu(self.number):
            report = self.compiler.tune(made, store, budget, most, seen, stop)
        with self.alone():
            # Cached programs were compiled with the old options.
            self.find, self.keep = lambda key: None, lambda key, made: None
            self._gone()
        self.variant(sizes)
        return report

    def profile(self, feeds: Mapping[str, Any] | None = None, *, seconds: float = 2.0) -> Profile:
        """Measure the time of each kernel alone, with warm memory, and compute its lower bound on
        this GPU. `print` the result for a table; its `svg()` is a plot. feeds: inputs by name; None
        to draw them. seconds: approximate total."""
        with self.alone():
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
        with self.alone():
            known = {*self.variants, *self.found}
        made = {key: self.variant(dict(key)) for key in sorted(known)}
        self.compiler.save(made, Path(path))
